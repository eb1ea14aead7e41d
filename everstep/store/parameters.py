"""Statement parameters, built from the domain values of the storage port."""

from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any
from uuid import UUID

from sqlalchemy import Row

from everstep.agent_domain.ids import ExecutionRef, request_id
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.loop.step_facts import StepFacts
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.messages.messages import export
from everstep.agent_domain.state.state import CANCELLED_CALL
from everstep.agent_domain.storage.calls import InnerReply, RecordCall
from everstep.agent_domain.storage.compactions import RecordCompaction
from everstep.agent_domain.storage.executions import NewExecution, Settlement
from everstep.agent_domain.storage.steps import BeginStep, CallToRecord, RecordProcessing, RecordReply
from everstep.agent_domain.values import EMPTY, FrozenDict
from everstep.store import bodies, transcripts
from everstep.store.bodies import HUMAN_NEEDS, NewEnvelope, encode, encode_optional
from everstep.store.cost_tables import COUNTERS
from everstep.store.transcripts import TranscriptLine


def execution_key(ref: ExecutionRef) -> dict[str, Any]:
    """Return the parameters that select an execution of a tenant."""
    return {"execution_id": ref.execution_id, "tenant_id": ref.tenant_id}


def execution_values(
    new: NewExecution, continued: Row[Any] | None, parent: Row[Any] | None
) -> dict[str, Any]:
    """Return the parameters of a new execution; it keeps the agent id of the execution it continues."""
    origin = bodies.origin_metadata(parent.id, parent.last_snapshot_id) if parent else EMPTY
    request = new.request or (parent.request if parent else None)
    sent = {"messages": export(new.messages)} | ({"request": request} if request else {})
    return {
        "session_id": new.ref.session_id,
        "user_id": new.user_id or (parent.user_id if parent else None),
        "agent": new.spec.agent,
        "spec": encode(new.spec.model_dump(mode="json"), "the agent's definition"),
        "input": encode(sent, "the input"),
        "breakdown": encode(Usage().to_breakdown()),
        "metadata": encode(origin.merged(new.notes)),
        "agent_id": continued.agent_id if continued else bodies.first_agent_id(new.ref.execution_id),
        "parent_agent_id": new.parent_agent_id or _parent_agent_id(continued, parent),
        "parent_execution_id": new.parent_execution_id,
        "continues": new.continues,
        "continues_until": new.continues_until,
        "is_queued": new.is_queued,
        "queue_rank": new.queue_rank,
        "task_queue": new.task_queue or (parent.task_queue if parent else None),
        "plan": encode(new.plan, "the plan"),
        "agent_metadata": encode(new.metadata, "the agent's metadata"),
        "stream_id": new.ref.stream_id,
        "session_seconds": new.session_seconds,
        **line_values(transcripts.lines(new.messages)),
    }


def _parent_agent_id(continued: Row[Any] | None, parent: Row[Any] | None) -> UUID | None:
    if parent:
        return parent.agent_id
    return continued.parent_agent_id if continued else None


def step_values(begin: BeginStep, seconds_ago: float = 0.0) -> dict[str, Any]:
    """Return the parameters of a step that begins now, or began some seconds ago."""
    return {
        "seconds_ago": seconds_ago,
        "number": begin.number,
        "attempt": begin.attempt,
        "outcome": encode_optional(begin.outcome, "the outcome"),
        "boundary": bodies.dump_boundary(begin.boundary),
        "hears": begin.hears,
    }


def reply_values(reply: RecordReply) -> dict[str, Any]:
    """Return the parameters of a model reply; a step with calls completes when the calls have results."""
    settled = [call.id for call in reply.facts.calls if call.is_settled]
    asking = [told for told in reply.calls if told.need in HUMAN_NEEDS and told.call.id not in settled]
    return {
        "number": reply.number,
        "attempt": reply.attempt,
        "facts": bodies.dump_facts(reply.facts),
        "response": encode(reply.response, "the response"),
        "errors": bodies.dump_errors(reply.errors),
        "first_text_seconds": reply.first_text_seconds,
        "settled": settled,
        **usage_values(reply.facts.usage, _answering_model(reply)),
        "step_count": reply.number if reply.facts.is_complete else reply.number - 1,
        **step_line_values(
            *transcripts.hook_lines(reply.number, reply.added),
            *((reply.number, line) for line in transcripts.reply_lines(reply.messages)),
        ),
        **_call_values(reply.calls),
        **_request_values(reply.ref, asking),
    }


