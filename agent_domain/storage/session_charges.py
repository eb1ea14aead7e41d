"""Model calls of a session that belong to no execution: what they may use, and what they used."""

from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.storage.budget_ledger import (
    BudgetClaim,
    BudgetGrant,
    BudgetRefusal,
    BudgetSpending,
    BudgetTerms,
)


@dataclass(frozen=True, slots=True)
class SessionUsage:
    """What a model call used."""

    ref: ExecutionRef
    """The execution that began the session; its agent is charged."""
    model: str
    """The name of the model; empty if it has none."""
    usage: Usage


class SessionChargeStore(Protocol):
    """Charges model calls to sessions.

    What such a call may use is held in budgets: a reservation that no end of an execution releases.
    """

    async def session_terms(self, ref: ExecutionRef) -> BudgetTerms:
        """The budgets of the session, the user and the tenant of an execution."""
        ...

    async def hold_budget(self, hold: UUID, claim: BudgetClaim) -> BudgetGrant | BudgetRefusal:
        """Hold the worst case of a model call in every budget that applies, or in none."""
        ...

    async def record_session_usage(
        self, used: SessionUsage | None, hold: UUID | None, spent: BudgetSpending | None
    ) -> None:
        """Record what a model call used, and replace what was held by what it spent.

        Args:
            used: What it used; None if it was charged nothing.
            hold: The id under which it was held; None without budgets.
            spent: What it spent.
        """
        ...

    async def charge_lost_holds(self) -> int:
        """Charge what calls of lost processes hold, as their providers may do; return their number."""
        ...
