"""The signing keys of an identity provider (JWKS), which rotate at any time.

Keys are fetched on first use, again after a while, and at once when a token names an unknown key, but at most
every few seconds: any client can send tokens that name unknown keys. While the provider is unavailable, the
cached keys stay valid.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from time import monotonic
from typing import Any, cast

import jwt

from everstep.agent_domain.errors import InvalidInput
from everstep.http_api.problems import unavailable
from everstep.http_api.provider_documents import ProviderFault, open_http, request_document

logger = logging.getLogger(__name__)

BY_PROVIDER = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA")

MAX_AGE_SECONDS = 3600.0
"""Seconds after which the keys are fetched again, so that a revoked key does not stay valid."""
COOLDOWN_SECONDS = 10.0
"""The minimum number of seconds between two fetches."""
TIMEOUT = 5.0

Fetch = Callable[[str], Awaitable[bytes]]


async def fetch_document(url: str) -> bytes:
    """Fetch the provider's document.

    Raises:
        ProviderFault: It cannot be read.
    """
    async with open_http() as http:
        document = await request_document(http, "GET", url, seconds=TIMEOUT)
    if document.status != HTTPStatus.OK:
        raise ProviderFault(f"{url} answered with HTTP {document.status}")
    return document.content


class KeySet:
    """The cached keys of a JWKS URL."""

    def __init__(
        self, url: str, fetch: Fetch = fetch_document, clock: Callable[[], float] = monotonic
    ) -> None:
        self.url = url
        self._fetch = fetch
        self._clock = clock
        self._keys: Mapping[str, jwt.PyJWK] = {}
        self._fetched_at = self._tried_at = float("-inf")
        self._lock = asyncio.Lock()

    async def key(self, key_id: object) -> jwt.PyJWK:
        """Return the key of this id.

        Raises:
            jwt.InvalidKeyError: There is no such key.
            Refusal: No keys are cached, and the provider is unavailable.
        """
        if self._is_missing(key_id):
            async with self._lock:
                # Another task may have fetched the keys while this one waited.
                if self._is_missing(key_id) and self._clock() - self._tried_at >= COOLDOWN_SECONDS:
                    await self._refresh()
        if isinstance(key_id, str) and (found := self._keys.get(key_id)):
            return found
        if not self._keys:
            raise unavailable("The identity provider")
        raise jwt.InvalidKeyError("no key with this id")

    def _is_missing(self, key_id: object) -> bool:
        return str(key_id) not in self._keys or self._clock() - self._fetched_at >= MAX_AGE_SECONDS

    async def _refresh(self) -> None:
        self._tried_at = self._clock()
        try:
            self._keys = read_keys(await self._fetch(self.url))
            self._fetched_at = self._clock()
        except (ProviderFault, OSError, InvalidInput) as error:
            logger.warning("the keys at %s could not be fetched: %s", self.url, error)


def read_keys(document: bytes) -> Mapping[str, jwt.PyJWK]:
    """Parse the signing keys of a JWKS document (RFC 7517), by id; unknown kinds of keys are skipped.

    Raises:
        InvalidInput: It is not a JWKS document.
    """
    try:
        entries: Any = json.loads(document)["keys"]
        found = [key for entry in entries if (key := _read_key(entry))]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise InvalidInput("this is not a JWKS document; check EVERSTEP_AUTH_JWKS_URL") from None
    return {str(key.key_id): key for key in found}


def _read_key(entry: Any) -> jwt.PyJWK | None:
    if not isinstance(entry, dict):
        return None
    written = cast("dict[str, Any]", entry)
    if written.get("use", "sig") != "sig" or not written.get("kid"):
        return None
    try:
        key = jwt.PyJWK(written)
    except jwt.PyJWTError:
        return None
    return key if key.algorithm_name in BY_PROVIDER else None
