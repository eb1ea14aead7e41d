"""Parameters and rows of the statements of budgets."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any
from uuid import UUID

from everstep.agent_domain.capabilities.rights import DEFAULT_POLICY
from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.loop.budget import BudgetScope, BudgetUnit, OnExhausted
from everstep.agent_domain.storage.budget_ledger import (
    BudgetAccount,
    BudgetClaim,
    BudgetGrant,
    BudgetOwner,
    BudgetRefusal,
    BudgetRequest,
    BudgetSpending,
    BudgetTerms,
    OperatorBudget,
    RaiseBudget,
    parse_budget_list,
    refusal,
)
from everstep.agent_domain.storage.requests import Resolution
from everstep.agent_domain.values import reading
from everstep.store import bodies, budget_statements
from everstep.store.bodies import encode
from everstep.store.parameters import execution_key
from everstep.store.transaction import BoundStatement

RAISED = "raise"
"""The decision of a person who raised a budget."""


def claim_values(claim: BudgetClaim, accounts: Sequence[BudgetAccount]) -> dict[str, Any]:
    """Return the parameters of a reservation."""
    return {
        "key": claim.key,
        "ids": [account.id for account in accounts],
        "limits": [str(account.limit) for account in accounts],
        "all_ids": [*(account.id for account in accounts), *claim.terms.owner.operator_ids],
        "units": [str(unit) for unit in claim.needs],
        "bases": [str(need.base) for need in claim.needs.values()],
        "rates": [str(need.rate) for need in claim.needs.values()],
        "least": claim.least,
        "most": claim.most,
    }


def account_values(accounts: Sequence[BudgetAccount]) -> dict[str, Any]:
    """Return the parameters of new budgets."""
    return {
        "ids": [account.id for account in accounts],
        "scopes": [str(account.scope) for account in accounts],
        "subjects": [account.subject for account in accounts],
        "agents": [account.agent for account in accounts],
        "kinds": [str(account.unit) for account in accounts],
        "limits": [str(account.limit) for account in accounts],
        "policies": [str(account.on_exhausted) for account in accounts],
        "presets": [account.degrade_to for account in accounts],
    }


def spending_values(spending: BudgetSpending | None) -> dict[str, Any]:
    """Return the parameters of a settlement; None releases all reservations of the execution."""
    return {
        "budget_key": spending and spending.key,
        **{f"spent_{unit}": str(spending.amounts[unit] if spending else 0) for unit in BudgetUnit},
    }


def settling(ref: ExecutionRef, spending: BudgetSpending | None) -> list[BoundStatement]:
    """Return the statement that settles the reservation of a model call, if it has one."""
    return _settling(ref, spending) if spending else []


def releasing(ref: ExecutionRef) -> list[BoundStatement]:
    """Return the statement that releases all reservations of an execution."""
    return _settling(ref, None)


def _settling(ref: ExecutionRef, spending: BudgetSpending | None) -> list[BoundStatement]:
    values = execution_key(ref) | spending_values(spending)
    return [(budget_statements.SETTLE, values)]


def claim_answer(claim: BudgetClaim, found: Sequence[Any]) -> BudgetGrant | BudgetRefusal:
    """Return what was granted of a claim, given the rows of its budgets."""
    # Without any budget, such as one that was removed a moment ago, there is nothing to reserve.
    granted = claim.most if not found else found[0].output
    if granted is not None:
        return BudgetGrant(granted)
    return refusal(claim, [account_row(row) for row in found])


def request_document(request: BudgetRequest) -> dict[str, Any]:
    """Return a request to raise a budget as JSON data, with its place among the execution's requests."""
    return {**request.budget.to_dict(), "step_number": request.step_number, bodies.PLACE: request.place}


def request_values(request: BudgetRequest) -> dict[str, Any]:
    """Return the parameters of a request to raise a budget."""
    return {
        "budget_id": request.budget.id,
        "budget_request_id": request.id,
        "seen": str(request.budget.limit),
        "request": encode(request_document(request), "the request"),
        "policy": bodies.dump_policy(DEFAULT_POLICY),
    }


def raise_values(change: RaiseBudget) -> dict[str, Any]:
    """Return the parameters of a raised budget."""
    by = change.by
    resolution = Resolution(RAISED, str(change.limit), key=change.key, by=by)
    return {
        **resume_values(change.account.id, resolution),
        "raised_to": str(change.limit),
        "raised_by": bodies.encode_optional(by and by.to_dict(), "the sender"),
    }


def operator_values(budget: OperatorBudget) -> dict[str, Any]:
    """Return the parameters of a budget of the operator."""
    account = budget.account
    return {
        **resume_values(account.id, Resolution(RAISED, str(budget.limit))),
        "scope": str(account.scope),
        "subject": account.subject,
        "unit": str(budget.unit),
        "limit": str(budget.limit),
        "on_exhausted": str(budget.on_exhausted),
        "degrade_to": budget.degrade_to,
    }


def resume_values(budget_id: UUID, resolution: Resolution) -> dict[str, Any]:
    """Return the parameters that resume the executions which wait for a budget."""
    return {
        "budget_id": budget_id,
        "budget_text": str(budget_id),
        "resolution": bodies.dump_resolution(resolution),
    }


def account_row(row: Any) -> BudgetAccount:
    """Return a budget."""
    return BudgetAccount(
        row.id,
        row.tenant_id,
        BudgetUnit(row.unit),
        BudgetScope(row.scope),
        row.subject,
        row.limit_amount,
        row.agent,
        OnExhausted(row.on_exhausted),
        row.degrade_to,
        row.spent,
        row.reserved,
    )


def changed_account(account: BudgetAccount, row: Any, limit: Decimal) -> BudgetAccount:
    """Return a budget after its limit was changed."""
    return replace(account, limit=limit, spent=row.spent, reserved=row.reserved)


def terms_row(row: Any) -> BudgetTerms:
    """Return the budgets under which an execution calls models."""
    owner = BudgetOwner(ExecutionRef(row.id, row.tenant_id, row.session_id), row.user_id)
    with reading("the budgets of the plan"):
        return BudgetTerms(
            owner, parse_budget_list(row.budgets), tuple(map(BudgetUnit, row.operator_units or ()))
        )


def current_accounts(planned: Iterable[BudgetAccount], stored: Sequence[Any]) -> tuple[BudgetAccount, ...]:
    """Return the budgets of a plan with what was spent of them, then those of the operator."""
    by_id = {row.id: row for row in stored}
    merged = [_current_account(account, by_id.pop(account.id, None)) for account in planned]
    return (*merged, *(account_row(row) for row in by_id.values()))


def _current_account(account: BudgetAccount, row: Any) -> BudgetAccount:
    if row is None:
        return account
    return changed_account(account, row, max(account.limit, row.raised_to or account.limit))


def resumed_refs(tenant_id: str, data: Any) -> tuple[ExecutionRef, ...]:
    """Return the executions that waited for a budget."""
    return tuple(ref for ref, _ in resumed_requests(tenant_id, data))


def resumed_requests(tenant_id: str, data: Any) -> list[tuple[ExecutionRef, UUID]]:
    """Return the executions that waited for a budget, each with the request that was resolved."""
    given = json.loads(data) if isinstance(data, str) else data
    return [
        (ExecutionRef(UUID(execution), tenant_id, UUID(session) if session else None), UUID(request))
        for execution, session, request in given
    ]
