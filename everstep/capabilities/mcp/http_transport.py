"""A server at a URL: a layer below the SDK's transport that bounds and isolates its requests.

The SDK's transport ends a whole connection, with all calls on it, when one request cannot be sent. It blocks
everything else until a cancellation is acknowledged, and it reads JSON of any length. So all of its requests
pass through here, where a failed one is answered with its own error.
"""

import asyncio
import json
import math
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from typing import Any, cast

import httpx2
import mcp_types as types
from mcp.client import Transport
from mcp.client.streamable_http import MCP_SESSION_ID, streamable_http_client

from everstep.agent_domain.values import truncate
from everstep.capabilities.mcp.servers import HttpServer
from everstep.capabilities.mcp.stdio import MAX_MESSAGE_BYTES

UNSENT = -33_001
"""Our own error codes are outside of the ranges of JSON-RPC and MCP. The server never got the request."""
BROKEN = -33_002
"""The server may have got the request, and there is no answer."""
SESSION_LOST = -33_003
"""The server has forgotten the session."""
UNAUTHORIZED = -33_004
"""The server does not accept the headers (any more)."""
REFUSED = -33_005
"""The server answered with another HTTP status that a retry would not change."""

CONNECT_SECONDS = 10.0
NOTICE_SECONDS = 5.0
"""How long the server may take to accept a message that needs no answer."""
_TRANSIENT_STATUSES = frozenset(
    {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS}
)
_UNSENT_ERRORS = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.UnsupportedProtocol)


@asynccontextmanager
async def http_link(
    server: HttpServer, headers: Mapping[str, str], patience: float
) -> AsyncGenerator[Transport]:
    """Open the transport to the server.

    Args:
        server: The server.
        headers: Sent with every request.
        patience: How many seconds an answer may take.
    """
    timeout = httpx2.Timeout(CONNECT_SECONDS, read=None)
    transport = _IsolatingTransport(httpx2.AsyncHTTPTransport(), patience)
    # Compressed answers cannot be bounded by their size.
    sent = {**headers, "accept-encoding": "identity"}
    async with httpx2.AsyncClient(transport=transport, headers=sent, timeout=timeout) as client:
        yield streamable_http_client(server.url, http_client=client, max_sse_event_size=MAX_MESSAGE_BYTES)


class _IsolatingTransport(httpx2.AsyncBaseTransport):
    def __init__(self, inner: httpx2.AsyncBaseTransport, patience: float) -> None:
        self._inner = inner
        self._patience = patience
        self._notices: set[asyncio.Task[httpx2.Response]] = set()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.method != "POST":
            response = await self._inner.handle_async_request(request)
            return _limit_response(response, math.inf)
        message = _message(request.content)
        if "id" not in message or "method" not in message:
            # The `initialized` notification has to arrive before later messages; nothing waits for the
            # others.
            noticing = asyncio.create_task(self._send_notice(request))
            self._notices.add(noticing)
            noticing.add_done_callback(self._notices.discard)
            is_first = message.get("method") == "notifications/initialized"
            return await noticing if is_first else httpx2.Response(HTTPStatus.ACCEPTED)
        until = asyncio.get_running_loop().time() + self._patience
        try:
            async with asyncio.timeout_at(until):
                response = await self._inner.handle_async_request(request)
                return await _readable_response(request, message, _limit_response(response, until))
        except _UNSENT_ERRORS as error:
            return _error(message, UNSENT, f"it cannot be reached ({type(error).__name__})")
        except (httpx2.TransportError, httpx2.StreamError, TimeoutError) as error:
            return _error(message, BROKEN, f"it broke off ({type(error).__name__})")

    async def _send_notice(self, request: httpx2.Request) -> httpx2.Response:
        """Send notifications and responses: whether they arrive does not affect concurrent calls."""
        with suppress(httpx2.TransportError, TimeoutError):
            async with asyncio.timeout(NOTICE_SECONDS):
                response = await self._inner.handle_async_request(request)
                await response.aclose()
        return httpx2.Response(HTTPStatus.ACCEPTED)

    async def aclose(self) -> None:
        for noticing in self._notices:
            noticing.cancel()
        await asyncio.gather(*self._notices, return_exceptions=True)
        await self._inner.aclose()


