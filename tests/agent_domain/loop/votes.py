"""Criteria with fixed votes, and short forms of their outcomes."""

from dataclasses import dataclass, field, replace
from typing import Any

from everstep.agent_domain.loop.continuation import (
    ContinuationCriteria,
    ContinuationDecision,
    ContinuationEvaluation,
    ContinuationOutcome,
    Criterion,
)
from everstep.agent_domain.loop.facts import ExecutionFacts
from everstep.agent_domain.loop.status import StopReason

FORBID, ALLOW, REQUEST, STOP = ContinuationDecision
NOTHING = ExecutionFacts()
"""A state that no criterion of the test reads."""


@dataclass(frozen=True)
class Votes:
    """Votes as configured, under its own name."""

    decision: ContinuationDecision
    name: str = "Someone"
    reason: StopReason | None = None

    def decide(self, state: object) -> ContinuationDecision:
        return self.decision

    def explain(self, state: object) -> ContinuationEvaluation:
        vote = ContinuationEvaluation.from_decision(f"tests.{self.name}", self.decision)
        return replace(vote, stop_reason=self.reason)


@dataclass(frozen=True)
class Raises:
    """Always raises."""

    error: Exception = field(default_factory=lambda: ZeroDivisionError("by zero"))

    def decide(self, state: object) -> ContinuationDecision:
        raise self.error


def allows(name: str = "Guard") -> Votes:
    return Votes(ALLOW, name)


def requests(name: str = "Worker") -> Votes:
    return Votes(REQUEST, name)


def stops(name: str = "Idler") -> Votes:
    return Votes(STOP, name)


def forbids(reason: StopReason = StopReason.GUARD, name: str = "Veto") -> Votes:
    return Votes(FORBID, name, reason)


STEPS = forbids(StopReason.STEPS_LIMIT, "Steps")
TOKENS = forbids(StopReason.TOKEN_LIMIT, "Tokens")
TIME = forbids(StopReason.TIME_LIMIT, "Time")


def outcome(*criteria: Criterion[Any], state: ExecutionFacts = NOTHING) -> ContinuationOutcome:
    return ContinuationCriteria(*criteria).evaluate(state)


def verdict(of: ContinuationOutcome) -> tuple[ContinuationDecision, bool, str, StopReason]:
    return of.decision, of.should_continue, of.resolved_by, of.stop_reason


def trace(of: ContinuationOutcome) -> list[tuple[str, ContinuationDecision]]:
    return [(vote.name, vote.decision) for vote in of.evaluations]
