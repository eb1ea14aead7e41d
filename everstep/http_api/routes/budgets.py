"""Routes about budgets."""

from uuid import UUID

from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.loop.budget import BudgetScope
from everstep.agent_domain.storage.budget_ledger import BudgetAccount
from everstep.client.execution import Execution
from everstep.http_api.auth import CallerDep
from everstep.http_api.callers import Caller, Grant
from everstep.http_api.dependencies import Api
from everstep.http_api.idempotency import KeyDep
from everstep.http_api.problems import not_found
from everstep.http_api.routes.router import ApiDep, ExecutionId, router
from everstep.http_api.schemas.budget_responses import Budgets, OperatorBudgetResponse
from everstep.http_api.schemas.execution_responses import BudgetResponse
from everstep.http_api.schemas.request_bodies import NewTotalSent
from everstep.telemetry.tracing import name_execution

routes = router("executions")


@routes.get("/agent/budgets")
async def list_budgets(api: ApiDep, caller: CallerDep) -> Budgets:
    """List the budgets that the operator has set, with what was spent of them.

    With the scope `sessions:all` those of the tenant and of all its users, otherwise the caller's own.
    """
    found = await api.client_for(caller).store.operator_budgets(caller.tenant_id)
    return Budgets(items=[OperatorBudgetResponse.of(each) for each in found if _may_see(caller, each)])


def _may_see(caller: Caller, account: BudgetAccount) -> bool:
    own = account.scope is BudgetScope.USER and account.subject == caller.user_id
    return caller.sees_all or own


@routes.post("/agent/executions/{execution_id}/budget")
async def raise_budget(
    execution_id: ExecutionId, body: NewTotalSent, api: ApiDep, caller: CallerDep, key: KeyDep
) -> BudgetResponse:
    """Raise a budget to a new total; the executions that wait for it go on.

    This needs the scope `approve`, also for the caller's own executions.
    """
    execution = await _load_for_raise(api, caller, execution_id)
    account = await execution.raise_budget(
        **body.model_dump(exclude_none=True), key=str(key.id("budget")), by=caller.actor
    )
    return BudgetResponse.of(account)


async def _load_for_raise(api: Api, caller: Caller, execution_id: UUID) -> Execution:
    """Load an execution of the caller, or any of the tenant with the scope `approve`."""
    execution = Execution(api.client_for(caller), ExecutionRef(execution_id, caller.tenant_id))
    row = await execution.client.store.execution(execution.ref)
    if row is None or not (caller.scope.covers(row.user_id) or Grant.APPROVE in caller.grants):
        raise not_found("execution", execution_id)
    name_execution(row.ref)
    return Execution(execution.client, row.ref)
