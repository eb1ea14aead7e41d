"""Model calls of sessions that belong to no execution, in PostgreSQL."""

from dataclasses import replace
from typing import Final
from uuid import UUID

from everstep.agent_domain.errors import NotFound
from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.loop.budget import BudgetScope
from everstep.agent_domain.storage.budget_ledger import (
    BudgetClaim,
    BudgetGrant,
    BudgetRefusal,
    BudgetSpending,
    BudgetTerms,
)
from everstep.agent_domain.storage.session_charges import SessionUsage
from everstep.store import budget_statements, budget_values, parameters, session_statements
from everstep.store.parameters import execution_key
from everstep.store.session_forks import SessionForks
from everstep.store.transaction import BoundStatement

LONGEST_HOLD_SECONDS: Final = 60.0
"""The age in seconds at which the process of a hold is lost: no call is waited for that long."""


class SessionCharges(SessionForks):
    """Charges model calls to sessions and to budgets."""

    async def session_terms(self, ref: ExecutionRef) -> BudgetTerms:
        """Return the budgets of the session, the user and the tenant of an execution."""
        found = await self._fetch_all(budget_statements.TERMS, execution_key(ref))
        if not found:
            raise NotFound("execution", ref.execution_id)
        terms = budget_values.terms_row(found[0])
        shared = tuple(each for each in terms.budgets if each.scope is not BudgetScope.EXECUTION)
        return replace(terms, budgets=shared)

    async def hold_budget(self, hold: UUID, claim: BudgetClaim) -> BudgetGrant | BudgetRefusal:
        """Hold the worst case of a model call in every budget that applies, or in none."""
        accounts = claim.accounts
        if accounts:
            await self._open_budgets(claim, accounts)
        values = execution_key(claim.ref) | budget_values.claim_values(claim, accounts) | {"hold": hold}
        async with self._transaction() as connection:
            _, held = await connection.together(
                (budget_statements.LOCK_BUDGETS, values), (budget_statements.HOLD, values), last=True
            )
        return budget_values.claim_answer(claim, held.all())

    async def record_session_usage(
        self, used: SessionUsage | None, hold: UUID | None, spent: BudgetSpending | None
    ) -> None:
        """Record what a model call used, and replace what was held by what it spent."""
        writes = list[BoundStatement]()
        if used:
            values = execution_key(used.ref) | parameters.usage_values(used.usage, used.model)
            writes.append((session_statements.ADD_SESSION_USAGE, values))
        if hold:
            amounts = budget_values.spending_values(spent) | {"hold": hold}
            writes.append((budget_statements.SETTLE_HOLD, amounts))
        async with self._transaction() as connection:
            await connection.together(*writes, last=True)

    async def charge_lost_holds(self) -> int:
        """Charge what calls of lost processes hold; return their number."""
        values = {"seconds": LONGEST_HOLD_SECONDS}
        async with self._transaction() as connection:
            (settled,) = await connection.together((budget_statements.CHARGE_LOST_HOLDS, values), last=True)
        return settled.scalar_one()
