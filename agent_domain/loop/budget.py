"""Budgets in money, tokens or steps: what they limit, what follows their exhaustion, and the vote of one.

A budget is reserved before each model call, for the worst case of its request, and settled after it. So
concurrent executions that share a budget never exceed it together. A `TokenUsageLimit`, in contrast, is only
checked between steps.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from enum import StrEnum
from typing import Any
from uuid import UUID

from everstep.agent_domain.errors import EverstepError
from everstep.agent_domain.loop.continuation import ContinuationDecision, ContinuationEvaluation
from everstep.agent_domain.loop.status import StopReason
from everstep.agent_domain.values import frozen_map


class BudgetUnit(StrEnum):
    """What a budget counts."""

    USD = "usd"
    TOKENS = "tokens"
    STEPS = "steps"

    @property
    def stop_reason(self) -> StopReason:
        """Why an execution ends whose budget is exhausted."""
        return _STOP_REASONS[self]

    def text(self, amount: Decimal) -> str:
        """An amount for people, such as `0.25 USD` or `1 step`."""
        number = f"{amount.normalize():f}"
        if self is BudgetUnit.USD:
            return f"{number} USD"
        return f"{number} {self.removesuffix('s') if amount == 1 else self}"


_STOP_REASONS = {
    BudgetUnit.USD: StopReason.GUARD,
    BudgetUnit.TOKENS: StopReason.TOKEN_LIMIT,
    BudgetUnit.STEPS: StopReason.STEPS_LIMIT,
}


class BudgetScope(StrEnum):
    """Which executions share a budget; the narrowest scope comes first."""

    EXECUTION = "execution"
    """An execution with its subagents."""
    SESSION = "session"
    USER = "user"
    TENANT = "tenant"


class OnExhausted(StrEnum):
    """What follows when a budget does not cover the next model call."""

    STOP = "stop"
    """The execution ends."""
    ASK = "ask"
    """The execution pauses until a person raises the budget."""
    DEGRADE = "degrade"
    """A cheaper preset is asked; if the budget does not cover that either, the execution ends."""


@dataclass(frozen=True, slots=True)
class Budget:
    """A budget of an agent, as a part of the plan of an execution."""

    unit: BudgetUnit
    limit: Decimal
    scope: BudgetScope = BudgetScope.EXECUTION
    on_exhausted: OnExhausted = OnExhausted.STOP
    degrade_to: str | None = None
    """The cheaper preset."""
    agent: str = ""
    """The agent whose executions share it."""
    root: UUID | None = None
    """For a budget that a subagent has from its parent: the execution to which it belongs."""

    @property
    def key(self) -> tuple[BudgetScope, BudgetUnit]:
        """An agent has one budget for each of these."""
        return self.scope, self.unit


def inherited_budgets(budgets: Iterable[Budget], parent: UUID) -> tuple[Budget, ...]:
    """The budgets of an execution as those of its subagents."""
    return tuple(replace(budget, root=budget.root or parent) for budget in budgets)


def tightened_budgets(budgets: Iterable[Budget], more: Iterable[Budget]) -> tuple[Budget, ...]:
    """The budgets with those of a request, which may lower the limit of one and change nothing else of it."""
    by_key = {budget.key: budget for budget in budgets}
    for budget in more:
        own = by_key.get(budget.key)
        by_key[budget.key] = budget if own is None else replace(own, limit=min(own.limit, budget.limit))
    return tuple(by_key.values())


@dataclass(frozen=True, slots=True)
class ExhaustedBudget:
    """A budget that does not cover the next model call."""

    id: UUID
    unit: BudgetUnit
    scope: BudgetScope
    limit: Decimal
    spent: Decimal
    reserved: Decimal
    """What other model calls have reserved."""
    needed: Decimal
    """The least that the next call needs."""
    on_exhausted: OnExhausted = OnExhausted.STOP
    is_operators: bool = False
    """Whether an operator has set it, and no agent."""
    note: str = ""
    """What else there is to say."""

    @property
    def text(self) -> str:
        """The reason for people."""
        unit, left = self.unit, max(Decimal(0), self.limit - self.spent)
        return (
            f"The {self.scope}'s budget of {unit.text(self.limit)} is exhausted: "
            f"{unit.text(left)} left, and the next model call needs up to {unit.text(self.needed)}{self.note}"
        )

    def to_dict(self) -> dict[str, Any]:
        """The budget as JSON data for people; amounts are numbers."""
        return {
            "budget_id": str(self.id),
            "unit": str(self.unit),
            "scope": str(self.scope),
            "limit": number(self.limit),
            "spent": number(self.spent),
            "reserved": number(self.reserved),
            "needed": number(self.needed),
        }


def number(amount: Decimal) -> int | float:
    """An amount as a JSON number."""
    return int(amount) if amount == amount.to_integral_value() else float(amount)


class BudgetExhausted(EverstepError):
    """A budget does not cover the next model call, so no call was made."""

    def __init__(self, budget: ExhaustedBudget) -> None:
        self.budget = budget
        super().__init__(budget.text)


class BudgetReserved(EverstepError):
    """Other model calls have reserved the rest of a budget, which covers this call once they are settled."""

    def __init__(self) -> None:
        super().__init__("Other model calls have reserved the rest of the budget; try again later")


@dataclass(frozen=True)
class BudgetLimit:
    """Forbids further steps, because a budget does not cover the next model call."""

    exhausted: ExhaustedBudget
    criterion_class: str = field(default="BudgetLimit", init=False)

    def decide(self, state: object) -> ContinuationDecision:
        """Vote against another step."""
        del state
        return ContinuationDecision.FORBID

    def explain(self, state: object) -> ContinuationEvaluation:
        """Vote against another step, with the amounts as the reason."""
        vote = ContinuationEvaluation.from_decision(self.criterion_class, self.decide(state))
        context: Mapping[str, Any] = self.exhausted.to_dict()
        return replace(
            vote,
            reason=self.exhausted.text,
            stop_reason=self.exhausted.unit.stop_reason,
            context=frozen_map(context),
        )
