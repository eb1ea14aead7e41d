"""The proxy: the only way out of a sandbox with a network."""

import asyncio
import os
import socket
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path

import pytest

from everstep.agent_domain.capabilities.bash import CommandResult, ExecutionPolicy
from everstep.agent_domain.capabilities.network import Address, Network
from everstep.capabilities.bash.proxy import Proxy, ProxyLimits
from everstep.capabilities.bash.sandbox import Sandbox
from tests.everstep.capabilities.bash.surroundings import PYTHON, SandboxHost, bash, policy_for
from tests.services import Servers

HOST = "test.example"
LOOPBACK = [ip_address("127.0.0.1")]


_LIMITS = ProxyLimits()


def permit_any(_address: Address) -> bool:
    return True


@dataclass
class Server:
    """Answers each request with one line, and records the requests."""

    port: int
    answer: bytes = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nhi\n"
    heads: list[bytes] = field(default_factory=list[bytes])
    bodies: list[bytes] = field(default_factory=list[bytes])
    resolved: list[str] = field(default_factory=list[str])

    async def resolve(self, host: str) -> Sequence[Address]:
        """Every name resolves to this server."""
        self.resolved.append(host)
        return LOOPBACK

    def proxy(self, network: Network, limits: ProxyLimits = _LIMITS) -> Proxy:
        return Proxy(network, self.resolve, permit_any, limits)


@asynccontextmanager
async def a_server() -> AsyncGenerator[Server]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            head = await reader.readuntil(b"\r\n\r\n")
            server.heads.append(head)
            if b"Content-Length: 4" in head:
                server.bodies.append(await reader.readexactly(4))
            writer.write(server.answer)
            await writer.drain()
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    server = Server(listening.sockets[0].getsockname()[1])
    async with listening:
        yield server


@asynccontextmanager
async def open_proxy(proxy: Proxy) -> AsyncGenerator[Callable[[bytes], "asyncio.Future[bytes]"]]:
    """The proxy's response to these bytes, until it closes the connection."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    proxy.start(listener)

    async def ask(sent: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(sent)
            async with asyncio.timeout(20):
                return await reader.read()
        finally:
            writer.close()

    def start_asking(sent: bytes) -> "asyncio.Future[bytes]":
        return asyncio.ensure_future(ask(sent))

    try:
        yield start_asking
    finally:
        proxy.close()


def get(url: str, *headers: str, method: str = "GET") -> bytes:
    return "\r\n".join([f"{method} {url} HTTP/1.1", *headers, "", ""]).encode()


async def test_a_request_is_forwarded_to_its_host_only() -> None:
    """9.1.14: the Host follows from the URL, and hop-by-hop headers are removed."""
    async with a_server() as server, open_proxy(server.proxy((f"{HOST}:{server.port}",))) as ask:
        headers = (
            "Host: evil.example",
            "Proxy-Authorization: x",
            "Connection: X-Hop",
            "X-Hop: 1",
            "X-Kept: 2",
        )
        answer = await ask(get(f"http://{HOST}:{server.port}/a?b", *headers))
        assert answer.endswith(b"\r\n\r\nhi\n")
        assert server.heads == [get("/a?b", f"Host: {HOST}:{server.port}", "X-Kept: 2", "Connection: close")]
        body = get(f"http://{HOST}:{server.port}", "Content-Length: 4", method="POST") + b"bodyGET / smuggled"
        assert (await ask(body)).endswith(b"hi\n")
        assert server.bodies == [b"body"]


async def test_a_tunnel_carries_bytes_both_ways() -> None:
    """9.1.14"""
    async with a_server() as server, open_proxy(server.proxy((f"{HOST}:{server.port}",))) as ask:
        sent = get(f"{HOST}:{server.port}", method="CONNECT") + get("/inside")
        assert await ask(sent) == b"HTTP/1.1 200 Connection established\r\n\r\n" + server.answer
        assert server.heads == [b"GET /inside HTTP/1.1\r\n\r\n"]


async def test_a_forbidden_host_is_neither_resolved_nor_reached() -> None:
    """9.1.14"""
    async with a_server() as server:
        proxy = server.proxy(("pypi.org",))
        async with open_proxy(proxy) as ask:
            for sent in (
                get("http://evil.example/"),
                get("evil.example:443", method="CONNECT"),
                get("http://127.0.0.1/"),
                get("http://[::1]/"),
                get(f"pypi.org:{server.port}", method="CONNECT"),
            ):
                answer = await ask(sent)
                assert answer.startswith(b"HTTP/1.1 403 Forbidden\r\n"), answer
                assert b"The network policy does not allow" in answer
        assert server.resolved == server.heads == []
        assert proxy.refusals[0] == "The network policy does not allow evil.example:80; it allows pypi.org."


@pytest.mark.parametrize(
    "host",
    [
        *(
            "127.0.0.1",
            "[::1]",
            "[::ffff:127.0.0.1]",
            "[::ffff:7f00:1]",
            "0.1.2.3",
            "169.254.169.254",
            "10.0.0.1",
        ),
        *("localhost", "LOCALHOST.", "0x7f000001", "[64:ff9b::7f00:1]", "[fe80::1]", "[fd00::1]"),
    ],
)
async def test_with_all_public_names_no_private_address_is_open(host: str) -> None:
    """9.1.15: by the machine's own resolver, in every notation of the address."""
    async with open_proxy(Proxy(True)) as ask:
        for sent in (get(f"http://{host}/"), get(f"{host}:443", method="CONNECT")):
            answer = await ask(sent)
            assert answer.startswith((b"HTTP/1.1 403", b"HTTP/1.1 400")), answer


