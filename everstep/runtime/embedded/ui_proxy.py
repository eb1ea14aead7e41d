"""The port of Temporal's web UI: a proxy in front of the UI's own server, which checks nothing.

That server accepts any host name, so a page whose name resolves to this machine could read and control
workflows through it. The proxy checks the head of each request, admits requests that name this machine and
come from no other page, and forwards the remaining bytes. The UI's own server listens on an address that only
the proxy knows: one of the 16 million of the loopback network, where the system has them, and a random port.

A connection is for one request: further requests on it would bypass the check.
"""

import asyncio
import re
import secrets
import socket
from contextlib import suppress
from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

from everstep.agent_domain.hosts import AllowedHosts, Host
from everstep.runtime.embedded.free_ports import LOCALHOST

MAX_HEAD: Final = 64 * 1024
HEAD_SECONDS: Final = 10.0
CONNECTIONS: Final = 256
CHUNK_BYTES: Final = 64 * 1024

HOSTS: Final = AllowedHosts()
"""The names of the loopback interface."""

_REQUEST: Final = re.compile(rb"[A-Z]+ (/[!-~]*) HTTP/1\.[01]")
_FIELD: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\r\n\0]*?)[ \t]*")
_OF_CONNECTION: Final = frozenset({b"connection", b"keep-alive", b"proxy-connection", b"upgrade"})

Field = tuple[bytes, bytes]


class RequestRefused(Exception):
    """A request that is not admitted."""

    def __init__(self, status: HTTPStatus, reason: str) -> None:
        self.status = status
        super().__init__(reason)


class UiProxy:
    """A proxy in front of the UI's own server."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.inner = hidden_address()
        """Address and port for the UI's own server."""
        self._server: asyncio.Server | None = None
        self._writers = set[asyncio.StreamWriter]()

    async def open(self) -> None:
        """Listen, unless it listens already.

        Raises:
            OSError: The port is taken.
        """
        if self._server is None:
            self._server = await asyncio.start_server(self._serve, LOCALHOST, self.port, limit=MAX_HEAD)

    async def is_backed(self) -> bool:
        """Return whether the UI's own server listens."""
        try:
            _, writer = await asyncio.open_connection(*self.inner)
        except OSError:
            return False
        writer.close()
        return True

    async def close(self) -> None:
        """Stop listening, and end all connections."""
        server, self._server = self._server, None
        if server:
            server.close()
            for writer in [*self._writers]:
                writer.transport.abort()
            await server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            await self._forward(reader, writer)
        except RequestRefused as refused:
            writer.write(_answer(refused.status, str(refused)))
        except (OSError, EOFError):
            # The browser or the server has disconnected.
            return
        finally:
            self._writers.discard(writer)
            with suppress(OSError):
                await writer.drain()
            writer.close()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._writers) > CONNECTIONS:
            raise RequestRefused(HTTPStatus.SERVICE_UNAVAILABLE, "There are too many connections; try again.")
        try:
            async with asyncio.timeout(HEAD_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
        except TimeoutError:
            raise RequestRefused(
                HTTPStatus.REQUEST_TIMEOUT, "The head of the request did not arrive."
            ) from None
        except asyncio.LimitOverrunError:
            raise RequestRefused(
                HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "The head is too large."
            ) from None
        admitted = check_head(head)
        try:
            inner_reader, inner_writer = await asyncio.open_connection(*self.inner)
        except OSError:
            raise RequestRefused(HTTPStatus.BAD_GATEWAY, "Temporal's UI does not answer.") from None
        inner_writer.write(admitted)
        sending = asyncio.create_task(_pump(reader, inner_writer))
        try:
            await _pump(inner_reader, writer)
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            inner_writer.close()


def check_head(head: bytes) -> bytes:
    """Return the head as it is forwarded.

    Raises:
        Refused: It is not a request, names another host, or comes from another page.
    """
    line, *rest = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    fields = [_FIELD.fullmatch(each) for each in rest]
    if _REQUEST.fullmatch(line) is None or None in fields:
        raise RequestRefused(HTTPStatus.BAD_REQUEST, "This is not a valid request.")
    pairs: list[Field] = [(field[1], field[2]) for field in fields if field]
    hosts = [value.decode("latin-1") for name, value in pairs if name.lower() == b"host"]
    if refusal := HOSTS.refusal(hosts):
        raise RequestRefused(HTTPStatus.FORBIDDEN, refusal)
    for name, value in pairs:
        if name.lower() == b"origin" and not _is_own(value.decode("latin-1"), hosts[0]):
            raise RequestRefused(HTTPStatus.FORBIDDEN, "Pages of another origin may not use Temporal's UI.")
    kept = [name + b": " + value for name, value in pairs if name.lower() not in _OF_CONNECTION]
    return b"\r\n".join([line, *kept, b"Connection: close", b"", b""])


def hidden_address() -> tuple[str, int]:
    """Return a random loopback address and port, which other programs would have to guess."""
    for _ in range(20):
        address = ".".join(["127", *(str(1 + secrets.randbelow(254)) for _ in range(3))])
        port = 1024 + secrets.randbelow(64_000)
        with socket.socket() as trial, suppress(OSError):
            trial.bind((address, port))
            return address, port
    # Systems other than Linux have only one loopback address.
    with socket.socket() as trial:
        trial.bind((LOCALHOST, 0))
        return trial.getsockname()


def _is_own(origin: str, host: str) -> bool:
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    return parts.scheme == "http" and Host.parse(parts.netloc) == Host.parse(host)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(CHUNK_BYTES):
        writer.write(piece)
        await writer.drain()


def _answer(status: HTTPStatus, reason: str) -> bytes:
    body = f"{reason}\n".encode()
    return (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: text/plain; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
    ).encode() + body
