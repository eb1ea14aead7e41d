"""Payloads of envelopes, type by type."""

import json
from dataclasses import FrozenInstanceError
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, strategies as st

from everstep.agent_domain.capabilities.approvals import ApprovalDecision
from everstep.agent_domain.capabilities.questions import Question
from everstep.agent_domain.capabilities.rights import Decider, DecisionPolicy
from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.ids import envelope_id
from everstep.agent_domain.loop.continuation import (
    ContinuationDecision,
    ContinuationEvaluation,
    ContinuationOutcome,
)
from everstep.agent_domain.loop.status import StopReason, WireStatus
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.stream import envelopes
from everstep.agent_domain.stream.envelopes import Attempt, Envelope, EnvelopeType, InputSource, channel_name
from everstep.agent_domain.stream.records import EventRecord
from everstep.agent_domain.values import FrozenDict, frozen_map

SESSION, EXECUTION, REQUEST, MESSAGE = (UUID(int=number) for number in range(1, 5))
AT = datetime(2026, 1, 16, 10, 5, 0, 123456, tzinfo=UTC)
USAGE = Usage(input=100, output=40, cache_read=30, reasoning=10)
STOPPED = ContinuationOutcome(
    ContinuationDecision.STOP,
    False,
    "ToolCallPresenceCheck",
    StopReason.COMPLETED,
    (
        ContinuationEvaluation(
            "agent_domain.criteria.StepsLimit",
            ContinuationDecision.ALLOW,
            "fine",
            frozen_map({"secret": 1}),
        ),
        ContinuationEvaluation("ToolCallPresenceCheck", ContinuationDecision.STOP, "nothing left"),
    ),
)
VERDICT = {"should_continue": False, "stop_reason": "completed", "resolved_by": "ToolCallPresenceCheck"}
QUESTION = Question("Which one?", ("red", "blue"))
FORM = Question("Your name?", (), frozen_map({"type": "object"}))
# SHA-256 of {"args":{"path":"notes.txt"},"tool":"rm"}
DIGEST = "d5cb274f8d92f182682bbfc45c22de06372fcb4eb1ff639af1bf49c069b457b0"


def an_envelope(kind: str = EnvelopeType.AGENT_STEP_STARTED, **fields: Any) -> Envelope:
    """An envelope of an arbitrary execution, with some fields given."""
    given: dict[str, Any] = {
        "type": kind,
        "session_id": SESSION,
        "execution_id": EXECUTION,
        "timestamp": AT,
        "payload": FrozenDict(step_number=1),
        "id": UUID(int=9),
    }
    return Envelope(**(given | fields))


# Envelopes.


def test_an_envelope_is_written_with_seven_keys() -> None:
    """7.1.1, 0.5: three digits of a second, the others dropped."""
    assert an_envelope(seq=7).to_dict() == {
        "type": "agent.step.started",
        "session_id": str(SESSION),
        "execution_id": str(EXECUTION),
        "timestamp": "2026-01-16T10:05:00.123Z",
        "payload": {"step_number": 1},
        "id": str(UUID(int=9)),
        "seq": 7,
    }
    assert list(an_envelope().to_dict()) == [
        "type",
        "session_id",
        "execution_id",
        "timestamp",
        "payload",
        "id",
        "seq",
    ]


@pytest.mark.parametrize(
    ("at", "written"),
    [
        (datetime(2026, 1, 16, 10, 5, tzinfo=UTC), "2026-01-16T10:05:00.000Z"),
        (datetime(2026, 1, 16, 10, 5, 0, 999999, tzinfo=UTC), "2026-01-16T10:05:00.999Z"),
        (datetime(2026, 1, 16, 10, 5, 0, 1999, tzinfo=UTC), "2026-01-16T10:05:00.001Z"),
        (datetime(2026, 1, 16, 1, 0, tzinfo=timezone(timedelta(hours=2))), "2026-01-15T23:00:00.000Z"),
    ],
)
def test_a_timestamp_has_exactly_three_digits_of_a_second(at: datetime, written: str) -> None:
    """7.1.1, 0.5."""
    envelope = an_envelope(timestamp=at)
    assert envelope.to_dict()["timestamp"] == written
    assert envelope.timestamp.isoformat(timespec="milliseconds") == written.replace("Z", "+00:00")


