"""Routes that compare recorded executions."""

from typing import Annotated
from uuid import UUID

from fastapi import Path

from everstep.client.compared_executions import compare_executions
from everstep.http_api.auth import CallerDep
from everstep.http_api.routes.router import ApiDep, ExecutionId, load_execution, router
from everstep.http_api.schemas.comparison_responses import ComparisonResponse

routes = router("records")

OtherId = Annotated[UUID, Path(description="The id of the other execution.")]


@routes.get("/agent/executions/{execution_id}/diff/{other_id}", response_model_exclude_unset=True)
async def compare_two_executions(
    execution_id: ExecutionId, other_id: OtherId, api: ApiDep, caller: CallerDep
) -> ComparisonResponse:
    """Compare an execution (`a`) with another one (`b`): settings, steps, calls, decisions, tokens and cost.

    Steps that a fork shares with its origin are the same steps; others are aligned by their calls.
    """
    a, execution = await load_execution(api, caller, execution_id)
    b, _ = await load_execution(api, caller, other_id)
    store = execution.client.store
    return ComparisonResponse.of(await compare_executions(store, a.ref, b.ref, in_full=caller.sees_all))
