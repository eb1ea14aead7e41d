"""Connections to servers: shared, opened when somebody needs one, and closed when nobody does.

A session of the SDK belongs to the task that entered it, which also has to leave it. So each connection is
owned by a task of its own, whatever becomes of those who use it, and each request is a task as well: whoever
asked can leave at once, while the request takes its time to tell the server that nobody waits.
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

from everstep.capabilities.mcp import http
from everstep.capabilities.mcp.errors import McpError, McpLost, McpTimeout
from everstep.capabilities.mcp.hiding import Secrets
from everstep.capabilities.mcp.links import Link, Lost
from everstep.capabilities.mcp.results import error_text

logger = logging.getLogger(__name__)

T = TypeVar("T")
Open = Callable[[Lost], AbstractAsyncContextManager[Link]]
"""Opens the way to a server, and tells when it is lost."""

OPENING_PAUSES = (0.1, 0.5)
"""Before another attempt to open a connection; then whoever waits is told."""
_PASSING_CODES = frozenset({types.CONNECTION_CLOSED, http.UNSENT, http.BROKEN})
_STALE_CODES = frozenset({http.SESSION_LOST, http.UNAUTHORIZED})
"""Another connection may be well: it has a new session, and headers made anew."""
CLOSED = "the connection was closed"


class Connection:
    """One session with a server, from the first request until it is lost, idle or closed."""

    def __init__(self, opens: Open, connect_seconds: float, idle_seconds: float) -> None:
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
        self._owner = asyncio.create_task(self._owned(), name="everstep mcp connection")

    @property
    def is_over(self) -> bool:
        """Whether the next request needs another connection."""
        is_lost = self._session.done() and self._over.is_set()
        return is_lost or self._is_stale or self._owner.done()

    def on_end(self, told: Callable[[], None]) -> None:
        """Call this once everything is closed."""
        self._owner.add_done_callback(lambda _: told())

    def lost(self, reason: str) -> None:
        """There is nothing more to expect of the server."""
        self._reason = self._reason or reason
        self._over.set()

    async def close(self) -> None:
        """End it, whoever still waits for an answer."""
        self.lost(CLOSED)
        if not self._session.done():
            self._owner.cancel()
        await asyncio.wait({self._owner})

    async def request(self, ask: Callable[[ClientSession], Awaitable[T]]) -> T:
        """What the server answers; `McpError` and its kinds when it does not."""
        self._users += 1
        if self._idle:
            self._idle.cancel()
        try:
            # Others wait for the same: who leaves must not take it along.
            await asyncio.wait({self._session})
            return await self._answered(ask, self._session.result())
        finally:
            self._users -= 1
            if not self._users:
                self._rest()

    def _rest(self) -> None:
        """Nobody needs it now."""
        if self._is_stale:
            self.lost(CLOSED)
        else:
            self._idle = asyncio.get_running_loop().call_later(self._idle_seconds, self.lost, CLOSED)

    async def _answered(self, ask: Callable[[ClientSession], Awaitable[T]], session: ClientSession) -> T:
        if self.is_over:
            raise McpLost(self._reason or CLOSED, was_sent=False)
        request = asyncio.create_task(_run(ask, session))
        self._requests.add(request)
        request.add_done_callback(self._forget)
        try:
            await asyncio.wait({request})
        except asyncio.CancelledError:
            request.cancel()
            raise
        try:
            return request.result()
        except MCPError as error:
            raise self._told(error) from None
        except ValidationError as error:
            raise McpError(f"its answer breaks the protocol: {_first_fault(error)}") from None
        except asyncio.CancelledError:
            raise McpLost(self._reason or CLOSED, was_sent=True) from None

    def _told(self, error: MCPError) -> McpError:
        text = self._secrets.hidden_in(error_text(error.message))
        if error.code in _STALE_CODES:
            # Others may still wait for their answers here.
            self._is_stale = True
            return McpLost(text, was_sent=False)
        if error.code in _PASSING_CODES:
            return McpLost(self._reason or text, was_sent=error.code != http.UNSENT)
        return McpError(text)

    def _forget(self, request: "asyncio.Task[object]") -> None:
        self._requests.discard(request)
        # Nobody may be left to hear what became of it.
        if not request.cancelled():
            request.exception()

    async def _owned(self) -> None:
        try:
            await self._opened_and_held()
        except asyncio.CancelledError:
            self.lost(CLOSED)
            raise
        finally:
            self._over.set()
            if self._idle:
                self._idle.cancel()
            if not self._session.done():
                self._session.set_exception(McpLost(self._reason or CLOSED, was_sent=False))
            # Heard by whoever waits, and by nobody if nobody does.
            self._session.exception()

    async def _opened_and_held(self) -> None:
        """Open it, more than once if need be, and keep it open as long as it is wanted."""
        until = asyncio.get_running_loop().time() + self._connect_seconds
        for pause in (*OPENING_PAUSES, None):
            try:
                await self._held(until)
            except Exception as raised:  # noqa: BLE001 -- the SDK's task groups raise whatever happened, in groups
                error = _single(raised)
                failure = self._failure(error)
                if self._session.done():
                    logger.debug("an MCP connection ended: %s", failure)
                    self.lost(str(failure))
                elif pause is None or not _may_pass(error):
                    self._session.set_exception(failure)
                else:
                    self._reason = ""
                    self._over.clear()
                    await asyncio.sleep(pause)
                    continue
            return

    async def _held(self, until: float) -> None:
        async with AsyncExitStack() as stack:
            async with asyncio.timeout_at(until):
                link = await stack.enter_async_context(self._opens(self.lost))
                self._secrets = link.secrets
                client = Client(link.transport, cache=None, client_info=_ourselves())
                await stack.enter_async_context(client)
            self._session.set_result(client.session)
            await self._over.wait()

    def _failure(self, error: Exception) -> McpError:
        """Why it could not be opened, in words without secrets."""
        match error:
            case McpError():
                return error
            case TimeoutError():
                return McpTimeout(self._reason or f"it did not answer within {self._connect_seconds:g}s")
            case MCPError():
                told = self._reason if error.code == types.CONNECTION_CLOSED else ""
                return McpError(told or self._secrets.hidden_in(error_text(error.message)))
            case ValidationError():
                return McpError(f"its answer breaks the protocol: {_first_fault(error)}")
            case _:
                text = self._secrets.hidden_in(error_text(str(error)))
                return McpError(f"{type(error).__name__}: {text}")


async def _run(ask: Callable[[ClientSession], Awaitable[T]], session: ClientSession) -> T:
    return await ask(session)


def _single(error: Exception) -> Exception:
    """What a group was made of, first of all."""
    while isinstance(error, ExceptionGroup):
        error = cast("ExceptionGroup[Exception]", error).exceptions[0]
    return error


def _may_pass(error: Exception) -> bool:
    return isinstance(error, MCPError) and error.code in _PASSING_CODES


def _first_fault(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    place = "/".join(str(part) for part in first["loc"])
    return f"{place}: {first['msg']}" if place else first["msg"]


@cache
def _ourselves() -> types.Implementation:
    return types.Implementation(name="everstep", version=version("everstep"))
