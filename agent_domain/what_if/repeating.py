"""Compares the decisions of a recorded execution with those that another policy makes over the same facts.

`decide` is asked at every recorded boundary between two steps, under the recorded policy and under the other
one. The first difference ends the comparison: what the model would have done after it is unknown. If the
recorded policy does not reproduce what was recorded, or the record does not have what a decision needs, the
execution is undetermined, and never guessed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import isclose
from typing import Any, cast
from uuid import UUID

from everstep.agent_domain.agents.plan import REGISTERED, CriterionRegistry, ExecutionPlan
from everstep.agent_domain.errors import UnknownName
from everstep.agent_domain.loop.budget import ExhaustedBudget, OnExhausted
from everstep.agent_domain.loop.continuation import ContinuationOutcome
from everstep.agent_domain.loop.explanations import explain_end
from everstep.agent_domain.loop.facts import ExecutionFacts
from everstep.agent_domain.loop.loop import Decision, Infer, Rules, Stop, decide
from everstep.agent_domain.loop.status import ExecutionStatus, StopReason, final_situation
from everstep.agent_domain.storage.recorded_executions import RecordedExecution
from everstep.agent_domain.values import FrozenDict
from everstep.agent_domain.what_if.policy_change import PolicyChange
from everstep.agent_domain.what_if.repeated_facts import DecisionPoint, Followed, bounds_of, decision_points
from everstep.agent_domain.what_if.spending import (
    NO_SPENDING,
    Spending,
    coverage,
    spending_until,
    total_spending,
)


class ChangedEnd(StrEnum):
    """How an execution ends under another policy."""

    SAME = "same"
    EARLIER = "earlier"
    LATER = "later"
    """It goes on where the record ends; what follows is unknown."""
    OTHERWISE = "otherwise"
    """It ends after the same step, with another stop reason or status."""
    UNDETERMINED = "undetermined"
    """The record does not say."""


@dataclass(frozen=True, slots=True)
class WhatIfResult:
    """One execution under another policy."""

    id: UUID
    agent: str
    verdict: ChangedEnd
    status: ExecutionStatus
    stop_reason: StopReason | None
    """The recorded one."""
    parts_at_step: int | None = None
    """The step after which the decisions differ or are unknown; 0 before the first, None if they do not."""
    would: str | None = None
    """The stop reason under the other policy; None if it goes on, or if that is unknown."""
    because: str = ""
    saved: Spending = NO_SPENDING
    decisions: int = 0
    """How many recorded decisions were repeated."""
    note: str = ""
    """What the record lacks, for example because the execution runs."""

    @property
    def differs(self) -> bool:
        """Whether the other policy certainly makes a difference."""
        return self.verdict in (ChangedEnd.EARLIER, ChangedEnd.LATER, ChangedEnd.OTHERWISE)


def compare(
    record: RecordedExecution, change: PolicyChange, registry: CriterionRegistry = REGISTERED
) -> WhatIfResult:
    """Repeat the decisions of an execution under another policy."""
    return _Comparer(record, change, registry).compare()


class _Comparer:
    def __init__(self, record: RecordedExecution, change: PolicyChange, registry: CriterionRegistry) -> None:
        self.record = record
        self.change = change
        self.registry = registry
        self.decisions = 0
        self.changes_decisions = change.changes_decisions

    def compare(self) -> WhatIfResult:
        if missing := _missing(self.record):
            return self._result(ChangedEnd.UNDETERMINED, 0, missing)
        plan = ExecutionPlan.model_validate(self.record.plan)
        try:
            own = plan.rules(self.registry)
            other = self.change.changed(plan).rules(self.registry) if self.changes_decisions else own
        except UnknownName as error:
            return self._result(ChangedEnd.UNDETERMINED, 0, f"{error}; load the agents that register it")
        tracks = [decision_points(self.record, bound) for bound in bounds_of(self.record)]
        for points in zip(*tracks, strict=True):
            found, is_end = self._compare_at(points, own, other)
            if found:
                return found
            if is_end:
                break
        return self._result(ChangedEnd.SAME, None)

    def _compare_at(
        self, points: Sequence[DecisionPoint], own: Rules, other: Rules
    ) -> tuple[WhatIfResult | None, bool]:
        """The verdict if the comparison ends after this decision; otherwise whether the execution does."""
        point = points[0]
        self.decisions += 1
        recorded = [_Decided.at(each, own) for each in points]
        reproduced = [each for each in recorded if each.reproduces(self.record)]
        if not reproduced and not point.is_exact:
            # A message may have been waiting.
            points = [replace(each, facts=each.facts.steered_by()) for each in points]
            recorded = [_Decided.at(each, own) for each in points]
            reproduced = [each for each in recorded if each.reproduces(self.record)]
        if not reproduced:
            because = "the recorded policy does not reproduce the recorded decision"
            return self._result(ChangedEnd.UNDETERMINED, point.step, because), True
        raised = reproduced[0].is_raised_end
        if not self.changes_decisions:
            return None, raised
        decided = [_Decided.at(each, other, drops_budget=self._drops_exhausted(each)) for each in points]
        if len({(type(each.decision), each.reason) for each in decided}) > 1:
            because = "the record is of an older release and does not have what decides"
            return self._result(ChangedEnd.UNDETERMINED, point.step, because), True
        found = self._difference(point, reproduced[0], decided[0]) or self._check_budgets(point, decided[0])
        return found, raised

    def _drops_exhausted(self, point: DecisionPoint) -> bool:
        """Whether the budget that ended the execution is one that the other policy replaces."""
        exhausted = point.boundary.exhausted if point.boundary else None
        return exhausted is not None and any(
            budget.key == (exhausted.scope, exhausted.unit) for budget in self.change.budgets
        )

    def _difference(self, point: DecisionPoint, own: "_Decided", other: "_Decided") -> WhatIfResult | None:
        if other.raises and not own.raises:
            because = f"{other.by} raised an exception over the recorded facts"
            return self._result(ChangedEnd.UNDETERMINED, point.step, because)
        match own.decision, other.decision:
            case Infer(reminder=recorded), Infer(reminder=reminder) if reminder != recorded:
                because = "the model would have read another reminder of repeated calls"
                return self._result(ChangedEnd.UNDETERMINED, point.step, because)
            case Stop(), Infer():
                return self._result(
                    ChangedEnd.LATER, point.step, f"goes on; the record ends here, {own.sentence}"
                )
            case Infer(), Stop():
                return self._earlier(point.step, other)
            case Stop(), Stop() if own.ending() != other.ending():
                return self._result(ChangedEnd.OTHERWISE, point.step, other.sentence, other.reason)
            case _:
                return None

    def _check_budgets(self, point: DecisionPoint, decided: "_Decided") -> WhatIfResult | None:
        """Whether the other policy's budgets cover the next step."""
        if not self.change.budgets or not isinstance(decided.decision, Infer):
            return None
        if point.followed not in (Followed.STEP, Followed.LOSS):
            return None
        covered = coverage(self.record, self.change.budgets, point.step, self.change.prices)
        if covered.exhausted:
            return self._earlier(point.step, decided.without_budget(covered.exhausted))
        if covered.doubt:
            return self._result(ChangedEnd.UNDETERMINED, point.step, covered.doubt)
        return None

    def _earlier(self, step: int, other: "_Decided") -> WhatIfResult:
        return self._result(ChangedEnd.EARLIER, step, other.sentence, other.reason)

    def _result(
        self, verdict: ChangedEnd, step: int | None, because: str = "", would: str | None = None
    ) -> WhatIfResult:
        record = self.record
        saved = (
            total_spending(record, step) if verdict is ChangedEnd.EARLIER and step is not None else Spending()
        )
        if self.change.prices and verdict is not ChangedEnd.UNDETERMINED:
            last = step if verdict is ChangedEnd.EARLIER and step is not None else record_end(record)
            costs = total_spending(record) - spending_until(record, last, self.change.prices)
            saved = Spending(saved.tokens, saved.seconds, costs.cost_usd)
        return WhatIfResult(
            record.ref.execution_id,
            record.agent,
            verdict,
            record.status,
            record.stop_reason,
            step,
            would,
            because,
            saved,
            self.decisions,
            "" if record.status.is_terminal else "it has not ended: examined up to its last recorded step",
        )