async def test_a_name_is_resolved_once_and_its_checked_address_is_used() -> None:
    """9.1.15: DNS rebinding has no effect."""
    async with a_server() as server:
        asked = list[str]()

        async def resolve_changing(host: str) -> Sequence[Address]:
            asked.append(host)
            return [ip_address("8.8.8.8")] if len(asked) > 1 else LOOPBACK

        def is_open(address: Address) -> bool:
            return address == LOOPBACK[0]

        proxy = Proxy((f"{HOST}:{server.port}",), resolve_changing, is_open)
        async with open_proxy(proxy) as ask:
            url = f"http://{HOST}:{server.port}/"
            assert (await ask(get(url))).endswith(b"hi\n")
            assert asked == [HOST]
            assert b"leads to no public address" in await ask(get(url))


async def test_an_open_address_among_closed_ones_is_used() -> None:
    """9.1.15"""
    async with a_server() as server:

        async def resolve_both(_host: str) -> Sequence[Address]:
            return [ip_address("10.0.0.1"), *LOOPBACK]

        proxy = Proxy((f"{HOST}:{server.port}",), resolve_both, lambda address: address in LOOPBACK)
        async with open_proxy(proxy) as ask:
            assert (await ask(get(f"http://{HOST}:{server.port}/"))).endswith(b"hi\n")


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET /relative HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET https://pypi.org/ HTTP/1.1\r\n\r\n", 400),
        (b"GET http://user@pypi.org/ HTTP/1.1\r\n\r\n", 400),
        (b"GET http://pypi.org:99999/ HTTP/1.1\r\n\r\n", 400),
        (b"CONNECT pypi.org HTTP/1.1\r\n\r\n", 400),
        (b"GET http://pypi.org/ HTTP/1.1\r\n folded: 1\r\n\r\n", 400),
        (b"GET http://pypi.org/ HTTP/1.1\r\nA: 1\nB: 2\r\n\r\n", 400),
        (b"GET http://pypi.org/ HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"GET http://pypi.org/ HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST http://pypi.org/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 411),
        (b"GET http://pypi.org/ HTTP/1.1\r\nA: " + b"x" * 70_000 + b"\r\n\r\n", 431),
        (b"GET http://pypi.org/", 408),
    ],
)
async def test_an_invalid_request_is_answered_and_not_forwarded(sent: bytes, status: int) -> None:
    """9.1.16"""
    async with a_server() as server:
        proxy = server.proxy(True, ProxyLimits(head_seconds=0.2))
        async with open_proxy(proxy) as ask:
            assert (await ask(sent)).startswith(f"HTTP/1.1 {status} ".encode())
        assert server.heads == []


async def test_the_number_of_bytes_is_limited() -> None:
    """9.1.16"""
    async with a_server() as server:
        server.answer = b"x" * 500_000
        proxy = server.proxy((f"{HOST}:{server.port}",), ProxyLimits(total_bytes=100_000))
        async with open_proxy(proxy) as ask:
            assert len(await ask(get(f"http://{HOST}:{server.port}/"))) < 200_000
            assert b"HTTP/1.1 403" in await ask(get(f"http://{HOST}:{server.port}/"))


async def test_the_number_of_concurrent_connections_is_limited() -> None:
    """9.1.16"""
    async with a_server() as server:
        proxy = server.proxy((f"{HOST}:{server.port}",), ProxyLimits(connections=2, head_seconds=0.3))
        async with open_proxy(proxy) as ask:
            slow = [ask(b"GET ") for _ in range(2)]
            await asyncio.sleep(0)
            assert (await ask(get(f"http://{HOST}:{server.port}/"))).endswith(b"hi\n")
            assert all(b"HTTP/1.1 408" in each for each in await asyncio.gather(*slow))


# In the real sandbox.


