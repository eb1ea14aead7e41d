"""Envelopes: the events of an execution as viewers receive them.

An `EventRecord` is an event with its payload; `Envelope.of` adds its execution and its time. The record's key
is unique within the execution, and the envelope's id is derived from it, so recording an event twice yields
the first envelope. Storing an envelope numbers it (`seq`, without gaps within a stream). Ephemeral envelopes
are sent without being stored, and have no number.

The functions below build the records, one for each type of envelope.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, cast
from uuid import UUID

from everstep.agent_domain.attachments import Attachment
from everstep.agent_domain.capabilities.approvals import ApprovalDecision, args_digest
from everstep.agent_domain.capabilities.questions import Question
from everstep.agent_domain.capabilities.rights import Decider, DecisionPolicy
from everstep.agent_domain.checks import require_integer_at_least
from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.ids import envelope_id
from everstep.agent_domain.loop.continuation import ContinuationOutcome
from everstep.agent_domain.loop.status import WireStatus
from everstep.agent_domain.loop.usage import Usage, usd_number
from everstep.agent_domain.stream.envelope_types import (
    EPHEMERAL,
    TIME_DIGITS,
    Attempt,
    EnvelopeType,
    InputSource,
    channel_name,
    time_digits,
)
from everstep.agent_domain.stream.records import EventRecord, StoredEnvelope
from everstep.agent_domain.tools.summaries import args_summary, cut_args, result_summary
from everstep.agent_domain.values import (
    FrozenDict,
    format_moment,
    format_optional_moment,
    frozen_map,
    json_text,
    parse_moment,
    parse_uuid,
    reading,
    require_map,
    uuid_or_text,
    valid_text,
)


@dataclass(frozen=True, slots=True)
class Envelope(Mapping[str, Any]):
    """One event of an execution, as it is stored and sent.

    It is also a mapping of its JSON form: `envelope["type"]`, `dict(envelope)`. All ids that Everstep stores
    are UUIDs; only the adapter of an application may use other texts.
    """

    type: str
    """The type, such as `agent.step.started`."""
    session_id: UUID | None
    """The session of the execution; null if it has none."""
    execution_id: UUID
    """The execution."""
    timestamp: datetime
    """When it happened, in UTC: with milliseconds, or microseconds if it announces a session's message."""
    payload: FrozenDict
    """The data of the event; its keys depend on the type."""
    id: UUID
    """The id of the event: the same event has the same id, however often it is sent."""
    seq: int | None = None
    """Its number in the stream, from 1 without a gap; null if it is not stored."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "timestamp", _truncate_moment(self.timestamp, time_digits(self.type)))
        object.__setattr__(self, "payload", frozen_map(self.payload, "the payload"))
        if self.seq is not None:
            require_integer_at_least("seq", self.seq, 1)
            if self.is_ephemeral:
                raise InvalidInput(f"{self.type} is never stored, so it has no seq; leave it out")

    @classmethod
    def of(cls, record: EventRecord, session_id: UUID | None, execution_id: UUID, at: datetime) -> "Envelope":
        """An envelope that is not stored yet.

        Args:
            record: The event.
            session_id: The session of the execution, if it has one.
            execution_id: The execution.
            at: When the event happened.
        """
        payload = frozen_map(record.payload, "the payload")
        return cls(record.type, session_id, execution_id, at, payload, envelope_id(execution_id, record.key))

    @classmethod
    def placed(cls, stored: StoredEnvelope) -> "Envelope":
        """A stored envelope; a stream with another id than the execution's is that of its session."""
        session_id = None if stored.stream_id == stored.execution_id else stored.stream_id
        return cls(
            stored.type,
            session_id,
            stored.execution_id,
            stored.created_at,
            stored.payload,
            stored.id,
            stored.seq,
        )

    def __getitem__(self, key: str) -> Any:
        return self.to_dict()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.to_dict())

    def __len__(self) -> int:
        return len(self.to_dict())

    @property
    def channel(self) -> str:
        """The channel on which it is sent; transports may add a prefix."""
        return channel_name(self.session_id, self.execution_id)

    @property
    def is_ephemeral(self) -> bool:
        """Whether it is sent without being stored."""
        return self.type in EPHEMERAL

    def numbered(self, seq: int) -> "Envelope":
        """A copy with this number."""
        return replace(self, seq=seq)

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "type": self.type,
            "session_id": None if self.session_id is None else str(self.session_id),
            "execution_id": str(self.execution_id),
            "timestamp": format_moment(self.timestamp, time_digits(self.type)),
            "payload": self.payload,
            "id": str(self.id),
            "seq": self.seq,
        }

    def to_json(self, payload_json: str | None = None) -> bytes:
        """The JSON form as bytes.

        Args:
            payload_json: The payload as JSON, if it is encoded already; it is not encoded again.
        """
        fields = self.to_dict()
        payload = fields.pop("payload")
        payload_json = json_text(payload) if payload_json is None else payload_json
        after = {name: fields.pop(name) for name in ("id", "seq")}
        return f'{json_text(fields)[:-1]},"payload":{payload_json},{json_text(after)[1:]}'.encode()

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Envelope":
        """Read the JSON form; unknown fields are ignored.

        Raises:
            InvalidInput: It is not an envelope.
        """
        with reading("the envelope"):
            require_map(data)
            session_id = data["session_id"]
            return cls(
                valid_text(data["type"], "type"),
                None if session_id is None else cast("UUID", uuid_or_text(session_id, "session_id")),
                cast("UUID", uuid_or_text(data["execution_id"], "execution_id")),
                parse_moment(data["timestamp"], "timestamp"),
                frozen_map(data["payload"], "the payload"),
                parse_uuid(data["id"], "id"),
                data.get("seq"),
            )


