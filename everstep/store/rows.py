"""Conversion of rows into the values of the storage port."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final
from uuid import UUID

from sqlalchemy import Row

from everstep.agent_domain.capabilities.rights import Decider
from everstep.agent_domain.ids import ExecutionRef, follow_up_id
from everstep.agent_domain.loop.budget import BudgetUnit
from everstep.agent_domain.loop.facts import StateInfo
from everstep.agent_domain.loop.run_context import RunContext
from everstep.agent_domain.loop.status import ExecutionStatus, StopReason
from everstep.agent_domain.messages.messages import Messages
from everstep.agent_domain.shared_values import SharedValues
from everstep.agent_domain.storage.calls import CallRecord, CallRow, InnerReply, Reservation
from everstep.agent_domain.storage.commands import Command, CommandKind, Steering
from everstep.agent_domain.storage.executions import ExecutionRow, ExecutionSpec
from everstep.agent_domain.storage.requests import RequestRow, RequestState, parse_request_kind
from everstep.agent_domain.storage.steps import PreviousStep, StepInput, StepRow
from everstep.agent_domain.stream.records import StoredEnvelope
from everstep.agent_domain.tools.progress import Progress
from everstep.agent_domain.tools.tools import ToolCall
from everstep.agent_domain.values import EMPTY, FrozenDict, freeze, frozen_map, reading
from everstep.store import bodies, transcripts

MOVED = 0
"""The step number that marks a steering message as moved to another execution."""

_specs: Final = SharedValues[ExecutionSpec]()
_plans: Final = SharedValues[Mapping[str, Any]]()


def execution_row(row: Row[Any]) -> ExecutionRow:
    """Return an execution as clients see it; the agent's and Everstep's metadata are merged into one map."""
    began = bodies.document(row.agent_metadata, "the agent's metadata")
    notes = transcripts.parse_notes(row.notes).apply_to(began) if hasattr(row, "notes") else began
    return ExecutionRow(
        ref=ExecutionRef(row.id, row.tenant_id, row.session_id),
        agent=row.agent_type,
        status=ExecutionStatus(row.status),
        step_count=row.step_count,
        usage=frozen_map(row.token_breakdown),
        cost_usd=row.cost_usd,
        stop_reason=StopReason(row.stop_reason) if row.stop_reason else None,
        output=bodies.document(row.output, "the output") or None,
        error_message=row.error_message,
        error_told=row.error_told,
        metadata=notes.merged(row.metadata),
        created_at=row.created_at,
        started_at=row.started_at,
        completed_at=row.completed_at,
        parent_execution_id=row.parent_execution_id,
        user_id=row.user_id,
        last_snapshot_id=row.last_snapshot_id,
        clocks=clocks(row),
        continues=row.continues_execution_id,
        continues_until=row.continues_until,
        is_waiting=getattr(row, "is_waiting", False) or getattr(row, "queue_position", None) is not None,
        queue_position=getattr(row, "queue_position", None),
    )


def clocks(row: Row[Any]) -> StateInfo:
    """Return the session's clocks at the start of the execution."""
    return StateInfo(started_at=row.session_began_at, session_execution_seconds=row.session_seconds)


def ended_execution_row(row: Row[Any]) -> ExecutionRow:
    """Return an execution with its outcome and its canceller."""
    by = None if row.cancelled_by is None else Decider.from_dict(row.cancelled_by)
    outcome = bodies.optional_document(row.outcome, "the outcome")
    return replace(execution_row(row), cancelled_by=by, outcome=outcome)


def single_execution_row(row: Row[Any]) -> ExecutionRow:
    """Return an execution with what lists omit, such as its canceller."""
    return replace(
        ended_execution_row(row),
        definition_hash=row.definition_hash or None,
        tree_cost_usd=row.tree_cost_usd,
        ahead=row.ahead,
        paused_by=None if row.paused_by is None else Decider.from_dict(row.paused_by),
    )


def messages(said: Iterable[Row[Any]]) -> Messages:
    """Return the messages of transcript rows."""
    told, _ = transcripts.parse_transcript(said)
    return told


