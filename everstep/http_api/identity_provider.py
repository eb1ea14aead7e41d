"""Sign-in at an identity provider: OpenID Connect, authorization code with PKCE.

The page makes the verifier and sends the person to the provider. The provider sends the person back with a
code, which this process exchanges, with the verifier, for a token that the API accepts like any other.

Callers who are not authenticated cause all requests to the provider. So its description is read once and
kept, a failure for some seconds, and exchanges of codes that fail are limited.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from http import HTTPStatus
from time import monotonic
from typing import Any, cast

import httpx2

from everstep.http_api.attempt_limits import AttemptLimit
from everstep.http_api.problems import Refusal, authentication_error, unavailable
from everstep.http_api.provider_documents import ProviderFault, open_http, request_document

logger = logging.getLogger(__name__)

MAX_AGE_SECONDS = 3600.0
"""Seconds after which the provider's description is read again."""
COOLDOWN_SECONDS = 10.0
"""The minimum number of seconds between two attempts to read it."""


@dataclass
class IdentityProvider:
    """An issuer, of which this installation is a client."""

    issuer: str
    client_id: str
    client_secret: str | None = None
    """None for a public client."""
    scope: str = "openid profile email"
    open_client: Callable[[], AbstractAsyncContextManager[httpx2.AsyncClient]] = open_http
    clock: Callable[[], float] = monotonic
    attempts: AttemptLimit = field(default_factory=AttemptLimit)
    _described: Mapping[str, Any] = field(default_factory=dict[str, Any])
    _read_at: float = float("-inf")
    _tried_at: float = float("-inf")
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def authorization_endpoint(self) -> str | None:
        """The URL to which the page sends people; None while the provider is unavailable."""
        try:
            return str((await self._description())["authorization_endpoint"])
        except Refusal:
            return None

    async def tokens(self, code: str, verifier: str, redirect_uri: str, *, address: str) -> tuple[str, ...]:
        """Exchange a code; return the access token and the ID token, as far as there are any.

        Args:
            code: What the provider sent back with the person.
            verifier: The PKCE verifier of the page.
            redirect_uri: Where the provider sent the person.
            address: The address of the caller, whose attempts are limited.

        Raises:
            Refusal: The provider refuses the code or is unavailable, or there were too many attempts.
        """
        form = {
            "grant_type": "authorization_code",
            "client_id": self.client_id,
            "code": code,
            "code_verifier": verifier,
            "redirect_uri": redirect_uri,
        }
        if self.client_secret is not None:
            form["client_secret"] = self.client_secret
        with self.attempts.attempt(address):
            return await self._exchange(str((await self._description())["token_endpoint"]), form)

    async def _exchange(self, endpoint: str, form: Mapping[str, str]) -> tuple[str, ...]:
        try:
            async with self.open_client() as http:
                headers = {"Accept": "application/json"}
                document = await request_document(http, "POST", endpoint, data=form, headers=headers)
            body = _parse_object(document.content)
        except ProviderFault as fault:
            logger.warning("the identity provider did not exchange a code: %s", fault)
            raise unavailable("The identity provider") from None
        if document.status >= HTTPStatus.BAD_REQUEST:
            logger.warning("the identity provider refused a code with status %s", document.status)
            raise authentication_error("The identity provider refused this sign-in; sign in again")
        return tuple(str(body[name]) for name in ("access_token", "id_token") if body.get(name))

    async def _description(self) -> Mapping[str, Any]:
        if self._is_old():
            async with self._lock:
                # Another task may have read it while this one waited.
                if self._is_old() and self.clock() - self._tried_at >= COOLDOWN_SECONDS:
                    await self._refresh()
        if not self._described:
            raise unavailable("The identity provider")
        return self._described

    def _is_old(self) -> bool:
        return self.clock() - self._read_at >= MAX_AGE_SECONDS

    async def _refresh(self) -> None:
        try:
            self._described = await self._read_description()
            self._read_at = self.clock()
        except ProviderFault as fault:
            logger.warning("the identity provider cannot be used: %s", fault)
        finally:
            # From the end of the attempt: a provider that answers slowly takes all its time.
            self._tried_at = self.clock()

    async def _read_description(self) -> Mapping[str, Any]:
        url = f"{self.issuer.rstrip('/')}/.well-known/openid-configuration"
        async with self.open_client() as http:
            document = await request_document(http, "GET", url)
        if document.status != HTTPStatus.OK:
            raise ProviderFault(f"{url} answered with HTTP {document.status}")
        described = _parse_object(document.content)
        schemes = ("https://",) if self.issuer.startswith("https://") else ("https://", "http://")
        for name in ("authorization_endpoint", "token_endpoint"):
            if not str(described.get(name)).startswith(schemes):
                raise ProviderFault(f"its {name} is not a URL with {' or '.join(schemes)}")
        return described


def _parse_object(content: bytes) -> Mapping[str, Any]:
    try:
        parsed: Any = json.loads(content)
    except (ValueError, RecursionError):
        raise ProviderFault("the answer is not JSON") from None
    if not isinstance(parsed, dict):
        raise ProviderFault("the answer is not a JSON object")
    return cast("dict[str, Any]", parsed)


NO_PROVIDER = Refusal(
    422, "no-provider", "No identity provider", "No identity provider is configured here; send a token"
)
