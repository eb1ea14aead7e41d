"""Whether the API lives, whether it can work, and what it counted. Nobody is asked who he is here."""

from fastapi import APIRouter, Response

from everstep.http_api.metrics import CONTENT_TYPE
from everstep.http_api.routes.router import Given
from everstep.http_api.schemas.responses import CheckTold, Health, Readiness

routes = APIRouter(tags=["operations"])


@routes.get("/healthz")
async def healthz() -> Health:
    """Say that the process answers."""
    return Health()


@routes.get("/readyz", responses={503: {"model": Readiness, "description": "Something is missing."}})
async def readyz(api: Given, response: Response) -> Readiness:
    """Say whether requests can be served: the database with its tables, Temporal, a worker."""
    checks = await api.checks()
    is_ready = all(check.is_good for check in checks)
    response.status_code = 200 if is_ready else 503
    told = [CheckTold(name=check.name, ok=check.is_good, detail=check.detail) for check in checks]
    return Readiness(status="ready" if is_ready else "not ready", checks=told)


@routes.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def metrics(api: Given) -> Response:
    """Tell Prometheus what was counted."""
    return Response(api.metrics.text(), media_type=CONTENT_TYPE)