def _call_values(calls: Sequence[CallToRecord]) -> dict[str, Any]:
    return {
        "call_ids": [told.call.id for told in calls],
        "names": [told.call.name for told in calls],
        "args": [encode(told.call.args, f"the arguments of {told.call.name}") for told in calls],
        "malformed": [told.call.malformed for told in calls],
        "needs": [str(told.need) for told in calls],
        "digests": [told.args_digest for told in calls],
    }


def _request_values(ref: ExecutionRef, calls: Sequence[CallToRecord]) -> dict[str, Any]:
    return {
        "request_ids": [request_id(ref.execution_id, told.call.id) for told in calls],
        "asking": [told.call.id for told in calls],
        "kinds": [str(told.need) for told in calls],
        "requests": [encode(told.request or {}, "the request") for told in calls],
        "policies": [bodies.dump_policy(told.policy) for told in calls],
    }


def result_values(given: RecordCall) -> dict[str, Any]:
    """Return the parameters of a call's result."""
    record = given.record
    return {
        "call_id": record.call_id,
        "result": encode(record.result, "the result"),
        "text": record.text,
        "error": encode_optional(record.error and record.error.to_dict(), "the error"),
        "success": record.success,
        "started_at": record.started_at,
        "completed_at": record.completed_at,
        "seconds": record.seconds,
        "besides": bodies.dump_side_results(record.besides),
        "note": record.note,
        "own_text": record.own_text,
        "attachments": bodies.dump_attachments(record.attachments),
        "attempt": given.attempt,
        "digest": given.digest,
        **line_values(
            (
                *transcripts.result_lines(given.messages, given.index),
                *transcripts.call_notes(given.notes, given.index),
            )
        ),
    }


def failed_step_values(settlement: Settlement, step: StepFacts) -> dict[str, Any]:
    """Return the parameters of a failed step that no activity recorded."""
    return {
        "number": step.number,
        "facts": bodies.dump_facts(step),
        "errors": bodies.dump_errors(settlement.errors),
    }


def outcome_values(settlement: Settlement) -> dict[str, Any]:
    """Return the parameters of an evaluation's outcome and its step."""
    return {
        "judged": settlement.step.number if settlement.step else None,
        "outcome": encode_optional(settlement.outcome, "the outcome"),
        "boundary": bodies.dump_boundary(settlement.boundary),
        "replaces": settlement.replaces_outcome,
    }


def settlement_values(settlement: Settlement) -> dict[str, Any]:
    """Return the parameters of a settlement's key and its precondition."""
    return {
        "key": settlement.key,
        "status": str(settlement.status),
        "only_pending": settlement.only_pending,
        "yields_to_cancel": settlement.yields_to_cancel,
    }


def closing_values(settlement: Settlement) -> dict[str, Any]:
    """Return the parameters for closing calls that will get no result."""
    cancelled = settlement.cancelled_calls
    return {
        "call_ids": [call_id for call_id, _, _ in cancelled],
        "texts": [messages[-1].text if messages else CANCELLED_CALL for _, _, messages in cancelled],
        "cancelled": CANCELLED_CALL,
        "every": settlement.status.is_terminal,
        "step": settlement.step.number if settlement.step else None,
    }


def snapshot_values(
    execution: Row[Any],
    snapshot_id: UUID,
    step_count: int,
    state: FrozenDict,
    *,
    is_final: bool = False,
    is_debug: bool = False,
) -> dict[str, Any]:
    """Return the parameters of a state snapshot."""
    return {
        "snapshot_id": snapshot_id,
        "previous_snapshot_id": execution.last_snapshot_id,
        "agent_id": execution.agent_id,
        "agent_name": execution.agent_type,
        "step_number": step_count,
        "is_final": is_final,
        "debug_mode": is_debug,
        "state": encode(state, "the snapshot"),
    }


