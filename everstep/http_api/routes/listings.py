"""Routes for the inbox of open requests and the list of agents."""

from functools import partial
from typing import Annotated
from uuid import UUID

from fastapi import Path

from everstep.http_api.auth import CallerDep
from everstep.http_api.problems import not_found
from everstep.http_api.routes.router import ApiDep, router
from everstep.http_api.schemas.agent_responses import AgentDetail
from everstep.http_api.schemas.execution_responses import Request
from everstep.http_api.schemas.responses import AgentResponse, Agents, PageResponse, page_response
from everstep.http_api.schemas.text import Cursor, Limit, Text

routes = router("people and agents")


@routes.get("/agent/inbox")
async def read_inbox(
    api: ApiDep, caller: CallerDep, cursor: Cursor = None, limit: Limit = 50
) -> PageResponse[Request]:
    """List open questions and approvals of all executions, oldest first."""
    store, access = api.sessions.store, caller.request_access
    page = await store.inbox(caller.scope, access, cursor=cursor, limit=limit)
    return page_response(page, partial(Request.of, actor=caller.actor))


@routes.get("/agent/requests/{request_id}")
async def read_request(
    request_id: Annotated[UUID, Path(description="The request's id.")], api: ApiDep, caller: CallerDep
) -> Request:
    """Read a question, an approval or an exhausted budget, also after it was decided."""
    row = await api.sessions.client.store.find_request(caller.tenant_id, request_id)
    if row is None or not caller.sees_request(row):
        raise not_found("request", request_id)
    return Request.of(row, actor=caller.actor)


@routes.get("/agent/agents/{name}")
async def read_agent(
    name: Annotated[Text, Path(description="The agent's name.")], api: ApiDep, caller: CallerDep
) -> AgentDetail:
    """Read what an agent is made of; its instructions only with the scope `sessions:all`."""
    definition = api.sessions.client.agents.get(name)
    if definition is None:
        raise not_found("agent", name)
    uses = await api.definition_uses(caller.scope, name)
    return AgentDetail.from_definition(definition, uses, in_full=caller.sees_all)


@routes.get("/agent/agents")
async def list_agents(api: ApiDep, caller: CallerDep) -> Agents:
    """List the agents that can be started."""
    del caller
    known = api.sessions.client.agents.values()
    return Agents(
        items=[AgentResponse.of(definition) for definition in known], default=api.sessions.default_agent
    )
