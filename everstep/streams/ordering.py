"""Puts the commits of this process in the order of their sequence numbers.

Transactions commit in that order, but the replies of the database overtake each other, and so do the
coroutines that await them.
"""

import asyncio
from collections.abc import Sequence
from uuid import UUID

from everstep.agent_domain.stream.bus import EnvelopeBus, Frame, TextChunk
from everstep.agent_domain.stream.records import StoredEnvelope

WAIT_SECONDS = 0.005
"""Seconds that an early frame waits. A frame still missing then was written by another process."""

MAX_STREAMS = 10_000
"""The number of streams remembered before those without a subscriber are evicted."""


class OrderedBus:
    """A bus that reorders frames for another bus: an early frame waits a moment for its predecessors."""

    def __init__(self, bus: EnvelopeBus, wait_seconds: float = WAIT_SECONDS) -> None:
        self._bus = bus
        self._wait_seconds = wait_seconds
        self._heads: dict[UUID, int] = {}
        self._early: dict[UUID, list[Frame]] = {}

    def has_subscribers(self, stream_id: UUID) -> bool:
        """Whether the stream has a subscriber."""
        return self._bus.has_subscribers(stream_id)

    def publish(self, stream_id: UUID, envelopes: Sequence[StoredEnvelope]) -> None:
        """Publish committed envelopes, in order."""
        if len(self._heads) > MAX_STREAMS:
            self._heads = {each: head for each, head in self._heads.items() if self.has_subscribers(each)}
        if self._is_early(stream_id, envelopes[0]):
            self._hold(stream_id, *envelopes)
        else:
            self._heads[stream_id] = max(self._heads.get(stream_id, 0), envelopes[-1].seq)
            self._bus.publish(stream_id, envelopes)
            self._release_ready(stream_id)

    def publish_chunk(self, stream_id: UUID, chunk: TextChunk) -> None:
        """Publish a text chunk after the envelope it follows."""
        if self._is_early(stream_id, chunk):
            self._hold(stream_id, chunk)
        else:
            self._bus.publish_chunk(stream_id, chunk)

    def _is_early(self, stream_id: UUID, frame: Frame) -> bool:
        """Whether a predecessor is missing; never for the first frame of a stream seen here."""
        head = self._heads.get(stream_id)
        before = (frame.after_seq or 0) if isinstance(frame, TextChunk) else frame.seq - 1
        return head is not None and before > head

    def _hold(self, stream_id: UUID, *frames: Frame) -> None:
        if stream_id not in self._early:
            self._early[stream_id] = []
            asyncio.get_running_loop().call_later(self._wait_seconds, self._release_all, stream_id)
        self._early[stream_id] += frames

    def _release_all(self, stream_id: UUID) -> None:
        """Pass on the waiting frames; readers detect the hole by the sequence numbers."""
        for frame in sorted(self._early.pop(stream_id, ()), key=_order_key):
            self._forward(stream_id, frame)

    def _release_ready(self, stream_id: UUID) -> None:
        """Pass on the frames that are no longer early."""
        waiting = sorted(self._early.pop(stream_id, ()), key=_order_key)
        while waiting and not self._is_early(stream_id, waiting[0]):
            self._forward(stream_id, waiting.pop(0))
        if waiting:
            self._hold(stream_id, *waiting)

    def _forward(self, stream_id: UUID, frame: Frame) -> None:
        if isinstance(frame, TextChunk):
            self._bus.publish_chunk(stream_id, frame)
        else:
            self._heads[stream_id] = max(self._heads.get(stream_id, 0), frame.seq)
            self._bus.publish(stream_id, [frame])


def _order_key(frame: Frame) -> tuple[int, bool]:
    """The sort key: a chunk comes after the envelope that it follows and after the chunks before it."""
    return (frame.after_seq or 0, True) if isinstance(frame, TextChunk) else (frame.seq, False)