async def _readable_response(
    request: httpx2.Request, message: Mapping[str, Any], response: httpx2.Response
) -> httpx2.Response:
    """The answer; an HTTP error is replaced by a JSON-RPC error that describes it."""
    if response.headers.get("content-encoding", "identity") != "identity":
        await response.aclose()
        return _error(message, BROKEN, "it compresses its answers, although it was asked not to")
    if response.status_code < HTTPStatus.BAD_REQUEST:
        return response
    try:
        body = _message(await response.aread())
    finally:
        await response.aclose()
    if MCP_SESSION_ID in request.headers and _is_session_lost(response.status_code, body):
        return _error(message, SESSION_LOST, "it has ended the session")
    if isinstance(body.get("error"), dict):
        return httpx2.Response(response.status_code, json={**body, "id": message["id"]})
    status = f"{response.status_code} {_phrase(response.status_code)}".strip()
    return _error(message, _code(response.status_code), f"it answered with HTTP {status}")


def _is_session_lost(status: int, body: Mapping[str, Any]) -> bool:
    """Whether the server has lost the session: 404 by the protocol, or 400 with the word in its error."""
    is_said = status == HTTPStatus.BAD_REQUEST and "session" in json.dumps(body.get("error")).lower()
    return status == HTTPStatus.NOT_FOUND or is_said


def _code(status: int) -> int:
    if status == HTTPStatus.UNAUTHORIZED:
        return UNAUTHORIZED
    is_passing = status in _TRANSIENT_STATUSES or status >= HTTPStatus.INTERNAL_SERVER_ERROR
    return BROKEN if is_passing else REFUSED


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""


def _error(message: Mapping[str, Any], code: int, text: str) -> httpx2.Response:
    error = types.ErrorData(code=code, message=text)
    answer = types.JSONRPCError(jsonrpc="2.0", id=message["id"], error=error)
    return httpx2.Response(HTTPStatus.OK, json=answer.model_dump(by_alias=True, exclude_unset=True))


def _message(content: bytes) -> Mapping[str, Any]:
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return cast("Mapping[str, Any]", value) if isinstance(value, dict) else {}


def _limit_response(response: httpx2.Response, until: float) -> httpx2.Response:
    """Limit the size of the response, and the time to read it."""
    if not isinstance(response.stream, httpx2.AsyncByteStream):
        raise TypeError("the response of an async transport streams asynchronously")
    is_stream = response.headers.get("content-type", "").lower().startswith("text/event-stream")
    # Events of a stream are bounded one by one where they are read.
    limit = math.inf if is_stream else MAX_MESSAGE_BYTES
    response.stream = _LimitedStream(response.stream, limit, until)
    return response


class _LimitedStream(httpx2.AsyncByteStream):
    def __init__(self, inner: httpx2.AsyncByteStream, limit: float, until: float) -> None:
        self._inner = inner
        self._limit = limit
        self._until = None if math.isinf(until) else until

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size, chunks = 0, aiter(self._inner)
        while True:
            chunk = await self._next(chunks)
            if chunk is None:
                return
            size += len(chunk)
            if size > self._limit:
                raise httpx2.StreamError(
                    f"the answer is larger than the {MAX_MESSAGE_BYTES:,} bytes that are read"
                )
            yield chunk

    async def _next(self, chunks: AsyncIterator[bytes]) -> bytes | None:
        try:
            async with asyncio.timeout_at(self._until):
                return await anext(chunks, None)
        except (httpx2.TransportError, TimeoutError) as error:
            # The SDK's transport fails one request for this kind of error; another kind would end all of
            # them.
            raise httpx2.StreamError(f"the answer broke off ({truncate(type(error).__name__, 40)})") from None

    async def aclose(self) -> None:
        await self._inner.aclose()
