"""The gateway's server: accepts connections up to its limits, checks their timeouts, and drains them on stop.

One sweeper checks all connections; none has a timer.
"""

import asyncio
import logging
import random
import resource
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import asynccontextmanager, suppress
from functools import partial
from http import HTTPStatus
from socket import socket
from typing import Final
from urllib.parse import SplitResult, urlsplit

from websockets.http11 import Request

from everstep.agent_domain.background import keep_running
from everstep.agent_domain.hosts import AllowedHosts
from everstep.agent_domain.values import json_text
from everstep.broadcast_gateway.connections import ViewerConnection
from everstep.broadcast_gateway.protocols import GatewayContext
from everstep.broadcast_gateway.wires.closing import RESTARTING
from everstep.telemetry.bus_state import bus_state

logger = logging.getLogger(__name__)

BACKLOG = 1024
DEFAULT_PORTS: Final = {"http": 80, "https": 443}
DESCRIPTOR_SHARE = 0.9
"""The share of the file descriptors that viewers may use."""


class GatewayServer:
    """Serves viewers until it is drained."""

    def __init__(
        self,
        context: GatewayContext,
        origins: Collection[str] = (),
        hosts: AllowedHosts | None = None,
        page_ports: Callable[[], Collection[int]] | None = None,
    ) -> None:
        """Create the gateway.

        Args:
            context: The objects that all connections share.
            origins: The origins of pages that may connect.
            hosts: The names by which the gateway is reached; None if a proxy checks them.
            page_ports: The other ports of the gateway's own host whose pages may connect; None for all, where
                viewers have to be authenticated.
        """
        self.house = context
        self._hosts = hosts
        self._page_ports = page_ports
        self._origins = frozenset(origin.rstrip("/").lower() for origin in origins)
        self._connections: dict[ViewerConnection, None] = {}
        self._addresses = Counter[str]()
        self._most = min(context.limits.connections, int(raise_descriptor_limit() * DESCRIPTOR_SHARE))
        self._credit = context.limits.handshakes
        self._credit_at = 0.0
        self._is_draining = False
        self._is_empty = asyncio.Event()

    @asynccontextmanager
    async def open_server(self, listener: socket) -> AsyncGenerator[None]:
        """Serve while the body runs; afterwards all viewers are disconnected and asked to reconnect."""
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            lambda: ViewerConnection(self.house, self), sock=listener, backlog=BACKLOG
        )
        background_work = {
            "the sweep over connections": self._sweep,
            "the comparison with the table": self.house.hub.run,
        }
        background_tasks = [
            loop.create_task(keep_running(name, work, sleep=asyncio.sleep, clock=loop.time, log=logger))
            for name, work in background_work.items()
        ]
        try:
            yield
        finally:
            server.close()
            await self._drain()
            for helper in (*background_tasks, *self.house.tasks):
                helper.cancel()
            await asyncio.gather(*background_tasks, *self.house.tasks, return_exceptions=True)

    @property
    def viewer_count(self) -> int:
        """How many viewers are connected; probes and readers of metrics are none."""
        return sum(each.is_viewer for each in self._connections)

    def on_connect(self, connection: ViewerConnection) -> None:
        """Register a new connection."""
        self._connections[connection] = None
        self._addresses[connection.address] += 1
        self.house.metrics.connections.set(len(self._connections))

    def on_disconnect(self, connection: ViewerConnection) -> None:
        """Unregister a closed connection."""
        del self._connections[connection]
        self.house.metrics.connections.set(len(self._connections))
        if self._addresses[connection.address] > 1:
            self._addresses[connection.address] -= 1
        else:
            del self._addresses[connection.address]
        if self._is_draining and not self._connections:
            self._is_empty.set()

    def refusal(self, connection: ViewerConnection, request: Request) -> tuple[HTTPStatus, str] | None:
        """Return why a handshake is refused, or None."""
        if refusal := self._host_refusal(request) or self._origin_refusal(request):
            return HTTPStatus.FORBIDDEN, f"{refusal}\n"
        if self._is_draining:
            return HTTPStatus.SERVICE_UNAVAILABLE, "The gateway is stopping; try again.\n"
        if len(self._connections) > self._most:
            return HTTPStatus.SERVICE_UNAVAILABLE, "The gateway is full; try again later.\n"
        if self._addresses[connection.address] > self.house.limits.per_address:
            return HTTPStatus.SERVICE_UNAVAILABLE, "There are too many connections from this address.\n"
        if not self._charge_handshake():
            return HTTPStatus.SERVICE_UNAVAILABLE, "Too many new connections; try again later.\n"
        return None

    def _charge_handshake(self) -> bool:
        now, rate = asyncio.get_running_loop().time(), self.house.limits.handshakes
        self._credit = min(rate, self._credit + (now - self._credit_at) * rate)
        self._credit_at = now
        if self._credit < 1:
            return False
        self._credit -= 1
        return True

    def _origin_refusal(self, request: Request) -> str | None:
        if self._is_origin_allowed(request):
            return None
        return "Pages of this origin may not watch: EVERSTEP_ALLOWED_ORIGINS"

    def _is_origin_allowed(self, request: Request) -> bool:
        """Clients other than browsers send no origin; pages of the gateway's own host may connect."""
        origins = request.headers.get_all("Origin")
        if not origins:
            return True
        if len(origins) > 1:
            return False
        origin = origins[0].lower()
        try:
            own, its = urlsplit("//" + request.headers.get("Host", "")), urlsplit(origin)
            if origin in self._origins:
                return True
            return its.hostname is not None and its.hostname == own.hostname and self._has_page(own, its)
        except ValueError:
            return False

    def _has_page(self, own: SplitResult, its: SplitResult) -> bool:
        """Whether pages of this port of the own host may connect."""
        if self._page_ports is None or own.port == its.port:
            return True
        return (its.port or DEFAULT_PORTS.get(its.scheme)) in self._page_ports()

    def _host_refusal(self, request: Request) -> str | None:
        return self._hosts and self._hosts.refusal(request.headers.get_all("Host"))

    def _hides_metrics(self, request: Request) -> bool:
        return self._hosts is not None and self._hosts.hides_metrics(request.headers.get_all("Host"))

    def page(self, path: str, request: Request) -> tuple[str, bytes] | None:
        """Return the page for a probe or for Prometheus; under a wrong host name only probes are answered."""
        match path:
            case "/healthz":
                return "application/json", b'{"status":"ok"}'
            case "/readyz":
                bus = bus_state()
                checks = [] if bus is None else [{"name": "bus", "ok": True, "detail": bus}]
                return "application/json", json_text({"status": "ready", "checks": checks}).encode()
            case "/metrics" if not (self._host_refusal(request) or self._hides_metrics(request)):
                self.house.metrics.streams.set(len(self.house.hub.stream_ids))
                return "text/plain; version=0.0.4; charset=utf-8", self.house.metrics.render()
            case _:
                return None

    async def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self.house.limits.sweep_seconds)
            now = loop.time()
            for connection in [*self._connections]:
                try:
                    if connection.due <= now:
                        connection.check_timeouts(now)
                    if connection.is_paused:
                        connection.check_stuck(now)
                except Exception:
                    # An error in one connection must not stop the sweep over the others.
                    logger.exception("a connection failed and is closed")
                    connection.abort()

    async def _drain(self) -> None:
        """Disconnect all viewers, spread over time so that they do not reconnect elsewhere all at once."""
        self._is_draining = True
        bounds, loop = self.house.limits, asyncio.get_running_loop()
        waiting = [*self._connections]
        seconds = min(bounds.drain_seconds, len(waiting) / 100)
        for place, connection in enumerate(waiting):
            goodbye = partial(connection.close, RESTARTING, random.random())  # noqa: S311 -- jitter
            loop.call_later(seconds * place / len(waiting), goodbye)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds + bounds.closing_seconds if waiting else 0):
                await self._is_empty.wait()
        for connection in [*self._connections]:
            connection.abort()
        if waiting:
            logger.info("%s viewers were asked to reconnect", len(waiting))


def raise_descriptor_limit() -> int:
    """Raise the limit of open files of this process to the maximum that it may set.

    Returns:
        The new limit.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        # The kernel has another limit, which cannot be read here.
        return 1 << 20 if soft == hard else soft
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard
