"""The port of a worker: its metrics for Prometheus, and probes for supervisors."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from everstep.http_api.dependencies import Check
from everstep.http_api.host_middleware import HostMiddleware
from everstep.http_api.metrics import CONTENT_TYPE, Metrics
from everstep.http_api.middleware import RequestMiddleware
from everstep.http_api.schemas.responses import CheckResponse, Health, ReadinessResponse
from everstep.runtime.installation import Installation
from everstep.runtime.metrics_page import MetricsPage
from everstep.runtime.public_hosts import allowed_hosts
from everstep.runtime.readiness import Readiness
from everstep.runtime.serving import bind_socket, serve_app
from everstep.runtime.settings import Settings
from everstep.runtime.waiting import Port
from everstep.store.backlog import PostgresBacklog


def worker_port(settings: Settings) -> Port | None:
    """Return the port for metrics and probes, if one is set.

    Raises:
        InvalidInput: The port cannot be used.
    """
    if settings.metrics_port is None:
        return None
    hosts = allowed_hosts(settings, settings.metrics_host, "EVERSTEP_METRICS")
    listener = bind_socket(settings.metrics_host, settings.metrics_port, what="EVERSTEP_METRICS")
    return Port(listener, hosts)


@asynccontextmanager
async def open_worker_port(installation: Installation, port: Port | None) -> AsyncGenerator[str | None]:
    """Serve metrics and probes of a worker within the block, if it has a port; yield the URL."""
    if port is None:
        yield None
        return
    settings = installation.settings
    engine = installation.store.engine
    page = MetricsPage(PostgresBacklog(engine), settings.metrics_tenants)
    readiness = Readiness(engine, installation.temporal, settings.task_queue)
    app: ASGIApp = HostMiddleware(_WorkerApp(page, readiness), port.hosts)
    async with (
        page.open_sources(),
        serve_app(RequestMiddleware(app, Metrics()), settings.metrics_host, listener=port.listener) as url,
    ):
        yield url


class _WorkerApp:
    """Answers Prometheus and supervisors."""

    def __init__(self, page: MetricsPage, checks: Callable[[], Awaitable[Sequence[Check]]]) -> None:
        self._page = page
        self._checks = checks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        response = await self._answer(Request(scope))
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        match request.url.path:
            case "/metrics":
                return Response(await self._page.render(), media_type=CONTENT_TYPE)
            case "/healthz":
                return JSONResponse(Health().model_dump())
            case "/readyz":
                checks = await self._checks()
                is_ready = all(check.is_good for check in checks)
                results = [
                    CheckResponse(name=each.name, ok=each.is_good, detail=each.detail) for each in checks
                ]
                body = ReadinessResponse(status="ready" if is_ready else "not ready", checks=results)
                return JSONResponse(body.model_dump(), status_code=200 if is_ready else 503)
            case _:
                return PlainTextResponse(
                    "This is the port of a worker: /metrics, /healthz and /readyz\n", status_code=404
                )