def test_an_announcement_keeps_the_time_of_its_message() -> None:
    """0.5, 7.7.1: to the microsecond, through every wire that carries its written form."""
    at = datetime(2026, 1, 16, 10, 5, 0, 123456, tzinfo=UTC)
    announced = an_envelope(type="execution.queued", timestamp=at)

    assert announced.to_dict()["timestamp"] == "2026-01-16T10:05:00.123456Z"
    assert Envelope.from_dict(announced.to_dict()).timestamp == at


def test_a_time_without_a_zone_is_refused() -> None:
    """7.1.1, 0.5: times are UTC."""
    with pytest.raises(InvalidInput, match="no time zone"):
        an_envelope(timestamp=AT.replace(tzinfo=None))


def test_an_execution_without_a_session_is_its_own_stream() -> None:
    """7.1.1."""
    envelope = an_envelope(session_id=None)
    assert envelope.to_dict()["session_id"] is None
    assert envelope.channel == channel_name(None, EXECUTION) == f"agent.execution.{EXECUTION}"


def test_an_envelope_is_sent_to_the_channel_of_its_session() -> None:
    """7.1.2: transports add `private-`, not this code."""
    assert an_envelope().channel == channel_name(SESSION, EXECUTION) == f"agent.{SESSION}"


def test_an_envelope_has_no_number_until_it_is_stored() -> None:
    """7.1.1."""
    envelope = an_envelope()
    assert envelope.seq is None
    assert envelope.numbered(1) == an_envelope(seq=1)
    assert envelope.seq is None


@pytest.mark.parametrize("seq", [0, -1, 1.0, True, "1"])
def test_numbers_are_whole_and_begin_with_one(seq: Any) -> None:
    """7.1.1."""
    with pytest.raises(InvalidInput, match="seq"):
        an_envelope(seq=seq)


@pytest.mark.parametrize("kind", EnvelopeType)
def test_only_streamed_envelopes_are_never_stored(kind: EnvelopeType) -> None:
    """7.1.1, 7.2: `seq` is null on a chunk; a snapshot is sent to one reader."""
    envelope = an_envelope(kind)
    assert envelope.is_ephemeral == (kind in {"agent.stream.chunk", "agent.stream.snapshot"})
    if envelope.is_ephemeral:
        with pytest.raises(InvalidInput, match="never stored"):
            envelope.numbered(1)
    else:
        assert envelope.numbered(1).seq == 1


@pytest.mark.parametrize("fields", [{}, {"seq": 3}, {"session_id": None}, {"kind": "agent.of.tomorrow"}])
def test_a_written_envelope_reads_back_unchanged(fields: dict[str, Any]) -> None:
    """7.1.1, 0.6: unknown types as well."""
    envelope = an_envelope(**fields)
    assert Envelope.from_dict(json.loads(json.dumps(envelope.to_dict()))) == envelope


def test_a_reader_ignores_unknown_fields() -> None:
    """7.1.1, 0.6."""
    written = an_envelope().to_dict()
    assert Envelope.from_dict(written | {"colour": "red"}) == an_envelope()
    del written["seq"]
    assert Envelope.from_dict(written) == an_envelope()


@pytest.mark.parametrize(
    "wrong",
    [
        {"id": "seven"},
        {"id": 7},
        {"execution_id": None},
        {"session_id": ""},
        {"session_id": 7},
        {"timestamp": "now"},
        {"payload": "text"},
        {"type": 3},
        {"seq": 0},
    ],
)
def test_an_invalid_envelope_is_refused(wrong: dict[str, Any]) -> None:
    """7.1.1."""
    with pytest.raises(InvalidInput, match="the envelope cannot be read"):
        Envelope.from_dict(an_envelope().to_dict() | wrong)


def test_an_envelope_with_custom_ids_is_read_back() -> None:
    """7.1.1: `from_dict` reads the adapter's output."""
    written = an_envelope().to_dict() | {"session_id": "chat-7", "execution_id": "run-1"}
    assert Envelope.from_dict(written).to_dict() == written


def test_an_envelope_cannot_be_changed() -> None:
    """7.1.1, 0.8."""
    envelope = an_envelope(payload={"tools": ["a"]})
    with pytest.raises(FrozenInstanceError):
        envelope.seq = 1  # type: ignore[misc]  # what the test is about
    with pytest.raises(TypeError):
        envelope.payload["tools"].append("b")


