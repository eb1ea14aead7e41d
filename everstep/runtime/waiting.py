"""Waiting at start for servers that are away.

Servers start in any order, and after an outage all start at once. A server that refuses this process (a wrong
password, no such database) is not an outage: that is an error at once, because waiting would not fix it.

A process with a port serves probes while it waits: `/healthz` reports that it lives, `/readyz` what it waits
for, and every other path is 503.
"""

import asyncio
import socket
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from time import monotonic
from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from everstep.agent_domain.errors import StoreUnavailable
from everstep.agent_domain.hosts import AllowedHosts
from everstep.http_api import problems
from everstep.http_api.host_middleware import HostMiddleware
from everstep.http_api.metrics import Metrics
from everstep.http_api.middleware import RequestMiddleware
from everstep.http_api.schemas.responses import CheckResponse, Health, ReadinessResponse
from everstep.runtime.serving import serve_app
from everstep.runtime.settings import Settings
from everstep.runtime.temporal import TemporalRefusal, TemporalUnreachable, connect
from everstep.store.errors import SchemaTooNew
from everstep.store.migrate import pending

CHECK_INTERVAL_SECONDS: Final = 0.5
"""Seconds between two checks."""
REPEAT_SECONDS: Final = 30.0
"""Seconds after which the log repeats what is missing."""

REFUSAL_TEXTS: Final = (
    "authentication failed",
    "no password supplied",
    "pg_hba.conf",
    "does not exist",
    "permission denied",
    "not permitted to log in",
)
"""Messages with which PostgreSQL refuses a process."""

Report = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class MissingServer:
    """A missing server."""

    check: str
    """Its name in `/readyz`."""
    name: str
    reason: str
    """For the operator: anonymous clients are not shown addresses."""

    def __str__(self) -> str:
        return f"waiting for {self.name}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Port:
    """The port on which a process serves probes while it waits."""

    listener: socket.socket
    hosts: AllowedHosts


async def wait_for_servers(
    settings: Settings,
    stop: Callable[[], asyncio.Event],
    report: Report,
    port: Port | None = None,
    *,
    needs_temporal: bool = True,
) -> bool:
    """Wait until PostgreSQL has its tables and Temporal answers.

    Args:
        settings: The addresses.
        stop: Called if something is missing; the event that it returns ends the wait.
        report: Called with what is missing, and when the wait is over.
        port: The port for probes during the wait.
        needs_temporal: Whether this process uses Temporal.

    Returns:
        Whether they answer; False if the process was stopped first.

    Raises:
        EverstepError: A server refuses this process.
    """
    waiting, said_at, said = list[MissingServer](), float("-inf"), list[str]()
    async with AsyncExitStack() as front:
        while True:
            waiting[:] = await _find_missing(settings, needs_temporal=needs_temporal)
            now = [str(each) for each in waiting]
            if not now:
                if said:
                    report("all that was waited for is there")
                return True
            if stop().is_set():
                return False
            if not said and port:
                await front.enter_async_context(_open_waiting_app(port, waiting))
            if now != said or monotonic() - said_at >= REPEAT_SECONDS:
                said, said_at = now, monotonic()
                for sentence in now:
                    report(sentence)
            try:
                async with asyncio.timeout(CHECK_INTERVAL_SECONDS):
                    await stop().wait()
            except TimeoutError:
                continue


async def _find_missing(settings: Settings, *, needs_temporal: bool) -> list[MissingServer]:
    looks = [_database(settings), *([_temporal(settings)] if needs_temporal else [])]
    found = await asyncio.gather(*looks, return_exceptions=True)
    for each in found:
        if isinstance(each, BaseException):
            raise each
    return [each for each in found if isinstance(each, MissingServer)]


async def _database(settings: Settings) -> MissingServer | None:
    try:
        missing = await pending(settings.require("database_url", "set DATABASE_URL"))
    except SchemaTooNew:
        # A newer release is being rolled out, and this one still works with its tables.
        return None
    except StoreUnavailable as error:
        if any(sign in str(error) for sign in REFUSAL_TEXTS):
            raise
        return MissingServer("database", "PostgreSQL", str(error))
    if missing:
        return MissingServer(
            "tables", "the database's tables", "they are out of date: run `everstep db upgrade`"
        )
    return None


async def _temporal(settings: Settings) -> MissingServer | None:
    try:
        await connect(settings)
    except TemporalRefusal:
        raise
    except TemporalUnreachable as error:
        return MissingServer("temporal", "Temporal", str(error))
    return None


@asynccontextmanager
async def _open_waiting_app(port: Port, waiting: Sequence[MissingServer]) -> AsyncGenerator[None]:
    """Serve a port until the process does so itself; connections in between wait a moment."""
    app: ASGIApp = HostMiddleware(_WaitingApp(waiting), port.hosts)
    async with serve_app(RequestMiddleware(app, Metrics()), listener=port.listener.dup()):
        yield


class _WaitingApp:
    """The application of a process that waits."""

    def __init__(self, waiting: Sequence[MissingServer]) -> None:
        self.waiting = waiting

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        await self._answer(Request(scope))(scope, receive, send)

    def _answer(self, request: Request) -> Response:
        if request.url.path == "/healthz":
            return JSONResponse(Health().model_dump())
        if request.url.path == "/readyz":
            told = [
                CheckResponse(name=each.check, ok=False, detail=f"waiting for {each.name}; the log says why")
                for each in self.waiting
            ]
            return JSONResponse(
                ReadinessResponse(status="not ready", checks=told).model_dump(), status_code=503
            )
        names = " and ".join(each.name for each in self.waiting) or "its servers"
        return problems.problem_response(
            problems.unavailable(f"This process is waiting for {names}, and"), _id(request)
        )


def _id(request: Request) -> str | None:
    return request.scope["state"]["request_id"]
