"""The part of the execution store that keeps budgets."""

from typing import Protocol
from uuid import UUID

from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.storage.budget_ledger import (
    BudgetAccount,
    BudgetClaim,
    BudgetGrant,
    BudgetRefusal,
    BudgetSpending,
    OperatorBudget,
    RaiseBudget,
    RaisedBudget,
)


class BudgetStore(Protocol):
    """Keeps budgets and their reservations. A reservation is settled or released once."""

    async def reserve_budget(self, claim: BudgetClaim) -> BudgetGrant | BudgetRefusal:
        """Reserve what a model call may use of every budget that applies, or nothing.

        A claim with the key of an earlier one replaces it.

        Raises:
            ExecutionEnded: The execution has ended; nothing is reserved.
        """
        ...

    async def settle_budget(self, ref: ExecutionRef, spending: BudgetSpending) -> None:
        """Replace the reservation of a model call by what it spent; without one, nothing changes."""
        ...

    async def give_back_steering(self, ref: ExecutionRef, number: int) -> None:
        """Undo that a step received steering messages, because the step is not taken."""
        ...

    async def budgets_of(self, ref: ExecutionRef) -> tuple[BudgetAccount, ...]:
        """The budgets that apply to an execution: its plan's, then the operator's."""
        ...

    async def raise_budget(self, change: RaiseBudget) -> RaisedBudget:
        """Raise a budget, and store the commands for the executions that wait for it."""
        ...

    async def set_operator_budget(self, budget: OperatorBudget) -> RaisedBudget:
        """Set a budget for a tenant or one of its users; what was spent of it stays."""
        ...

    async def operator_budgets(self, tenant_id: str) -> tuple[BudgetAccount, ...]:
        """The budgets that the operator has set for a tenant and its users."""
        ...

    async def remove_operator_budget(self, tenant_id: str, budget_id: UUID) -> RaisedBudget | None:
        """Remove a budget that the operator has set; None if there is none."""
        ...
