"""Shared by all routes: the router class, dependencies and lookups."""

from collections.abc import Sequence
from typing import Annotated, cast
from uuid import UUID

from fastapi import APIRouter, Depends, Path
from starlette.requests import Request

from everstep.agent_domain.attachments import Attachment
from everstep.agent_domain.ids import ExecutionRef, Scope
from everstep.agent_domain.storage.executions import ExecutionRow
from everstep.agent_domain.storage.sessions import SessionRow
from everstep.client.execution import Execution
from everstep.http_api.callers import Caller
from everstep.http_api.dependencies import Api
from everstep.http_api.idempotency import ApiRoute
from everstep.http_api.problems import not_found
from everstep.telemetry.tracing import name_execution


def router(tag: str) -> APIRouter:
    """Create a router for authenticated, idempotent routes."""
    return APIRouter(route_class=ApiRoute, tags=[tag])


async def _api(request: Request) -> Api:
    # A coroutine although it awaits nothing: FastAPI runs other functions in a thread.
    return cast("Api", request.app.state.api)


ApiDep = Annotated[Api, Depends(_api)]
"""The type of a route's parameter for the dependencies of the API."""

SessionId = Annotated[UUID, Path(description="The session's id.")]
ExecutionId = Annotated[UUID, Path(description="The execution's id.")]


async def load_session(api: Api, caller: Caller, session_id: UUID) -> SessionRow:
    """Load a session that the caller may see.

    Raises:
        Refusal: There is none.
    """
    row = await api.sessions.store.session(caller.scope, session_id)
    if row is None:
        raise not_found("session", session_id)
    return row


async def load_files(api: Api, scope: Scope, ids: Sequence[UUID]) -> tuple[Attachment, ...]:
    """Load the references of uploaded files for a message."""
    if not ids:
        return ()
    return await api.sessions.client.require_attachments().for_message(scope, ids, None)


async def load_execution(api: Api, caller: Caller, execution_id: UUID) -> tuple[ExecutionRow, Execution]:
    """Load an execution that the caller may see, and a client for it.

    Raises:
        Refusal: There is none.
    """
    client = api.client_for(caller)
    row = await client.store.execution(ExecutionRef(execution_id, caller.tenant_id))
    if row is None or not caller.scope.covers(row.user_id):
        raise not_found("execution", execution_id)
    name_execution(row.ref)
    return row, Execution(client, row.ref)
