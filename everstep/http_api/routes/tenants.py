"""Routes about the limits of tenants, for the scope `admin`."""

from typing import Annotated

from fastapi import Path, Query, Response

from everstep.agent_domain.fairness.tenant_limits import MAX_NAME
from everstep.client.tenants import NoLimits, Tenants, UnknownTenant
from everstep.http_api.auth import CallerDep
from everstep.http_api.callers import Caller, Grant
from everstep.http_api.dependencies import Api
from everstep.http_api.problems import missing_scope, not_found
from everstep.http_api.routes.router import ApiDep, router
from everstep.http_api.schemas.tenant_schemas import (
    TenantLimitsList,
    TenantLimitsResponse,
    TenantLimitsSent,
)
from everstep.http_api.schemas.text import Text

routes = router("operations")

TenantName = Annotated[
    Text,
    Path(
        max_length=MAX_NAME,
        description="The tenant, or `*` for each tenant without limits of its own.",
        examples=["acme"],
    ),
]
UserName = Annotated[
    Text | None,
    Query(
        max_length=MAX_NAME,
        description="A user of the tenant, or `*` for each user without limits of their own.",
        examples=["ann"],
    ),
]


@routes.get("/agent/tenants")
async def list_tenants(api: ApiDep, caller: CallerDep) -> TenantLimitsList:
    """List the limits of all tenants and users."""
    found = await _tenants(api, caller).list()
    return TenantLimitsList(items=[TenantLimitsResponse.of(each) for each in found])


@routes.get("/agent/tenants/{tenant_id:path}")
async def read_tenant(tenant_id: TenantName, api: ApiDep, caller: CallerDep) -> TenantLimitsList:
    """Read the limits of a tenant and of its users: first those of the tenant, which may be those of `*`."""
    try:
        found = await _tenants(api, caller).show(tenant_id)
    except UnknownTenant:
        raise not_found("tenant", tenant_id) from None
    return TenantLimitsList(items=[TenantLimitsResponse.of(each) for each in found])


@routes.put("/agent/tenants/{tenant_id:path}")
async def set_tenant_limits(
    tenant_id: TenantName, body: TenantLimitsSent, api: ApiDep, caller: CallerDep, user_id: UserName = None
) -> TenantLimitsResponse:
    """Set all limits of a tenant, or of a user of it. Executions that run already are not stopped."""
    tenants = _tenants(api, caller)
    limits = body.limits_of(tenant_id, user_id)
    await tenants.set(limits)
    return TenantLimitsResponse.of(limits)


@routes.delete("/agent/tenants/{tenant_id:path}", status_code=204)
async def remove_tenant_limits(
    tenant_id: TenantName, api: ApiDep, caller: CallerDep, user_id: UserName = None
) -> Response:
    """Remove the limits of a tenant, or of a user of it; those of `*` apply again."""
    try:
        await _tenants(api, caller).remove(tenant_id, user_id)
    except NoLimits:
        raise not_found("limit of", tenant_id if user_id is None else user_id) from None
    return Response(status_code=204)


def _tenants(api: Api, caller: Caller) -> Tenants:
    if not caller.sees_installation:
        raise missing_scope(f"The limits of tenants need the scope '{Grant.ADMIN}'", Grant.ADMIN)
    return Tenants(api.sessions.client)
