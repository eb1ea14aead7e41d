"""The HTTP proxy of a sandbox with a network: the only way out. It runs in the worker.

The sandbox has its own network namespace, in which only the loopback interface is up. The proxy listens there
(see `listener.py`) and connects from the worker's namespace. It supports CONNECT for TLS, and requests with
an absolute URL, one for each connection.

- The policy has to allow the host and the port.
- The proxy resolves the name and connects to an address that it has checked. The name is not resolved a
  second time, so a name that changes its address in between (DNS rebinding) gains nothing.
- A redirect is an ordinary response: the next request is checked again.
- The proxy ends with the command, and its buffers, reads and timeouts are bounded.

The content of a tunnel is not inspected: a server that terminates TLS at an allowed host can forward it
elsewhere.
"""

import asyncio
import logging
import re
import socket
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from ipaddress import ip_address
from typing import Any, Final

from everstep.agent_domain.capabilities.bash import GIB, KIB
from everstep.agent_domain.capabilities.network import (
    HTTP_PORT,
    Address,
    AllowedNetwork,
    Network,
    blocked_address_text,
    is_public,
    parse_address,
)
from everstep.agent_domain.values import escape_unstorable, truncate

logger = logging.getLogger(__name__)

ResolveHost = Callable[[str], Awaitable[Sequence[Address]]]

_TOKEN: Final = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_REQUEST: Final = re.compile(rb"(" + _TOKEN + rb") ([!-~]+) HTTP/1\.[01]")
_HEADER: Final = re.compile(rb"(" + _TOKEN + rb"):[ \t]*([^\r\n\0]*)")
_AUTHORITY: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s\[\]:@/?#\\]+)(?::([0-9]{1,5}))?")
_ABSOLUTE: Final = re.compile(r"http://([^/?#]*)([/?][^#]*)?", re.IGNORECASE)

# Hop-by-hop headers (RFC 9110, 7.6.1), and the host, which follows from the URL.
_OF_A_HOP: Final = {
    *(b"connection", b"keep-alive", b"proxy-connection", b"proxy-authorization", b"proxy-authenticate"),
    *(b"te", b"trailer", b"upgrade", b"host"),
}
_CHUNK_BYTES: Final = 64 * KIB


@dataclass(frozen=True, slots=True)
class ProxyLimits:
    """The limits of one command's proxy."""

    connections: int = 64
    """At a time; further connections wait to be accepted."""
    head_bytes: int = 64 * KIB
    head_seconds: float = 10
    connect_seconds: float = 10
    addresses: int = 4
    """How many addresses of a name are tried."""
    idle_seconds: float = 60
    total_bytes: int = GIB
    """Over all connections, in both directions."""
    refusals: int = 20
    """How many refusals are logged and kept for the command's output."""


@dataclass(frozen=True, slots=True)
class _Request:
    method: str
    host: str
    port: int
    head: bytes
    """The bytes to forward; empty for a tunnel."""
    body_bytes: int

    @property
    def is_tunnel(self) -> bool:
        return self.method == "CONNECT"


