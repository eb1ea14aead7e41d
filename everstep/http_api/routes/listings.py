"""Routes for the inbox of open requests and the list of agents."""

from functools import partial

from everstep.http_api.auth import CallerDep
from everstep.http_api.routes.router import ApiDep, router
from everstep.http_api.schemas.execution_responses import Request
from everstep.http_api.schemas.responses import AgentResponse, Agents, PageResponse, page_response
from everstep.http_api.schemas.text import Cursor, Limit

routes = router("people and agents")


@routes.get("/agent/inbox")
async def read_inbox(
    api: ApiDep, caller: CallerDep, cursor: Cursor = None, limit: Limit = 50
) -> PageResponse[Request]:
    """List open questions and approvals of all executions, oldest first."""
    store, access = api.sessions.store, caller.request_access
    page = await store.inbox(caller.scope, access, cursor=cursor, limit=limit)
    return page_response(page, partial(Request.of, actor=caller.actor))


@routes.get("/agent/agents")
async def list_agents(api: ApiDep, caller: CallerDep) -> Agents:
    """List the agents that can be started."""
    del caller
    known = api.sessions.client.agents.values()
    return Agents(
        items=[AgentResponse.of(definition) for definition in known], default=api.sessions.default_agent
    )
