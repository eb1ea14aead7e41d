"""Puts the commits of this process in the order of their sequence numbers.

Transactions commit in that order, but the replies of the database overtake each other, and so do the
coroutines that await them.
"""

import asyncio
from collections.abc import Sequence
from uuid import UUID

from everstep.agent_domain.stream.bus import Chunk, EnvelopeBus, Frame
from everstep.agent_domain.stream.records import StoredEnvelope

MOMENT = 0.005
"""Seconds that an early frame waits. A frame still missing then was written by another process."""

MOST_STREAMS = 10_000
"""The number of streams remembered before those without a subscriber are evicted."""


class InOrder:
    """A bus that reorders frames for another bus: an early frame waits a moment for its predecessors."""

    def __init__(self, bus: EnvelopeBus, moment: float = MOMENT) -> None:
        self._bus = bus
        self._wait_seconds = moment
        self._heads: dict[UUID, int] = {}
        self._early: dict[UUID, list[Frame]] = {}

    def wants(self, stream_id: UUID) -> bool:
        """Whether the stream has a subscriber."""
        return self._bus.wants(stream_id)

    def publish(self, stream_id: UUID, envelopes: Sequence[StoredEnvelope]) -> None:
        """Publish committed envelopes, in order."""
        if len(self._heads) > MOST_STREAMS:
            self._heads = {each: head for each, head in self._heads.items() if self.wants(each)}
        if self._is_early(stream_id, envelopes[0]):
            self._wait(stream_id, *envelopes)
        else:
            self._heads[stream_id] = max(self._heads.get(stream_id, 0), envelopes[-1].seq)
            self._bus.publish(stream_id, envelopes)
            self._go_on(stream_id)

    def chunk(self, stream_id: UUID, chunk: Chunk) -> None:
        """Publish a text chunk after the envelope it follows."""
        if self._is_early(stream_id, chunk):
            self._wait(stream_id, chunk)
        else:
            self._bus.chunk(stream_id, chunk)

    def _is_early(self, stream_id: UUID, frame: Frame) -> bool:
        """Whether a predecessor is missing; never for the first frame of a stream seen here."""
        head = self._heads.get(stream_id)
        before = (frame.after_seq or 0) if isinstance(frame, Chunk) else frame.seq - 1
        return head is not None and before > head

    def _wait(self, stream_id: UUID, *frames: Frame) -> None:
        if stream_id not in self._early:
            self._early[stream_id] = []
            asyncio.get_running_loop().call_later(self._wait_seconds, self._give_up, stream_id)
        self._early[stream_id] += frames

    def _give_up(self, stream_id: UUID) -> None:
        """Pass on the waiting frames; readers detect the hole by the sequence numbers."""
        for frame in sorted(self._early.pop(stream_id, ()), key=_place):
            self._pass(stream_id, frame)

    def _go_on(self, stream_id: UUID) -> None:
        """Pass on the frames that are no longer early."""
        waiting = sorted(self._early.pop(stream_id, ()), key=_place)
        while waiting and not self._is_early(stream_id, waiting[0]):
            self._pass(stream_id, waiting.pop(0))
        if waiting:
            self._wait(stream_id, *waiting)

    def _pass(self, stream_id: UUID, frame: Frame) -> None:
        if isinstance(frame, Chunk):
            self._bus.chunk(stream_id, frame)
        else:
            self._heads[stream_id] = max(self._heads.get(stream_id, 0), frame.seq)
            self._bus.publish(stream_id, [frame])


def _place(frame: Frame) -> tuple[int, bool]:
    """The sort key: a chunk comes after the envelope that it follows and after the chunks before it."""
    return (frame.after_seq or 0, True) if isinstance(frame, Chunk) else (frame.seq, False)
