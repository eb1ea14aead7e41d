"""Files from URLs: public hosts only, with limits."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from ipaddress import ip_address
from typing import Any

import pytest

from everstep.agent_domain.capabilities.network import Address
from everstep.agent_domain.errors import InvalidInput
from everstep.runtime.url_files import UrlFiles
from everstep.steps.attachments import FetchedFile


class FileServer:
    """Serves fixed responses, and records the requested paths and hosts."""

    def __init__(self) -> None:
        self.port = 0
        self.replies: dict[str, tuple[int, dict[str, str], bytes]] = {}
        self.requests: list[tuple[str, str]] = []

    async def on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
        path = head[0].split()[1]
        self.requests.append((path, headers["host"]))
        status, own, body = self.replies[path]
        lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}", "Connection: close"]
        lines += [f"{name}: {value}" for name, value in own.items()]
        writer.write("\r\n".join([*lines, "", ""]).encode() + body)
        await writer.drain()
        writer.close()


@asynccontextmanager
async def file_server() -> AsyncGenerator[FileServer]:
    server = FileServer()
    listening = await asyncio.start_server(server.on_connection, "127.0.0.1", 0)
    server.port = listening.sockets[0].getsockname()[1]
    async with listening:
        yield server


async def loopback(name: str) -> Sequence[Address]:
    """Resolve names that end in `.test` to this machine, and `private.example` to a private network."""
    if name == "unknown.test":
        raise OSError("no such name")
    return [ip_address("127.0.0.1" if name.endswith(".test") else "10.0.0.7")]


def is_loopback(address: Address) -> bool:
    return address.is_loopback


def files_of(server: FileServer) -> UrlFiles:
    return UrlFiles(loopback, is_loopback, (server.port,))


async def test_a_file_is_read_with_its_name_and_type() -> None:
    """5.6.7"""
    async with file_server() as server:
        server.replies = {
            "/start": (302, {"Location": "/files/gr%C3%BC%C3%9Fe.png?size=1"}, b""),
            "/files/gr%C3%BC%C3%9Fe.png?size=1": (200, {"Content-Type": "image/png"}, b"content"),
        }
        host = f"files.test:{server.port}"

        found = await files_of(server).fetch(f"http://{host}/start", 100)

    assert found == FetchedFile("grüße.png", "image/png", b"content")
    assert server.requests == [("/start", host), ("/files/gr%C3%BC%C3%9Fe.png?size=1", host)]


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/loop", "redirects more than 5 times"),
        ("/inside", r"the host private\.example of the URL is not public"),
        ("/address", r"the host 10\.0\.0\.7 of the URL is not public"),
        ("/file", "is not the URL of a file; send one with http or https"),
        ("/missing", "answered with HTTP 404"),
        ("/large", "is larger than 100 bytes"),
        ("/packed", "compresses the file"),
    ],
)
async def test_what_a_server_may_not_do_is_refused(path: str, words: str) -> None:
    """5.6.7"""
    async with file_server() as server:
        server.replies = {
            "/loop": (301, {"Location": "/loop"}, b""),
            "/inside": (307, {"Location": f"http://private.example:{server.port}/"}, b""),
            "/address": (307, {"Location": f"http://10.0.0.7:{server.port}/"}, b""),
            "/file": (302, {"Location": "file:///etc/passwd"}, b""),
            "/missing": (404, {}, b""),
            "/large": (200, {}, b"x" * 101),
            "/packed": (200, {"Content-Encoding": "gzip"}, b"x"),
        }
        with pytest.raises(InvalidInput, match=words):
            await files_of(server).fetch(f"http://files.test:{server.port}{path}", 100)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://127.0.0.1/a", r"the host 127\.0\.0\.1 of the URL is not public"),
        ("http://[::1]/a", "of the URL is not public"),
        ("http://169.254.169.254/latest/meta-data", "is not public"),
        ("http://localhost/a", "is not public"),
        ("http://2130706433/a", "is not"),
        ("https://example.com:8443/a", "the port 8443; files are read from the ports 80 and 443"),
        ("http://ann:secret@example.com/a", "has a user or a password"),
        ("ftp://example.com/a", "is not the URL of a file"),
        ("photo.png", "is not the URL of a file"),
        ("http://exa\nmple.com", "control characters"),
        (f"http://example.com/{'a' * 2000}", "too long"),
    ],
)
async def test_private_and_strange_urls_are_refused(url: str, words: str) -> None:
    """5.6.7"""
    with pytest.raises(InvalidInput, match=words):
        await UrlFiles().fetch(url, 100)


async def test_what_cannot_be_reached_is_said() -> None:
    """5.6.7"""
    async with file_server() as server:
        files = files_of(server)
        with pytest.raises(InvalidInput, match=r"the host unknown\.test of the URL is not known"):
            await files.fetch(f"http://unknown.test:{server.port}/", 100)
    with pytest.raises(InvalidInput, match="cannot be read"):
        await files.fetch(f"http://files.test:{server.port}/", 100)


async def test_a_slow_server_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """5.6.7"""
    monkeypatch.setattr("everstep.runtime.url_files.SECONDS", 0.05)

    closed = asyncio.Event()

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()
        closed.set()

    listening = await asyncio.start_server(hang, "127.0.0.1", 0)
    port: Any = listening.sockets[0].getsockname()[1]
    async with listening:
        with pytest.raises(InvalidInput, match="did not arrive within"):
            await UrlFiles(loopback, is_loopback, (port,)).fetch(f"http://files.test:{port}/a", 100)
        await closed.wait()
