"""The bus of one process: for tests, and where writers and readers are together."""

import asyncio
from collections.abc import AsyncIterator, Generator, Sequence
from contextlib import contextmanager
from uuid import UUID

from everstep.agent_domain.stream.bus import Chunk, Frame, Outbox
from everstep.agent_domain.stream.records import StoredEnvelope

MOST_FRAMES = 1000
"""As many wait for one listener before chunks are dropped."""


class Listener:
    """What happens in one stream, as an iterator; it ends when too much waits to be read.

    Whoever still wants to know begins anew, with what the table has.
    """

    def __init__(self, limit: int) -> None:
        self._outbox = Outbox[Frame](limit)
        self._filled = asyncio.Event()

    def put(self, frame: Frame) -> None:
        """Something happened."""
        self._outbox.put(frame, is_chunk=isinstance(frame, Chunk))
        self._filled.set()

    @property
    def is_overrun(self) -> bool:
        """Whether it is too late for this one."""
        return self._outbox.is_overrun

    def waiting(self) -> tuple[Frame, ...]:
        """What came since somebody looked."""
        self._filled.clear()
        return self._outbox.take()

    async def __aiter__(self) -> AsyncIterator[Frame]:
        while not self.is_overrun:
            await self._filled.wait()
            if not self.is_overrun:
                for frame in self.waiting():
                    yield frame


class MemoryBus:
    """Takes frames to listeners in the same event loop."""

    def __init__(self, limit: int = MOST_FRAMES) -> None:
        self._limit = limit
        self._listeners: dict[UUID, list[Listener]] = {}

    @contextmanager
    def listening(self, stream_id: UUID) -> Generator[Listener]:
        """Hear of this stream while the body runs."""
        listener = Listener(self._limit)
        self._listeners.setdefault(stream_id, []).append(listener)
        try:
            yield listener
        finally:
            self._leave(stream_id, listener)

    def _leave(self, stream_id: UUID, listener: Listener) -> None:
        left = [each for each in self._listeners.get(stream_id, ()) if each is not listener]
        if left:
            self._listeners[stream_id] = left
        else:
            self._listeners.pop(stream_id, None)

    def wants(self, stream_id: UUID) -> bool:
        """Whether somebody listens to this stream."""
        return stream_id in self._listeners

    def publish(self, stream_id: UUID, envelopes: Sequence[StoredEnvelope]) -> None:
        """Take what was committed to those who listen."""
        for envelope in envelopes:
            self._put(stream_id, envelope)

    def chunk(self, stream_id: UUID, chunk: Chunk) -> None:
        """Take what was written to those who listen."""
        self._put(stream_id, chunk)

    def _put(self, stream_id: UUID, frame: Frame) -> None:
        for listener in self._listeners.get(stream_id, ()):
            listener.put(frame)
            if listener.is_overrun:
                self._leave(stream_id, listener)
