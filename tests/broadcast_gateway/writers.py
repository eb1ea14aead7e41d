"""Envelopes and chunks in the form that writers push, and viewers that keep what they receive."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from uuid import UUID

from everstep.agent_domain.loop.status import WireStatus
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.stream import envelopes
from everstep.agent_domain.stream.envelopes import Attempt, Envelope
from everstep.agent_domain.stream.records import EventRecord
from everstep.agent_domain.values import json_text, parse_json
from everstep.broadcast_gateway.frames import RelayedChunk, RelayedEntry, parse_envelope
from everstep.broadcast_gateway.subscriptions import Viewer
from everstep.broadcast_gateway.wires.closing import Closing

SESSION = UUID(int=1)
EXECUTION = UUID(int=2)
OTHER = UUID(int=3)
AT = datetime(2026, 1, 16, 10, 5, tzinfo=UTC)
EPOCH = "of-now"


def envelope(record: EventRecord, execution_id: UUID = EXECUTION) -> Envelope:
    return Envelope.of(record, SESSION, execution_id, AT)


def entry(seq: int, record: EventRecord | None = None, execution_id: UUID = EXECUTION) -> RelayedEntry:
    """A stored envelope, with defaults for the rest."""
    filled = record or envelopes.tool_started_record(f"call_{seq}", "add", {}, step_number=1)
    parsed = parse_envelope(body(envelope(filled, execution_id).numbered(seq)))
    assert isinstance(parsed, RelayedEntry)
    return parsed


def entries(first: int, last: int) -> list[RelayedEntry]:
    return [entry(seq) for seq in range(first, last + 1)]


def step_end(step_number: int) -> EventRecord:
    return envelopes.step_completed_record(
        step_number, has_tool_calls=False, errors=0, finish_reason=None, usage=Usage(), duration_ms=1.0
    )


def attempt_end(step_number: int, attempt: int) -> EventRecord:
    return envelopes.attempt_superseded_record(Attempt(step_number, attempt), attempt + 1)


def execution_end() -> EventRecord:
    return envelopes.status_changed_record(
        WireStatus.COMPLETED, WireStatus.PROCESSING, change=9, step_count=1
    )


def body(envelope: Envelope) -> bytes:
    return json_text(envelope.to_dict()).encode()


def chunk(
    index: int,
    content: str = "text ",
    *,
    step: int = 1,
    attempt: int = 1,
    after: int | None = None,
    execution_id: UUID = EXECUTION,
) -> RelayedChunk:
    """A chunk of text; without text, it closes the attempt."""
    record = envelopes.stream_chunk_record(
        Attempt(step, attempt), index, content, is_complete=not content, after_seq=after
    )
    parsed = parse_envelope(body(envelope(record, execution_id)))
    assert isinstance(parsed, RelayedChunk)
    return parsed


def bodies(data: bytes) -> Iterator[bytes]:
    """The bodies of the text frames in some bytes."""
    while data:
        assert data[0] == 0x81, "the first byte of a text frame"
        size, start = data[1], 2
        if size >= 126:
            start = 4 if size == 126 else 10
            size = int.from_bytes(data[2:start])
        yield data[start : start + size]
        data = data[start + size :]


@dataclass(eq=False)
class Screen:
    """A viewer's connection, whose transport has room for this many writes between two reads."""

    room: int = 1_000_000
    sent: list[bytes] = field(default_factory=list[bytes])
    writes: list[bytes] = field(default_factory=list[bytes])
    now: float = 0.0
    closings: list[Closing] = field(default_factory=list[Closing])

    def __post_init__(self) -> None:
        self.viewer = Viewer(self._write, self.closings.append)

    def _write(self, data: bytes) -> None:
        assert not self.viewer.is_paused, "a transport that asked to pause is left alone"
        self.writes.append(data)
        self.sent += bodies(data)
        if len(self.writes) >= self.room:
            self.viewer.pause(self.now, sum(map(len, self.writes)))

    def seen(self) -> list[Envelope]:
        """Frames sent since the last read."""
        seen = [Envelope.from_dict(parse_json(each.decode())) for each in self.sent]
        self.sent.clear()
        self.writes.clear()
        return seen

    def summaries(self) -> list[str]:
        """The same in short: numbers of stored envelopes, and words of chunks."""
        return [in_short(each) for each in self.seen()]


def in_short(frame: Envelope) -> str:
    if frame.seq is not None:
        return str(frame.seq)
    payload = frame.payload
    place = f"{payload['step_number']}.{payload['attempt']}"
    if "next_index" in payload:
        return f"{place}.0-{payload['next_index']}:{payload['content']}"
    return f"{place}.{payload['chunk_index']}:{payload['content']}"