def test_the_same_event_has_the_same_id_for_every_writer_at_any_time() -> None:
    """7.1.1: so that a second write finds the first."""
    record = envelopes.step_started_record(3, 1, ())
    first, second = (Envelope.of(record, SESSION, EXECUTION, AT + timedelta(hours=h)) for h in (0, 1))
    assert first.id == second.id == envelope_id(EXECUTION, "step/3/started")
    assert Envelope.of(record, SESSION, UUID(int=8), AT).id != first.id


def test_sealing_adds_source_and_time() -> None:
    """7.1.1."""
    record = EventRecord("step/1/started", "agent.step.started", {"step_number": 1})
    envelope = Envelope.of(record, None, EXECUTION, AT)
    assert envelope == an_envelope(
        session_id=None, id=envelope_id(EXECUTION, "step/1/started"), payload={"step_number": 1}
    )


# Payloads.

STATUS = envelopes.status_changed_record(WireStatus.PROCESSING, WireStatus.IDLE, change=1, step_count=0)
STEP_STARTED = envelopes.step_started_record(2, 5, ("bash", "read"))
STEP: dict[str, Any] = {
    "has_tool_calls": True,
    "errors": 1,
    "finish_reason": "tool_calls",
    "usage": USAGE,
    "duration_ms": 12.5,
}
TOOL_STARTED = envelopes.tool_started_record("c1", "bash", {"command": "ls"}, step_number=2)
APPROVAL = ApprovalDecision.parse({"decision": "deny", "args_digest": DIGEST, "reason": "too risky"})
BEN = Decider("ben", datetime(2026, 1, 16, 10, 5, tzinfo=UTC), ("approve",))
BY_BEN = {"subject": "ben", "scopes": ["approve"], "at": "2026-01-16T10:05:00.000000Z"}

