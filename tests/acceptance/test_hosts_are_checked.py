"""DNS rebinding: a web page whose name resolves to this machine sends requests to `everstep up`."""

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import pytest

from everstep.broadcast_gateway.wires.websocket import SUBPROTOCOL
from tests.acceptance.harness import Installation, Nursery, environment, until
from tests.services import data_directory

pytestmark = pytest.mark.asyncio(loop_scope="session")

UPGRADE = (
    "Upgrade: websocket",
    "Connection: Upgrade",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
)
ANY_PORT = ("--temporal-port", "0", "--ui-port", "0", "--http-port", "0", "--gateway-port", "0")


@dataclass(frozen=True)
class Up:
    """The output of `everstep up --json`."""

    api: int
    gateway: int
    token: str | None

    @property
    def authorization(self) -> tuple[str, ...]:
        """The header that opens the API."""
        return (f"Authorization: Bearer {self.token}",) if self.token else ()


@asynccontextmanager
async def up(nursery: Nursery, log: Path, **settings: str) -> AsyncGenerator[Up]:
    """A local installation for this test."""
    with data_directory() as data:
        log.touch()
        given = ("--data", str(data), "up", *ANY_PORT, "--json")
        process = await nursery.start(*given, log=log, environment=environment(**settings))
        await until("it is up", lambda: process.ended.done() or '"api_url"' in log.read_text())
        assert process.code is None, log.read_text()
        printed = json.loads(next(line for line in log.read_text().splitlines() if line.startswith("{")))
        yield Up(port_of(printed["api_url"]), port_of(printed["gateway_url"]), printed["token"])
        await process.kill()


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


