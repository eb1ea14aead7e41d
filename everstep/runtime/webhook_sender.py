"""Sends deliveries to webhooks, and encrypts their secrets.

- The name is resolved here, and the connection goes to an address that was checked. It is not resolved a
  second time, so a name that changes its address after it was registered (DNS rebinding) gains nothing.
- Redirects are not followed, no environment variable names a proxy, and little of the response is read.
"""

import asyncio
import base64
import hashlib
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import httpx2
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from everstep.agent_domain.capabilities.network import Address, host_name, is_public, parse_address
from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.storage.webhooks import MAX_URL, AttemptOutcome
from everstep.agent_domain.values import is_hidden, truncate
from everstep.runtime.codec import AesGcmCodec
from everstep.runtime.url_files import resolve_host, trusted_certificates

CONNECT_SECONDS: Final = 5.0
SECONDS: Final = 15.0
"""The time limit of a whole request."""
MAX_PORT: Final = 65_535
MAX_RESPONSE: Final = 10_000
"""Bytes of a response that are read; more of it is left unread."""
SETTING: Final = "EVERSTEP_WEBHOOK_PRIVATE_ADDRESSES"

SEALED: Final = "sealed:"
"""The prefix of a stored secret that is encrypted."""
NONCE_BYTES: Final = 12
PURPOSE: Final = b"everstep webhook secrets"


@dataclass(frozen=True)
class HttpSender:
    """Sends to public addresses with https; with `allows_private`, to all addresses, also with http."""

    allows_private: bool = False
    resolve: Callable[[str], Awaitable[Sequence[Address]]] = resolve_host

    async def check_url(self, url: str) -> None:
        """Check a URL, and the addresses of its host.

        Raises:
            InvalidInput: Nothing may be sent there; the message says why.
        """
        parsed = self._parse(url)
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await self._address(parsed)
        except TimeoutError:
            raise InvalidInput(f"the host {parsed.host} of the url is not known; check it") from None

    async def send(self, url: str, headers: Mapping[str, str], body: bytes) -> AttemptOutcome:
        """Send a delivery; a failure is an outcome."""
        try:
            async with asyncio.timeout(SECONDS):
                return await self._send(self._parse(url), headers, body)
        except TimeoutError:
            return AttemptOutcome(error=f"no response within {SECONDS:g} seconds")
        except InvalidInput as error:
            return AttemptOutcome(error=str(error))
        except (httpx2.HTTPError, httpx2.StreamError, OSError) as error:
            return AttemptOutcome(error=truncate(str(error) or type(error).__name__, 200))

    async def _send(self, url: httpx2.URL, headers: Mapping[str, str], body: bytes) -> AttemptOutcome:
        address, name = await self._address(url)
        sent = {**headers, "Host": url.netloc.decode("ascii"), "User-Agent": "everstep"}
        timeout = httpx2.Timeout(SECONDS, connect=CONNECT_SECONDS)
        async with httpx2.AsyncClient(
            trust_env=False, follow_redirects=False, timeout=timeout, verify=trusted_certificates()
        ) as http:
            request = http.build_request(
                "POST",
                url.copy_with(host=str(address)),
                headers=sent,
                content=body,
                extensions={"sni_hostname": name},
            )
            response = await http.send(request, stream=True)
            try:
                await _read_some(response)
            finally:
                await response.aclose()
        if response.is_success:
            return AttemptOutcome(response.status_code)
        return AttemptOutcome(response.status_code, f"the receiver answered with HTTP {response.status_code}")

    def _parse(self, url: str) -> httpx2.URL:
        """Raises `InvalidInput` unless the URL can be one of a receiver."""
        # In bytes: the index of webhooks by their URL has no place for more.
        if len(url.encode()) > MAX_URL or any(is_hidden(char) or char.isspace() for char in url):
            raise InvalidInput(f"the url is too long, or has spaces; send at most {MAX_URL} bytes")
        try:
            parsed = httpx2.URL(url)
        except httpx2.InvalidURL:
            parsed = None
        schemes = ("https", "http") if self.allows_private else ("https",)
        if parsed is None or not parsed.host or parsed.scheme not in schemes:
            hint = "" if self.allows_private else f"; {SETTING}=on allows http"
            raise InvalidInput(f"{truncate(url, 100)!r} is not the url of a receiver: use https{hint}")
        if parsed.userinfo:
            raise InvalidInput("the url has a user or a password; receivers check the signature instead")
        if parsed.port is not None and not 0 < parsed.port <= MAX_PORT:
            raise InvalidInput(f"the url has the port {parsed.port}; use one from 1 to {MAX_PORT}")
        return parsed.copy_with(fragment=None)

    async def _address(self, url: httpx2.URL) -> tuple[Address, str]:
        """Return a checked address of the host, and its name for TLS."""
        literal = parse_address(url.host)
        name = url.host if literal else host_name(url.host)
        try:
            addresses = [literal] if literal else await self.resolve(name)
        except OSError:
            addresses = []
        if not addresses:
            raise InvalidInput(f"the host {name} of the url is not known; check it")
        # One closed address is enough to refuse: such a name is made to lead into a network.
        if not self.allows_private and not all(map(is_public, addresses)):
            raise InvalidInput(
                f"the host {name} of the url is not public; {SETTING}=on allows addresses of your networks"
            )
        return addresses[0], name


async def _read_some(response: httpx2.Response) -> None:
    """Read a short response to its end, so that the receiver sees no broken connection."""
    count = 0
    async for chunk in response.aiter_raw():
        count += len(chunk)
        if count > MAX_RESPONSE:
            return


class SealedSecrets:
    """Encrypts secrets with a key that is derived from the payload key, if there is one.

    Args:
        payload_key: 32 bytes in base64; None: secrets are stored as they are.
    """

    def __init__(self, payload_key: str | None) -> None:
        self._cipher = None
        if payload_key is not None:
            AesGcmCodec.of(payload_key)  # says what is wrong with it
            self._cipher = AESGCM(hashlib.sha256(PURPOSE + base64.b64decode(payload_key)).digest())

    def seal(self, secret: str) -> str:
        """Return the secret as it is stored."""
        if self._cipher is None:
            return secret
        nonce = os.urandom(NONCE_BYTES)
        data = nonce + self._cipher.encrypt(nonce, secret.encode(), PURPOSE)
        return SEALED + base64.b64encode(data).decode()

    def open(self, stored: str) -> str:
        """Return the secret.

        Raises:
            InvalidInput: It was sealed with another key.
        """
        if not stored.startswith(SEALED):
            return stored
        data = base64.b64decode(stored.removeprefix(SEALED))
        try:
            if self._cipher is not None:
                return self._cipher.decrypt(data[:NONCE_BYTES], data[NONCE_BYTES:], PURPOSE).decode()
        except InvalidTag:
            pass
        raise InvalidInput(
            "the secret was encrypted with another payload_key: use the same in all processes, "
            "or rotate the secret"
        )
