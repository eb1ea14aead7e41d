"""Budgets of runs in this process.

A run has no session, user or tenant whose other executions would count, so it has every budget of its agent
for itself, and the operator's do not apply. Its subagents share them.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from decimal import Decimal
from uuid import UUID

from everstep.agent_domain.agents.drivers import Model
from everstep.agent_domain.agents.plan import ExecutionPlan
from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.loop.budget import (
    Budget,
    BudgetExhausted,
    BudgetScope,
    BudgetUnit,
    ExhaustedBudget,
    OnExhausted,
)
from everstep.agent_domain.state.state import AgentState
from everstep.agent_domain.storage.budget_ledger import (
    BudgetAccount,
    BudgetClaim,
    BudgetGrant,
    BudgetOwner,
    BudgetRefusal,
    BudgetSpending,
    BudgetTerms,
    grant_output,
    refusal,
)
from everstep.agent_domain.tools.inquiry import ModelChoice
from everstep.local.clock import Clock, sleep_on_clock
from everstep.steps.budgeted_calls import BudgetedCalls

CANNOT_WAIT = "; a run in-process cannot wait until it is raised, so run the agent on a worker"


class LocalBudgets:
    """The budgets of a run, and of the runs above it whose subagent it is."""

    def __init__(self, plan: ExecutionPlan, state: AgentState, parent: "LocalBudgets | None" = None) -> None:
        execution_id = state.execution.execution_id or UUID(int=0)
        budgets = tuple(replace(each, scope=BudgetScope.EXECUTION) for each in plan.budgets)
        self.terms = BudgetTerms(BudgetOwner(ExecutionRef(execution_id)), _least_of_each(budgets))
        self.parent = parent
        self.spent = _spent_by(state)
        self._reserved: dict[str, BudgetClaim] = {}
        self._outputs: dict[str, int] = {}
        self._count = 0

    @property
    def units(self) -> frozenset[BudgetUnit]:
        """The units of all budgets; without any, calls are not reserved."""
        return self.terms.units | self.parent.units if self.parent else self.terms.units

    def _accounts(self, but: str | None = None) -> tuple[BudgetAccount, ...]:
        own = (
            replace(
                account,
                spent=self.spent.get(account.unit, Decimal(0)),
                reserved=self._reserved_of(account.unit, but),
            )
            for account in self.terms.owner.accounts(self.terms.budgets)
        )
        return (*own, *(self.parent._accounts() if self.parent else ()))  # noqa: SLF001 -- the same class

    def _reserved_of(self, unit: BudgetUnit, but: str | None) -> Decimal:
        reserved = (
            claim.needs[unit].amount(self._outputs[key])
            for key, claim in self._reserved.items()
            if key != but and unit in claim.needs
        )
        return sum(reserved, Decimal(0))

    async def reserve_budget(self, claim: BudgetClaim) -> BudgetGrant | BudgetRefusal:
        """Reserve what a model call may use of every budget, or nothing."""
        accounts = self._accounts(claim.key)
        output = grant_output(claim, accounts)
        if output is None:
            return refusal(claim, accounts)
        self._keep(claim, output)
        return BudgetGrant(output)

    def _keep(self, claim: BudgetClaim, output: int) -> None:
        self._reserved[claim.key], self._outputs[claim.key] = claim, output
        if self.parent:
            self.parent._keep(claim, output)  # noqa: SLF001 -- the same class

    async def settle_budget(self, ref: ExecutionRef, spending: BudgetSpending) -> None:
        """Replace the reservation of a model call by what it spent."""
        if self._reserved.pop(spending.key, None) is not None:
            for unit, amount in spending.amounts.items():
                self.spent[unit] = self.spent.get(unit, Decimal(0)) + amount
        if self.parent:
            await self.parent.settle_budget(ref, spending)

    def calls(
        self, clock: Clock, model_of: Callable[[ModelChoice], Model], *, steps: int = 0
    ) -> BudgetedCalls | None:
        """The reservation of a step, or of one question; None without budgets."""
        if not self.units:
            return None
        self._count += 1
        key = f"{self.terms.owner.ref.execution_id}/{self._count}"
        # All units, so that the parents' budgets are reserved as well.
        terms = replace(self.terms, operator_units=tuple(self.units))
        return BudgetedCalls(
            self,
            terms,
            key,
            steps=steps,
            find_model=model_of,
            patience=None,
            sleep=lambda seconds: sleep_on_clock(clock, seconds),
        )


def exhausted_in_process(error: BudgetExhausted) -> ExhaustedBudget:
    """The budget that ends a run: without the durable runtime, it cannot wait for a person."""
    note = CANNOT_WAIT if error.budget.on_exhausted is OnExhausted.ASK else ""
    return replace(error.budget, on_exhausted=OnExhausted.STOP, note=note)


def _least_of_each(budgets: Iterable[Budget]) -> tuple[Budget, ...]:
    """The smallest budget of each unit: a run has all of them for itself."""
    least: dict[BudgetUnit, Budget] = {}
    for budget in sorted(budgets, key=lambda each: each.limit):
        least.setdefault(budget.unit, budget)
    return tuple(least.values())


def _spent_by(state: AgentState) -> dict[BudgetUnit, Decimal]:
    """What the run has spent so far, if another process began it."""
    return {
        BudgetUnit.USD: state.usage.known_cost_usd + (state.facts.child_cost_usd or 0),
        BudgetUnit.TOKENS: Decimal(state.tokens),
        BudgetUnit.STEPS: Decimal(state.step_count),
    }