async def head(port: int, line: str, *headers: str, body: str = "") -> str:
    """The head of a response, since SSE has no end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    lengths = [f"Content-Length: {len(body)}"] if body else []
    writer.write("\r\n".join([line, *headers, *lengths, "", body]).encode())
    async with asyncio.timeout(30):
        answer = await reader.readuntil(b"\r\n\r\n")
    writer.transport.abort()
    return answer.decode()


async def handshake_status(port: int, path: str, *headers: str) -> int:
    """The response to a WebSocket handshake."""
    protocol = [f"Sec-WebSocket-Protocol: {SUBPROTOCOL}"] if path == "/v1" else []
    return await status(port, f"GET {path} HTTP/1.1", *headers, *UPGRADE, *protocol)


async def status(port: int, line: str, *headers: str, body: str = "") -> int:
    return int((await head(port, line, *headers, body=body)).split()[1])


def pages(port: int) -> Sequence[tuple[str, ...]]:
    """The headers that a browser sends for a page with a foreign name; the last cases are no browsers."""
    return [
        ("Host: evil.com",),
        (f"Host: evil.com:{port}", f"Origin: http://evil.com:{port}"),
        (f"Host: localhost.evil.com:{port}", f"Origin: http://localhost.evil.com:{port}"),
        (f"Host: EVIL.com.:{port}",),
        ("Host: 169.254.169.254",),
        (f"Host: evil.com:{port}", "X-Forwarded-Host: localhost"),
        (f"Host: evil.com:{port}", "Forwarded: host=localhost"),
        ("Host: localhost evil.com",),
        ("Host:",),
    ]


def own(port: int) -> Sequence[str]:
    return [
        f"127.0.0.1:{port}",
        f"localhost:{port}",
        f"LocalHost:{port}",
        "localhost",
        "localhost.",
        f"[::1]:{port}",
    ]


MESSAGE = json.dumps({"content": "hello"})
JSON = "Content-Type: application/json"


async def check_requests_with_no_host_or_two(here: Up) -> None:
    """They are refused, and probes are not."""
    sessions = "GET /agent/sessions HTTP/1.1"
    assert await status(here.api, "GET /agent/sessions HTTP/1.0") == 403
    assert await status(here.api, sessions) == 400
    assert await status(here.api, sessions, "Host: localhost", "Host: evil.com") == 400
    assert await status(here.api, sessions, "Host: localhost", "Host: localhost") == 400
    for target in ("http://evil.com/agent/sessions", "http://evil.com"):
        assert await status(here.api, f"GET {target} HTTP/1.1", "Host: localhost") == 403
    assert await status(here.gateway, "GET /v1 HTTP/1.1", *UPGRADE) == 403
    twice = ("Host: localhost", "Host: evil.com")
    assert await status(here.gateway, "GET /v1 HTTP/1.1", *twice, *UPGRADE) == 403

    # Supervisors probe by address, and old load balancers name no host.
    for port in (here.api, here.gateway):
        assert await status(port, "GET /healthz HTTP/1.1", "Host: 10.1.2.3:8080") == 200
    assert await status(here.api, "GET /readyz HTTP/1.1", "Host: 10.1.2.3:8080") == 200
    assert await status(here.api, "GET /healthz HTTP/1.0") == 200


@pytest.mark.parametrize("auth", ["on", "off"])
async def test_a_page_with_a_foreign_name_gets_nothing(nursery: Nursery, tmp_path: Path, auth: str) -> None:
    """13.3.1, 13.3.2 and 13.3.5: over HTTP, server-sent events, WebSockets and Pusher's protocol."""
    async with up(nursery, tmp_path / "up", EVERSTEP_AUTH=auth) as here:
        stream = f"GET /agent/streams/{UUID(int=1)} HTTP/1.1"
        for rebound in pages(here.api):
            for line in ("GET /agent/sessions HTTP/1.1", "GET / HTTP/1.1", "GET /docs HTTP/1.1", stream):
                assert await status(here.api, line, *rebound, *here.authorization) in {400, 403}, (
                    line,
                    rebound,
                )
            for path in ("/agent/messages", "/broadcasting/auth"):
                posted = await status(
                    here.api, f"POST {path} HTTP/1.1", *rebound, JSON, *here.authorization, body=MESSAGE
                )
                assert posted in {400, 403}, (path, rebound)
            for path in ("/v1", "/app/everstep?protocol=7", "/metrics"):
                assert await handshake_status(here.gateway, path, *rebound) in {400, 403}, (path, rebound)

        for host in own(here.api):
            asked = ("GET /agent/sessions HTTP/1.1", f"Host: {host}", *here.authorization)
            assert await status(here.api, *asked) == 200, host
        for host in own(here.gateway):
            for path in ("/v1", "/app/everstep?protocol=7"):
                assert await handshake_status(here.gateway, path, f"Host: {host}") == 101, host

        # A page at another port of the own host is not the console. With authentication it needs a token.
        elsewhere = 101 if auth == "on" else 403
        for port, expected in ((here.api, 101), (here.gateway, 101), (1, elsewhere)):
            headers = (f"Host: 127.0.0.1:{here.gateway}", f"Origin: http://127.0.0.1:{port}")
            assert await handshake_status(here.gateway, "/v1", *headers) == expected, port

        if auth == "off":
            await check_requests_with_no_host_or_two(here)


async def test_configured_names_are_answered(nursery: Nursery, tmp_path: Path) -> None:
    """13.3.1"""
    names = "api.example.com,*.watch.example"
    async with up(nursery, tmp_path / "up", EVERSTEP_AUTH="off", EVERSTEP_ALLOWED_HOSTS=names) as here:
        for host, expected in {
            "api.example.com": 200,
            "a.watch.example:1": 200,
            "b.example.com": 403,
        }.items():
            assert await status(here.api, "GET /agent/sessions HTTP/1.1", f"Host: {host}") == expected
        assert await handshake_status(here.gateway, "/v1", "Host: a.watch.example") == 101


@pytest.mark.parametrize("process", ["api", "gateway"])
async def test_a_process_that_listens_on_every_address_needs_its_names(
    installation: Installation, nursery: Nursery, tmp_path: Path, process: str
) -> None:
    """13.3.1: it would refuse every request from a proxy, while its probes report that all is well."""
    log = tmp_path / "log"
    log.touch()
    everywhere = {"EVERSTEP_HTTP_HOST": "0.0.0.0", "EVERSTEP_GATEWAY_HOST": "0.0.0.0"}  # noqa: S104
    everywhere["EVERSTEP_AUTH_SECRET"] = "s" * 40
    environment = installation.environment(**everywhere)
    started = await nursery.start(process, "--port", "0", log=log, environment=environment)
    assert await started.wait() == 1
    assert (
        "so other machines reach this process, under names that it does not know: set EVERSTEP_ALLOWED_HOSTS"
        in (log.read_text())
    )
    assert "Traceback" not in log.read_text()
