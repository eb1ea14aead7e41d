"""The ledger of an execution that an older release accepted: built from its rows, and not sealed."""

from collections.abc import Iterator, Sequence
from datetime import datetime

from everstep.agent_domain.storage.calls import CallRecord, CallRow
from everstep.agent_domain.storage.executions import ExecutionRow
from everstep.agent_domain.storage.ledger import (
    CallEffect,
    EntryKind,
    LedgerEntry,
    NewEntry,
    amount_text,
    build_chain,
    decider_facts,
    error_facts,
    judged_facts,
    microseconds,
    usage_facts,
)
from everstep.agent_domain.storage.requests import RequestRow
from everstep.agent_domain.storage.steps import StepRow


def unsealed_entries(
    row: ExecutionRow, steps: Sequence[StepRow], requests: Sequence[RequestRow]
) -> tuple[LedgerEntry, ...]:
    """Return what the rows of an execution say, in the form of a ledger without digests."""
    return build_chain(
        row.ref.execution_id,
        [
            _acceptance(row),
            *(entry for step in steps for entry in _step_entries(step, requests)),
            *_end(row),
        ],
    )


def _acceptance(row: ExecutionRow) -> tuple[NewEntry, datetime]:
    ref = row.ref
    facts = {
        "agent": row.agent,
        "definition_hash": row.definition_hash,
        "user_id": row.user_id,
        "session_id": ref.session_id and str(ref.session_id),
        "parent_execution_id": row.parent_execution_id and str(row.parent_execution_id),
        "continues": row.continues and str(row.continues),
        "continues_until": row.continues_until,
        "messages": None,
    }
    return NewEntry(EntryKind.ACCEPTED, "accepted", facts), row.created_at


def _step_entries(step: StepRow, requests: Sequence[RequestRow]) -> Iterator[tuple[NewEntry, datetime]]:
    if step.facts is None:
        return
    at = step.started_at
    yield _reply(step), at
    for request in requests:
        if request.step_number == step.number and request.resolution is not None:
            by = request.resolution.by
            yield _decision(request), by.at if by else at
    for call in step.calls:
        if call.record is not None:
            yield _call_result(step.number, call, call.record), call.record.completed_at
    if step.outcome is not None:
        facts = judged_facts(step.number, step.outcome)
        yield NewEntry(EntryKind.JUDGED, f"step/{step.number}/outcome", facts), step.completed_at or at


def _reply(step: StepRow) -> NewEntry:
    facts = step.facts
    assert facts is not None  # noqa: S101
    told = {
        "step": step.number,
        "attempt": step.attempt,
        "model": None,
        "finish_reason": facts.finish_reason,
        "failed": facts.is_failure,
        "usage": usage_facts(facts.usage),
        "microseconds": microseconds(facts.seconds),
        "errors": [error_facts(error) for error in facts.errors],
        "calls": [
            {"id": call.id, "tool": call.name, "args_digest": None, "need": call.need} for call in facts.calls
        ],
    }
    return NewEntry(EntryKind.REPLIED, f"step/{step.number}/reply", told)


def _decision(request: RequestRow) -> NewEntry:
    resolution = request.resolution
    assert resolution is not None  # noqa: S101
    facts = {
        "request_id": str(request.id),
        "call_id": request.call_id or None,
        "kind": request.kind,
        "args_digest": request.args_digest or None,
        "decision": resolution.outcome,
        "by": decider_facts(resolution.by),
    }
    return NewEntry(EntryKind.DECIDED, f"resolution/{request.id}", facts)


def _call_result(step: int, call: CallRow, record: CallRecord) -> NewEntry:
    facts = {
        "step": step,
        "call_id": record.call_id,
        "attempt": call.attempts,
        "effect": CallEffect.of(record.success, record.error),
        "error": error_facts(record.error),
        "usage": usage_facts(record.besides.usage),
        "microseconds": microseconds(record.seconds),
    }
    return NewEntry(EntryKind.CALLED, f"call/{record.call_id}/result", facts)


def _end(row: ExecutionRow) -> Iterator[tuple[NewEntry, datetime]]:
    if not row.status.is_terminal:
        return
    facts = {
        "key": None,
        "status": row.status,
        "stop_reason": row.stop_reason,
        "steps": row.step_count,
        "tokens": row.usage.get("total", 0),
        "cost_usd": amount_text(row.cost_usd),
        "error": None,
    }
    yield NewEntry(EntryKind.ENDED, "ended", facts), row.completed_at or row.created_at
