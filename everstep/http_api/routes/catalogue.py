"""Routes for the inbox of open requests and the list of agents."""

from everstep.http_api.auth import Who
from everstep.http_api.routes.router import Given, router
from everstep.http_api.schemas.execution_responses import Request
from everstep.http_api.schemas.responses import Agent, Agents, Listed, listed
from everstep.http_api.schemas.text import Cursor, Limit

routes = router("people and agents")


@routes.get("/agent/inbox")
async def read_inbox(api: Given, caller: Who, cursor: Cursor = None, limit: Limit = 50) -> Listed[Request]:
    """List open questions and approvals of all executions, oldest first."""
    return listed(await api.sessions.store.inbox(caller.scope, cursor=cursor, limit=limit), Request.of)


@routes.get("/agent/agents")
async def list_agents(api: Given, caller: Who) -> Agents:
    """List the agents that can be started."""
    del caller
    known = api.sessions.client.agents.values()
    return Agents(items=[Agent.of(definition) for definition in known], default=api.sessions.default_agent)