async def run(command: str, policy: ExecutionPolicy, proxy: Callable[[], Proxy]) -> CommandResult:
    return await Sandbox(policy, lambda _policy: proxy()).run(command)


FETCH = f"{PYTHON} -I -S -c 'import sys, urllib.request as r; print(r.urlopen(sys.argv[1]).read())' "
"""The behaviour of programs that follow the proxy variables; it needs no network."""


async def test_a_command_reaches_an_allowed_host_through_the_proxy(around: SandboxHost) -> None:
    """9.1.14"""
    async with a_server() as server:
        policy = policy_for(around).with_network([f"{HOST}:{server.port}"])
        policy = policy.with_readable_paths(os.path.dirname(os.path.dirname(PYTHON)))
        result = await run(
            f"{FETCH} http://{HOST}:{server.port}/x; {FETCH} http://evil.example/ 2>/dev/null",
            policy,
            lambda: server.proxy(policy.network),
        )
        assert result.stdout == "b'hi\\n'\n"
        said = (
            f"sandbox: The network policy does not allow evil.example:80; it allows {HOST}:{server.port}.\n"
        )
        assert result.stderr == said
    assert not around.running_processes()


async def test_only_the_proxy_is_in_the_sandboxs_network(around: SandboxHost) -> None:
    """9.1.14: another address, another protocol, or a Unix socket is unreachable."""
    around.base_dir.chmod(0o777)
    with socket.socket(socket.AF_UNIX) as local:
        local.bind(str(around.base_dir / "door"))
        local.listen()
        script = (
            "import socket as s\n"
            "def tried(work):\n"
            "    try: work(); return True\n"
            "    except OSError: return False\n"
            f"print(tried(lambda: s.create_connection(('127.0.0.1', {around.port}), 2)))\n"
            "print(tried(lambda: s.create_connection(('192.0.2.1', 80), 2)))\n"
            "print(tried(lambda: s.socket(s.AF_INET, s.SOCK_DGRAM).sendto(b'x', ('192.0.2.1', 53))))\n"
            "print(tried(lambda: s.socket(s.AF_UNIX).connect('door')))\n"
            "print(tried(lambda: s.create_connection(('127.0.0.1', 3128), 2)))\n"
        )
        (around.base_dir / "script.py").write_text(script)
        policy = policy_for(around).with_network()
        policy = policy.with_readable_paths(os.path.dirname(os.path.dirname(PYTHON)))
        assert (await bash(f"{PYTHON} -I -S script.py", policy)).split() == ["False"] * 4 + ["True"]


@pytest.mark.asyncio(loop_scope="session")
async def test_the_workers_servers_are_unreachable(
    around: SandboxHost, services: Servers, tmp_path: Path
) -> None:
    """9.1.15: with `network: true`, directly and through the proxy."""
    del tmp_path
    host, port = services.temporal_address.split(":")
    straight = f"(exec 3<>/dev/tcp/{host}/{port}) 2>/dev/null && echo open"
    request = f"CONNECT {host}:{port} HTTP/1.1\\r\\n\\r\\n"
    by_proxy = f"exec 3<>/dev/tcp/127.0.0.1/3128; printf '{request}' >&3; head -1 <&3"
    text = await bash(f"{straight}; {by_proxy}", policy_for(around).with_network())
    assert "HTTP/1.1 403 Forbidden" in text
    assert "open" not in text.split()


async def test_without_its_network_no_command_runs(
    around: SandboxHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """9.1.14"""

    async def fail_to_open(_proxy: Proxy, _process: int) -> None:
        raise OSError("no descriptors")

    monkeypatch.setattr("everstep.capabilities.bash.process.open_way_out", fail_to_open)
    monkeypatch.setattr("everstep.capabilities.bash.self_test._PASSED", set[object]())
    text = await bash("touch run", policy_for(around).with_network())
    assert "its network cannot be opened (no descriptors)" in text
    assert not (around.base_dir / "run").exists()


async def test_a_command_that_ends_stops_its_proxy(around: SandboxHost) -> None:
    """9.1.16"""
    made = list[Proxy]()

    def proxy() -> Proxy:
        made.append(Proxy(True))
        return made[-1]

    policy = policy_for(around).with_network()
    held = set[int]()
    for _ in range(3):
        # The first command starts the parts that all commands share.
        await run("exec 3<>/dev/tcp/127.0.0.1/3128; sleep 0.1", policy, proxy)
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        await asyncio.gather(*tasks, return_exceptions=True)
        held.add(count_sockets())
    assert len(held) == 1
    assert len(made) == 3


def count_sockets() -> int:
    """The sockets of this process; its other files change all the time, because the watcher opens some."""
    links = list[str]()
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            links.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return sum(link.startswith("socket:") for link in links)