def status_values(
    settlement: Settlement, metadata: dict[str, Any], snapshot_id: UUID | None
) -> dict[str, Any]:
    """Return the parameters of a status change; values that are None leave their columns unchanged."""
    status, usage, reason = settlement.status, settlement.usage, settlement.stop_reason
    merged = {**metadata, "stop_reason": reason} if reason else metadata
    return {
        "status": str(status),
        "starts": status is ExecutionStatus.RUNNING,
        "ends": status.is_terminal,
        "step_count": settlement.step_count,
        "tokens": usage and usage.total,
        "breakdown": encode_optional(usage and usage.to_breakdown()),
        **cost_values(usage),
        "stop_reason": reason and str(reason),
        "metadata": encode(merged),
        "output": encode_optional(settlement.output, "the output"),
        "error_message": settlement.error_message,
        "error_told": settlement.error_told,
        "outcome": encode_optional(settlement.outcome, "the outcome"),
        "snapshot_id": snapshot_id,
        "worked_seconds": settlement.worked_seconds,
    }


def processing_values(record: RecordProcessing) -> dict[str, Any]:
    """Return the parameters of a step's processing result."""
    return {
        "number": record.number,
        "processed": encode(record.outcome, "what processors said"),
        **step_line_values(*transcripts.processed_lines(record.number, record.added)),
    }


def compaction_values(record: RecordCompaction) -> dict[str, Any]:
    """Return the parameters of a compaction."""
    line, number = transcripts.compaction_line(record), record.compaction.step
    return {"number": number, "idx": line.idx, **step_line_values((number, line))}


def inner_reply_values(reply: InnerReply, usage: Usage) -> dict[str, Any]:
    """Return the parameters of a reply to an inner model call."""
    response = encode(reply.response, "the response")
    used = usage_values(usage, reply.response.get("model") or "")
    return {"key": reply.key, "digest": reply.digest, "response": response, **used}


def usage_values(usage: Usage, model: str | None) -> dict[str, Any]:
    """Return the parameters of tokens that are added to the usage of an execution and of a model.

    Without a model there was no answer, and nothing is added.
    """
    # Each answer was paid for, also if its provider counts no tokens.
    counted = usage if model is None or usage.total else usage.with_cost(None)
    return {
        "tokens": usage.total,
        "breakdown": encode(usage.to_breakdown()),
        "model": model,
        **{f"{counter}_tokens": getattr(usage, counter) for counter in COUNTERS},
        **cost_values(counted),
    }


def cost_values(usage: Usage | None) -> dict[str, Any]:
    """Return the parameters of a cost."""
    return {
        "cost_usd": None if usage is None else usage.cost_usd,
        "known_cost_usd": Decimal(0) if usage is None else usage.known_cost_usd,
    }


def _answering_model(reply: RecordReply) -> str | None:
    """Return the name of the model that answered, or None if none did and nothing was charged."""
    model: str = reply.response.get("model") or ""
    return None if reply.facts.is_failure and not reply.facts.usage.total else model


def step_line_values(*placed: tuple[int, TranscriptLine]) -> dict[str, Any]:
    """Return the parameters of transcript lines of several steps."""
    return line_values(line for _, line in placed) | {"steps": [step for step, _ in placed]}


def line_values(lines: Iterable[TranscriptLine]) -> dict[str, Any]:
    """Return the parameters of transcript lines of one step."""
    kept = tuple(lines)
    return {
        "places": [line.idx for line in kept],
        "roles": [line.role for line in kept],
        "contents": [line.content for line in kept],
        "metadatas": [line.metadata for line in kept],
    }


def envelope_values(envelopes: Sequence[NewEnvelope]) -> dict[str, Any]:
    """Return the parameters of envelopes, and of the session messages among them."""
    messages = [item.message for item in envelopes]
    contexts = [message.context if message else None for message in messages]
    return {
        "ids": [item.id for item in envelopes],
        "types": [item.type for item in envelopes],
        "payloads": [item.payload_json for item in envelopes],
        "speakers": [message and str(message.role) for message in messages],
        "spoken": [message and message.content for message in messages],
        "spoken_attachments": [
            message and bodies.dump_attachments(message.attachments) for message in messages
        ],
        "spoken_metadatas": [message and encode(message.metadata, "metadata") for message in messages],
        "related_types": [context and context.related_type for context in contexts],
        "related_ids": [context and context.related_id for context in contexts],
        "urls": [context and context.url for context in contexts],
    }
