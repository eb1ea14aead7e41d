"""Builders of steps and executions, for tests of decisions."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from everstep.agent_domain.capabilities.critique import MARK, CritiqueFacts, CritiqueVerdict
from everstep.agent_domain.loop.continuation import (
    ContinuationDecision,
    ContinuationEvaluation,
    ContinuationOutcome,
)
from everstep.agent_domain.loop.facts import ExecutionFacts
from everstep.agent_domain.loop.status import StopReason
from everstep.agent_domain.loop.step_error import ErrorType, StepError
from everstep.agent_domain.loop.step_facts import CallFacts, CallNeed, StepFacts
from everstep.agent_domain.loop.stop_signal import StopSignal
from everstep.agent_domain.values import EMPTY

NOON = datetime(2026, 1, 16, 12, tzinfo=UTC)

CANCEL = StopSignal(StopReason.USER_REQUESTED, "Cancelled", source="user")
GO_ON = ContinuationOutcome(ContinuationDecision.REQUEST, True, "ToolCallPresenceCheck", StopReason.COMPLETED)
DONE = ContinuationOutcome(ContinuationDecision.STOP, False, "ToolCallPresenceCheck", StopReason.COMPLETED)


def after(seconds: float) -> datetime:
    """This many seconds after noon."""
    return NOON + timedelta(seconds=seconds)


def a_call(call_id: str = "a", need: CallNeed = CallNeed.RUN) -> CallFacts:
    return CallFacts(call_id, "search", need)


def an_answered_call(call_id: str = "a") -> CallFacts:
    return replace(a_call(call_id), is_settled=True)


def a_failed_call(call_id: str = "a", kind: ErrorType | None = None, message: str = "boom") -> CallFacts:
    return replace(an_answered_call(call_id), error=StepError(message, kind, "search"))


def a_step(*calls: CallFacts, **fields: Any) -> StepFacts:
    """A step with these calls; without calls it is an answer."""
    return StepFacts(1, calls, **fields)


def a_failed_step(kind: ErrorType | None = None) -> StepFacts:
    """A step whose own error is set, such as a refused model call."""
    return a_step(own_errors=(StepError("boom", kind),))


def an_execution(*steps: StepFacts) -> ExecutionFacts:
    """An execution with these steps, about to be evaluated after the last."""
    facts = ExecutionFacts().entered(NOON)
    for number, step in enumerate(steps, 1):
        begun = facts.recorded(GO_ON).step_started(NOON) if facts.is_applied else facts.step_started(NOON)
        facts = begun.with_step(replace(step, number=number))
    return facts


def a_critique(verdict: CritiqueVerdict, iteration: int) -> ExecutionFacts:
    """An answer after this many critiques."""
    return an_execution(a_step()).marked(MARK, CritiqueFacts(verdict, iteration).to_mark())


def an_outcome(
    reason: StopReason = StopReason.COMPLETED, error: StepError | None = None
) -> ContinuationOutcome:
    """The outcome of one veto for this reason; with an error, of a criterion that raised."""
    vote = ContinuationEvaluation("tests.Guard", ContinuationDecision.FORBID, "No", EMPTY, reason, error)
    return ContinuationOutcome(ContinuationDecision.FORBID, False, "Guard", reason, (vote,))


def names(calls: Iterable[CallFacts]) -> list[str]:
    return [call.id for call in calls]