def _truncate_moment(at: datetime, digits: int) -> datetime:
    if at.tzinfo is None:
        raise InvalidInput(f"the moment {at.isoformat()} has no time zone; pass an aware datetime")
    at = at.astimezone(UTC)
    unit = 10 ** (6 - digits)
    return at.replace(microsecond=at.microsecond // unit * unit)


def _record(kind: EnvelopeType, key: str, payload: Mapping[str, Any]) -> EventRecord:
    return EventRecord(key, kind.value, frozen_map(payload, "the payload"))


# The execution as a whole.


def status_changed_record(
    status: WireStatus,
    previous: WireStatus,
    *,
    change: int | str,
    step_count: int,
    error_message: str | None = None,
    last_response: str | None = None,
    assistant_name: str | None = None,
    output: Mapping[str, Any] | None = None,
    cost_usd: Decimal | None = None,
) -> EventRecord:
    """A change of the execution's status. `change` identifies it within the execution."""
    payload = {
        "status": status,
        "previous_status": previous,
        "step_count": step_count,
        "error_message": error_message,
        "last_response": last_response,
    }
    optional = {"assistant_name": assistant_name, "output": output, **_known_cost(cost_usd)}
    present = {key: value for key, value in optional.items() if value is not None}
    return _record(EnvelopeType.AGENT_STATUS, f"status/{change}", payload | present)


def model_delayed_record(
    step_number: int, attempt: int, detail: str, next_attempt_at: datetime
) -> EventRecord:
    """A model call that is retried after a pause: the status stays the same, and `detail` has the reason."""
    status = status_changed_record(
        WireStatus.PROCESSING,
        WireStatus.PROCESSING,
        change=f"wait/{step_number}/{attempt}",
        step_count=step_number - 1,
    )
    waits = {"detail": detail, "next_attempt_at": format_moment(next_attempt_at, TIME_DIGITS)}
    return replace(status, payload={**status.payload, **waits})


# Steps.


def step_started_record(step_number: int, message_count: int, available_tools: Sequence[str]) -> EventRecord:
    """The start of a step."""
    payload = {
        "step_number": step_number,
        "message_count": message_count,
        "available_tools": list(available_tools),
        "available_tools_count": len(available_tools),
    }
    return _record(EnvelopeType.AGENT_STEP_STARTED, f"step/{step_number}/started", payload)


def step_completed_record(
    step_number: int,
    *,
    has_tool_calls: bool,
    errors: int,
    finish_reason: str | None,
    usage: Usage,
    duration_ms: float,
    outcome: ContinuationOutcome | None = None,
    trace: bool = False,
    cost_usd: Decimal | None = None,
) -> EventRecord:
    """The completion of a step, with its cost if that is known.

    With `trace`, it contains the outcome of the evaluation.
    """
    payload = {
        "step_number": step_number,
        "has_tool_calls": has_tool_calls,
        "errors": errors,
        "finish_reason": finish_reason,
        "usage": usage.to_wire(),
        "duration_ms": float(duration_ms),
        **_known_cost(cost_usd),
    }
    optional = {"continuation": _verdict(outcome) if outcome else None} if trace else {}
    return _record(EnvelopeType.AGENT_STEP_COMPLETED, f"step/{step_number}/completed", payload | optional)


def continuation_record(
    step_number: int, outcome: ContinuationOutcome, because: str | None = None
) -> EventRecord:
    """The outcome of the evaluation after a step, with every vote and the sentence that explains it."""
    votes = [
        {"criterion": vote.name, "decision": vote.decision, "reason": vote.reason}
        | ({"source": vote.source} if vote.source else {})
        for vote in outcome.evaluations
    ]
    sentence = {"because": because} if because else {}
    payload = {"step_number": step_number, **_verdict(outcome), **sentence, "evaluations": votes}
    return _record(EnvelopeType.AGENT_CONTINUATION, f"step/{step_number}/continuation", payload)


def _known_cost(cost_usd: Decimal | None) -> dict[str, Any]:
    return {} if cost_usd is None else {"cost_usd": usd_number(cost_usd)}


def _verdict(outcome: ContinuationOutcome) -> dict[str, Any]:
    return {
        "should_continue": outcome.should_continue,
        "stop_reason": outcome.stop_reason,
        "resolved_by": outcome.resolved_by,
    }


# Tool calls.


def tool_started_record(
    tool_call_id: str,
    tool: str,
    args: Mapping[str, Any],
    *,
    step_number: int,
    max_arg_length: int | None = None,
) -> EventRecord:
    """The start of a tool call. With `max_arg_length`, it contains the arguments, cut to this length."""
    payload = {"tool_name": tool, "tool_call_id": tool_call_id, "args_summary": args_summary(args)}
    optional = {} if max_arg_length is None else {"args": cut_args(args, max_arg_length)}
    key = f"step/{step_number}/tool/{tool_call_id}/started"
    return _record(EnvelopeType.AGENT_TOOL_STARTED, key, payload | optional)


def tool_completed_record(
    tool_call_id: str,
    tool: str,
    *,
    step_number: int,
    success: bool,
    error: str | None,
    duration_ms: float,
    result: object,
    attachments: Sequence[Attachment] = (),
) -> EventRecord:
    """The completion of a tool call, with the files that it returned."""
    payload: dict[str, Any] = {
        "tool_name": tool,
        "tool_call_id": tool_call_id,
        "success": success,
        "error": error,
        "duration_ms": float(duration_ms),
        "result_summary": result_summary(result),
    }
    if attachments:
        payload["attachments"] = [each.to_dict() for each in attachments]
    key = f"step/{step_number}/tool/{tool_call_id}/completed"
    return _record(EnvelopeType.AGENT_TOOL_COMPLETED, key, payload)


# The model's text while it is streamed.


def stream_chunk_record(
    attempt: Attempt, index: int, content: str, *, is_complete: bool = False, after_seq: int | None = None
) -> EventRecord:
    """A chunk of text; the chunk that closes the stream is empty.

    Args:
        attempt: The attempt that writes.
        index: The position among the chunks of the attempt, from 0.
        content: The text.
        is_complete: Whether this chunk closes the stream.
        after_seq: The stored envelope that it follows.

    Raises:
        InvalidInput: A closing chunk has content, or another one has none.
    """
    require_integer_at_least("chunk_index", index, 0)
    if is_complete == bool(content):
        raise InvalidInput("a chunk has content, or it is empty and completes the stream")
    payload = {
        "content": content,
        "is_complete": is_complete,
        "chunk_index": index,
        "step_number": attempt.step_number,
        "attempt": attempt.number,
        "after_seq": after_seq,
    }
    return _record(EnvelopeType.AGENT_STREAM_CHUNK, f"{attempt.key}/chunk/{index}", payload)


def stream_snapshot_record(
    attempt: Attempt, next_index: int, content: str, after_seq: int | None
) -> EventRecord:
    """The text so far, for one reader that missed some of it."""
    require_integer_at_least("next_index", next_index, 0)
    payload = {
        "content": content,
        "next_index": next_index,
        "step_number": attempt.step_number,
        "attempt": attempt.number,
        "after_seq": after_seq,
    }
    return _record(EnvelopeType.AGENT_STREAM_SNAPSHOT, f"{attempt.key}/snapshot/{next_index}", payload)


def attempt_superseded_record(attempt: Attempt, next_attempt: int) -> EventRecord:
    """The end of an attempt that wrote text and was given up; readers drop the text."""
    require_integer_at_least("next_attempt", next_attempt, attempt.number + 1)
    payload = {
        "step_number": attempt.step_number,
        "attempt": attempt.number,
        "next_attempt": next_attempt,
    }
    return _record(EnvelopeType.AGENT_ATTEMPT_SUPERSEDED, f"{attempt.key}/superseded", payload)


# Questions and approvals.


def input_requested_record(
    request_id: UUID, tool_call_id: str, step_number: int, question: Question, expires_at: datetime | None
) -> EventRecord:
    """A question to a person."""
    payload = {
        "request_id": str(request_id),
        "tool_call_id": tool_call_id,
        "step_number": step_number,
        "prompt": question.prompt,
        "choices": question.choices,
        "schema": question.schema,
        "expires_at": format_optional_moment(expires_at, TIME_DIGITS),
    }
    return _record(EnvelopeType.AGENT_INPUT_REQUESTED, f"request/{request_id}/requested", payload)


def input_received_record(
    request_id: UUID,
    tool_call_id: str,
    step_number: int,
    source: InputSource,
    message_id: UUID | None,
    *,
    by: Decider | None = None,
) -> EventRecord:
    """An answer to a question; a default answer has no message and no decider."""
    payload: dict[str, Any] = {
        "request_id": str(request_id),
        "tool_call_id": tool_call_id,
        "step_number": step_number,
        "source": source,
        "message_id": None if message_id is None else str(message_id),
    }
    if by is not None:
        payload |= {"decided_by": by.to_dict()}
    return _record(EnvelopeType.AGENT_INPUT_RECEIVED, f"request/{request_id}/received", payload)


def approval_requested_record(
    request_id: UUID,
    tool_call_id: str,
    step_number: int,
    tool: str,
    args: Mapping[str, Any],
    *,
    policy: DecisionPolicy | None = None,
    expires_at: datetime | None = None,
) -> EventRecord:
    """A request to approve a call; its arguments are complete, and it says who may decide."""
    payload: dict[str, Any] = {
        "request_id": str(request_id),
        "tool_call_id": tool_call_id,
        "tool_name": tool,
        "step_number": step_number,
        "args": args,
        "args_digest": args_digest(tool, args),
    }
    if policy is not None:
        payload |= {
            "approver": list(policy.approver),
            "four_eyes": policy.four_eyes,
            "expires_at": format_optional_moment(expires_at, TIME_DIGITS),
        }
    return _record(EnvelopeType.AGENT_APPROVAL_REQUESTED, f"request/{request_id}/requested", payload)


def approval_resolved_record(
    request_id: UUID, tool_call_id: str, decision: ApprovalDecision, *, by: Decider | None = None
) -> EventRecord:
    """A decision about a call; one without a decider came from trusted code, or expired."""
    payload: dict[str, Any] = {
        "request_id": str(request_id),
        "tool_call_id": tool_call_id,
        "decision": decision.decision,
        "reason": decision.reason,
        "args_digest": decision.args_digest,
    }
    if by is not None:
        payload |= {"decided_by": by.to_dict()}
    if decision.remember is not False:
        payload["remember"] = decision.remember
    return _record(EnvelopeType.AGENT_APPROVAL_RESOLVED, f"request/{request_id}/resolved", payload)
