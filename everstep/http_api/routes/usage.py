"""The route that reports token usage."""

from datetime import UTC, datetime, timedelta
from typing import Annotated

from fastapi import Query

from everstep.agent_domain.storage.usage_report import TimeRange
from everstep.http_api.auth import CallerDep
from everstep.http_api.routes.router import ApiDep, router
from everstep.http_api.schemas.responses import UsageResponse
from everstep.http_api.schemas.text import Instant

routes = router("usage")

DEFAULT_SPAN = timedelta(days=30)


@routes.get("/agent/usage")
async def read_usage(
    api: ApiDep,
    caller: CallerDep,
    since: Annotated[Instant | None, Query(description="Default: 30 days before `until`.")] = None,
    until: Annotated[Instant | None, Query(description="Default: now.")] = None,
) -> UsageResponse:
    """Report the usage of executions that started in a time span, by agent."""
    end = until or datetime.now(UTC)
    span = TimeRange(since or end - DEFAULT_SPAN, end)
    return UsageResponse.of(span, await api.accounts.accounts(caller.scope, span))
