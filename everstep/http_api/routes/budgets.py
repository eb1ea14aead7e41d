"""The route that raises a budget."""

from uuid import UUID

from everstep.agent_domain.ids import ExecutionRef
from everstep.client.execution import Execution
from everstep.http_api.auth import CallerDep
from everstep.http_api.callers import Caller, Grant
from everstep.http_api.dependencies import Api
from everstep.http_api.idempotency import KeyDep
from everstep.http_api.problems import not_found
from everstep.http_api.routes.router import ApiDep, ExecutionId, router
from everstep.http_api.schemas.execution_responses import BudgetResponse
from everstep.http_api.schemas.request_bodies import NewTotalSent

routes = router("executions")


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
    return Execution(execution.client, row.ref)
