"""Middleware that accepts requests only for the configured host names."""

from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from everstep.agent_domain.hosts import AllowedHosts
from everstep.http_api import problems

METRICS: Final = "/metrics"
"""Its labels name tenants, and it needs no authentication, so it is not shown under the public name."""

PROBES: Final = frozenset({"/healthz", "/readyz"})
"""Supervisors request these by address, and the responses hold nothing confidential."""


class HostMiddleware:
    """Refuses requests for other host names before any other code sees them."""

    def __init__(self, app: ASGIApp, allowed: AllowedHosts) -> None:
        self.app = app
        self.allowed = allowed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on requests for an allowed host."""
        detail = self._refusal(scope) if scope["type"] in {"http", "websocket"} else None
        if detail is not None:
            refusal = problems.forbidden(detail)
        elif scope["type"] == "http" and self._hides(scope):
            refusal = problems.refusal_from_http(HTTPException(HTTPStatus.NOT_FOUND))
        else:
            await self.app(scope, receive, send)
            return
        await problems.problem_response(refusal, scope["state"]["request_id"])(scope, receive, send)

    def _hides(self, scope: Scope) -> bool:
        return scope["path"] == METRICS and self.allowed.hides_metrics(Headers(scope=scope).getlist("host"))

    def _refusal(self, scope: Scope) -> str | None:
        path: str = scope["path"]
        if path in PROBES:
            return None
        # A request target may contain a host, too: `GET http://host/path`.
        named = [] if path.startswith("/") else [urlsplit(path).netloc]
        for hosts in (Headers(scope=scope).getlist("host"), *([each] for each in named if each)):
            if detail := self.allowed.refusal(hosts):
                return detail
        return None
