"""What the routes have in common."""

from typing import Annotated, cast
from uuid import UUID

from fastapi import APIRouter, Depends, Path
from starlette.requests import Request

from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.storage.executions import ExecutionRow
from everstep.agent_domain.storage.sessions import SessionRow
from everstep.client.execution import Execution
from everstep.http_api.api import Api
from everstep.http_api.callers import Caller
from everstep.http_api.idempotency import ApiRoute
from everstep.http_api.problems import missing


def router(tag: str) -> APIRouter:
    """Routes that know who asks."""
    return APIRouter(route_class=ApiRoute, tags=[tag])


async def _api(request: Request) -> Api:
    # Like all of them a coroutine, though nothing is waited for: others are given to a thread.
    return cast("Api", request.app.state.api)


Given = Annotated[Api, Depends(_api)]
"""What the API is made of, in a route."""

SessionId = Annotated[UUID, Path(description="The session's id.")]
ExecutionId = Annotated[UUID, Path(description="The execution's id.")]


async def session_of(api: Api, caller: Caller, session_id: UUID) -> SessionRow:
    """A session that the caller may see."""
    row = await api.sessions.store.session(caller.scope, session_id)
    if row is None:
        raise missing("session", session_id)
    return row


async def execution_of(api: Api, caller: Caller, execution_id: UUID) -> tuple[ExecutionRow, Execution]:
    """An execution that the caller may see, and what acts on it."""
    client = api.client_for(caller)
    row = await client.store.execution(ExecutionRef(execution_id, caller.tenant_id))
    if row is None or not caller.scope.covers(row.user_id):
        raise missing("execution", execution_id)
    return row, Execution(client, row.ref)