def record_end(record: RecordedExecution) -> int:
    """The number of the last recorded step."""
    return max((step.number for step in record.steps), default=0)


@dataclass(frozen=True, slots=True)
class _Decided:
    """A decision at a recorded boundary."""

    point: DecisionPoint
    rules: Rules
    facts: ExecutionFacts
    decision: Decision

    @classmethod
    def at(cls, point: DecisionPoint, rules: Rules, *, drops_budget: bool = False) -> "_Decided":
        """The decision of these rules; a budget that was exhausted decides last."""
        decided = cls(point, rules, point.facts, decide(point.facts, rules, point.now))
        exhausted = point.boundary.exhausted if point.boundary else None
        if exhausted is None or drops_budget or point.followed is not Followed.END:
            return decided
        return decided.without_budget(exhausted) if isinstance(decided.decision, Infer) else decided

    def without_budget(self, exhausted: ExhaustedBudget) -> "_Decided":
        """The decision that follows if a budget does not cover the step that this one begins."""
        facts, point = self.facts, self.point
        facts = facts.recorded(self.outcome) if facts.is_applied else facts
        hears = self.decision.hears if isinstance(self.decision, Infer) else 0
        stopping = replace(exhausted, on_exhausted=OnExhausted.STOP)
        facts = facts.step_started(point.now, hears).budget_exhausted(stopping, hears)
        return replace(self, facts=facts, decision=decide(facts, self.rules, point.now))

    @property
    def outcome(self) -> ContinuationOutcome | None:
        """The outcome of the evaluation."""
        return self.decision.outcome if isinstance(self.decision, Infer | Stop) else None

    @property
    def by(self) -> str:
        """The criterion that decided."""
        return self.outcome.resolved_by if self.outcome else "nothing"

    @property
    def sentence(self) -> str:
        """Why a decision to stop ends the execution, with its numbers."""
        if not isinstance(self.decision, Stop):
            return ""
        ended = self.facts.ended(self.decision.outcome, self.rules.error_policy)
        return explain_end(self.decision.outcome, ended)

    @property
    def reason(self) -> StopReason | None:
        """The stop reason of a decision to stop."""
        return self.decision.reason if isinstance(self.decision, Stop) else None

    @property
    def raises(self) -> bool:
        """Whether a criterion raised."""
        return self.outcome is not None and self.outcome.failure is not None

    @property
    def is_raised_end(self) -> bool:
        """Whether a criterion raised, and the record has a failure step for it."""
        return self.raises and self.point.raised_outcome is not None

    def ending(self) -> tuple[StopReason, ExecutionStatus] | None:
        """The stop reason and the status that follow from a decision to stop."""
        if not isinstance(self.decision, Stop):
            return None
        ended = self.facts.ended(self.decision.outcome, self.rules.error_policy)
        situation = final_situation(ended.status, self.decision.reason)
        return self.decision.reason, situation.execution

    def reproduces(self, record: RecordedExecution) -> bool:
        """Whether it is what was recorded."""
        point = self.point
        if self.is_raised_end:
            return self.ending() == (record.stop_reason, record.status) and self._has_outcome(
                point.raised_outcome
            )
        match point.followed:
            case Followed.STEP:
                return isinstance(self.decision, Infer) and self._has_outcome(point.outcome)
            case Followed.END:
                return self.ending() == (record.stop_reason, record.status) and self._has_outcome(
                    point.outcome
                )
            case Followed.CANCEL | Followed.LOSS | Followed.NOTHING:
                return True

    def _has_outcome(self, recorded: FrozenDict | None) -> bool:
        """Whether the outcome is the recorded one, vote by vote."""
        if recorded is None or self.outcome is None:
            return True
        own = self.outcome.to_dict()
        if any(
            own[key] != recorded.get(key)
            for key in ("decision", "shouldContinue", "resolvedBy", "stopReason")
        ):
            return False
        if not self.point.is_exact and not self.is_raised_end:
            return True
        votes = cast("Sequence[dict[str, Any]]", recorded.get("evaluations", ()))
        raised = {vote.name for vote in self.outcome.evaluations if vote.error}
        return len(votes) == len(own["evaluations"]) and all(
            _is_same_vote(one, other, is_raised=one["criterion"] in raised)
            for one, other in zip(own["evaluations"], votes, strict=True)
        )


