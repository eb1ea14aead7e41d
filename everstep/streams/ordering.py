"""Puts what this process committed in the order of its numbers.

Transactions commit in that order, but the server's answers overtake each other, and so do the coroutines that
wait for them.
"""

import asyncio
from collections.abc import Sequence
from uuid import UUID

from everstep.agent_domain.stream.bus import Chunk, EnvelopeBus, Frame
from everstep.agent_domain.stream.records import StoredEnvelope

MOMENT = 0.005
"""Seconds that something early waits. What is missing then was written by another process."""

MOST_STREAMS = 10_000
"""So many are remembered before those are forgotten that nobody asks for any more."""


class InOrder:
    """A bus in front of another one: what is early waits a moment for what comes before it."""

    def __init__(self, bus: EnvelopeBus, moment: float = MOMENT) -> None:
        self._bus = bus
        self._moment = moment
        self._heads: dict[UUID, int] = {}
        self._early: dict[UUID, list[Frame]] = {}

    def wants(self, stream_id: UUID) -> bool:
        """Whether somebody asked for this stream."""
        return self._bus.wants(stream_id)

    def publish(self, stream_id: UUID, envelopes: Sequence[StoredEnvelope]) -> None:
        """These were committed."""
        if len(self._heads) > MOST_STREAMS:
            self._heads = {each: head for each, head in self._heads.items() if self.wants(each)}
        if self._is_early(stream_id, envelopes[0]):
            self._wait(stream_id, *envelopes)
        else:
            self._heads[stream_id] = max(self._heads.get(stream_id, 0), envelopes[-1].seq)
            self._bus.publish(stream_id, envelopes)
            self._go_on(stream_id)

    def chunk(self, stream_id: UUID, chunk: Chunk) -> None:
        """This was written."""
        if self._is_early(stream_id, chunk):
            self._wait(stream_id, chunk)
        else:
            self._bus.chunk(stream_id, chunk)

    def _is_early(self, stream_id: UUID, frame: Frame) -> bool:
        """Whether something is missing before it; of a stream that is new here nothing is."""
        head = self._heads.get(stream_id)
        before = (frame.after_seq or 0) if isinstance(frame, Chunk) else frame.seq - 1
        return head is not None and before > head

    def _wait(self, stream_id: UUID, *frames: Frame) -> None:
        if stream_id not in self._early:
            self._early[stream_id] = []
            asyncio.get_running_loop().call_later(self._moment, self._give_up, stream_id)
        self._early[stream_id] += frames

    def _give_up(self, stream_id: UUID) -> None:
        """It does not come: whoever reads finds the hole by the numbers."""
        for frame in sorted(self._early.pop(stream_id, ()), key=_place):
            self._pass(stream_id, frame)

    def _go_on(self, stream_id: UUID) -> None:
        """Whatever is not early any more."""
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
    """Where it belongs: a chunk behind the envelope that it follows, and behind the chunks before it."""
    return (frame.after_seq or 0, True) if isinstance(frame, Chunk) else (frame.seq, False)
