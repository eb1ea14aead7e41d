"""Raising the budget of an execution: the new limit is stored, then the executions that wait are resumed."""

import asyncio
import logging
from abc import abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING
from uuid import UUID

from temporalio.service import RPCError

from everstep.activities.failpoints import Failpoint
from everstep.agent_domain.agents.budget_arguments import parse_total
from everstep.agent_domain.capabilities.rights import APPROVE, Actor, Decider
from everstep.agent_domain.errors import InvalidInput, NotFound, NotPermitted
from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.loop.budget import BudgetScope, BudgetUnit, OnExhausted
from everstep.agent_domain.storage.budget_ledger import BudgetAccount, RaiseBudget
from everstep.agent_domain.storage.commands import Command, CommandKind
from everstep.agent_domain.storage.executions import ExecutionRow
from everstep.agent_domain.storage.requests import RequestKind
from everstep.agent_domain.storage.sessions import Settled
from everstep.client.errors import Ended, Refused

if TYPE_CHECKING:
    # `client` imports this module.
    from everstep.client.client import Client

log = logging.getLogger(__name__)

RESUMED_AT_ONCE = 50
"""How many other executions a raised budget resumes at once; the reconciler resumes the rest."""
CONCURRENT = 10


class BudgetActions:
    """The part of the handle of an execution that reads and raises budgets."""

    client: "Client"
    ref: ExecutionRef

    @abstractmethod
    async def get(self) -> ExecutionRow:
        """Read the execution."""

    @abstractmethod
    async def carry_out(self, command: Command, *, is_new: bool = False) -> Settled | None:
        """Carry out a stored command."""

    async def budgets(self) -> Sequence[BudgetAccount]:
        """The budgets that apply to it, with what was spent of them: its plan's, then the operator's."""
        return await self.client.store.budgets_of(self.ref)

    async def raise_budget(
        self,
        *,
        usd: float | Decimal | None = None,
        tokens: int | None = None,
        steps: int | None = None,
        scope: str | None = None,
        key: str | None = None,
        by: Actor | None = None,
    ) -> BudgetAccount:
        """Raise a budget, and resume the executions that wait for it.

        Args:
            usd: The new total in US dollars; pass one of the three amounts.
            tokens: The new total in tokens.
            steps: The new total in steps.
            scope: Whose budget; default: the one that the execution waits for, or else the narrowest.
            key: An idempotency key, to record.
            by: Who raises it, with the rights to check, and to record; see `approve`.

        Returns:
            The budget.

        Raises:
            NotFound: No budget applies to the execution.
            InvalidInput: None of its budgets is meant, or the total is smaller than the present one.
            NotPermitted: `by` does not have the scope `approve`.
            Refused: The execution has ended, or only the operator may change the budget.
        """
        decider = by and budget_decider(by, datetime.now(UTC))
        given = {"usd": usd, "tokens": tokens, "steps": steps, "scope": scope}
        budget = parse_total(given)
        named = budget.scope if scope is not None else None
        return await _raise_budget(self, budget.unit, budget.limit, scope=named, by=decider, key=key)


def budget_decider(by: Actor, at: datetime) -> Decider:
    """The record of a raised budget by this actor, at this time.

    Raises:
        NotPermitted: The actor does not have the scope.
    """
    if not by.has_scope(APPROVE):
        raise NotPermitted(
            f"Only callers with the scope '{APPROVE}' may raise a budget; send a token or key with "
            "it, or ask one of them"
        )
    return Decider(by.subject, at, (APPROVE,), key_id=by.key_id)


async def _raise_budget(
    execution: "BudgetActions",
    unit: BudgetUnit,
    total: Decimal,
    *,
    scope: BudgetScope | None = None,
    by: Decider | None = None,
    key: str | None = None,
) -> BudgetAccount:
    """Raise a budget that applies to an execution; see `Execution.raise_budget`."""
    store = execution.client.store
    row = await execution.get()
    account = await _find_account(execution, unit, scope, key)
    if total == account.limit:
        # An earlier attempt may have stored it, and crashed before it resumed the execution.
        await resume_after_raise(execution, ())
        return account
    if total < account.limit:
        raise InvalidInput(
            f"The {account.scope}'s budget is {unit.text(account.limit)} already; pass a larger total"
        )
    if row.status.is_terminal:
        raise Ended(f"The execution has ended as {row.status}")
    if account.is_operators and account.on_exhausted is not OnExhausted.ASK:
        raise Refused(
            f"The operator has set the {account.scope}'s budget, and changes it with `everstep budgets set`"
        )
    raised = await store.raise_budget(RaiseBudget(account, total, by, key))
    execution.client.strike(Failpoint.API_AFTER_COMMIT)
    await resume_after_raise(execution, raised.resumed)
    return raised.account


async def _find_account(
    execution: "BudgetActions", unit: BudgetUnit, scope: BudgetScope | None, key: str | None
) -> BudgetAccount:
    """The budget that was raised under this key or is waited for, or else the narrowest one of the unit."""
    store = execution.client.store
    known = await store.budgets_of(execution.ref)
    if not known:
        raise NotFound("budget of the execution", execution.ref.execution_id)
    accounts = [each for each in known if each.unit is unit and scope in (None, each.scope)]
    if not accounts:
        which = f"budget of the {scope} in {unit}" if scope else f"budget in {unit}"
        raise InvalidInput(f"The execution has no {which}; GET /agent/executions/{{id}} lists its budgets")
    requests = list(await store.open_requests(execution.ref))
    if key is not None and (known := await store.resolved_under(execution.ref, key)):
        requests = [known]
    asked = {UUID(request.request["budget_id"]) for request in requests if request.kind is RequestKind.BUDGET}
    order = list(BudgetScope)
    return min(accounts, key=lambda each: (each.id not in asked, order.index(each.scope)))


async def resume_after_raise(execution: "BudgetActions", resumed: tuple[ExecutionRef, ...]) -> None:
    """Deliver the stored commands to the executions that waited for a budget; this one comes first."""
    await _deliver(execution)
    others = [ref for ref in resumed if ref.execution_id != execution.ref.execution_id]
    gate = asyncio.Semaphore(CONCURRENT)

    async def deliver(ref: ExecutionRef) -> None:
        async with gate:
            with suppress(Refused, RPCError):
                await _deliver(execution.client.execution(ref.execution_id, ref.session_id))

    await asyncio.gather(*(deliver(ref) for ref in others[:RESUMED_AT_ONCE]))
    if len(others) > RESUMED_AT_ONCE:
        log.info("%s more executions are resumed soon", len(others) - RESUMED_AT_ONCE)


async def _deliver(execution: "BudgetActions") -> None:
    for command in await execution.client.store.pending_commands(execution.ref):
        if command.kind is CommandKind.BUDGET:
            await execution.carry_out(command)
