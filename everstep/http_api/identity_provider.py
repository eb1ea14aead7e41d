"""Sign-in at an identity provider: OpenID Connect, authorization code with PKCE.

The page makes the verifier and sends the person to the provider. The provider sends the person back with a
code, which this process exchanges, with the verifier, for a token that the API accepts like any other.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, cast

import httpx2

from everstep.http_api.problems import Refusal, authentication_error, unavailable

logger = logging.getLogger(__name__)

MAX_AGE_SECONDS = 3600.0
"""Seconds after which the provider's description is read again."""
TIMEOUT = 10.0


def _open_client() -> httpx2.AsyncClient:
    return httpx2.AsyncClient(timeout=TIMEOUT)


@dataclass
class IdentityProvider:
    """An issuer, of which this installation is a client."""

    issuer: str
    client_id: str
    client_secret: str | None = None
    """None for a public client."""
    scope: str = "openid profile email"
    open_client: Callable[[], httpx2.AsyncClient] = _open_client
    _described: Mapping[str, Any] = field(default_factory=dict[str, Any])
    _read_at: float = float("-inf")

    async def authorization_endpoint(self) -> str:
        """The URL to which the page sends people.

        Raises:
            Refusal: The provider is unavailable.
        """
        return str((await self._description())["authorization_endpoint"])

    async def tokens(self, code: str, verifier: str, redirect_uri: str) -> tuple[str, ...]:
        """Exchange a code; return the access token and the ID token, as far as there are any.

        Raises:
            Refusal: The provider refuses the code, or is unavailable.
        """
        endpoint = str((await self._description())["token_endpoint"])
        form = {
            "grant_type": "authorization_code",
            "client_id": self.client_id,
            "code": code,
            "code_verifier": verifier,
            "redirect_uri": redirect_uri,
        }
        if self.client_secret is not None:
            form["client_secret"] = self.client_secret
        try:
            async with self.open_client() as client:
                response = await client.post(endpoint, data=form, headers={"Accept": "application/json"})
                body: Any = response.json()
        except (httpx2.HTTPError, ValueError) as error:
            logger.warning("the identity provider at %s did not answer: %s", endpoint, error)
            raise unavailable("The identity provider") from None
        if response.is_error or not isinstance(body, dict):
            logger.warning("the identity provider refused a code with status %s", response.status_code)
            raise authentication_error("The identity provider refused this sign-in; sign in again")
        named = cast("dict[str, Any]", body)
        return tuple(str(named[name]) for name in ("access_token", "id_token") if named.get(name))

    async def _description(self) -> Mapping[str, Any]:
        if monotonic() - self._read_at < MAX_AGE_SECONDS:
            return self._described
        url = f"{self.issuer.rstrip('/')}/.well-known/openid-configuration"
        try:
            async with self.open_client() as client:
                response = await client.get(url)
                response.raise_for_status()
                described: Any = response.json()
            _require_endpoints(described)
        except (httpx2.HTTPError, ValueError, KeyError, TypeError) as error:
            logger.warning("the identity provider at %s cannot be used: %s", url, error)
            if self._described:
                return self._described
            raise unavailable("The identity provider") from None
        self._described, self._read_at = described, monotonic()
        return self._described


def _require_endpoints(described: Any) -> None:
    for name in ("authorization_endpoint", "token_endpoint"):
        if not str(described[name]).startswith(("https://", "http://")):
            raise ValueError(f"{name} is not a URL")


NO_PROVIDER = Refusal(
    422, "no-provider", "No identity provider", "No identity provider is configured here; send a token"
)
