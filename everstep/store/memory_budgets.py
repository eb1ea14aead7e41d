"""Budgets in the memory store."""

import json
from collections.abc import Iterable
from uuid import UUID

from everstep.agent_domain.capabilities.rights import DEFAULT_POLICY
from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.loop.budget import BudgetScope
from everstep.agent_domain.loop.step_facts import CallNeed
from everstep.agent_domain.storage.budget_ledger import (
    BudgetAccount,
    BudgetClaim,
    BudgetGrant,
    BudgetOwner,
    BudgetRefusal,
    BudgetRequest,
    BudgetSpending,
    OperatorBudget,
    RaiseBudget,
    RaisedBudget,
    grant_output,
    parse_budget_list,
    refusal,
)
from everstep.agent_domain.storage.commands import CommandKind
from everstep.agent_domain.storage.executions import Settlement
from everstep.agent_domain.storage.requests import RequestKind, RequestState, Resolution
from everstep.agent_domain.tools.tools import ToolCall
from everstep.agent_domain.values import EMPTY
from everstep.store import bodies, budget_values, ledger_entries
from everstep.store.memory_records import (
    MemoryBudget,
    MemoryCall,
    MemoryCommand,
    MemoryExecution,
    MemoryRequest,
    as_stored,
)
from everstep.store.memory_tenants import MemoryTenants