def spec(row: Row[Any]) -> ExecutionSpec:
    """Return the agent's definition, with the tools that were listed after the execution was accepted."""
    with reading("the agent's definition"):
        spec = ExecutionSpec.model_validate(row.agent_config)
    # With the hash of the definition, as 1, 1.0 and true are equal in Python.
    spec = _specs.share((spec.agent, spec.definition_hash), spec)
    if row.listed is None:
        return spec
    return spec.model_copy(update={"listed": bodies.document(row.listed, "the tools that were listed")})


def material(
    ref: ExecutionRef, row: Row[Any], said: Iterable[Row[Any]], before: Row[Any] | None
) -> StepInput:
    """Return the inputs of a step."""
    said = list(said)
    messages, metadata = transcripts.parse_transcript(said)
    parts = transcripts.own_parts(said)
    step = None
    if before is not None and before.facts_before is not None:
        facts = bodies.parse_facts(before.facts_before)
        inner_usage = bodies.sum_usage(before.inner_usage or ())
        call_errors = bodies.parse_errors(before.call_errors)
        errors = bodies.parse_errors(before.errors) or call_errors
        step = PreviousStep(facts, len(call_errors), float(before.milliseconds), inner_usage, errors)
    its_spec = spec(row)
    return StepInput(
        its_spec,
        messages,
        metadata,
        row.agent_id,
        row.parent_agent_id,
        _plans.share((its_spec.agent, its_spec.definition_hash), row.plan),
        step,
        bodies.parse_rules(row.allowed),
        transcripts.task_from_rows(said),
        clocks(row),
        transcripts.message_places(said),
        run_context(ref, row),
        transcripts.latest_compaction(parts),
        tuple(parts[-1].compactions),
        tuple(map(BudgetUnit, row.operator_units or ())),
    )


def run_context(ref: ExecutionRef, row: Row[Any]) -> RunContext:
    """Return the user and the request of an execution."""
    with reading("the execution's request"):
        return RunContext.from_request(ref, row.user_id, row.request)


def tool_call(row: Row[Any]) -> ToolCall:
    """Return a call as the model made it."""
    return ToolCall(row.call_id, row.name, bodies.document(row.args, "the arguments"), row.malformed)


def call_record(row: Row[Any]) -> CallRecord | None:
    """Return the result of a call, or None."""
    if row.state != "done":
        return None
    return CallRecord(
        row.call_id,
        freeze(row.result, "the result"),
        bodies.parse_error(row.error),
        row.text or "",
        row.started_at,
        row.completed_at,
        row.seconds,
        row.success,
        bodies.parse_side_results(row.besides),
        row.note,
        row.own_text,
        bodies.parse_attachments(row.attachments),
    )


def call_row(row: Row[Any]) -> CallRow:
    """Return a call as clients see it."""
    decision = bodies.parse_resolution(row.decision)
    progress = None if row.progress is None or row.state == "done" else Progress.from_dict(row.progress)
    return CallRow(
        tool_call(row),
        row.state,
        row.attempts,
        call_record(row),
        row.idx,
        decision,
        progress,
        bodies.parse_answered_question(row.answered),
    )


def command(row: Row[Any]) -> Command:
    """Return a command for a workflow."""
    ref = ExecutionRef(row.execution_id, row.tenant_id, row.session_id)
    return Command(ref, row.key, CommandKind(row.kind), row.call_id, row.is_denied, row.is_delivered)


def steering(row: Row[Any], tenant_id: str, key: str) -> Steering:
    """Return the state of a message that was sent to a running execution."""
    ref = ExecutionRef(row.id, tenant_id, row.session_id)
    other = row.parent_execution_id or follow_up_id(row.id, key if row.is_in_session else None)
    otherwise = replace(ref, execution_id=other)
    has_ended = ExecutionStatus(row.status).is_terminal
    is_moved = row.heard_at == MOVED or (row.heard_at is None and has_ended)
    return Steering(ref, otherwise if is_moved else ref, otherwise, is_settled=row.heard_at is not None)


def inner_reply(row: Row[Any]) -> InnerReply:
    """Return the reply to an inner model call."""
    return InnerReply(row.key, row.digest, bodies.document(row.response, "the response"))