PAYLOADS: list[tuple[EventRecord, str, str, dict[str, Any]]] = [
    (
        STATUS,
        "agent.status",
        "status/1",
        {
            "status": "processing",
            "previous_status": "idle",
            "step_count": 0,
            "error_message": None,
            "last_response": None,
        },
    ),
    (
        envelopes.status_changed_record(
            WireStatus.FAILED,
            WireStatus.PROCESSING,
            change="end",
            step_count=3,
            error_message="broken",
            last_response="Hm",
            assistant_name="Ada",
            output=frozen_map({"response": "Hm", "stop_reason": "error"}),
        ),
        "agent.status",
        "status/end",
        {
            "status": "failed",
            "previous_status": "processing",
            "step_count": 3,
            "error_message": "broken",
            "last_response": "Hm",
            "assistant_name": "Ada",
            "output": {"response": "Hm", "stop_reason": "error"},
        },
    ),
    (
        STEP_STARTED,
        "agent.step.started",
        "step/2/started",
        {
            "step_number": 2,
            "message_count": 5,
            "available_tools": ["bash", "read"],
            "available_tools_count": 2,
        },
    ),
    (
        envelopes.step_completed_record(2, **STEP),
        "agent.step.completed",
        "step/2/completed",
        {
            "step_number": 2,
            "has_tool_calls": True,
            "errors": 1,
            "finish_reason": "tool_calls",
            "usage": {"prompt": 100, "completion": 50, "total": 180, "cached": 30, "reasoning": 10},
            "duration_ms": 12.5,
        },
    ),
    (
        TOOL_STARTED,
        "agent.tool.started",
        "step/2/tool/c1/started",
        {"tool_name": "bash", "tool_call_id": "c1", "args_summary": "command: 'ls'"},
    ),
    (
        envelopes.tool_started_record(
            "c1", "bash", {"command": "ls -la", "deep": ["ls -la"]}, step_number=2, max_arg_length=2
        ),
        "agent.tool.started",
        "step/2/tool/c1/started",
        {
            "tool_name": "bash",
            "tool_call_id": "c1",
            "args_summary": "command: 'ls -la', deep: [\"ls -la\"]",
            "args": {"command": "ls...", "deep": ["ls -la"]},
        },
    ),
    (
        envelopes.tool_completed_record(
            "c1", "bash", step_number=2, success=True, error=None, duration_ms=3, result={"a": 1}
        ),
        "agent.tool.completed",
        "step/2/tool/c1/completed",
        {
            "tool_name": "bash",
            "tool_call_id": "c1",
            "success": True,
            "error": None,
            "duration_ms": 3.0,
            "result_summary": '{"a":1}',
        },
    ),
    (
        envelopes.tool_completed_record(
            "c1", "bash", step_number=2, success=False, error="broken", duration_ms=3.5, result=None
        ),
        "agent.tool.completed",
        "step/2/tool/c1/completed",
        {
            "tool_name": "bash",
            "tool_call_id": "c1",
            "success": False,
            "error": "broken",
            "duration_ms": 3.5,
            "result_summary": None,
        },
    ),
    (
        envelopes.stream_chunk_record(Attempt(2, 3), 4, "Hel", after_seq=17),
        "agent.stream.chunk",
        "step/2/attempt/3/chunk/4",
        {
            "content": "Hel",
            "is_complete": False,
            "chunk_index": 4,
            "step_number": 2,
            "attempt": 3,
            "after_seq": 17,
        },
    ),
    (
        envelopes.stream_chunk_record(Attempt(2), 5, "", is_complete=True),
        "agent.stream.chunk",
        "step/2/attempt/1/chunk/5",
        {
            "content": "",
            "is_complete": True,
            "chunk_index": 5,
            "step_number": 2,
            "attempt": 1,
            "after_seq": None,
        },
    ),
    (
        envelopes.stream_snapshot_record(Attempt(2, 3), 5, "Hello", 17),
        "agent.stream.snapshot",
        "step/2/attempt/3/snapshot/5",
        {"content": "Hello", "next_index": 5, "step_number": 2, "attempt": 3, "after_seq": 17},
    ),
    (
        envelopes.continuation_record(2, STOPPED, "completed: it is done"),
        "agent.continuation",
        "step/2/continuation",
        {
            "step_number": 2,
            **VERDICT,
            "because": "completed: it is done",
            "evaluations": [
                {"criterion": "StepsLimit", "decision": "allow", "reason": "fine"},
                {"criterion": "ToolCallPresenceCheck", "decision": "stop", "reason": "nothing left"},
            ],
        },
    ),
    (
        envelopes.input_requested_record(REQUEST, "c1", 2, QUESTION, AT),
        "agent.input.requested",
        f"request/{REQUEST}/requested",
        {
            "request_id": str(REQUEST),
            "tool_call_id": "c1",
            "step_number": 2,
            "prompt": "Which one?",
            "choices": ["red", "blue"],
            "schema": None,
            "expires_at": "2026-01-16T10:05:00.123Z",
        },
    ),
    (
        envelopes.input_requested_record(REQUEST, "c1", 2, FORM, None),
        "agent.input.requested",
        f"request/{REQUEST}/requested",
        {
            "request_id": str(REQUEST),
            "tool_call_id": "c1",
            "step_number": 2,
            "prompt": "Your name?",
            "choices": [],
            "schema": {"type": "object"},
            "expires_at": None,
        },
    ),
    (
        envelopes.input_received_record(REQUEST, "c1", 2, InputSource.USER, MESSAGE, by=BEN),
        "agent.input.received",
        f"request/{REQUEST}/received",
        {
            "request_id": str(REQUEST),
            "tool_call_id": "c1",
            "step_number": 2,
            "source": "user",
            "message_id": str(MESSAGE),
            "decided_by": BY_BEN,
        },
    ),
    (
        envelopes.input_received_record(REQUEST, "c1", 2, InputSource.DEFAULT, None),
        "agent.input.received",
        f"request/{REQUEST}/received",
        {
            "request_id": str(REQUEST),
            "tool_call_id": "c1",
            "step_number": 2,
            "source": "default",
            "message_id": None,
        },
    ),
    (
        envelopes.approval_requested_record(
            REQUEST, "c1", 2, "rm", {"path": "notes.txt"}, policy=DecisionPolicy(four_eyes=True)
        ),
        "agent.approval.requested",
        f"request/{REQUEST}/requested",
        {
            "request_id": str(REQUEST),
            "tool_call_id": "c1",
            "tool_name": "rm",
            "step_number": 2,
            "args": {"path": "notes.txt"},
            "args_digest": DIGEST,
            "approver": ["scope:approve"],
            "four_eyes": True,
            "expires_at": None,
        },
    ),
    (
        envelopes.approval_resolved_record(REQUEST, "c1", APPROVAL, by=BEN),
        "agent.approval.resolved",
        f"request/{REQUEST}/resolved",
        {
            "request_id": str(REQUEST),
            "tool_call_id": "c1",
            "decision": "deny",
            "reason": "too risky",
            "args_digest": DIGEST,
            "decided_by": BY_BEN,
        },
    ),
    (
        envelopes.attempt_superseded_record(Attempt(2, 3), 4),
        "agent.attempt.superseded",
        "step/2/attempt/3/superseded",
        {"step_number": 2, "attempt": 3, "next_attempt": 4},
    ),
]


