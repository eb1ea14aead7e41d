"""Conversion between domain values and the JSON that the database stores.

Writing is strict: a value that JSON or PostgreSQL cannot hold is refused, and the error names its path.
Reading is lenient: keys that a later version added are ignored.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast
from uuid import UUID, uuid5

from pydantic import TypeAdapter

from everstep.agent_domain.attachments import Attachment
from everstep.agent_domain.capabilities.approvals import ApprovalRule
from everstep.agent_domain.capabilities.rights import (
    DEFAULT_POLICY,
    OLD_POLICY,
    Decider,
    DecisionPolicy,
)
from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.ids import envelope_id
from everstep.agent_domain.loop.boundary import Boundary
from everstep.agent_domain.loop.status import TERMINAL_WIRE_STATUSES
from everstep.agent_domain.loop.step_error import StepError
from everstep.agent_domain.loop.step_facts import NOTHING_BESIDES, Besides, CallNeed, StepFacts
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.storage.calls import AnsweredQuestion
from everstep.agent_domain.storage.requests import AnyRequestKind, RequestKind, Resolution
from everstep.agent_domain.storage.steps import RecordReply, RetryWait
from everstep.agent_domain.stream.envelopes import EnvelopeType
from everstep.agent_domain.stream.records import EventRecord
from everstep.agent_domain.stream.session_messages import Announcement
from everstep.agent_domain.values import FrozenDict, freeze, frozen_document, frozen_map, json_text, reading

_FACTS = TypeAdapter(StepFacts)
_SIDE_RESULTS = TypeAdapter(Besides)
_WAIT = TypeAdapter(RetryWait)

HUMAN_NEEDS = frozenset({CallNeed.APPROVAL, CallNeed.INPUT})
"""The needs of a call that only a person can meet."""


def encode(value: object, where: str = "the value") -> str:
    """Return JSON text that PostgreSQL can hold.

    Raises:
        InvalidInput: The value cannot be stored; the message names the first path that cannot.
    """
    try:
        text = json_text(value)
        text.encode()
    except (TypeError, ValueError, RecursionError):
        return json_text(_validate(value, where))
    # PostgreSQL text has no NUL, not even escaped. `\\u0000` can also be six harmless characters, so check.
    if "\\u0000" in text:
        _validate(value, where)
    return text


def _validate(value: object, where: str) -> Any:
    is_document = isinstance(value, Mapping)
    return frozen_document(cast("object", value), where) if is_document else freeze(value, where)


def encode_optional(value: object | None, where: str = "the value") -> str | None:
    """Return `encode` of the value, or None for None."""
    return None if value is None else encode(value, where)


def document(value: Any, where: str) -> FrozenDict:
    """Return a stored JSON object as a frozen map."""
    with reading(where):
        return frozen_document(value, where)


def optional_document(value: Any, where: str) -> FrozenDict | None:
    """Return a stored JSON object as a frozen map, or None for None."""
    return None if value is None else document(value, where)


# Steps.


def dump_facts(facts: StepFacts) -> str:
    """Return the facts as JSON text."""
    return encode(_FACTS.dump_python(facts, mode="json"), "the facts of the step")


def parse_facts(data: Any) -> StepFacts:
    """Return the facts of a stored step; unknown keys are ignored."""
    with reading("the facts of the step"):
        return _FACTS.validate_python(data)


def parse_facts_text(text: str) -> StepFacts:
    """Return the facts of a stored step from JSON text, which is faster."""
    with reading("the facts of the step"):
        return _FACTS.validate_json(text)


def dump_boundary(boundary: Boundary | None) -> str | None:
    """Return what a decision has read as JSON text, or None for None."""
    return None if boundary is None else encode(boundary.to_dict(), "the boundary")


def parse_boundary(data: Any) -> Boundary | None:
    """Return what a decision has read, or None in rows of older releases."""
    with reading("the boundary of the step"):
        return None if data is None else Boundary.from_dict(data)


def dump_errors(errors: Iterable[StepError]) -> str:
    """Return the errors as JSON text, messages included."""
    return encode([error.to_dict() for error in errors], "the errors of the step")


def parse_errors(data: Any) -> tuple[StepError, ...]:
    """Return the stored errors of a step."""
    with reading("the errors of the step"):
        return tuple(map(StepError.from_dict, data or ()))


def dump_attachments(attachments: Iterable[Attachment]) -> str | None:
    """Return references of files as JSON text, or None if there are none, which is the usual case."""
    references = [each.to_dict() for each in attachments]
    return encode(references, "the attachments") if references else None


def parse_attachments(data: Any) -> tuple[Attachment, ...]:
    """Return the stored references of files."""
    with reading("the attachments"):
        return tuple(map(Attachment.from_dict, data or ()))


def dump_side_results(side_results: Besides) -> str | None:
    """Return a call's side results as JSON text, or None if there are none, which is the usual case."""
    is_empty = side_results == NOTHING_BESIDES and not side_results.usage.uncounted_calls
    return None if is_empty else _SIDE_RESULTS.dump_json(side_results).decode()


