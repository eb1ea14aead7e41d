"""Denies the calls about which no one decides in time."""

from collections.abc import Callable
from datetime import datetime

from everstep.activities import call_records
from everstep.activities.contracts import ExpiryInput, ExpiryOutput
from everstep.agent_domain.capabilities.approvals import ApprovalDecision, Verdict
from everstep.agent_domain.ids import request_id
from everstep.agent_domain.storage.commands import Command, CommandKind
from everstep.agent_domain.storage.execution_store import ExecutionStore
from everstep.agent_domain.storage.requests import RequestRow, Resolution
from everstep.agent_domain.stream import envelopes


async def expire_approvals(
    store: ExecutionStore, request: ExpiryInput, now: Callable[[], datetime] = call_records.now
) -> ExpiryOutput:
    """Deny the calls that are due, unless a decision came first, and say when the others are."""
    denied = [call_id for call_id in request.due if await _is_denied(store, request, call_id)]
    waiting = [row for row in await store.open_requests(request.ref) if row.call_id in request.calls]
    left = {row.call_id: (row.expires_at - now()).total_seconds() for row in waiting if row.expires_at}
    return ExpiryOutput(left, tuple(denied))


async def _is_denied(store: ExecutionStore, request: ExpiryInput, call_id: str) -> bool:
    row = await store.request(request.ref, request_id(request.ref.execution_id, call_id))
    if row is None or row.resolution is not None:
        # An earlier attempt of this activity may have denied it.
        return row is not None and row.resolution is not None and row.resolution.is_expired
    return await _deny(store, request, row)


async def _deny(store: ExecutionStore, request: ExpiryInput, row: RequestRow) -> bool:
    seconds = row.policy.expires_after if row.policy else None
    reason = f"No decision within {seconds or 0:.15g}s"
    decision = ApprovalDecision(decision=Verdict.DENY, args_digest=row.args_digest, reason=reason)
    event = envelopes.approval_resolved_record(row.id, row.call_id, decision)
    denial = Resolution(Verdict.DENY.value, reason=reason, is_expired=True)
    if not await store.resolve(request.ref, row.id, denial, [event]):
        return False
    # The workflow learns it from this activity; otherwise the reconciler would deliver it as well.
    key = f"{CommandKind.APPROVAL}/{row.id}"
    await store.confirm_delivery(Command(request.ref, key, CommandKind.APPROVAL, row.call_id))
    return True
