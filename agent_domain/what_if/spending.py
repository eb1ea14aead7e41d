"""What recorded steps used and cost, and whether a budget would have covered the next one.

A budget reserves a model call for the worst case of its request. The estimate of the request is not recorded,
but it is bounded: it is not below the tokens that the provider counted, and the call needs some output. So
between the least and the most that a step can have needed, whether it was covered is unknown.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from everstep.agent_domain.agents.call_limits import LEAST_OUTPUT
from everstep.agent_domain.loop.budget import Budget, BudgetUnit, ExhaustedBudget
from everstep.agent_domain.loop.usage import NO_COST, Usage, sum_costs
from everstep.agent_domain.pricing.prices import Prices
from everstep.agent_domain.storage.budget_ledger import BudgetOwner
from everstep.agent_domain.storage.recorded_executions import RecordedCall, RecordedExecution, RecordedStep

MOST_ESTIMATED: Final = 3
"""The estimate of a request is not more than this many times the tokens that its provider counts.

For usual text it is about one and a half times as much.
"""


@dataclass(frozen=True, slots=True)
class Spending:
    """What steps used: tokens, seconds of work and money, those of their subagents included."""

    tokens: int = 0
    seconds: float = 0.0
    cost_usd: Decimal | None = NO_COST
    """None if the cost of a part is unknown."""

    def __add__(self, other: "Spending") -> "Spending":
        cost = sum_costs(self.cost_usd, other.cost_usd)
        return Spending(self.tokens + other.tokens, self.seconds + other.seconds, cost)

    def __sub__(self, other: "Spending") -> "Spending":
        cost = None
        if self.cost_usd is not None and other.cost_usd is not None:
            cost = self.cost_usd - other.cost_usd
        return Spending(self.tokens - other.tokens, self.seconds - other.seconds, cost)

    @property
    def is_nothing(self) -> bool:
        """Whether nothing was used."""
        return not self.tokens and not self.seconds and self.cost_usd == NO_COST


NO_SPENDING: Final = Spending()


def step_usage(step: RecordedStep) -> Usage:
    """What the model calls of a step used, without those of subagents."""
    if step.facts is None:
        return Usage()
    used = step.facts.usage + step.facts.besides.usage
    used = sum((call.besides.usage for call in _counted_calls(step)), used)
    return used + step.processing.besides.usage if step.processing else used


def _counted_calls(step: RecordedStep) -> tuple[RecordedCall, ...]:
    """The calls that the facts do not include; those of a failure step include them."""
    return () if step.facts is None or step.facts.is_failure else step.calls


def step_spending(
    record: RecordedExecution, step: RecordedStep, prices: Mapping[str, Prices] | None = None
) -> Spending:
    """What a step used; with other prices for its model, what it would have cost."""
    if step.facts is None:
        return Spending()
    usage = step_usage(step)
    seconds = step.facts.seconds + max((call.seconds for call in _counted_calls(step)), default=0.0)
    seconds += step.processing.seconds if step.processing else 0.0
    besides = (step.facts.besides, *(call.besides for call in _counted_calls(step)))
    children = sum(each.child_tokens for each in besides)
    cost = _own_cost(record, step, usage, prices or {})
    for each in besides:
        cost = sum_costs(cost, each.child_cost_usd)
    return Spending(usage.total + children, seconds, cost)


def _own_cost(
    record: RecordedExecution, step: RecordedStep, usage: Usage, prices: Mapping[str, Prices]
) -> Decimal | None:
    is_free = step.facts is not None and step.facts.is_failure and not usage.total
    if is_free:
        return NO_COST
    named = prices.get(step.model or "") or prices.get(record.preset or "")
    if named is None:
        return usage.cost_usd if usage.total else None
    return named.cost(usage) if usage.total and not usage.uncounted_calls else None


def total_spending(
    record: RecordedExecution, after: int = 0, prices: Mapping[str, Prices] | None = None
) -> Spending:
    """What the steps after a step used."""
    later = (step for step in record.steps if step.number > after)
    return sum((step_spending(record, step, prices) for step in later), Spending())


def spending_until(record: RecordedExecution, last: int, prices: Mapping[str, Prices] | None) -> Spending:
    """What the steps up to a step used."""
    earlier = (step for step in record.steps if step.number <= last)
    return sum((step_spending(record, step, prices) for step in earlier), Spending())


@dataclass(frozen=True, slots=True)
class Coverage:
    """Whether budgets cover the next step."""

    exhausted: ExhaustedBudget | None = None
    """A budget that certainly does not."""
    doubt: str | None = None
    """Why it is unknown."""


COVERED: Final = Coverage()


def coverage(
    record: RecordedExecution, budgets: Iterable[Budget], taken: int, prices: Mapping[str, Prices]
) -> Coverage:
    """Whether budgets cover the step after `taken` steps, as far as the record says."""
    spent = spending_until(record, taken, prices)
    step = next((step for step in record.steps if step.number == taken + 1), None)
    usage = step_usage(step) if step else Usage()
    used = step_spending(record, step, prices) if step else NO_SPENDING
    doubt = None
    for budget in budgets:
        need = _need(budget.unit, taken, spent, usage, used)
        if need.spent is None:
            doubt = doubt or f"what it spent in {budget.unit} is unknown"
            continue
        left = budget.limit - need.spent
        if left < need.least:
            return Coverage(_exhausted(record, budget, need.spent, need.least))
        if record.parent_execution_id is not None:
            doubt = doubt or "its parent and other subagents share the budget"
        elif need.most is None or left < need.most:
            doubt = doubt or f"the budget in {budget.unit} may not have covered the worst case of the call"
    return Coverage(doubt=doubt)


@dataclass(frozen=True, slots=True)
class _Need:
    """What was spent in a unit, and what the next step needs; None if it is unknown."""

    spent: Decimal | None
    least: Decimal
    most: Decimal | None


_LEAST_COST: Final = Decimal("1e-12")


def _need(unit: BudgetUnit, taken: int, spent: Spending, usage: Usage, used: Spending) -> _Need:
    if unit is BudgetUnit.STEPS:
        return _Need(Decimal(taken), Decimal(1), Decimal(1))
    output = usage.output + usage.reasoning
    missing_output = max(0, LEAST_OUTPUT - output)
    if unit is BudgetUnit.TOKENS:
        least = max(1, usage.input + usage.cached)
        most = Decimal(MOST_ESTIMATED * used.tokens + missing_output) if usage.total else None
        return _Need(Decimal(spent.tokens), Decimal(least), most)
    if not usage.total or used.cost_usd is None:
        return _Need(spent.cost_usd, _LEAST_COST, None)
    most_cost = MOST_ESTIMATED * used.cost_usd
    if missing_output:
        # A token of output costs no more than all of the step, divided by its tokens of output.
        most_cost = most_cost + used.cost_usd * missing_output / output if output else None
    return _Need(spent.cost_usd, _LEAST_COST, most_cost)


def _exhausted(record: RecordedExecution, budget: Budget, used: Decimal, needed: Decimal) -> ExhaustedBudget:
    (account,) = BudgetOwner(record.ref, record.run.user_id).accounts((budget,))
    return ExhaustedBudget(
        account.id, budget.unit, budget.scope, budget.limit, used, NO_COST, needed, budget.on_exhausted
    )
