"""Reads a file from a URL that a user sends, from public hosts only.

- The name is resolved here, and the connection goes to an address that was checked. It is not resolved a
  second time, so a name that changes its address in between (DNS rebinding) gains nothing.
- Redirects are followed here: each URL is checked like the first one.
- Only the usual ports of http and https are used, and no environment variable names a proxy.
- The time, the size and the number of redirects are limited, and the answer must not be compressed.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from http import HTTPStatus
from ssl import SSLContext
from urllib.parse import unquote
from weakref import WeakValueDictionary

import httpx2

from everstep.agent_domain.attachments import size_text
from everstep.agent_domain.capabilities.network import PORTS, Address, host_name, is_public, parse_address
from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.values import is_hidden, truncate
from everstep.steps.attachments import FetchedFile

SECONDS = 10.0
"""The time limit for all of it; the API answers within 15 seconds."""
MAX_REDIRECTS = 5
MAX_URL = 2_000

_REDIRECTS = frozenset(
    {
        HTTPStatus.MOVED_PERMANENTLY,
        HTTPStatus.FOUND,
        HTTPStatus.SEE_OTHER,
        HTTPStatus.TEMPORARY_REDIRECT,
        HTTPStatus.PERMANENT_REDIRECT,
    }
)


RESOLVERS = 16
"""Names that are resolved at the same time."""
_THREADS = ThreadPoolExecutor(RESOLVERS, "resolve")
_LOCKS = WeakValueDictionary[tuple[int, str], asyncio.Lock]()
"""By event loop and name."""


async def resolve_host(name: str) -> Sequence[Address]:
    """The addresses of a name.

    In threads of its own, one for each name: a name server that does not answer holds a thread for many
    seconds, and those of the event loop resolve the names of models, too.
    """
    loop = asyncio.get_running_loop()
    async with _LOCKS.setdefault((id(loop), name), asyncio.Lock()):
        resolve = partial(socket.getaddrinfo, name, None, type=socket.SOCK_STREAM)
        found = await loop.run_in_executor(_THREADS, resolve)
    addresses = (parse_address(str(entry[4][0])) for entry in found)
    return [address for address in dict.fromkeys(addresses) if address is not None]


@dataclass(frozen=True)
class UrlFiles:
    """Reads files from public hosts."""

    resolve: Callable[[str], Awaitable[Sequence[Address]]] = resolve_host
    accepts: Callable[[Address], bool] = is_public
    ports: Sequence[int] = PORTS

    async def fetch(self, url: str, max_bytes: int) -> FetchedFile:
        """Read a file.

        Args:
            url: The address, http or https.
            max_bytes: The largest size.

        Raises:
            InvalidInput: It cannot be read; the message says why.
        """
        try:
            async with asyncio.timeout(SECONDS):
                return await self._fetch(url, max_bytes)
        except TimeoutError:
            raise InvalidInput(f"the file at the URL did not arrive within {SECONDS:g} seconds") from None
        except (httpx2.HTTPError, httpx2.StreamError, OSError) as error:
            reason = str(error) or type(error).__name__
            raise InvalidInput(f"the file at the URL cannot be read: {truncate(reason, 200)}") from None

    async def _fetch(self, url: str, max_bytes: int) -> FetchedFile:
        following = _parse(url)
        tls = trusted_certificates()
        async with httpx2.AsyncClient(trust_env=False, follow_redirects=False, verify=tls) as http:
            for _ in range(MAX_REDIRECTS + 1):
                request = await self._request(http, following)
                response = await http.send(request, stream=True)
                try:
                    if response.status_code in _REDIRECTS and (target := response.headers.get("location")):
                        following = _parse(str(following.join(target)))
                        continue
                    data = await _read(response, max_bytes)
                finally:
                    await response.aclose()
                return FetchedFile(_name(following), response.headers.get("content-type"), data)
        raise InvalidInput(f"the URL redirects more than {MAX_REDIRECTS} times; send the last one")

    async def _request(self, http: httpx2.AsyncClient, url: httpx2.URL) -> httpx2.Request:
        """A request to a checked address, with the name for TLS and for the server."""
        port = url.port or {"http": 80, "https": 443}[url.scheme]
        if port not in self.ports:
            raise InvalidInput(f"the URL has the port {port}; files are read from the ports 80 and 443")
        literal = parse_address(url.host)
        name = url.host if literal else host_name(url.host)
        try:
            addresses = [literal] if literal else await self.resolve(name)
        except OSError:
            raise InvalidInput(f"the host {name} of the URL is not known; check it") from None
        public = [address for address in addresses if self.accepts(address)]
        # One closed address is enough to refuse: such a name is made to lead into a network.
        if not public or len(public) < len(addresses):
            raise InvalidInput(f"the host {name} of the URL is not public; upload the file instead")
        headers = {
            "Host": url.netloc.decode("ascii"),
            "Accept-Encoding": "identity",
            "User-Agent": "everstep",
        }
        target = url.copy_with(host=str(public[0]))
        return http.build_request("GET", target, headers=headers, extensions={"sni_hostname": name})


@cache
def trusted_certificates() -> SSLContext:
    """Return the certificates to trust. Reading them takes the event loop 17 ms, so it is done once."""
    return httpx2.create_ssl_context(trust_env=False)


def _parse(url: str) -> httpx2.URL:
    if len(url) > MAX_URL or any(is_hidden(char) for char in url):
        raise InvalidInput(f"the URL is too long, or has control characters; send at most {MAX_URL}")
    try:
        parsed = httpx2.URL(url)
    except httpx2.InvalidURL:
        parsed = None
    if parsed is None or parsed.scheme not in ("http", "https") or not parsed.host:
        raise InvalidInput(f"{truncate(url, 100)!r} is not the URL of a file; send one with http or https")
    if parsed.userinfo:
        raise InvalidInput("the URL has a user or a password; upload the file instead")
    return parsed.copy_with(fragment=None)


async def _read(response: httpx2.Response, max_bytes: int) -> bytes:
    if response.status_code != HTTPStatus.OK:
        raise InvalidInput(f"the server of the URL answered with HTTP {response.status_code}; check the URL")
    if response.headers.get("content-encoding", "identity") != "identity":
        raise InvalidInput("the server of the URL compresses the file; upload it instead")
    data = bytearray()
    async for chunk in response.aiter_raw():
        data += chunk
        if len(data) > max_bytes:
            raise InvalidInput(f"the file at the URL is larger than {size_text(max_bytes)}")
    return bytes(data)


def _name(url: httpx2.URL) -> str:
    """The last part of the path, if it can be a file's name."""
    name = unquote(url.path.rpartition("/")[2]).strip()
    is_usable = name not in ("", ".", "..") and not any(char in "/\\" or is_hidden(char) for char in name)
    return name[-100:] if is_usable else ""