def _is_same_vote(one: dict[str, Any], other: dict[str, Any], *, is_raised: bool) -> bool:
    if any(one[key] != other.get(key) for key in ("criterion", "decision", "stopReason")):
        return False
    # The text of an exception is disclosed to its readers only.
    return is_raised or _is_same(one["context"], other.get("context"))


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, int | float):
        # Recorded to microseconds.
        return isclose(one, other, abs_tol=1e-5)
    if isinstance(one, dict | FrozenDict) and isinstance(other, dict | FrozenDict):
        pair = cast("tuple[dict[str, Any], dict[str, Any]]", (one, other))
        return pair[0].keys() == pair[1].keys() and all(
            _is_same(pair[0][key], pair[1][key]) for key in pair[0]
        )
    return one == other


def _missing(record: RecordedExecution) -> str:
    """What the record lacks of what every decision needs."""
    if not record.plan:
        return "its plan is not stored: it was started without one, or by an older release"
    numbers = [step.number for step in record.steps]
    if numbers != list(range(1, len(numbers) + 1)):
        return "some of its steps are missing: they were pruned or erased"
    known = sum(step.facts is not None for step in record.steps)
    if record.status.is_terminal and known < record.step_count:
        return f"{known} of its {record.step_count} steps are stored: the others were pruned or erased"
    return ""
