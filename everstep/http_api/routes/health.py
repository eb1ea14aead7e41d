"""Liveness, readiness and metrics, without authentication."""

from fastapi import APIRouter, Response

from everstep.http_api.metrics import CONTENT_TYPE
from everstep.http_api.routes.router import ApiDep
from everstep.http_api.schemas.responses import CheckResponse, Health, ReadinessResponse

routes = APIRouter(tags=["operations"])


@routes.get("/healthz")
async def healthz() -> Health:
    """Report that the process is alive."""
    return Health()


@routes.get(
    "/readyz", responses={503: {"model": ReadinessResponse, "description": "A dependency is unavailable."}}
)
async def readyz(api: ApiDep, response: Response) -> ReadinessResponse:
    """Report whether the database with its tables, Temporal and a worker are available."""
    checks = await api.checks()
    is_ready = all(check.is_good for check in checks)
    response.status_code = 200 if is_ready else 503
    results = [CheckResponse(name=check.name, ok=check.is_good, detail=check.detail) for check in checks]
    return ReadinessResponse(status="ready" if is_ready else "not ready", checks=results)


@routes.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def metrics(api: ApiDep) -> Response:
    """Export metrics in the text format of Prometheus."""
    page = await api.metrics_page() if api.metrics_page else api.metrics.render()
    return Response(page, media_type=CONTENT_TYPE)
