"""ASGI middleware for every request: ids, size and time limits, error responses, logging and CORS.

Each request gets an id and one log line, and exceptions become responses. A body is read when the application
asks for it, which is after authentication: until then only the head of a request is in memory.
Pure ASGI, because Starlette's base class would create a task for each request.
"""

import asyncio
import logging
import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from http import HTTPMethod, HTTPStatus
from time import perf_counter
from uuid import uuid4

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from everstep.agent_domain.ids import ExecutionRef
from everstep.http_api import problems
from everstep.http_api.metrics import Metrics
from everstep.http_api.multipart_forms import FORM_OVERHEAD, is_form
from everstep.telemetry import tracing
from everstep.telemetry.log_lines import execution_fields
from everstep.telemetry.scope import request_scope

logger = logging.getLogger(__name__)

MAX_BODY = 256 * 1024
"""The limit of a request body in bytes. Not sent to Temporal, but megabytes are a mistake."""

MAX_CONVERSATION = 4 * 1024 * 1024
"""The limit of a request body of the wires: their clients send the whole conversation each time."""
CONVERSATION_PATHS = ("/agui/", "/ai/", "/v1/")
"""The prefixes of the paths of the wires."""

SIGN_IN_PATHS = frozenset({"/sign-in", "/sign-out"})
MAX_SIGN_IN = 16 * 1024
"""The limit of the body of a sign-in, in bytes."""
MAX_SIGN_INS = 16 * 1024 * 1024
"""The limit of all such bodies in memory together: more than the connections of one address can send."""
SIGN_IN_SECONDS = 10.0
"""Seconds within which such a body must arrive."""

BODY_SECONDS = 30.0
"""Seconds within which a body must arrive."""

UPLOAD_SECONDS = 120.0
"""Seconds within which a file must arrive."""

MAX_BODIES = 32 * 1024 * 1024
"""The limit of all request bodies in memory together, in bytes."""

MAX_HEAD = 64 * 1024
"""The limit of the request line and all headers, in bytes."""

MAX_HEADERS = 200

LINGER_SECONDS = 2.0
"""Seconds for which a client that is still sending may read a refusal before the connection is closed.
Closing with unread bytes resets the connection, and the response would be lost."""

MAX_LINGER_BYTES = 1024 * 1024
"""The limit of bytes that are read and discarded in that time."""

CLIENT_IS_GONE = 499
"""The status in logs and metrics of a request whose client closed the connection; nginx uses it, too."""

REQUEST_ID = "x-request-id"
_USABLE_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")

_METHODS = frozenset(HTTPMethod)


