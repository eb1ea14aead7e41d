"""Budgets in PostgreSQL."""

from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncEngine

from everstep.agent_domain.errors import NotFound
from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.loop.budget import BudgetScope
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
from everstep.agent_domain.storage.requests import Resolution
from everstep.agent_domain.stream.bus import NULL_BUS, EnvelopeBus
from everstep.store import budget_statements, budget_values, ledger_entries
from everstep.store.batches import Batches
from everstep.store.budget_tables import budgets
from everstep.store.parameters import execution_key
from everstep.store.postgres_ledger import ledger_writes
from everstep.store.postgres_writing import PostgresWriter, require_active, require_execution
from everstep.store.transaction import BoundStatement

MOST_CLAIMS: Final = 50
"""The most claims of one transaction, which holds the locks of their budgets."""


class PostgresBudgets(PostgresWriter):
    """Budgets and their reservations.

    Many executions share a budget, whose row is locked until a reservation is committed. Claims that arrive
    during a reservation are reserved by the next one together.
    """

    def __init__(self, engine: AsyncEngine, bus: EnvelopeBus = NULL_BUS) -> None:
        super().__init__(engine, bus)
        self._claims = Batches(self._reserve_all, MOST_CLAIMS)

    async def reserve_budget(self, claim: BudgetClaim) -> BudgetGrant | BudgetRefusal:
        """Reserve what a model call may use of every budget, or nothing; one wait."""
        accounts = claim.accounts
        rows = await self._reserve(claim)
        known = {row.id for row in rows}
        if any(account.id not in known for account in accounts):
            await self._open_budgets(claim, accounts)
            rows = await self._reserve(claim)
        return budget_values.claim_answer(claim, rows)

    async def _reserve(self, claim: BudgetClaim) -> Sequence[Any]:
        """Return the budgets of a claim, of which all or none are reserved."""
        execution, rows = await self._claims.request(claim)
        require_active(claim.ref, require_execution(claim.ref, execution))
        return rows

    async def _reserve_all(self, claims: Sequence[BudgetClaim]) -> list[tuple[Any, Sequence[Any]]]:
        """Return the execution and the budgets of each claim. One after the other is granted what is left."""
        values = [
            execution_key(claim.ref) | budget_values.claim_values(claim, claim.accounts) for claim in claims
        ]
        all_values = {
            "execution_ids": [claim.ref.execution_id for claim in claims],
            "all_ids": [*{identity for each in values for identity in each["all_ids"]}],
        }
        async with self._transaction() as connection:
            executions, _, *found = await connection.together(
                (budget_statements.SHARE_EXECUTIONS, all_values),
                (budget_statements.LOCK_BUDGETS, all_values),
                *((budget_statements.RESERVE, each) for each in values),
                last=True,
            )
        known = {(row.id, row.tenant_id): row for row in executions.all()}
        return [
            (known.get((claim.ref.execution_id, claim.ref.tenant_id)), each.all())
            for claim, each in zip(claims, found, strict=True)
        ]

    async def _open_budgets(self, claim: BudgetClaim, accounts: Sequence[BudgetAccount]) -> None:
        values = execution_key(claim.ref) | budget_values.account_values(accounts)
        async with self._transaction() as connection:
            await connection.together((budget_statements.OPEN_BUDGETS, values), last=True)

    async def settle_budget(self, ref: ExecutionRef, spending: BudgetSpending) -> None:
        """Replace the reservation of a model call by what it spent."""
        async with self._transaction() as connection:
            await connection.together(*budget_values.settling(ref, spending), last=True)

    async def give_back_steering(self, ref: ExecutionRef, number: int) -> None:
        """Undo that a step received steering messages."""
        values = execution_key(ref) | {"number": number}
        async with self._transaction() as connection:
            await connection.together((budget_statements.GIVE_BACK_STEERING, values), last=True)

    async def budgets_of(self, ref: ExecutionRef) -> tuple[BudgetAccount, ...]:
        """Return the budgets that apply to an execution: its plan's, then the operator's."""
        async with self._transaction() as connection:
            (found,) = await connection.together((budget_statements.TERMS, execution_key(ref)))
            row = found.first()
            if row is None:
                raise NotFound("execution", ref.execution_id)
            terms = budget_values.terms_row(row)
            planned = terms.owner.accounts(terms.budgets)
            ids = [*(account.id for account in planned), *terms.owner.operator_ids]
            values = execution_key(ref) | {"all_ids": ids}
            (stored,) = await connection.together((budget_statements.ACCOUNTS, values), last=True)
        return budget_values.current_accounts(planned, stored.all())

    async def raise_budget(self, change: RaiseBudget) -> RaisedBudget:
        """Raise a budget, and store the commands for the executions that wait for it."""
        account = change.account
        values = {"tenant_id": account.tenant_id, **budget_values.raise_values(change)}
        async with self._transaction() as connection:
            # A budget may be raised before the first model call.
            opening = values | budget_values.account_values([account])
            *_, found = await connection.together(
                (budget_statements.OPEN_BUDGETS, opening),
                (budget_statements.LOCK_BUDGET, values),
                (budget_statements.RAISE, values),
            )
            row = found.one()
            entries = _raised_entries(change, row.resumed)
            await connection.together(*entries, last=True)
        raised = budget_values.changed_account(account, row, change.limit)
        return RaisedBudget(raised, budget_values.resumed_refs(account.tenant_id, row.resumed))

    async def set_operator_budget(self, budget: OperatorBudget) -> RaisedBudget:
        """Set a budget for a tenant or one of its users; what was spent of it stays."""
        values = {"tenant_id": budget.tenant_id, **budget_values.operator_values(budget)}
        async with self._transaction() as connection:
            *_, found = await connection.together(
                (budget_statements.LOCK_BUDGET, values), (budget_statements.SET_OPERATORS, values)
            )
            row = found.one()
            resolution = Resolution(budget_values.RAISED, str(budget.limit))
            entries = _resolved_entries(budget.tenant_id, row.resumed, resolution)
            await connection.together(*entries, last=True)
        account = budget_values.changed_account(budget.account, row, budget.limit)
        return RaisedBudget(account, budget_values.resumed_refs(budget.tenant_id, row.resumed))

    async def operator_budgets(self, tenant_id: str) -> tuple[BudgetAccount, ...]:
        """Return the budgets that the operator has set for a tenant and its users."""
        limit = func.greatest(budgets.c.limit_amount, budgets.c.raised_to).label("limit_amount")
        others = (column for column in budgets.c if column is not budgets.c.limit_amount)
        wanted = select(limit, *others).where(budgets.c.tenant_id == tenant_id, budgets.c.agent == "")
        in_order = wanted.order_by(budgets.c.scope.desc(), budgets.c.subject, budgets.c.unit)
        return tuple(map(budget_values.account_row, await self._fetch_all(in_order)))

    async def remove_operator_budget(self, tenant_id: str, budget_id: UUID) -> RaisedBudget | None:
        """Remove a budget that the operator has set; None if there is none."""
        resolution = Resolution(budget_values.RAISED, None)
        values = {"tenant_id": tenant_id, **budget_values.resume_values(budget_id, resolution)}
        async with self._transaction() as connection:
            *_, found = await connection.together(
                (budget_statements.LOCK_BUDGET, values), (budget_statements.REMOVE_OPERATORS, values)
            )
            row = found.first()
            if row is None:
                return None
            entries = _resolved_entries(tenant_id, row.resumed, resolution)
            await connection.together(*entries, last=True)
        resumed = budget_values.resumed_refs(tenant_id, row.resumed)
        return RaisedBudget(budget_values.account_row(row), resumed)


def _raised_entries(change: RaiseBudget, resumed: Any) -> list[BoundStatement]:
    """Return the writes of ledgers after a budget was raised: its own execution's, and those that waited."""
    account = change.account
    resolution = Resolution(budget_values.RAISED, str(change.limit), key=change.key, by=change.by)
    writes = _resolved_entries(account.tenant_id, resumed, resolution)
    if account.scope is not BudgetScope.EXECUTION:
        return writes
    own = ExecutionRef(UUID(account.subject), account.tenant_id)
    return [*ledger_writes(own, [ledger_entries.raised_entry(change)]), *writes]


def _resolved_entries(tenant_id: str, resumed: Any, resolution: Resolution) -> list[BoundStatement]:
    """Return the writes of the ledgers of executions that go on, in the order of their ids."""
    requests = sorted(budget_values.resumed_requests(tenant_id, resumed), key=_id_of)
    return [
        write
        for ref, request_id in requests
        for write in ledger_writes(ref, [ledger_entries.decided_entry(request_id, "budget", resolution)])
    ]


def _id_of(resumed: tuple[ExecutionRef, UUID]) -> UUID:
    return resumed[0].execution_id
