"""Answers requests only to the names that the API is meant to have."""

from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from everstep.agent_domain.hosts import AllowedHosts
from everstep.http_api import problems

PROBES: Final = frozenset({"/healthz", "/readyz"})
"""Asked by address, by what runs the process, and they tell nothing that a stranger may not know."""


class Hosts:
    """Refuses what is addressed to another name, before anything else looks at it."""

    def __init__(self, app: ASGIApp, allowed: AllowedHosts) -> None:
        self.app = app
        self.allowed = allowed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on what is meant for this server."""
        detail = self._refusal(scope) if scope["type"] in {"http", "websocket"} else None
        if detail is None:
            await self.app(scope, receive, send)
        else:
            refusal = problems.forbidden(detail)
            await problems.rendered(refusal, scope["state"]["request_id"])(scope, receive, send)

    def _refusal(self, scope: Scope) -> str | None:
        path: str = scope["path"]
        if path in PROBES:
            return None
        # A target may name its host as well: `GET http://host/path`.
        named = [] if path.startswith("/") else [urlsplit(path).netloc]
        for hosts in (Headers(scope=scope).getlist("host"), *([each] for each in named if each)):
            if detail := self.allowed.refusal(hosts):
                return detail
        return None
