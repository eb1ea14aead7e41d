"""The route of full-text search."""

from typing import Annotated
from uuid import UUID

from fastapi import Query

from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.storage.sessions import ExecutionFilter
from everstep.agent_domain.storage.text_query import TextQuery
from everstep.http_api.auth import CallerDep
from everstep.http_api.routes.router import ApiDep, router
from everstep.http_api.schemas.responses import PageResponse, page_response
from everstep.http_api.schemas.search_responses import SearchHit
from everstep.http_api.schemas.text import Cursor, Instant, Limit, SearchWords, Text

routes = router("search")


@routes.get("/agent/search")
async def search_messages(  # noqa: PLR0913 -- FastAPI calls it by keyword
    api: ApiDep,
    caller: CallerDep,
    q: SearchWords,
    session_id: UUID | None = None,
    parent_execution_id: UUID | None = None,
    status: ExecutionStatus | None = None,
    agent: Text | None = None,
    user_id: Text | None = None,
    since: Annotated[
        Instant | None, Query(description="Only in executions that were accepted then or later.")
    ] = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> PageResponse[SearchHit]:
    """Search messages, replies, calls and their arguments, and results: of the newest execution first."""
    wanted = ExecutionFilter(session_id, parent_execution_id, status, agent, user_id, since)
    query = TextQuery.parse(q)
    store = api.client_for(caller).store
    page = await store.search_text(caller.scope, query, wanted, cursor=cursor, limit=limit)
    return page_response(page, SearchHit.of)