def parse_side_results(data: Any) -> Besides:
    """Return the stored side results of a call."""
    return NOTHING_BESIDES if data is None else _SIDE_RESULTS.validate_python(data)


def parse_error(data: Any) -> StepError | None:
    """Return the stored error, or None."""
    with reading("the error of the call"):
        return StepError.from_dict(data) if data else None


def dump_wait(wait: RetryWait) -> str:
    """Return the wait of a step as JSON text."""
    return _WAIT.dump_json(wait).decode()


def parse_wait(data: Any) -> RetryWait | None:
    """Return the stored wait of a step, or None if it never waited."""
    with reading("the wait of the step"):
        return None if data is None else _WAIT.validate_python(data)


def call_id_conflict(reply: RecordReply) -> InvalidInput:
    """Return the error for a reply that reuses a call id of an earlier step."""
    names = ", ".join(told.call.id for told in reply.calls)
    return InvalidInput(
        f"a call of step {reply.number} ({names}) has the id of another one; give every call its own"
    )


# Requests.


def dump_resolution(resolution: Resolution) -> str:
    """Return a person's resolution of a request as JSON text."""
    body: dict[str, Any] = {"kind": resolution.kind, "value": resolution.value, "reason": resolution.reason}
    if resolution.key is not None:
        body["key"] = resolution.key
    if resolution.remember is not None:
        body["remember"] = resolution.remember.model_dump(mode="json")
    if resolution.by is not None:
        body["by"] = resolution.by.to_dict()
    if resolution.is_expired:
        body["expired"] = True
    return encode(body, "the resolution")


def parse_resolution(data: Any) -> Resolution | None:
    """Return the stored resolution, or None if the request has none."""
    if data is None:
        return None
    with reading("the resolution"):
        value, reason = freeze(data.get("value")), data.get("reason")
        remember = data.get("remember")
        rule = None if remember is None else ApprovalRule.model_validate(remember)
        by = None if data.get("by") is None else Decider.from_dict(data["by"])
        key, is_expired = data.get("key"), bool(data.get("expired"))
        return Resolution(str(data["kind"]), value, reason, key, rule, by, is_expired)


def parse_answered_question(data: Any) -> AnsweredQuestion | None:
    """Return the question of a call that was answered, or None."""
    resolution = parse_resolution(data and data["resolution"])
    return None if resolution is None else AnsweredQuestion(UUID(data["id"]), resolution)


def dump_policy(policy: DecisionPolicy | None) -> str | None:
    """Return who may decide about a call as JSON text, or None for None."""
    return None if policy is None else policy.model_dump_json()


def parse_policy(kind: AnyRequestKind, data: Any) -> DecisionPolicy | None:
    """Return who may decide about a request; None for a question.

    Budgets are raised by callers with the scope `approve`, and never by the owner as such.
    """
    if kind is RequestKind.BUDGET:
        return DEFAULT_POLICY
    if kind is not CallNeed.APPROVAL:
        return None
    with reading("who may decide"):
        return OLD_POLICY if data is None else DecisionPolicy.model_validate(data)