@pytest.mark.parametrize(("record", "kind", "key", "payload"), PAYLOADS)
def test_each_type_has_its_payload(record: EventRecord, kind: str, key: str, payload: dict[str, Any]) -> None:
    """7.2: the literal keys and nothing else."""
    assert (record.type, record.key) == (kind, key)
    assert record.payload == payload
    assert json.loads(json.dumps(record.payload)) == payload


def test_every_type_has_a_payload() -> None:
    """7.2: and there are no other types."""
    assert (
        {kind for _, kind, _, _ in PAYLOADS}
        == set(EnvelopeType)
        == {
            "agent.status",
            "agent.step.started",
            "agent.step.completed",
            "agent.tool.started",
            "agent.tool.completed",
            "agent.stream.chunk",
            "agent.stream.snapshot",
            "agent.continuation",
            "agent.input.requested",
            "agent.input.received",
            "agent.approval.requested",
            "agent.approval.resolved",
            "agent.attempt.superseded",
        }
    )


@pytest.mark.parametrize(
    ("trace", "expected"), [({}, {}), ({"trace": True, "outcome": STOPPED}, {"continuation": VERDICT})]
)
def test_a_completed_step_contains_the_verdict_with_the_trace_on(
    trace: dict[str, Any], expected: dict[str, Any]
) -> None:
    """7.2."""
    plain = envelopes.step_completed_record(2, **STEP)
    assert envelopes.step_completed_record(2, **STEP, **trace).payload == {**plain.payload, **expected}


def test_the_verdict_is_absent_with_the_trace_off_and_null_where_there_is_none() -> None:
    """7.2."""
    assert "continuation" not in envelopes.step_completed_record(2, **STEP, outcome=STOPPED).payload
    assert envelopes.step_completed_record(2, **STEP, trace=True).payload["continuation"] is None


@pytest.mark.parametrize("duration", [3, 3.0])
def test_durations_are_floats(duration: Any) -> None:
    """7.2: also integral ones."""
    step = envelopes.step_completed_record(2, **(STEP | {"duration_ms": duration}))
    tool = envelopes.tool_completed_record(
        "c1", "t", step_number=1, success=True, error=None, duration_ms=duration, result=None
    )
    for record in (step, tool):
        assert json.dumps(record.payload["duration_ms"]) == "3.0"


@pytest.mark.parametrize("number", [0, -1, 1.5, True, None])
def test_attempts_count_from_one(number: Any) -> None:
    """7.6.3."""
    with pytest.raises(InvalidInput, match="attempt"):
        Attempt(1, number)


@pytest.mark.parametrize("next_attempt", [0, 1, 2])
def test_an_attempt_is_superseded_by_a_later_one(next_attempt: int) -> None:
    """7.6.3."""
    with pytest.raises(InvalidInput, match="next_attempt"):
        envelopes.attempt_superseded_record(Attempt(1, 2), next_attempt)


@pytest.mark.parametrize("index", [-1, 0.5, True])
def test_chunks_count_from_zero(index: Any) -> None:
    """7.6.1."""
    with pytest.raises(InvalidInput, match="chunk_index"):
        envelopes.stream_chunk_record(Attempt(1), index, "x")
    with pytest.raises(InvalidInput, match="next_index"):
        envelopes.stream_snapshot_record(Attempt(1), index, "x", None)


@pytest.mark.parametrize(("content", "is_complete"), [("", False), ("x", True)])
def test_only_the_closing_chunk_is_empty(content: str, is_complete: bool) -> None:
    """7.6.1, 7.6.2."""
    with pytest.raises(InvalidInput, match="has content, or it is empty"):
        envelopes.stream_chunk_record(Attempt(1), 0, content, is_complete=is_complete)


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=300))
def test_any_arguments_and_results_can_be_published(text: str) -> None:
    """7.2: every payload is JSON that comes back as it was."""
    started = envelopes.tool_started_record("c", "t", {"q": text}, step_number=1, max_arg_length=10)
    completed = envelopes.tool_completed_record(
        "c", "t", step_number=1, success=True, error=None, duration_ms=1, result=text
    )
    for record in (started, completed):
        written = json.dumps(Envelope.of(record, SESSION, EXECUTION, AT).to_dict(), ensure_ascii=False)
        assert Envelope.from_dict(json.loads(written)).payload == record.payload