class MemoryBudgets(MemoryTenants):
    """Budgets and their reservations."""

    async def reserve_budget(self, claim: BudgetClaim) -> BudgetGrant | BudgetRefusal:
        """Reserve what a model call may use of every budget, or nothing."""
        self._require_open(claim.ref)
        planned = claim.accounts
        for account in planned:
            self._budgets.setdefault(account.id, MemoryBudget(account))
        accounts = self._current(planned, claim.terms.owner, but=(claim.ref.execution_id, claim.key))
        output = grant_output(claim, accounts)
        if output is None:
            return refusal(claim, accounts)
        for account in accounts:
            if account.unit in claim.needs:
                place = (claim.ref.execution_id, claim.key)
                self._budgets[account.id].reservations[place] = claim.needs[account.unit].amount(output)
        return BudgetGrant(output)

    def _current(
        self,
        planned: Iterable[BudgetAccount],
        owner: BudgetOwner,
        but: tuple[UUID, str] | None = None,
    ) -> list[BudgetAccount]:
        """Return the budgets of a plan as they are now, without one reservation, then the operator's."""
        current = [
            self._budgets[account.id].account(account.limit, but) if account.id in self._budgets else account
            for account in planned
        ]
        operators = (self._budgets.get(identity) for identity in owner.operator_ids)
        return [*current, *(kept.account(None, but) for kept in operators if kept)]

    async def settle_budget(self, ref: ExecutionRef, spending: BudgetSpending) -> None:
        """Replace the reservation of a model call by what it spent."""
        self._settle_budgets(ref, spending)

    async def give_back_steering(self, ref: ExecutionRef, number: int) -> None:
        """Undo that a step received steering messages."""
        execution = self._require_execution(ref)
        for steered in execution.steering.values():
            if steered.heard_at == number:
                steered.heard_at = None
        for place in [place for place in execution.messages if place[0] == number and place[1] < 0]:
            del execution.messages[place]

    async def budgets_of(self, ref: ExecutionRef) -> tuple[BudgetAccount, ...]:
        """Return the budgets that apply to an execution: its plan's, then the operator's."""
        execution = self._require_execution(ref)
        owner = BudgetOwner(execution.ref, execution.user_id)
        planned = owner.accounts(parse_budget_list(execution.plan.get("budgets")))
        return tuple(self._current(planned, owner))

    async def raise_budget(self, change: RaiseBudget) -> RaisedBudget:
        """Raise a budget, and store the commands for the executions that wait for it."""
        kept = self._budgets.setdefault(change.account.id, MemoryBudget(change.account))
        kept.raised_to = change.limit
        resolution = Resolution(budget_values.RAISED, str(change.limit), key=change.key, by=change.by)
        own = self._executions.get(UUID(change.account.subject)) if _is_own(change.account) else None
        if own:
            own.record(self._now(), ledger_entries.raised_entry(change))
        resumed = self._resume(change.account.tenant_id, change.account.id, resolution)
        return RaisedBudget(kept.account(change.account.limit), resumed)

    async def set_operator_budget(self, budget: OperatorBudget) -> RaisedBudget:
        """Set a budget for a tenant or one of its users; what was spent of it stays."""
        account = budget.account
        known = self._budgets.setdefault(account.id, MemoryBudget(account))
        known.settings, known.raised_to = account, None
        resolution = Resolution(budget_values.RAISED, str(budget.limit))
        return RaisedBudget(known.account(), self._resume(budget.tenant_id, account.id, resolution))

    async def operator_budgets(self, tenant_id: str) -> tuple[BudgetAccount, ...]:
        """Return the budgets that the operator has set for a tenant and its users."""
        accounts = [kept.account() for kept in self._budgets.values()]
        ours = [each for each in accounts if each.tenant_id == tenant_id and each.is_operators]
        return tuple(sorted(ours, key=lambda each: (each.scope == "tenant", each.subject, each.unit)))

    async def remove_operator_budget(self, tenant_id: str, budget_id: UUID) -> RaisedBudget | None:
        """Remove a budget that the operator has set; None if there is none."""
        kept = self._budgets.get(budget_id)
        if kept is None or kept.settings.tenant_id != tenant_id or not kept.settings.is_operators:
            return None
        del self._budgets[budget_id]
        resumed = self._resume(tenant_id, budget_id, Resolution(budget_values.RAISED, None))
        return RaisedBudget(kept.account(), resumed)

    def _resume(self, tenant_id: str, budget_id: UUID, resolution: Resolution) -> tuple[ExecutionRef, ...]:
        """Resolve the requests for a budget, and store the commands; return the executions."""
        kept = bodies.parse_resolution(json.loads(bodies.dump_resolution(resolution)))
        resumed: list[ExecutionRef] = []
        for execution in self._executions.values():
            if execution.ref.tenant_id != tenant_id or execution.is_cancel_stored:
                continue
            for request in execution.requests.values():
                is_asked = request.kind is RequestKind.BUDGET and request.state is RequestState.OPEN
                if is_asked and request.request["budget_id"] == str(budget_id):
                    request.state, request.resolution = RequestState.RESOLVED, kept
                    _store_command(execution, request.id)
                    entry = ledger_entries.decided_entry(request.id, "budget", resolution)
                    execution.record(self._now(), entry)
                    resumed.append(execution.ref)
        return tuple(resumed)

    def _settle_budgets(self, ref: ExecutionRef, spending: BudgetSpending | None) -> None:
        """Replace the reservation of a model call by what it spent; None releases all of the execution."""
        for kept in self._budgets.values():
            mine = [place for place in kept.reservations if place[0] == ref.execution_id]
            for place in mine:
                if spending is None or place[1] == spending.key:
                    del kept.reservations[place]
                    kept.spent += spending.amounts[kept.settings.unit] if spending else 0

    def _apply_to_budgets(self, execution: MemoryExecution, settlement: Settlement) -> None:
        """Open a request to raise a budget, or release what model calls reserved."""
        if settlement.budget_request:
            self._open_budget_request(execution, settlement.budget_request)
            return
        if settlement.status.is_terminal or settlement.step:
            self._settle_budgets(settlement.ref, None)
        if settlement.status.is_terminal:
            for request in execution.requests.values():
                if request.kind is RequestKind.BUDGET:
                    request.state = RequestState.RESOLVED

    def _open_budget_request(self, execution: MemoryExecution, request: BudgetRequest) -> None:
        """Open a request to raise a budget, unless it was raised in the meantime."""
        budget = request.budget
        kept = self._budgets.get(budget.id)
        is_raised = kept is None or kept.is_above(budget.limit)
        # The place before all calls of the step.
        call = MemoryCall(ToolCall("", "", EMPTY), request.step_number, request.place, CallNeed.RUN, "")
        asked = MemoryRequest(
            request.id,
            call,
            RequestKind.BUDGET,
            bodies.visible_request(as_stored(budget_values.request_document(request), "the request")),
            self._now(),
            DEFAULT_POLICY,
            RequestState.RESOLVED if is_raised else RequestState.OPEN,
        )
        execution.requests[request.id] = asked
        if is_raised:
            _store_command(execution, request.id)


def _is_own(account: BudgetAccount) -> bool:
    """Return whether a budget is that of one execution."""
    return account.scope is BudgetScope.EXECUTION


def _store_command(execution: MemoryExecution, request_id: UUID) -> None:
    execution.commands[f"{CommandKind.BUDGET}/{request_id}"] = MemoryCommand(CommandKind.BUDGET)