def reservation(ref: ExecutionRef, row: Row[Any], metadata: FrozenDict) -> Reservation:
    """Return the reservation of a call."""
    return Reservation(
        call=tool_call(row),
        step_number=row.step,
        index=row.idx,
        metadata=metadata,
        recorded=call_record(row),
        is_uncertain=row.state == "reserved",
        resolution=bodies.parse_resolution(row.resolution),
        answer=bodies.parse_resolution(row.answer),
        broadcast=bodies.document(row.broadcast or EMPTY, "the plan"),
        earlier=tuple(_earlier_call(told) for told in row.earlier or ()),
        allowed=bodies.parse_rules(row.allowed),
        run=run_context(ref, row),
    )


def _earlier_call(values: list[Any]) -> ToolCall:
    call_id, name, args, malformed = values
    return ToolCall(call_id, name, bodies.document(args, "the arguments"), malformed)


def request_row(row: Row[Any]) -> RequestRow:
    """Return a request."""
    kind = parse_request_kind(row.kind)
    return RequestRow(
        id=row.id,
        ref=ExecutionRef(row.execution_id, row.tenant_id, row.session_id),
        call_id=row.call_id or "",
        kind=kind,
        state=RequestState(row.state),
        tool=row.name or "",
        args=bodies.optional_document(row.args, "the arguments") or EMPTY,
        args_digest=row.args_digest or "",
        request=bodies.visible_request(bodies.document(row.request, "the request")),
        resolution=bodies.parse_resolution(row.resolution),
        created_at=row.created_at,
        step_number=row.step,
        agent=row.agent_type,
        user_id=row.user_id,
        policy=bodies.parse_policy(kind, row.policy),
    )


def step_row(
    row: Row[Any], said: Sequence[Row[Any]], calls: Iterable[Row[Any]], heard: Iterable[Row[Any]] = ()
) -> StepRow:
    """Return a step as clients see it."""
    return StepRow(
        number=row.number,
        attempt=row.attempt,
        facts=None if row.facts is None else bodies.parse_facts(row.facts),
        errors=bodies.parse_errors(row.errors),
        outcome=bodies.optional_document(row.outcome, "the outcome"),
        partial_text=row.partial_text,
        started_at=row.started_at,
        completed_at=row.completed_at,
        messages=messages(said),
        compactions=transcripts.own_parts(said)[-1].compactions,
        calls=tuple(map(call_row, calls)),
        heard=sum(line.idx < 0 for line in said if line.role != transcripts.NOTE),
        processed=sum(
            line.idx >= transcripts.PROCESSED_FROM for line in said if line.role != transcripts.NOTE
        ),
        response=bodies.optional_document(getattr(row, "response", None), "the response"),
        next_index=row.next_index,
        after_seq=row.after_seq,
        processing_seconds=row.processing_seconds or 0.0,
        wait=bodies.parse_wait(row.wait),
        processing_usage=bodies.sum_usage([row.processing_usage] if row.processing_usage else ()),
        failed_attempts=tuple(row.failed_attempts),
        message_keys=tuple(each.key for each in heard),
        first_text_seconds=row.first_text_seconds,
    )


def stored_envelope(row: Row[Any]) -> StoredEnvelope:
    """Return an envelope with its position, from a row whose payload is selected as text."""
    return StoredEnvelope(
        row.stream_id,
        row.seq,
        row.id,
        row.type,
        row.execution_id,
        bodies.document(json.loads(row.payload), "the payload"),
        row.created_at,
        row.payload,
    )


def placed_envelope(
    row: Row[Any], envelopes: Sequence[bodies.NewEnvelope], execution_id: UUID
) -> StoredEnvelope:
    """Return an envelope that was just given its position."""
    given: int = row.given
    envelope = envelopes[given - 1]
    payload = bodies.document(envelope.payload, "the payload")
    return StoredEnvelope(
        row.stream_id,
        row.seq,
        envelope.id,
        envelope.type,
        execution_id,
        payload,
        row.created_at,
        envelope.payload_json,
    )
