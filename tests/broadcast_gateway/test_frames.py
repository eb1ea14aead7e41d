"""Frames from writers, as far as the gateway parses them."""

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given, strategies as st

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.stream.envelopes import EnvelopeType
from everstep.agent_domain.stream.reader import AFTER_ALL_ATTEMPTS, Place
from everstep.agent_domain.stream.records import StoredEnvelope
from everstep.broadcast_gateway.frames import (
    RelayedChunk,
    RelayedEntry,
    RelayedEnvelope,
    entry_from,
    parse_envelope,
)
from tests.broadcast_gateway.writers import (
    AT,
    EXECUTION,
    SESSION,
    attempt_end,
    body,
    chunk,
    entry,
    envelope,
    execution_end,
    step_end,
)


class Counting:
    """A wire that counts how often it frames."""

    def __init__(self) -> None:
        self.framed = 0

    def encode(self, envelope: RelayedEnvelope) -> bytes:
        self.framed += 1
        return envelope.kind.encode() + b" " + envelope.body


def test_a_stored_envelope_is_relayed_as_it_was_written() -> None:
    stored = envelope(step_end(3)).numbered(7)
    row = StoredEnvelope(SESSION, 7, stored.id, stored.type, EXECUTION, stored.payload, AT)
    for parsed in (parse_envelope(body(stored)), entry_from(row)):
        assert isinstance(parsed, RelayedEntry)
        assert parsed.body == body(stored)
        assert (parsed.seq, parsed.kind, parsed.execution_id) == (7, "agent.step.completed", str(EXECUTION))


@pytest.mark.parametrize(
    ("envelope", "fence"),
    [
        (entry(1), None),
        (entry(1, step_end(3)), (4, 0)),
        (entry(1, attempt_end(3, 1)), (3, 2)),
        (entry(1, execution_end()), AFTER_ALL_ATTEMPTS),
    ],
)
def test_an_envelope_may_end_a_draft(envelope: RelayedEntry, fence: object) -> None:
    """7.8.4"""
    assert envelope.fence == fence


def test_a_chunk_names_its_place() -> None:
    """7.2"""
    parsed = chunk(4, "word", step=2, attempt=3, after=9)
    assert (parsed.at, parsed.content, parsed.after_seq, parsed.is_complete) == (
        Place(2, 3, 4),
        "word",
        9,
        False,
    )
    assert (parsed.kind, parsed.timestamp, parsed.execution_id) == (
        EnvelopeType.AGENT_STREAM_CHUNK,
        AT,
        str(EXECUTION),
    )
    assert chunk(5, "").is_complete


def test_a_frame_is_built_once_for_a_wire() -> None:
    one, other, envelope = Counting(), Counting(), entry(1)
    assert envelope.frame(one) is envelope.frame(one)
    assert envelope.frame(other) == b"agent.tool.started " + envelope.body
    assert (one.framed, other.framed) == (1, 1)


GOOD = json.loads(body(envelope(step_end(1)).numbered(1)))
STREAMED = json.loads(chunk(0).body)


CHANGED: list[dict[str, Any]] = [
    {"seq": 0},
    {"seq": True},
    {"seq": "1"},
    {"type": 7},
    {"execution_id": "x"},
    {"execution_id": 7},
    {"payload": {}},
    {"payload": None},
    {"payload": {"step_number": "1"}},
]
CHANGED_CHUNKS: list[dict[str, Any]] = [
    {"type": "agent.stream.snapshot"},
    {"timestamp": "soon"},
    {"execution_id": None},
    {"payload": STREAMED["payload"] | {"after_seq": -1}},
    {"payload": STREAMED["payload"] | {"after_seq": "1"}},
    {"payload": STREAMED["payload"] | {"attempt": 0}},
    {"payload": STREAMED["payload"] | {"content": "\ud800"}},
]


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"[]",
        b"7",
        b"\xff",
        b'{"seq":' + b"9" * 5000 + b"}",
        b"[" * 100_000,
        json.dumps(GOOD).encode("utf-16"),
        *(json.dumps(GOOD | changed).encode() for changed in CHANGED),
        *(json.dumps(STREAMED | changed).encode() for changed in CHANGED_CHUNKS),
    ],
)
def test_a_frame_without_an_envelope_is_refused(bad: bytes) -> None:
    with pytest.raises(InvalidInput, match="the envelope cannot be read"):
        parse_envelope(bad)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(
    st.binary() | st.dictionaries(st.sampled_from(list(GOOD)), ANYTHING).map(lambda d: json.dumps(d).encode())
)
@example(b'{"seq":1e400}')
def test_any_frame_is_parsed_or_refused(data: bytes) -> None:
    with suppress(InvalidInput):
        assert isinstance(parse_envelope(data), RelayedEntry | RelayedChunk)


@given(
    st.sampled_from([GOOD, STREAMED]),
    st.sampled_from(list(STREAMED["payload"])),
    ANYTHING,
)
def test_any_payload_is_parsed_or_refused(good: dict[str, Any], name: str, value: object) -> None:
    data = good | {"payload": good["payload"] | {name: value}}
    with suppress(InvalidInput):
        parse_envelope(json.dumps(data).encode())