class BodyMemory:
    """Counts the bytes of all request bodies in memory."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0

    def take(self, size: int) -> None:
        """Count more bytes.

        Raises:
            Refusal: The limit is exceeded.
        """
        if self.held + size > self.limit:
            raise problems.overload()
        self.held += size

    def release(self, size: int) -> None:
        """Count fewer bytes."""
        self.held -= size


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """The limits of the bodies of some requests."""

    max_body: int
    """The limit of one body in bytes."""
    patience: float
    """Seconds within which a body must arrive, counted from the first read."""
    bodies: BodyMemory


class RequestMiddleware:
    """The outermost middleware: request ids, limits, error responses and the request log.

    Args:
        max_body: The limit of one body in bytes.
        patience: Seconds within which a body must arrive, counted from the first read.
        max_bodies: The limit of all bodies in memory, in bytes.
        upload_path: The path of uploads, which have limits and memory of their own.
        max_upload: The limit of one upload in bytes.
    """

    def __init__(
        self,
        app: ASGIApp,
        metrics: Metrics,
        max_body: int = MAX_BODY,
        patience: float = BODY_SECONDS,
        max_bodies: int = MAX_BODIES,
        *,
        upload_path: str | None = None,
        max_upload: int = MAX_BODY,
    ) -> None:
        self.app = app
        self.metrics = metrics
        self.limits = BodyLimits(max_body, patience, BodyMemory(max_bodies))
        self.conversation_limits = replace(self.limits, max_body=max(max_body, MAX_CONVERSATION))
        # Its body is read before the caller is known, so it shares no memory with the bodies of callers.
        self.sign_in_limits = BodyLimits(
            MAX_SIGN_IN, min(patience, SIGN_IN_SECONDS), BodyMemory(MAX_SIGN_INS)
        )
        self.upload_path = upload_path
        self.upload_limits = BodyLimits(
            max_upload, max(patience, UPLOAD_SECONDS), BodyMemory(max(max_bodies, 2 * max_upload))
        )

    def _limits_of(self, scope: Scope, headers: Headers) -> "BodyLimits":
        if scope.get("path", "").startswith(CONVERSATION_PATHS):
            return self.conversation_limits
        if scope.get("path") in SIGN_IN_PATHS:
            return self.sign_in_limits
        is_upload = scope.get("path") == self.upload_path and scope.get("method") == HTTPMethod.POST
        if is_upload and is_form(headers.get("content-type")):
            return replace(self.upload_limits, max_body=self.upload_limits.max_body + FORM_OVERHEAD)
        return self.upload_limits if is_upload else self.limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        request_id = _request_id(headers)
        scope.setdefault("state", {})["request_id"] = request_id
        body = _Body(receive, headers, self._limits_of(scope, headers))
        passing, began = _ResponseSender(send, request_id, body), perf_counter()
        self.metrics.in_progress.inc()
        with request_scope() as named, _request_span(scope, headers, passing):
            try:
                await self._handle(scope, body, passing)
            except ClientDisconnect:
                passing.status = CLIENT_IS_GONE
            finally:
                self.metrics.in_progress.dec()
                body.release()
                self._log_request(scope, passing, named.ref, perf_counter() - began)
        await passing.finish()

    async def _handle(self, scope: Scope, body: "_Body", send: "_ResponseSender") -> None:
        try:
            _check_head(scope)
            await self.app(scope, body, send)
        except ClientDisconnect:
            raise
        except asyncio.CancelledError:
            # The server stops and has waited long enough. Its own response would be 500 in plain text.
            if send.status:
                raise
            refusal = problems.unavailable("This server is stopping and")
            await problems.problem_response(refusal, send.request_id)(scope, body, send)
        except Exception as error:
            if send.status:
                raise
            refusal = problems.refusal_of(error)
            await problems.problem_response(refusal, send.request_id)(scope, body, send)

    def _log_request(
        self, scope: Scope, passing: "_ResponseSender", named: ExecutionRef | None, seconds: float
    ) -> None:
        # The route's pattern, not the path: URLs can contain search terms of users.
        route = getattr(scope.get("route"), "path", None) or "unknown"
        method = scope["method"] if scope["method"] in _METHODS else "other"
        status, milliseconds = passing.status, round(seconds * 1000, 1)
        self.metrics.count_request(method, route, status, seconds)
        line = {
            "request_id": passing.request_id,
            "method": method,
            "route": route,
            "status": status,
            "ms": milliseconds,
            "tenant_id": scope["state"].get("tenant_id"),
            **(execution_fields(named) if named else {}),
        }
        logger.info("%s %s: %s, %s ms", method, route, status, milliseconds, extra=line)


_UNTRACED = frozenset({"/healthz", "/readyz", "/metrics"})


@contextmanager
def _request_span(scope: Scope, headers: Headers, passing: "_ResponseSender") -> Generator[None]:
    """Record the request as a span of its caller's trace, if traces are on."""
    if tracing.exporter() is None or scope["path"] in _UNTRACED:
        yield
        return
    method = scope["method"] if scope["method"] in _METHODS else "_OTHER"
    # Not the current context: the task of a request inherits that of the one before it on its connection.
    given = headers.get(tracing.TRACEPARENT, "")
    with tracing.open_span(
        method, lambda: {"http.request.method": method}, kind="server", traceparent=given
    ) as span:
        try:
            yield
        finally:
            route = getattr(scope.get("route"), "path", None) or "unknown"
            span.update_name(f"{method} {route}")
            span.set_attribute("http.route", route)
            span.set_attribute("http.response.status_code", passing.status)
            if passing.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
                span.set_attribute("error.type", str(passing.status))


def _head_is_too_large(scope: Scope) -> bool:
    # The server refuses an incomplete head at the limit; a complete one may be slightly larger.
    headers: Sequence[tuple[bytes, bytes]] = scope["headers"]
    line = len(scope.get("raw_path") or b"") + len(scope["query_string"])
    return (
        len(headers) > MAX_HEADERS
        or line + sum(len(name) + len(value) + 4 for name, value in headers) > MAX_HEAD
    )


def _request_id(headers: Headers) -> str:
    given = headers.get(REQUEST_ID, "")
    return given if _USABLE_ID.fullmatch(given) else uuid4().hex


def _check_head(scope: Scope) -> None:
    """Refuse a head that is too large, or whose body another server could see end elsewhere.

    Raises:
        Refusal: It is one of these; the connection is closed.
    """
    if _head_is_too_large(scope):
        raise problems.head_too_large(MAX_HEAD, MAX_HEADERS)
    names = {name for name, _ in scope["headers"]}
    # A proxy that goes by the other of the two would take the rest of the body for the next request.
    if {b"content-length", b"transfer-encoding"} <= names:
        raise problems.ambiguous_length()


