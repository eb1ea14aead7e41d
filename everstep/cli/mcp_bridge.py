"""The command that serves MCP on stdio: it passes each message to the API, which is the server."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from time import monotonic
from typing import Any, Self, cast
from uuid import uuid4

import click
import httpx2
from pydantic import ValidationError

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.values import json_text
from everstep.cli.command import command
from everstep.cli.remote import (
    PATIENCE_SECONDS,
    TRANSIENT,
    Remote,
    api_options,
    find_limit,
    open_remote,
    retry_waits,
)
from everstep.runtime.settings import Settings

PATH = "/mcp"
TIMEOUT = httpx2.Timeout(60, connect=5)
"""The API sends something every 15 seconds."""

FIRST_PATIENCE_SECONDS = 20.0
"""Seconds for which the first requests of a host are repeated: it may start this command with the API."""

OnNotification = Callable[[Mapping[str, Any]], Awaitable[None]]


class JsonRpcFailure(Exception):
    """The API answered with an error.

    Attributes:
        error: The error of the JSON-RPC response.
    """

    def __init__(self, error: Mapping[str, Any]) -> None:
        self.error = error
        super().__init__(error.get("message"))


class _Outage(Exception):
    """The API does not answer, or is unavailable."""


@dataclass(frozen=True)
class McpForwarder:
    """Sends messages to the MCP server of the API, again while it is unavailable.

    Every call has an idempotency key, so a repeated one takes effect once.
    """

    remote: Remote

    async def request(
        self,
        method: str,
        params: Mapping[str, Any] | None,
        protocol_version: str,
        on_notification: OnNotification,
    ) -> dict[str, Any]:
        """Send a request, and return its result.

        Args:
            method: The method.
            params: The parameters.
            protocol_version: The version of the protocol that the client speaks.
            on_notification: Receives what the API sends before the result.

        Raises:
            JsonRpcFailure: The API refused, or is not there.
        """
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params or {}}
        headers = _headers(method, params or {}, protocol_version)
        patience = PATIENCE_SECONDS if self.remote.has_answered else FIRST_PATIENCE_SECONDS
        deadline, is_waiting = monotonic() + patience, False
        for wait in retry_waits():
            try:
                result = await self._exchange(message, headers, on_notification)
            except _Outage as error:
                if monotonic() + wait > deadline:
                    raise JsonRpcFailure({"code": -32603, "message": str(error)}) from None
                if not is_waiting:
                    self.remote.report(f"{error}; trying again")
                is_waiting = True
                await asyncio.sleep(wait)
            else:
                self.remote.has_answered = True
                return result
        raise AssertionError("the waits do not end")

    async def _exchange(
        self, message: Mapping[str, Any], headers: Mapping[str, str], on_notification: OnNotification
    ) -> dict[str, Any]:
        url = self.remote.find_url()
        sending = self.remote.http.stream(
            "POST", url + PATH, content=json_text(message).encode(), headers=headers, timeout=TIMEOUT
        )
        try:
            async with sending as response:
                if response.status_code in TRANSIENT:
                    await response.aread()
                    limit = find_limit(response)
                    raise _Outage(limit[0] if limit else f"{url} is unavailable ({response.status_code})")
                async for reply in _messages(response):
                    if "method" in reply:
                        await on_notification(reply)
                    elif "error" in reply:
                        raise JsonRpcFailure(reply["error"])
                    elif _is_outage(reply.get("result") or {}):
                        raise _Outage(f"a server behind {url} is unavailable")
                    else:
                        return reply.get("result") or {}
        except httpx2.RequestError as error:
            how = "start a local installation with `everstep up`, or name another API (--url)"
            raise _Outage(f"no answer from {url} ({str(error) or type(error).__name__}); {how}") from None
        raise _Outage(f"{url} ended its response early")


def _headers(method: str, params: Mapping[str, Any], protocol_version: str) -> dict[str, str]:
    from mcp.shared.inbound import encode_header_value  # noqa: PLC0415 -- an extra

    headers = {
        "Accept": "application/json, text/event-stream",
        "Content-Type": "application/json",
        "Idempotency-Key": str(uuid4()),
        "Mcp-Method": method,
    }
    if method != "initialize":
        headers["MCP-Protocol-Version"] = protocol_version
    name = params.get("name") or params.get("taskId")
    return headers | ({"Mcp-Name": encode_header_value(name)} if isinstance(name, str) else {})


async def _messages(response: httpx2.Response) -> AsyncIterator[dict[str, Any]]:
    """The messages of a response: one as JSON, or several as server-sent events."""
    if not response.headers.get("content-type", "").startswith("text/event-stream"):
        yield _parse(response, await response.aread())
        return
    async for line in response.aiter_lines():
        field, _, value = line.partition(":")
        if field == "data" and value.strip():
            yield _parse(response, value)


def _parse(response: httpx2.Response, text: str | bytes) -> dict[str, Any]:
    try:
        message = json.loads(text)
    except ValueError:
        message = None
    if not isinstance(message, dict) or not {"method", "result", "error"} & message.keys():
        detail = f"{response.url} is not an Everstep API with MCP ({response.status_code}); check the URL"
        raise JsonRpcFailure({"code": -32603, "message": detail})
    return cast("dict[str, Any]", message)


def _is_outage(result: Mapping[str, Any]) -> bool:
    """Whether a call failed only because a server was unavailable."""
    meta: Mapping[str, Any] = result.get("_meta") or {}
    return meta.get("everstep/status") in TRANSIENT


@click.command()
@api_options
@click.pass_obj
@command
async def mcp(settings: Settings, url: str | None, token: str | None) -> None:
    """Serve agents to an MCP host on stdin and stdout, until stdin ends.

    The host starts this command. It passes the messages to the API of an installation, with the given token.
    """
    try:
        from mcp.server.stdio import stdio_server  # noqa: PLC0415 -- an extra
    except ModuleNotFoundError:
        raise InvalidInput("the MCP SDK is missing; install it with: pip install 'everstep[mcp]'") from None
    # The thread that reads stdin cannot be cancelled, and there is nothing to close.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    async with open_remote(settings, url, token) as remote, stdio_server() as (reading, writing):
        server = _build_server(McpForwarder(remote))
        lines = MessageLines(reading, writing)
        await server.run(lines, writing, server.create_initialization_options())


@dataclass(frozen=True)
class MessageLines:
    """The messages of a host. Malformed lines, which the SDK would drop, are answered with an error."""

    reading: Any
    writing: Any

    async def receive(self) -> Any:
        """Return the next message."""
        while isinstance(item := await self.reading.receive(), Exception):
            await self._refuse(item)
        return item

    async def aclose(self) -> None:
        """Close the stream that is read."""
        await self.reading.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        while isinstance(item := await anext(self.reading), Exception):
            await self._refuse(item)
        return item

    async def __aenter__(self) -> Self:
        await self.reading.__aenter__()
        return self

    async def __aexit__(self, *failure: Any) -> None:
        await self.reading.__aexit__(*failure)

    async def _refuse(self, fault: Exception) -> None:
        from mcp import types  # noqa: PLC0415 -- an extra
        from mcp.shared.message import SessionMessage  # noqa: PLC0415

        is_json = isinstance(fault, ValidationError) and fault.errors()[0]["type"] != "json_invalid"
        code = types.INVALID_REQUEST if is_json else types.PARSE_ERROR
        message = "The line is no message of JSON-RPC 2.0; send one JSON object in UTF-8 on each line"
        error = types.ErrorData(code=code, message=message)
        await self.writing.send(SessionMessage(types.JSONRPCError(jsonrpc="2.0", id=None, error=error)))


def _build_server(forwarder: McpForwarder) -> Any:
    """A server of the SDK that frames messages, and lets the API answer every request."""
    from mcp.server.lowlevel import Server  # noqa: PLC0415 -- an extra
    from mcp.shared.exceptions import MCPError  # noqa: PLC0415

    async def forward(ctx: Any, call_next: Callable[[Any], Awaitable[Any]]) -> Any:
        if ctx.request_id is None:
            return await call_next(ctx)

        async def on_notification(message: Mapping[str, Any]) -> None:
            if message["method"] == "notifications/progress":
                given = message["params"]
                await ctx.session.report_progress(given["progress"], given.get("total"), given.get("message"))

        try:
            return await forwarder.request(ctx.method, ctx.params, ctx.protocol_version, on_notification)
        except JsonRpcFailure as failure:
            error = failure.error
            raise MCPError(error["code"], error["message"], error.get("data")) from None

    server = Server[Any]("everstep", version=version("everstep"))
    server.middleware.append(forward)
    return server
