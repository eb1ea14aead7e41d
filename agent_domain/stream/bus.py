"""What goes out to viewers as it happens: envelopes once they are stored, and text while it is written.

The table is the truth, and the bus is quick. Whoever reads it finds by the numbers that something is missing,
and reads that in the table; so a writer never waits for the bus, and nothing fails because of it.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, Protocol, TypeAlias, TypeVar
from uuid import UUID

from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.stream.envelopes import Attempt, Envelope, stream_chunk
from everstep.agent_domain.stream.records import StoredEnvelope

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some text of an attempt that is under way; without content, its end."""

    ref: ExecutionRef
    attempt: Attempt
    index: int
    """Its place among the chunks of the attempt, from 0."""
    offset: int
    """How many characters of the attempt come before it."""
    content: str
    after_seq: int | None
    """The stored envelope that it follows."""
    at: datetime

    @property
    def envelope(self) -> Envelope:
        """As viewers are told."""
        record = stream_chunk(
            self.attempt,
            self.index,
            self.content,
            is_complete=not self.content,
            after_seq=self.after_seq,
        )
        return Envelope.of(record, self.ref.session_id, self.ref.execution_id, self.at)


Frame: TypeAlias = StoredEnvelope | Chunk


def envelope_of(frame: Frame) -> Envelope:
    """What viewers are told."""
    return frame.envelope if isinstance(frame, Chunk) else Envelope.placed(frame)


class EnvelopeBus(Protocol):
    """Takes what happens in a stream to those who asked for it: fire and forget.

    No method waits, raises, or keeps more than a bounded queue. What this process writes in a stream comes in
    order; what others write in it comes by other ways, so readers go by `seq`.
    """

    def wants(self, stream_id: UUID) -> bool:
        """Whether somebody asked for this stream: else there is nothing to prepare."""
        ...

    def publish(self, stream_id: UUID, envelopes: Sequence[StoredEnvelope]) -> None:
        """These were committed, with these numbers."""
        ...

    def chunk(self, stream_id: UUID, chunk: Chunk) -> None:
        """This was written, and is stored nowhere."""
        ...


class NullBus:
    """Where nobody listens."""

    def wants(self, stream_id: UUID) -> bool:
        """Nobody does."""
        del stream_id
        return False

    def publish(self, stream_id: UUID, envelopes: Sequence[StoredEnvelope]) -> None:
        """Nobody is told."""

    def chunk(self, stream_id: UUID, chunk: Chunk) -> None:
        """Nobody is told."""


NOBODY = NullBus()


class Outbox(Generic[T]):
    """What waits to be sent to one listener, in order. Chunks give way first, envelopes never."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting = deque[tuple[T, bool]]()
        self._chunks = 0

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def is_overrun(self) -> bool:
        """More envelopes wait than should: whoever sends gives up, and the listener reads the table."""
        return len(self._waiting) - self._chunks > self._limit

    def put(self, frame: T, *, is_chunk: bool) -> None:
        """One more. Of an attempt with a hole nothing is any good, so all chunks go at once."""
        is_full = len(self._waiting) >= self._limit
        if is_full and is_chunk:
            return
        if is_full and self._chunks:
            self._waiting = deque(each for each in self._waiting if not each[1])
            self._chunks = 0
        self._waiting.append((frame, is_chunk))
        self._chunks += is_chunk

    def take(self) -> tuple[T, ...]:
        """All that waits."""
        taken = tuple(frame for frame, _ in self._waiting)
        self._waiting.clear()
        self._chunks = 0
        return taken
