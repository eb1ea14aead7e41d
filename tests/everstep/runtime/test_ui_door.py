"""The proxy in front of Temporal's UI, and the ports of the embedded Temporal that a web page could reach."""

import asyncio
import json
import re
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
import pytest_asyncio

from everstep.runtime.embedded import EmbeddedServices, open_services
from everstep.runtime.embedded.ui_proxy import hidden_address
from tests.acceptance.harness import until
from tests.services import careless, data_directory

pytestmark = pytest.mark.asyncio(loop_scope="module")

API = "/api/v1/namespaces"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ours() -> AsyncGenerator[EmbeddedServices]:
    with data_directory() as data:
        async with open_services(careless(data)) as services:
            yield services


async def response_to(port: int, sent: str) -> bytes:
    """The complete response."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent.encode())
    async with asyncio.timeout(30):
        answer = await reader.read()
    writer.close()
    return answer


async def status(
    port: int, *headers: str, target: str = API, method: str = "GET", version: str = "1.1"
) -> int:
    lines = (f"{method} {target} HTTP/{version}", *headers, "", "")
    return int((await response_to(port, "\r\n".join(lines))).split()[1])


class TestTheUi:
    """Rule 13.3.4."""

    @pytest.mark.parametrize(
        "host", ["127.0.0.1:{}", "LOCALHOST:{}", "localhost.:{}", "[::1]:{}", "localhost"]
    )
    async def test_its_own_host_names_are_answered(self, ours: EmbeddedServices, host: str) -> None:
        """13.3.4"""
        port = ours.temporal.ui_port
        assert await status(port, f"Host: {host.format(port)}", target="/") == 200

        async def is_ready() -> bool:
            return await status(port, "Host: localhost") != 503

        await until("the API of a server that has just started answers", is_ready)
        assert await status(port, f"Host: {host.format(port)}") == 200

    @pytest.mark.parametrize(
        "headers",
        [
            ["Host: evil.com"],
            ["Host: evil.com:{}"],
            ["Host: localhost.evil.com:{}"],
            ["Host: 0.0.0.0:{}"],
            [],
            ["Host: localhost:{}", "Host: localhost:{}"],
            ["Host: localhost:{}", "Host: evil.com"],
            ["Host: localhost:{}", "Origin: http://evil.com"],
            ["Host: localhost:{}", "Origin: null"],
            ["Host: localhost:{}", "Origin: http://localhost:1"],
            ["Host: localhost:{}", "Origin: https://localhost:{}"],
            ["Host: localhost:{}", "Origin: http://localhost:{}", "Origin: http://evil.com"],
        ],
        ids=str,
    )
    async def test_other_host_names_and_origins_are_refused(
        self, ours: EmbeddedServices, headers: list[str]
    ) -> None:
        """13.3.4"""
        port = ours.temporal.ui_port
        given = [each.format(port) for each in headers]
        assert await status(port, *given) == 403
        assert await status(port, *given, method="POST", target=f"{API}/default/batch-operations/x") == 403
        assert await status(port, *given, version="1.0") == 403

    @pytest.mark.parametrize(
        "head",
        [
            "GET http://evil.com/ HTTP/1.1\r\nHost: localhost\r\n\r\n",
            "GET / HTTP/1.1\r\nHost : localhost\r\n\r\n",
            "GET / HTTP/1.1\r\n Host: localhost\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: localhost\n\tX: y\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: localhost\nHost: evil.com\r\n\r\n",
            "GET / HTTP/2.0\r\nHost: localhost\r\n\r\n",
            "hello\r\n\r\n",
        ],
    )
    async def test_an_ambiguous_request_is_refused(self, ours: EmbeddedServices, head: str) -> None:
        """13.3.4"""
        assert (await response_to(ours.temporal.ui_port, head)).startswith(b"HTTP/1.1 400 ")

    async def test_a_second_request_on_a_connection_is_not_answered(self, ours: EmbeddedServices) -> None:
        """13.3.4: its headers would not be checked."""
        first = f"GET {API} HTTP/1.1\r\nHost: localhost\r\nConnection: keep-alive\r\n\r\n"
        second = f"GET {API} HTTP/1.1\r\nHost: evil.com\r\n\r\n"
        answer = await response_to(ours.temporal.ui_port, first + second)
        assert answer.count(b"HTTP/1.1 ") == 1

    async def test_headers_are_limited(self, ours: EmbeddedServices) -> None:
        head = f"GET / HTTP/1.1\r\nHost: localhost\r\nX: {'x' * 100_000}\r\n\r\n"
        assert (await response_to(ours.temporal.ui_port, head)).startswith(b"HTTP/1.1 431 ")

    async def test_the_ui_server_is_on_an_unpredictable_address(self, ours: EmbeddedServices) -> None:
        """13.3.4"""
        addresses = {hidden_address() for _ in range(20)}
        assert len({address for address, _ in addresses}) == 20
        assert not [port for port in listening_ports(ours) if port == ours.temporal.ui_port]


def listening_ports(services: EmbeddedServices) -> list[int]:
    """The ports on which the Temporal server listens at 127.0.0.1."""
    pid = services.temporal.pid
    inodes = {
        match[1]
        for link in Path(f"/proc/{pid}/fd").iterdir()
        if (match := re.fullmatch(r"socket:\[(\d+)\]", str(link.readlink())))
    }
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [
        int(port, 16)
        for address, port, state, inode in ((*each[1].split(":"), each[3], each[9]) for each in lines)
        if inode in inodes and state == "0A" and address == "0100007F"
    ]


async def test_no_port_of_temporal_accepts_requests_of_a_web_page(ours: EmbeddedServices) -> None:
    """13.3.3: with every host name; one of the ports is that of the HTTP API."""
    start = json.dumps({"workflowType": {"name": "x"}, "taskQueue": {"name": "x"}})
    answers = list[int]()
    for port in listening_ports(ours):
        for host in (f"127.0.0.1:{port}", f"localhost:{port}", "evil.com"):
            head = (
                f"POST {API}/default/workflows/from-a-page HTTP/1.1\r\nHost: {host}\r\n"
                f"Content-Type: text/plain\r\nContent-Length: {len(start)}\r\nConnection: close\r\n\r\n"
            )
            try:
                answer = await response_to(port, head + start)
            except ConnectionResetError:
                continue
            # Ports with gRPC answer with a frame of HTTP/2.
            if answer.startswith(b"HTTP/1."):
                answers.append(int(answer.split()[1]))
    assert 403 in answers
    assert set(answers) <= {403, 404}
