"""Serving an ASGI application on a port."""

import asyncio
import logging
import socket
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from functools import partial

import uvicorn
from starlette.types import ASGIApp

from everstep.agent_domain.errors import InvalidInput
from everstep.broadcast_gateway.server import DESCRIPTOR_SHARE, raise_descriptor_limit
from everstep.http_api.middleware import MAX_HEAD
from everstep.runtime.connection_limits import ConnectionCounter, ConnectionLimits, LimitedConnection

SHUTDOWN_SECONDS = 10
"""Seconds that open requests are given when the process stops."""


@asynccontextmanager
async def serve_app(
    app: ASGIApp,
    host: str = "127.0.0.1",
    port: int = 0,
    limits: ConnectionLimits | None = None,
    *,
    or_any: bool = False,
    listener: socket.socket | None = None,
) -> AsyncGenerator[str]:
    """Serve an application within the block; yield the URL.

    Args:
        app: The application.
        host: The address to listen on.
        port: The port; 0 means a free one.
        limits: The limits of its connections.
        or_any: Whether to use a free port if the given one is busy.
        listener: A socket to use instead, which is closed at the end.
    """
    logging.getLogger("uvicorn.error").addFilter(_is_fault)
    limits = (limits or ConnectionLimits()).within(int(raise_descriptor_limit() * DESCRIPTOR_SHARE))
    listener = listener or bind_socket(host, port, or_any=or_any)
    config = uvicorn.Config(
        app,
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        http=partial(LimitedConnection, ConnectionCounter(limits)),  # type: ignore[arg-type] -- uvicorn only calls it
        h11_max_incomplete_event_size=MAX_HEAD,
        timeout_keep_alive=limits.idle_seconds,  # type: ignore[arg-type] -- a float works
        ws="none",
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )
    server = _Server(config)
    running = asyncio.create_task(server.serve(sockets=[listener]))
    up = asyncio.create_task(server.up.wait())
    try:
        await asyncio.wait((running, up), return_when=asyncio.FIRST_COMPLETED)
        yield f"http://{format_address(host, listener.getsockname()[1])}"
    finally:
        up.cancel()
        server.should_exit = True
        await running
        listener.close()


def _is_fault(record: logging.LogRecord) -> bool:
    """Whether a line of uvicorn is about a fault: streams to clients that do not read are left incomplete."""
    return record.getMessage() != "ASGI callable returned without completing response."


class _Server(uvicorn.Server):
    """A server that signals when it listens, and installs no signal handlers."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


def bind_socket(
    host: str, port: int, *, or_any: bool = False, what: str = "EVERSTEP_HTTP", is_shared: bool = False
) -> socket.socket:
    """Return a socket that is bound to an address.

    Args:
        host: The address.
        port: The port; 0 means a free one.
        or_any: Whether to use a free port if the given one is busy.
        what: The prefix of the port's settings, for error messages.
        is_shared: Whether other processes may bind the same port.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise InvalidInput(
            f"{what}_HOST is '{host}', which is not an address of this machine: {error}"
        ) from None
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if is_shared:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        listener.bind(address)
    except OSError as error:
        listener.close()
        if or_any and port:
            return bind_socket(host, 0, what=what)
        raise InvalidInput(
            f"port {port} of {host} cannot be used: {error.strerror}; choose another one ({what}_PORT)"
        ) from None
    return listener


def format_address(host: str, port: int) -> str:
    """Return host and port as written in a URL."""
    name = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 -- displayed, not listened on
    return f"[{name}]:{port}" if ":" in name else f"{name}:{port}"
