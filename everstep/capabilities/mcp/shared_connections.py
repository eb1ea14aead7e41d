"""Connections to servers: shared, opened on demand, and closed when they are idle.

A session of the SDK has to be entered and left in the same task. So each connection has its own task,
independent of the tasks that use it. Each request is a task as well: the caller can leave at once, while the
request takes its time to cancel at the server.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import cache
from importlib.metadata import version
from typing import TypeVar, cast

import mcp_types as types
from mcp.client import Client, ClientSession
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

from everstep.capabilities.mcp import http_transport
from everstep.capabilities.mcp.errors import McpError, McpLost, McpTimeout
from everstep.capabilities.mcp.hiding import Secrets
from everstep.capabilities.mcp.results import error_text
from everstep.capabilities.mcp.transports import McpLink, OnLost

logger = logging.getLogger(__name__)

T = TypeVar("T")
OpenLink = Callable[[OnLost], AbstractAsyncContextManager[McpLink]]
"""Opens the transport to a server, and reports when it is lost."""

OPENING_PAUSES = (0.1, 0.5)
"""Pauses before further attempts to open a connection; then the callers get the error."""
_TRANSIENT_CODES = frozenset({types.CONNECTION_CLOSED, http_transport.UNSENT, http_transport.BROKEN})
_STALE_CODES = frozenset({http_transport.SESSION_LOST, http_transport.UNAUTHORIZED})
"""Another connection may work: it has a new session and new headers."""
CLOSED = "the connection was closed"


class McpConnection:
    """One session with a server, from the first request until it is lost, idle or closed."""

    def __init__(self, opens: OpenLink, connect_seconds: float, idle_seconds: float) -> None:
        self._opens = opens
        self._secrets = Secrets(())
        self._connect_seconds = connect_seconds
        self._idle_seconds = idle_seconds
        self._session: asyncio.Future[ClientSession] = asyncio.get_running_loop().create_future()
        self._over = asyncio.Event()
        self._is_stale = False
        self._reason = ""
        self._users = 0
        self._idle: asyncio.TimerHandle | None = None
        self._requests: set[asyncio.Task[object]] = set()
        self._owner = asyncio.create_task(self._run_owner(), name="everstep mcp connection")

    @property
    def is_over(self) -> bool:
        """Whether the next request needs another connection."""
        is_lost = self._session.done() and self._over.is_set()
        return is_lost or self._is_stale or self._owner.done()

    def on_end(self, callback: Callable[[], None]) -> None:
        """Call this function once everything is closed."""
        self._owner.add_done_callback(lambda _: callback())

    def report_loss(self, reason: str) -> None:
        """Report that the server will send nothing more."""
        self._reason = self._reason or reason
        self._over.set()

    async def close(self) -> None:
        """Close it, even if callers still wait for an answer."""
        self.report_loss(CLOSED)
        if not self._session.done():
            self._owner.cancel()
        await asyncio.wait({self._owner})

    async def request(self, ask: Callable[[ClientSession], Awaitable[T]]) -> T:
        """Send a request and return the server's answer.

        Raises:
            McpError: The server answered with an error, or not at all.
        """
        self._users += 1
        if self._idle:
            self._idle.cancel()
        try:
            # Other callers wait for the same future, so a cancelled one must not cancel it.
            await asyncio.wait({self._session})
            return await self._run_request(ask, self._session.result())
        finally:
            self._users -= 1
            if not self._users:
                self._start_idle_timer()

    def _start_idle_timer(self) -> None:
        """No request is running now."""
        if self._is_stale:
            self.report_loss(CLOSED)
        else:
            self._idle = asyncio.get_running_loop().call_later(self._idle_seconds, self.report_loss, CLOSED)

    async def _run_request(self, ask: Callable[[ClientSession], Awaitable[T]], session: ClientSession) -> T:
        if self.is_over:
            raise McpLost(self._reason or CLOSED, was_sent=False)
        request = asyncio.create_task(_run(ask, session))
        self._requests.add(request)
        request.add_done_callback(self._discard_request)
        try:
            await asyncio.wait({request})
        except asyncio.CancelledError:
            request.cancel()
            raise
        try:
            return request.result()
        except MCPError as error:
            raise self._mcp_error(error) from None
        except ValidationError as error:
            raise McpError(f"its answer breaks the protocol: {_first_error(error)}") from None
        except asyncio.CancelledError:
            raise McpLost(self._reason or CLOSED, was_sent=True) from None

    def _mcp_error(self, error: MCPError) -> McpError:
        text = self._secrets.redact(error_text(error.message))
        if error.code in _STALE_CODES:
            # Other requests may still wait for their answers here.
            self._is_stale = True
            return McpLost(text, was_sent=False)
        if error.code in _TRANSIENT_CODES:
            return McpLost(self._reason or text, was_sent=error.code != http_transport.UNSENT)
        return McpError(text)

    def _discard_request(self, request: "asyncio.Task[object]") -> None:
        self._requests.discard(request)
        # Mark the exception as retrieved: the caller may have gone.
        if not request.cancelled():
            request.exception()

    async def _run_owner(self) -> None:
        try:
            await self._open_with_retries()
        except asyncio.CancelledError:
            self.report_loss(CLOSED)
            raise
        finally:
            self._over.set()
            if self._idle:
                self._idle.cancel()
            if not self._session.done():
                self._session.set_exception(McpLost(self._reason or CLOSED, was_sent=False))
            # Mark the exception as retrieved: there may be no caller.
            self._session.exception()

    async def _open_with_retries(self) -> None:
        """Open it, with retries, and keep it open until it is over."""
        until = asyncio.get_running_loop().time() + self._connect_seconds
        for pause in (*OPENING_PAUSES, None):
            try:
                await self._hold_open(until)
            except Exception as raised:  # noqa: BLE001 -- the SDK's task groups raise any error, in groups
                error = _single(raised)
                failure = self._failure(error)
                if self._session.done():
                    logger.debug("an MCP connection ended: %s", failure)
                    self.report_loss(str(failure))
                elif pause is None or not _is_transient(error):
                    self._session.set_exception(failure)
                else:
                    self._reason = ""
                    self._over.clear()
                    await asyncio.sleep(pause)
                    continue
            return

    async def _hold_open(self, until: float) -> None:
        async with AsyncExitStack() as stack:
            async with asyncio.timeout_at(until):
                link = await stack.enter_async_context(self._opens(self.report_loss))
                self._secrets = link.secrets
                client = Client(link.transport, cache=None, client_info=_client_info())
                await stack.enter_async_context(client)
            self._session.set_result(client.session)
            await self._over.wait()

    def _failure(self, error: Exception) -> McpError:
        """The error for a connection that could not be opened, without secrets."""
        match error:
            case McpError():
                return error
            case TimeoutError():
                return McpTimeout(self._reason or f"it did not answer within {self._connect_seconds:g}s")
            case MCPError():
                reason = self._reason if error.code == types.CONNECTION_CLOSED else ""
                return McpError(reason or self._secrets.redact(error_text(error.message)))
            case ValidationError():
                return McpError(f"its answer breaks the protocol: {_first_error(error)}")
            case _:
                text = self._secrets.redact(error_text(str(error)))
                return McpError(f"{type(error).__name__}: {text}")


async def _run(ask: Callable[[ClientSession], Awaitable[T]], session: ClientSession) -> T:
    return await ask(session)


def _single(error: Exception) -> Exception:
    """The first exception in nested groups."""
    while isinstance(error, ExceptionGroup):
        error = cast("ExceptionGroup[Exception]", error).exceptions[0]
    return error


def _is_transient(error: Exception) -> bool:
    return isinstance(error, MCPError) and error.code in _TRANSIENT_CODES


def _first_error(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    place = "/".join(str(part) for part in first["loc"])
    return f"{place}: {first['msg']}" if place else first["msg"]


@cache
def _client_info() -> types.Implementation:
    return types.Implementation(name="everstep", version=version("everstep"))