PLACE = "place"
"""The key for the place of a request that belongs to no call; readers do not see it."""


def visible_request(request: FrozenDict) -> FrozenDict:
    """Return what a request shows to its readers."""
    return frozen_map({key: value for key, value in request.items() if key != PLACE})


def parse_rules(data: Any) -> tuple[ApprovalRule, ...]:
    """Return the stored approval rules of an execution."""
    with reading("what people have allowed"):
        return tuple(map(ApprovalRule.model_validate, data or ()))


# Executions.


def add_usage(breakdown: Mapping[str, Any], usage: Usage) -> dict[str, int]:
    """Return the token counts of a breakdown plus a usage, by kind."""
    return {kind: breakdown.get(kind, 0) + count for kind, count in usage.to_breakdown().items()}


def sum_usage(stored: Iterable[Mapping[str, Any]]) -> Usage:
    """Return the sum of stored usages."""
    return sum(map(Usage.from_dict, stored), Usage())


def first_agent_id(execution_id: UUID) -> UUID:
    """Return the id of the agent that an execution creates; executions that continue it keep the id."""
    return uuid5(execution_id, "agent")


def origin_metadata(parent_execution_id: UUID, parent_snapshot_id: UUID | None) -> FrozenDict:
    """Return the metadata that links a subagent's execution to its parent, which may have no snapshot yet."""
    snapshot = parent_snapshot_id and str(parent_snapshot_id)
    return FrozenDict(parent_execution_id=str(parent_execution_id), parent_snapshot_id=snapshot)


def snapshot_id(execution_id: UUID, key: str) -> UUID:
    """Return the id of the snapshot that a settlement stores."""
    return uuid5(execution_id, f"snapshot/{key}")


# Envelopes.


@dataclass(frozen=True, slots=True)
class NewEnvelope:
    """An envelope to be appended to a stream."""

    id: UUID
    type: str
    payload: Mapping[str, Any]
    payload_json: str
    """The payload as JSON: it is stored and sent as it is encoded here."""
    message: Announcement | None = None
    """The session message that this envelope announces; it has the same id."""


def envelopes_from(execution_id: UUID, events: Iterable[EventRecord]) -> tuple[NewEnvelope, ...]:
    """Return one envelope per distinct event, without the announcements for session subscribers."""
    distinct = {envelope_id(execution_id, event.key): event for event in events}
    return tuple(_envelope(identity, event) for identity, event in distinct.items())


def session_envelopes_from(execution_id: UUID, events: Iterable[EventRecord]) -> tuple[NewEnvelope, ...]:
    """Return one envelope per distinct event, each followed by its announcement.

    The announcement of an end comes first: subscribers leave after the terminal `agent.status`.
    """
    distinct: dict[UUID, NewEnvelope] = {}
    for event in events:
        identity = envelope_id(execution_id, event.key)
        pair = [_envelope(identity, event)]
        if event.announces:
            message = announcement_envelope(execution_id, event.key, event.announces)
            pair.insert(0 if _is_end(event) else 1, message)
        distinct |= {item.id: item for item in pair}
    return tuple(distinct.values())


def _is_end(event: EventRecord) -> bool:
    return event.type == EnvelopeType.AGENT_STATUS and event.payload.get("status") in TERMINAL_WIRE_STATUSES


def announcement_envelope(execution_id: UUID, key: str, message: Announcement) -> NewEnvelope:
    """Return the envelope that announces a session message; its time is that of the message's row."""
    message_id = message.message_id or uuid5(execution_id, f"message/{key}")
    payload: dict[str, Any] = {
        "message_id": str(message_id),
        "event_type": message.event_type,
        "content": message.content,
        "metadata": message.metadata,
    }
    if message.attachments:
        payload["attachments"] = [each.to_dict() for each in message.attachments]
    text = encode(payload, "the message")
    return NewEnvelope(message_id, message.event_type, payload, text, message)


def _envelope(identity: UUID, event: EventRecord) -> NewEnvelope:
    text = encode(event.payload, f"the payload of {event.type}")
    return NewEnvelope(identity, str(event.type), event.payload, text)
