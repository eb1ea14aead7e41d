"""A bus within one process, for tests and for writers and readers in the same process."""

import asyncio
from collections.abc import AsyncIterator, Generator, Sequence
from contextlib import contextmanager
from uuid import UUID

from everstep.agent_domain.stream.bus import Frame, SendQueue, TextChunk
from everstep.agent_domain.stream.records import StoredEnvelope

MOST_FRAMES = 1000
"""Frames buffered per listener before chunks are dropped."""


class StreamListener:
    """The frames of one stream, as an iterator; it ends when the buffer overflows.

    A consumer that wants to continue starts again from the table.
    """

    def __init__(self, limit: int) -> None:
        self._outbox = SendQueue[Frame](limit)
        self._filled = asyncio.Event()

    def put(self, frame: Frame) -> None:
        """Buffer a frame."""
        self._outbox.put(frame, is_chunk=isinstance(frame, TextChunk))
        self._filled.set()

    @property
    def is_overrun(self) -> bool:
        """Whether the buffer has overflowed."""
        return self._outbox.is_overrun

    def take_frames(self) -> tuple[Frame, ...]:
        """Return and clear the buffered frames."""
        self._filled.clear()
        return self._outbox.take()

    async def __aiter__(self) -> AsyncIterator[Frame]:
        while not self.is_overrun:
            await self._filled.wait()
            if not self.is_overrun:
                for frame in self.take_frames():
                    yield frame


class MemoryBus:
    """Delivers frames to listeners in the same event loop."""

    def __init__(self, limit: int = MOST_FRAMES) -> None:
        self._limit = limit
        self._listeners: dict[UUID, list[StreamListener]] = {}

    @contextmanager
    def open_listener(self, stream_id: UUID) -> Generator[StreamListener]:
        """Receive the frames of a stream while the body runs."""
        listener = StreamListener(self._limit)
        self._listeners.setdefault(stream_id, []).append(listener)
        try:
            yield listener
        finally:
            self._remove(stream_id, listener)

    def _remove(self, stream_id: UUID, listener: StreamListener) -> None:
        remaining = [each for each in self._listeners.get(stream_id, ()) if each is not listener]
        if remaining:
            self._listeners[stream_id] = remaining
        else:
            self._listeners.pop(stream_id, None)

    def has_subscribers(self, stream_id: UUID) -> bool:
        """Whether the stream has a listener."""
        return stream_id in self._listeners

    def publish(self, stream_id: UUID, envelopes: Sequence[StoredEnvelope]) -> None:
        """Deliver committed envelopes to the listeners."""
        for envelope in envelopes:
            self._put(stream_id, envelope)

    def publish_chunk(self, stream_id: UUID, chunk: TextChunk) -> None:
        """Deliver a text chunk to the listeners."""
        self._put(stream_id, chunk)

    def _put(self, stream_id: UUID, frame: Frame) -> None:
        for listener in self._listeners.get(stream_id, ()):
            listener.put(frame)
            if listener.is_overrun:
                self._remove(stream_id, listener)