class _Body:
    """A request's body, which is read on demand and only up to the limits."""

    def __init__(self, receive: Receive, headers: Headers, limits: BodyLimits) -> None:
        announced = headers.get("content-length", "")
        self.is_complete = announced in ("", "0") and "transfer-encoding" not in headers
        """Whether the body has arrived completely."""
        self._is_too_large = announced.isdecimal() and (
            len(announced) > 12 or int(announced) > limits.max_body  # noqa: PLR2004 -- digits
        )
        self._receive = receive
        self._limits = limits
        self._size = 0
        self._deadline: float | None = None

    async def __call__(self) -> Message:
        """Receive the next part; raises `Refusal` if the body is too large or too slow."""
        if self.is_complete:
            return await self._receive()
        if self._is_too_large:
            raise problems.too_large(self._limits.max_body)
        if self._deadline is None:
            self._deadline = asyncio.get_running_loop().time() + self._limits.patience
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError:
            raise problems.too_slow() from None
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        # A chunked body has no declared length.
        size = len(message.get("body", b""))
        if self._size + size > self._limits.max_body:
            raise problems.too_large(self._limits.max_body)
        self._limits.bodies.take(size)
        self._size += size
        self.is_complete = not message.get("more_body")
        return message

    def release(self) -> None:
        """Stop counting the body: the request is finished."""
        self._limits.bodies.release(self._size)
        self._size = 0

    async def drop(self) -> None:
        """Read and discard what the client is still sending, within limits."""
        size = 0
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER_SECONDS):
                while size < MAX_LINGER_BYTES:
                    message = await self._receive()
                    size += len(message.get("body", b""))
                    if not message.get("more_body"):
                        return


class _ResponseSender:
    """Observes the response and adds headers to it.

    If the request's body was not read completely, the response ends after a short delay and closes the
    connection.
    """

    def __init__(self, send: Send, request_id: str, body: _Body) -> None:
        self.request_id = request_id
        self.status = 0
        self._send = send
        self._body = body
        self._is_held_open = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            headers[REQUEST_ID] = self.request_id
            headers["X-Content-Type-Options"] = "nosniff"
            headers.setdefault("Cache-Control", "no-store")
            if not self._body.is_complete:
                headers["Connection"] = "close"
            if headers.get("content-type", "").startswith("text/event-stream"):
                # It may take hours, and its route does not keep the body for it.
                self._body.release()
        elif not self._body.is_complete and not message.get("more_body"):
            self._is_held_open = True
            message = {**message, "more_body": True}
        await self._send(message)

    async def finish(self) -> None:
        """End a response that was held open."""
        if self._is_held_open:
            await self._body.drop()
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})


class OriginMiddleware:
    """Accepts requests of browsers only from pages of this origin and of the allowed ones (CORS)."""

    def __init__(self, app: ASGIApp, allowed: Sequence[str]) -> None:
        self.app = app
        self.allowed = frozenset(origin.rstrip("/").lower() for origin in allowed)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on requests without an origin and those of allowed origins."""
        if scope["type"] != "http" or (origin := Headers(scope=scope).get("origin")) is None:
            await self.app(scope, receive, send)
            return
        origin, host = origin.lower(), Headers(scope=scope).get("host", "").lower()
        if _host(origin) == host:
            await self.app(scope, receive, send)
        elif origin not in self.allowed:
            detail = "This origin is not allowed; add it to EVERSTEP_ALLOWED_ORIGINS"
            refusal = problems.forbidden(detail)
            await problems.problem_response(refusal, scope["state"]["request_id"])(scope, receive, send)
        elif scope["method"] == "OPTIONS":
            await send({"type": "http.response.start", "status": 204, "headers": _preflight(origin)})
            await send({"type": "http.response.body", "body": b""})
        else:
            await self.app(scope, receive, _CorsSender(send, origin))


def _host(origin: str) -> str:
    scheme, _, host = origin.partition("://")
    default = {"http": ":80", "https": ":443"}.get(scheme, "")
    return host.removesuffix(default) if default else ""


_EXPOSED = "X-Request-Id, Idempotency-Replayed, Retry-After"


_ACCEPTED = (
    "Authorization, Content-Type, Idempotency-Key, Last-Event-ID, Mcp-Method, Mcp-Name, "
    "Mcp-Protocol-Version, Mcp-Session-Id, X-Request-Id"
)


def _preflight(origin: str) -> list[tuple[bytes, bytes]]:
    headers = {
        "access-control-allow-origin": origin,
        "access-control-allow-methods": "GET, POST, PUT, PATCH, DELETE",
        "access-control-allow-headers": _ACCEPTED,
        "access-control-max-age": "600",
        "vary": "Origin",
    }
    return [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]


class _CorsSender:
    """Adds the CORS headers that let a page read the response."""

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
