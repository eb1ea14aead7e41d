"""The envelope bus: it delivers envelopes once they are stored, and text while the model writes it.

The table is authoritative, and the bus is fast. A reader detects gaps by the numbers of the envelopes and
reads the missing ones from the table. So a writer never waits for the bus, and a failure of the bus does no
harm.

A bus sends `encode_frame(frame)`: its bytes contain the payload as the store encoded it.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Generic, Protocol, TypeAlias, TypeVar
from uuid import UUID

from everstep.agent_domain.ids import ExecutionRef, envelope_id
from everstep.agent_domain.stream.envelope_types import EnvelopeType
from everstep.agent_domain.stream.envelopes import Attempt, Envelope, stream_chunk_record
from everstep.agent_domain.stream.records import StoredEnvelope
from everstep.agent_domain.values import json_text, valid_text

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TextChunk:
    """A piece of text of a running attempt; an empty chunk marks the end."""

    ref: ExecutionRef
    attempt: Attempt
    index: int
    """The position among the chunks of the attempt, from 0."""
    offset: int
    """The number of characters of the attempt before this chunk."""
    content: str
    after_seq: int | None
    """The stored envelope that it follows."""
    at: datetime

    @property
    def envelope(self) -> Envelope:
        """The chunk as an envelope."""
        record = stream_chunk_record(
            self.attempt,
            self.index,
            self.content,
            is_complete=not self.content,
            after_seq=self.after_seq,
        )
        return Envelope.of(record, self.ref.session_id, self.ref.execution_id, self.at)


Frame: TypeAlias = StoredEnvelope | TextChunk


def encode_frame(frame: Frame) -> bytes:
    """The envelope as viewers receive it, in JSON; the payload of a stored one is not encoded again."""
    if isinstance(frame, TextChunk):
        return _encode_chunk(frame)
    return Envelope.placed(frame).to_json(frame.payload_json)


def _encode_chunk(chunk: TextChunk) -> bytes:
    """`chunk.envelope.to_json()` in a tenth of the time: a worker sends thousands of chunks in a second.

    Everything but the content is a number or an id, and the first part is the same for a whole execution.
    """
    ref, attempt, after_seq = chunk.ref, chunk.attempt, chunk.after_seq
    content = json_text(valid_text(chunk.content, "content"))
    timestamp = chunk.at.astimezone(UTC).isoformat(timespec="milliseconds")
    identity = envelope_id(ref.execution_id, f"{attempt.key}/chunk/{chunk.index}")
    return (
        f'{_chunk_start(ref)}{timestamp[:-6]}Z","payload":{{"content":{content},'
        f'"is_complete":{"false" if chunk.content else "true"},"chunk_index":{chunk.index},'
        f'"step_number":{attempt.step_number},"attempt":{attempt.number},'
        f'"after_seq":{"null" if after_seq is None else after_seq}}},"id":"{identity}","seq":null}}'
    ).encode()


@lru_cache(maxsize=10_000)
def _chunk_start(ref: ExecutionRef) -> str:
    session_id = "null" if ref.session_id is None else f'"{ref.session_id}"'
    return (
        f'{{"type":"{EnvelopeType.AGENT_STREAM_CHUNK}","session_id":{session_id},'
        f'"execution_id":"{ref.execution_id}","timestamp":"'
    )


class EnvelopeBus(Protocol):
    """Delivers the events of a stream to its subscribers, without confirmation.

    No method blocks, raises, or buffers more than a bounded queue. Events that this process publishes in a
    stream arrive in order. Those of other processes arrive by other paths, so readers order by `seq`.
    """

    def has_subscribers(self, stream_id: UUID) -> bool:
        """Whether the stream has subscribers; otherwise the caller can skip preparing events."""
        ...

    def publish(self, stream_id: UUID, envelopes: Sequence[StoredEnvelope]) -> None:
        """Publish envelopes that were committed with their numbers."""
        ...

    def publish_chunk(self, stream_id: UUID, chunk: TextChunk) -> None:
        """Publish text that is not stored."""
        ...


class NullBus:
    """A bus without subscribers."""

    def has_subscribers(self, stream_id: UUID) -> bool:
        """Return False."""
        del stream_id
        return False

    def publish(self, stream_id: UUID, envelopes: Sequence[StoredEnvelope]) -> None:
        """Do nothing."""

    def publish_chunk(self, stream_id: UUID, chunk: TextChunk) -> None:
        """Do nothing."""


NULL_BUS = NullBus()


class SendQueue(Generic[T]):
    """The send queue of one subscriber. When it is full, chunks are dropped, envelopes never."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting = deque[tuple[T, bool]]()
        self._chunks = 0

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def is_overrun(self) -> bool:
        """Whether too many envelopes wait: the sender gives up, and the subscriber reads the table."""
        return len(self._waiting) - self._chunks > self._limit

    def put(self, frame: T, *, is_chunk: bool) -> None:
        """Add a frame; a full queue drops all chunks at once, as an attempt with a gap is useless."""
        is_full = len(self._waiting) >= self._limit
        if is_full and is_chunk:
            return
        if is_full and self._chunks:
            self._waiting = deque(each for each in self._waiting if not each[1])
            self._chunks = 0
        self._waiting.append((frame, is_chunk))
        self._chunks += is_chunk

    def take(self) -> tuple[T, ...]:
        """Remove and return all frames."""
        frames = tuple(frame for frame, _ in self._waiting)
        self._waiting.clear()
        self._chunks = 0
        return frames
