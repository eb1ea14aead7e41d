"""The edge of the API: what every request passes before anything looks at it.

It is given an id, its body is read up to the limit, what goes wrong is answered, and one line of the log
says what became of it. Pure ASGI: a class of Starlette's would cost a task for each request.
"""

import asyncio
import logging
import re
from collections.abc import Sequence
from http import HTTPMethod
from time import perf_counter
from uuid import uuid4

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agent_domain.values import json_text
from everstep.http_api import problems
from everstep.http_api.metrics import Metrics

logger = logging.getLogger(__name__)

MAX_BODY = 256 * 1024
"""Bytes of a request. Temporal is never given one, and still: a body of megabytes is a mistake here."""

PATIENCE = 30.0
"""Seconds in which a body has to arrive."""

REQUEST_ID = "x-request-id"
_USABLE_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")

_METHODS = frozenset(HTTPMethod)


class BodyTooLarge(Exception):
    """More was sent than is read."""


class ClientGone(Exception):
    """Whoever asked has hung up."""


class Edge:
    """What every request passes first and every answer last."""

    def __init__(
        self, app: ASGIApp, metrics: Metrics, max_body: int = MAX_BODY, patience: float = PATIENCE
    ) -> None:
        self.app = app
        self.metrics = metrics
        self.max_body = max_body
        self.patience = patience

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request_id = _request_id(Headers(scope=scope))
        scope.setdefault("state", {})["request_id"] = request_id
        passing, began = _Passing(send, request_id), perf_counter()
        self.metrics.in_progress.inc()
        try:
            await self._answered(scope, receive, passing)
        except ClientGone:
            passing.status = 499
        finally:
            self.metrics.in_progress.dec()
            self._tell(scope, passing.status, request_id, perf_counter() - began)

    async def _answered(self, scope: Scope, receive: Receive, send: "_Passing") -> None:
        try:
            async with asyncio.timeout(self.patience):
                body = await _read(Headers(scope=scope), receive, self.max_body)
        except BodyTooLarge:
            await problems.rendered(problems.too_large(self.max_body), send.request_id)(scope, receive, send)
            return
        except TimeoutError:
            await problems.rendered(problems.too_slow(), send.request_id)(scope, receive, send)
            return
        try:
            await self.app(scope, _once(body, receive), send)
        except Exception as error:
            if send.status:
                raise
            refusal = problems.refusal_of(error)
            await problems.rendered(refusal, send.request_id)(scope, receive, send)

    def _tell(self, scope: Scope, status: int, request_id: str, seconds: float) -> None:
        # The pattern, not the path: what people look for stands in a URL, too.
        route = getattr(scope.get("route"), "path", None) or "unknown"
        method = scope["method"] if scope["method"] in _METHODS else "other"
        self.metrics.answered(method, route, status, seconds)
        line = {
            "request_id": request_id,
            "method": method,
            "route": route,
            "status": status,
            "ms": round(seconds * 1000, 1),
            "tenant": scope["state"].get("tenant_id"),
        }
        logger.info("request %s", json_text(line))


def _request_id(headers: Headers) -> str:
    given = headers.get(REQUEST_ID, "")
    return given if _USABLE_ID.fullmatch(given) else uuid4().hex


async def _read(headers: Headers, receive: Receive, limit: int) -> bytes:
    """The whole body, however it comes: a chunked one says nowhere how long it is."""
    announced = headers.get("content-length", "")
    if announced.isdecimal() and (len(announced) > 12 or int(announced) > limit):  # noqa: PLR2004 -- digits
        raise BodyTooLarge
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        part = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise BodyTooLarge
        parts.append(part)
        if not message.get("more_body"):
            return b"".join(parts)


def _once(body: bytes, receive: Receive) -> Receive:
    """Hands out a body that was read before."""
    handed_out = False

    async def again() -> Message:
        nonlocal handed_out
        if handed_out:
            return await receive()
        handed_out = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


class _Passing:
    """Sees what is sent, and marks it."""

    def __init__(self, send: Send, request_id: str) -> None:
        self.request_id = request_id
        self.status = 0
        self._send = send

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            headers[REQUEST_ID] = self.request_id
            headers["X-Content-Type-Options"] = "nosniff"
            headers.setdefault("Cache-Control", "no-store")
        await self._send(message)


class Origins:
    """Answers browsers only where their page comes from here, or from where the settings allow."""

    def __init__(self, app: ASGIApp, allowed: Sequence[str]) -> None:
        self.app = app
        self.allowed = frozenset(origin.rstrip("/").lower() for origin in allowed)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on what no browser sent, and what one sent from a known page."""
        if scope["type"] != "http" or (origin := Headers(scope=scope).get("origin")) is None:
            await self.app(scope, receive, send)
            return
        origin, host = origin.lower(), Headers(scope=scope).get("host", "").lower()
        if _host(origin) == host:
            await self.app(scope, receive, send)
        elif origin not in self.allowed:
            detail = "Pages of this origin may not use the API; add it to EVERSTEP_ALLOWED_ORIGINS"
            refusal = problems.forbidden(detail)
            await problems.rendered(refusal, scope["state"]["request_id"])(scope, receive, send)
        elif scope["method"] == "OPTIONS":
            await send({"type": "http.response.start", "status": 204, "headers": _preflight(origin)})
            await send({"type": "http.response.body", "body": b""})
        else:
            await self.app(scope, receive, _Shared(send, origin))


def _host(origin: str) -> str:
    scheme, _, host = origin.partition("://")
    default = {"http": ":80", "https": ":443"}.get(scheme, "")
    return host.removesuffix(default) if default else ""


_EXPOSED = "X-Request-Id, Idempotency-Replayed, Retry-After"


def _preflight(origin: str) -> list[tuple[bytes, bytes]]:
    headers = {
        "access-control-allow-origin": origin,
        "access-control-allow-methods": "GET, POST, PATCH, DELETE",
        "access-control-allow-headers": "Authorization, Content-Type, Idempotency-Key, X-Request-Id",
        "access-control-max-age": "600",
        "vary": "Origin",
    }
    return [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]


class _Shared:
    """Lets the browser show the answer to the page."""

    def __init__(self, send: Send, origin: str) -> None:
        self._send = send
        self.origin = origin

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers["Access-Control-Allow-Origin"] = self.origin
            headers["Access-Control-Expose-Headers"] = _EXPOSED
            headers.add_vary_header("Origin")
        await self._send(message)
