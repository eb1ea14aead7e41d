"""The sentences for what an execution waits for: people, a provider, tools, subagents, its turn."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from everstep.agent_domain.capabilities.rights import DEFAULT_POLICY, OWNER, Decider, DecisionPolicy
from everstep.agent_domain.loop.explanations import budget_text, count_text
from everstep.agent_domain.loop.step_facts import CallNeed
from everstep.agent_domain.storage.calls import CallRow
from everstep.agent_domain.storage.requests import RequestKind, RequestRow
from everstep.agent_domain.storage.steps import RetryWait
from everstep.agent_domain.tools.summaries import args_summary

FOR_A_WORKER: Final = "waiting for a worker"


def request_sentence(request: RequestRow, now: datetime, *, has_content: bool = True) -> str:
    """A request to people that is open; without content, it has no arguments of the call."""
    since = since_text(request.created_at, now)
    if request.kind == CallNeed.INPUT:
        return f"waits: answer to {request.tool} {since}"
    approvers = _approvers_text(request.policy or DEFAULT_POLICY)
    expiry = f", denied at {clock_text(request.expires_at, now)}" if request.expires_at else ""
    if request.kind == RequestKind.BUDGET:
        return f"waits: a higher limit by {approvers} {since}{expiry}; {budget_text(request.request)}"
    call = _call_text(request.tool, request.args, has_content=has_content)
    return f"waits: approval of {call} by {approvers} {since}{expiry}"


def retry_sentence(wait: RetryWait, now: datetime) -> str:
    """A model call that failed in transport and is made again."""
    left = (wait.until - now).total_seconds()
    due = f"next in {round(left)} s" if left >= 1 else "due now"
    lasted = max(0, round((now - wait.since).total_seconds()))
    return f"retried: {outage_of(wait)} for {lasted} s, attempt {wait.attempt + 1}, {due}"


def outage_of(wait: RetryWait) -> str:
    """What failed, without the time of the next attempt."""
    return wait.told.partition(", next attempt")[0]


def calls_sentence(
    calls: Iterable[CallRow],
    needs: dict[str, CallNeed],
    since: datetime,
    now: datetime,
    *,
    has_content: bool = True,
) -> str:
    """Calls that run.

    Args:
        calls: Those without a result.
        needs: What each call needs, by its id.
        since: When their step began.
        now: The current time.
        has_content: Whether the sentence has their arguments.
    """
    pending = tuple(calls)
    children = [row.call.name for row in pending if needs.get(row.call.id) is CallNeed.SUBAGENT]
    if children:
        return f"waits: {', '.join(f'subagent {name}' for name in children)} {since_text(since, now)}"
    shown = (_call_text(row.call.name, row.allowed.args, has_content=has_content) for row in pending)
    return f"runs: {', '.join(shown)} {since_text(since, now)}"


def pending_sentence(
    ahead: int | None,
    since: datetime,
    now: datetime,
    queue_position: int | None = None,
    limit: str | None = None,
) -> str:
    """An execution that has not begun.

    Args:
        ahead: How many executions of its session come first; None if that is unknown.
        since: When it was accepted.
        now: The current time.
        queue_position: Its position in the queue of its tenant, from 1; None if it does not wait there.
        limit: What it waits for because of a limit, as the end of a sentence: see `limit_waits`.
    """
    if queue_position is not None:
        why = limit or "which runs as many executions as its limits allow"
        return f"pending: number {queue_position} in the queue of its tenant, {why}, {since_text(since, now)}"
    if ahead:
        return (
            f"pending: queued behind {count_text(ahead, 'execution')} of its session {since_text(since, now)}"
        )
    if limit:
        return f"pending: waiting {limit}, {since_text(since, now)}"
    return f"pending: {FOR_A_WORKER} {since_text(since, now)}"


def paused_sentence(paused_by: Decider | None, now: datetime) -> str:
    """An execution that is paused."""
    if paused_by is None:
        return "paused: until it is resumed"
    return f"paused: by {paused_by.text} {since_text(paused_by.at, now)}, until it is resumed"


def since_text(at: datetime, now: datetime) -> str:
    """When something began, as the part of a sentence."""
    return f"since {clock_text(at, now)}"


def clock_text(at: datetime, now: datetime) -> str:
    """A time of day in UTC, with the date if it is another day."""
    own = at.astimezone(UTC)
    date = "" if own.date() == now.astimezone(UTC).date() else f"{own:%Y-%m-%d} "
    return f"{date}{own:%H:%M} UTC"


def _call_text(tool: str, args: Mapping[str, Any], *, has_content: bool) -> str:
    return f"{tool}({args_summary(args)})" if has_content else tool


def _approvers_text(policy: DecisionPolicy) -> str:
    return " or ".join(
        "the owner" if each == OWNER else each.replace(":", " ", 1) for each in policy.approver
    )
