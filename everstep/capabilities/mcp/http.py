"""A server at an address: what the SDK's transport sends and gets, watched.

That transport ends a whole connection, with all calls on it, when one request cannot be sent; it waits with
everything else until a cancellation is acknowledged; and it reads JSON of any length. So all of its requests
pass through here, where each that fails is answered with an error of its own.
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

from everstep.agent_domain.values import cut
from everstep.capabilities.mcp.servers import HttpServer
from everstep.capabilities.mcp.stdio import MOST_BYTES

UNSENT = -33_001
"""Error codes of ours, outside of what JSON-RPC and MCP use: the server never got the request,"""
BROKEN = -33_002
"""it may have got it, and there is no answer,"""
SESSION_LOST = -33_003
"""it has forgotten us,"""
UNAUTHORIZED = -33_004
"""it does not accept our headers (any more),"""
REFUSED = -33_005
"""or it answered with another HTTP status that another attempt would not change."""

CONNECT_SECONDS = 10.0
NOTICE_SECONDS = 5.0
"""For the server to take note of something that needs no answer."""
_PASSING = frozenset({HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS})
_UNSENT_ERRORS = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.UnsupportedProtocol)


@asynccontextmanager
async def http_link(
    server: HttpServer, headers: Mapping[str, str], patience: float
) -> AsyncGenerator[Transport]:
    """The way to the server, with these headers on every request; an answer may take `patience` seconds."""
    timeout = httpx2.Timeout(CONNECT_SECONDS, read=None)
    transport = _Watched(httpx2.AsyncHTTPTransport(), patience)
    # What is compressed cannot be bounded by its size.
    sent = {**headers, "accept-encoding": "identity"}
    async with httpx2.AsyncClient(transport=transport, headers=sent, timeout=timeout) as client:
        yield streamable_http_client(server.url, http_client=client, max_sse_event_size=MOST_BYTES)


class _Watched(httpx2.AsyncBaseTransport):
    def __init__(self, inner: httpx2.AsyncBaseTransport, patience: float) -> None:
        self._inner = inner
        self._patience = patience
        self._notices: set[asyncio.Task[httpx2.Response]] = set()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.method != "POST":
            response = await self._inner.handle_async_request(request)
            return _bounded(response, math.inf)
        message = _message(request.content)
        if "id" not in message or "method" not in message:
            # That we are ready has to arrive before what follows; nothing waits for the rest.
            noticing = asyncio.create_task(self._noticed(request))
            self._notices.add(noticing)
            noticing.add_done_callback(self._notices.discard)
            is_first = message.get("method") == "notifications/initialized"
            return await noticing if is_first else httpx2.Response(HTTPStatus.ACCEPTED)
        until = asyncio.get_running_loop().time() + self._patience
        try:
            async with asyncio.timeout_at(until):
                response = await self._inner.handle_async_request(request)
                return await _understood(request, message, _bounded(response, until))
        except _UNSENT_ERRORS as error:
            return _error(message, UNSENT, f"it cannot be reached ({type(error).__name__})")
        except (httpx2.TransportError, httpx2.StreamError, TimeoutError) as error:
            return _error(message, BROKEN, f"it broke off ({type(error).__name__})")

    async def _noticed(self, request: httpx2.Request) -> httpx2.Response:
        """Notifications and answers: whether they arrive changes nothing for the calls around them."""
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


async def _understood(
    request: httpx2.Request, message: Mapping[str, Any], response: httpx2.Response
) -> httpx2.Response:
    """The answer, or in place of an HTTP error one that says what it is."""
    if response.headers.get("content-encoding", "identity") != "identity":
        await response.aclose()
        return _error(message, BROKEN, "it compresses its answers, although it was asked not to")
    if response.status_code < HTTPStatus.BAD_REQUEST:
        return response
    try:
        body = _message(await response.aread())
    finally:
        await response.aclose()
    if MCP_SESSION_ID in request.headers and _is_forgotten(response.status_code, body):
        return _error(message, SESSION_LOST, "it has ended the session")
    if isinstance(body.get("error"), dict):
        return httpx2.Response(response.status_code, json={**body, "id": message["id"]})
    status = f"{response.status_code} {_phrase(response.status_code)}".strip()
    return _error(message, _code(response.status_code), f"it answered with HTTP {status}")


def _is_forgotten(status: int, body: Mapping[str, Any]) -> bool:
    """Whether the server knows the session no more: 404 as the protocol says, or 400 and a word about it."""
    is_said = status == HTTPStatus.BAD_REQUEST and "session" in json.dumps(body.get("error")).lower()
    return status == HTTPStatus.NOT_FOUND or is_said


def _code(status: int) -> int:
    if status == HTTPStatus.UNAUTHORIZED:
        return UNAUTHORIZED
    is_passing = status in _PASSING or status >= HTTPStatus.INTERNAL_SERVER_ERROR
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
        found = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return cast("Mapping[str, Any]", found) if isinstance(found, dict) else {}


def _bounded(response: httpx2.Response, until: float) -> httpx2.Response:
    """The response, of which only so much is read and only for so long."""
    if not isinstance(response.stream, httpx2.AsyncByteStream):
        raise TypeError("the response of an async transport streams asynchronously")
    is_stream = response.headers.get("content-type", "").lower().startswith("text/event-stream")
    # The events of a stream are bounded one by one where they are read.
    limit = math.inf if is_stream else MOST_BYTES
    response.stream = _Bounded(response.stream, limit, until)
    return response


class _Bounded(httpx2.AsyncByteStream):
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
                raise httpx2.StreamError(f"the answer is larger than the {MOST_BYTES:,} bytes that are read")
            yield chunk

    async def _next(self, chunks: AsyncIterator[bytes]) -> bytes | None:
        try:
            async with asyncio.timeout_at(self._until):
                return await anext(chunks, None)
        except (httpx2.TransportError, TimeoutError) as error:
            # Of this kind the SDK's transport takes note for the one request; another would end them all.
            raise httpx2.StreamError(f"the answer broke off ({cut(type(error).__name__, 40)})") from None

    async def aclose(self) -> None:
        await self._inner.aclose()