class _Answer(Exception):
    """A response of the proxy itself."""

    def __init__(self, status: HTTPStatus, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status

    def to_bytes(self) -> bytes:
        body = f"{self}\n".encode()
        return (
            f"HTTP/1.1 {self.status.value} {self.status.phrase}\r\n"
            "Content-Type: text/plain; charset=utf-8\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        ).encode() + body


async def resolve(host: str) -> Sequence[Address]:
    """Resolve a name with the machine's resolver."""
    entries = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    # An address with a zone leads to one interface of this machine.
    texts = dict.fromkeys(str(address[0]) for *_, address in entries)
    return [ip_address(text) for text in texts if "%" not in text]


class Proxy:
    """The proxy of one command.

    Args:
        network: The policy's network, validated.
        resolve: Resolves names.
        is_open: Whether an address may be connected to.
        limits: Bounds on connections, sizes and times.
    """

    def __init__(
        self,
        network: Network,
        resolve: ResolveHost = resolve,
        is_open: Callable[[Address], bool] = is_public,
        limits: ProxyLimits = ProxyLimits(),
    ) -> None:
        self._allowed = AllowedNetwork.of(network)
        self._resolve = resolve
        self._is_open = is_open
        self._limits = limits
        self._left = limits.total_bytes
        self._tasks = set[asyncio.Task[None]]()
        self._places = asyncio.Semaphore(limits.connections)
        self._listener: socket.socket | None = None
        self._is_closed = False
        self.refusals = list[str]()
        """The reasons for refusals, without duplicates."""

    def start(self, listener: socket.socket) -> None:
        """Accept connections on this socket; the proxy closes it."""
        if self._is_closed:
            listener.close()
            return
        listener.setblocking(False)
        self._listener = listener
        self._spawn(self._accept(listener))

    def close(self) -> None:
        """Close all connections, and accept no more; tasks end a moment later."""
        self._is_closed = True
        for task in self._tasks:
            task.cancel()
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._places.acquire()
            try:
                client, _ = await loop.sock_accept(listener)
            except OSError as error:
                self._places.release()
                if self._is_closed:
                    return
                logger.warning("a command's proxy cannot accept a connection: %s", error)
                # Usually the process is out of descriptors; other tasks give some back.
                await asyncio.sleep(0.1)
                continue
            except asyncio.CancelledError:
                self._places.release()
                raise
            self._spawn(self._serve(client))

    async def _serve(self, client: socket.socket) -> None:
        try:
            reader, writer = await asyncio.open_connection(sock=client, limit=self._limits.head_bytes)
            try:
                await self._handle(reader, writer)
            finally:
                await _close_writer(writer)
        except (OSError, EOFError) as error:
            logger.debug("a connection of a command ended: %r", error)
        except Exception:
            logger.exception("a command's proxy failed on a connection")
        finally:
            client.close()
            self._places.release()

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = await self._read_request(reader)
            far_reader, far_writer = await self._connect(request)
        except _Answer as answer:
            writer.write(answer.to_bytes())
            await writer.drain()
            return
        try:
            if request.is_tunnel:
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            else:
                far_writer.write(request.head)
            traffic = _Traffic(self, self._limits.idle_seconds)
            forward = traffic.copy(reader, far_writer, None if request.is_tunnel else request.body_bytes)
            async with asyncio.TaskGroup() as group:
                # The server ends the response to a request; a tunnel ends once both sides have closed it.
                group.create_task(forward)
                group.create_task(traffic.copy(far_reader, writer, None))
        except* (OSError, EOFError) as errors:
            logger.debug("a connection of a command ended: %r", errors.exceptions)
        finally:
            await _close_writer(far_writer)

    async def _read_request(self, reader: asyncio.StreamReader) -> _Request:
        try:
            async with asyncio.timeout(self._limits.head_seconds):
                head = await reader.readuntil(b"\r\n\r\n")
        except TimeoutError:
            raise _Answer(HTTPStatus.REQUEST_TIMEOUT, "The request did not arrive in time.") from None
        except asyncio.LimitOverrunError:
            text = f"The request's head is larger than {self._limits.head_bytes} bytes."
            raise _Answer(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, text) from None
        return _parse_request(head)

    async def _connect(self, request: _Request) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, port = request.host, request.port
        if self._left <= 0:
            text = f"The command has moved {self._limits.total_bytes} bytes, and no more are allowed."
            raise self._refuse(host, port, text)
        if refusal := self._allowed.refusal(host, port):
            raise self._refuse(host, port, refusal)
        try:
            async with asyncio.timeout(self._limits.connect_seconds):
                address = parse_address(host)
                addresses = [address] if address else await self._resolve(host)
                allowed = [each for each in addresses if self._is_open(each)]
                if not allowed:
                    raise self._refuse(host, port, blocked_address_text(host))
                return await self._connect_to(allowed[: self._limits.addresses], host, port)
        except TimeoutError:
            text = f"{host}:{port} did not answer within {self._limits.connect_seconds:g} s."
            raise _Answer(HTTPStatus.GATEWAY_TIMEOUT, text) from None
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise _Answer(HTTPStatus.BAD_GATEWAY, f"{host}:{port} cannot be reached: {reason}.") from None

    async def _connect_to(
        self, addresses: Sequence[Address], host: str, port: int
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        for number, address in enumerate(addresses, 1):
            try:
                reader, writer = await asyncio.open_connection(str(address), port, limit=_CHUNK_BYTES)
            except OSError:
                if number == len(addresses):
                    raise
                continue
            if _is_this_machine(writer, address):
                await _close_writer(writer)
                raise self._refuse(host, port, blocked_address_text(host))
            return reader, writer
        raise AssertionError

    def _refuse(self, host: str, port: int, sentence: str) -> _Answer:
        if sentence not in self.refusals and len(self.refusals) < self._limits.refusals:
            self.refusals.append(sentence)
            logger.warning(
                "a command may not reach %s:%d: %s", truncate(escape_unstorable(host), 300), port, sentence
            )
        return _Answer(HTTPStatus.FORBIDDEN, sentence)

    def count_bytes(self, count: int) -> bool:
        """Count bytes against the limit; return whether the connection may go on."""
        self._left -= count
        return self._left > 0


class _Traffic:
    """Both directions of one connection."""

    def __init__(self, proxy: Proxy, idle_seconds: float) -> None:
        self._proxy = proxy
        self._idle_seconds = idle_seconds
        self._loop = asyncio.get_running_loop()
        self._moved_at = self._loop.time()

    async def copy(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, count: int | None
    ) -> None:
        """Copy until the reader ends, or `count` bytes."""
        remaining = count
        while remaining is None or remaining > 0:
            chunk = await self._read(
                reader, _CHUNK_BYTES if remaining is None else min(_CHUNK_BYTES, remaining)
            )
            if not chunk:
                break
            if not self._proxy.count_bytes(len(chunk)):
                raise ConnectionAbortedError("the command has moved too many bytes")
            remaining = None if remaining is None else remaining - len(chunk)
            writer.write(chunk)
            async with asyncio.timeout(self._idle_seconds):
                await writer.drain()
            self._moved_at = self._loop.time()
        if count is None and writer.can_write_eof():
            writer.write_eof()

    async def _read(self, reader: asyncio.StreamReader, most: int) -> bytes:
        while True:
            try:
                async with asyncio.timeout(self._idle_seconds):
                    return await reader.read(most)
            except TimeoutError:
                # The other direction may be active.
                if self._loop.time() - self._moved_at >= self._idle_seconds:
                    raise


def _parse_request(head: bytes) -> _Request:
    line, *lines = head[:-4].split(b"\r\n")
    request = _REQUEST.fullmatch(line)
    headers = [_HEADER.fullmatch(each) for each in lines]
    if request is None or not all(headers):
        raise _bad("This is not an HTTP request.")
    method, target = request[1].decode(), request[2].decode()
    if method == "CONNECT":
        host, port = _authority(target, None)
        return _Request(method, host, port, b"", 0)
    url = _ABSOLUTE.fullmatch(target)
    if url is None:
        raise _bad("This is a proxy: send an absolute http:// URL, or CONNECT host:port for TLS.")
    host, port = _authority(url[1], HTTP_PORT)
    pairs = [(found[1], found[2].rstrip(b" \t")) for found in headers if found]
    named = {value.strip().lower() for name, value in pairs if name.lower() == b"connection"}
    dropped = _OF_A_HOP | {each.strip() for value in named for each in value.split(b",")}
    forwarded = [(name, value) for name, value in pairs if name.lower() not in dropped]
    path = url[2] or "/"
    sent = [
        f"{method} {path if path.startswith('/') else f'/{path}'} HTTP/1.1".encode(),
        f"Host: {url[1]}".encode(),
        *(name + b": " + value for name, value in forwarded),
        b"Connection: close",
    ]
    return _Request(method, host, port, b"\r\n".join([*sent, b"", b""]), _body_bytes(forwarded))


def _authority(text: str, port: int | None) -> tuple[str, int]:
    match = _AUTHORITY.fullmatch(text)
    if match is None or (match[2] is None and port is None):
        raise _bad(f"{truncate(text, 100)!r} names no host and port.")
    number = int(match[2]) if match[2] else port or 0
    if not 0 < number < 2**16:
        raise _bad(f"{number} is not a port.")
    return match[1].lower().removesuffix("."), number


def _body_bytes(headers: Sequence[tuple[bytes, bytes]]) -> int:
    lengths = {value for name, value in headers if name.lower() == b"content-length"}
    if any(name.lower() == b"transfer-encoding" for name, _ in headers):
        text = "The proxy takes bodies with a Content-Length only."
        raise _Answer(HTTPStatus.LENGTH_REQUIRED, text)
    if not lengths:
        return 0
    if len(lengths) > 1 or not (length := lengths.pop()).isdigit() or len(length) > len(str(2**63)):
        raise _bad("The Content-Length is not a number.")
    return int(length)


def _bad(sentence: str) -> _Answer:
    return _Answer(HTTPStatus.BAD_REQUEST, sentence)


def _is_this_machine(writer: asyncio.StreamWriter, address: Address) -> bool:
    """Whether a public address is one of this machine's own; its services may listen there."""
    own = writer.get_extra_info("sockname")
    return not address.is_loopback and own is not None and ip_address(own[0].partition("%")[0]) == address


async def _close_writer(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(1):
            await writer.wait_closed()
