"""The route that reports usage and costs."""

from datetime import UTC, datetime, timedelta
from typing import Annotated

from fastapi import Query

from everstep.agent_domain.storage.usage_report import TimeRange, UsageGroup
from everstep.http_api.auth import CallerDep
from everstep.http_api.callers import Grant
from everstep.http_api.routes.router import ApiDep, router
from everstep.http_api.schemas.text import Instant
from everstep.http_api.schemas.usage_responses import UsageResponse

routes = router("usage")

DEFAULT_SPAN = timedelta(days=30)


@routes.get("/agent/usage")
async def read_usage(
    api: ApiDep,
    caller: CallerDep,
    since: Annotated[Instant | None, Query(description="Default: 30 days before `until`.")] = None,
    until: Annotated[Instant | None, Query(description="Default: now.")] = None,
    group_by: Annotated[
        UsageGroup,
        Query(description="By what to sum up; by tenant, a caller with the scope `admin` sees all tenants."),
    ] = UsageGroup.AGENT,
    latency: Annotated[bool, Query(description="Whether to report how long steps took.")] = False,
) -> UsageResponse:
    """Report the usage and the cost of executions that started in a time span."""
    end = until or datetime.now(UTC)
    span = TimeRange(since or end - DEFAULT_SPAN, end)
    every_tenant = group_by is UsageGroup.TENANT and Grant.ADMIN in caller.grants
    accounts = await api.accounts.accounts(caller.scope, span, group_by, every_tenant=every_tenant)
    timed = None
    if latency:
        timed = await api.accounts.latencies(caller.scope, span, group_by, every_tenant=every_tenant)
    return UsageResponse.of(span, group_by, accounts, timed)
