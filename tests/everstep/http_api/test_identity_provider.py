"""What callers who are not authenticated can make the API ask of the identity provider, and learn from it."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Any

import httpx2
import pytest

from everstep.http_api.attempt_limits import (
    AT_ONCE,
    MAX_ADDRESSES,
    PER_ADDRESS,
    SECONDS,
    TOGETHER,
    AttemptLimit,
)
from everstep.http_api.identity_provider import COOLDOWN_SECONDS, MAX_AGE_SECONDS, IdentityProvider
from everstep.http_api.jwks import fetch_document
from everstep.http_api.problems import Refusal
from everstep.http_api.provider_documents import MAX_BYTES, ProviderFault, open_http, request_document
from tests.everstep.http_api.house import ApiSetup, assert_problem, make_app

URL = "http://api.test:8080"
DESCRIPTION = {
    "authorization_endpoint": "https://id.example/authorize",
    "token_endpoint": "https://id.example/token",
}
ANSWER = {"code": "c", "verifier": "v" * 43, "redirect_uri": f"{URL}/console/signed-in"}


@dataclass
class Provider:
    """An identity provider that counts requests."""

    description: Any = field(default_factory=lambda: DESCRIPTION)
    status: int = 200
    token: str | None = None
    now: float = 1000.0
    requests: list[str] = field(default_factory=list[str])
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    gate: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.gate.set()

    async def handle(self, request: httpx2.Request) -> httpx2.Response:
        """Answer a request."""
        self.requests.append(request.url.path)
        self.arrived.set()
        await self.gate.wait()
        if request.url.path != "/token":
            return httpx2.Response(self.status, json=self.description)
        if self.token is None:
            return httpx2.Response(400, json={"error": "invalid_grant"})
        return httpx2.Response(200, json={"access_token": self.token})

    def client(self, issuer: str = "https://id.example") -> IdentityProvider:
        """The installation's client."""

        @asynccontextmanager
        async def open_client() -> AsyncGenerator[httpx2.AsyncClient]:
            async with httpx2.AsyncClient(transport=httpx2.MockTransport(self.handle)) as http:
                yield http

        limit = AttemptLimit(self.clock)
        return IdentityProvider(issuer, "console", open_client=open_client, clock=self.clock, attempts=limit)

    def clock(self) -> float:
        """The current time."""
        return self.now


@asynccontextmanager
async def browser(api_setup: ApiSetup, provider: IdentityProvider) -> AsyncGenerator[httpx2.AsyncClient]:
    """A client of an API with this provider."""
    api = replace(
        api_setup.api, identity_provider=provider, temporal_workflows_url="http://temporal.internal/"
    )
    transport = httpx2.ASGITransport(make_app(api))
    async with httpx2.AsyncClient(transport=transport, base_url=URL, headers={"Origin": URL}) as http:
        yield http


async def read_endpoint(http: httpx2.AsyncClient) -> Any:
    answer = await http.get("/sign-in")
    assert answer.status_code == 200
    return answer.json()["provider"]["authorization_endpoint"]


async def test_the_description_is_read_once_and_kept(api_setup: ApiSetup) -> None:
    """16.2.9: also for callers who come at the same time."""
    provider = Provider()
    provider.gate.clear()
    async with browser(api_setup, provider.client()) as http:
        waiting = [asyncio.create_task(read_endpoint(http)) for _ in range(20)]
        await provider.arrived.wait()
        provider.gate.set()
        assert set(await asyncio.gather(*waiting)) == {DESCRIPTION["authorization_endpoint"]}
        assert len(provider.requests) == 1

        provider.now += MAX_AGE_SECONDS
        provider.status = 500
        assert await read_endpoint(http) == DESCRIPTION["authorization_endpoint"]
        assert await read_endpoint(http) == DESCRIPTION["authorization_endpoint"]
        assert len(provider.requests) == 2


@pytest.mark.parametrize(
    ("status", "description"),
    [
        (500, DESCRIPTION),
        (302, DESCRIPTION),
        (200, []),
        (200, {}),
        (200, DESCRIPTION | {"token_endpoint": "file:///etc/passwd"}),
        (200, DESCRIPTION | {"authorization_endpoint": "javascript:alert(1)"}),
        (200, DESCRIPTION | {"token_endpoint": "http://id.example/token"}),
    ],
)
async def test_a_failure_is_kept_for_some_seconds(api_setup: ApiSetup, status: int, description: Any) -> None:
    """16.2.5, 16.2.9: meanwhile people sign in with a token, and sessions continue."""
    provider = Provider(description, status)
    async with browser(api_setup, provider.client()) as http:
        assert [await read_endpoint(http) for _ in range(3)] == [None] * 3
        assert_problem(await http.post("/sign-in", json={"provider": ANSWER}), 503, "identity provider")
        assert len(provider.requests) == 1
        signed_in = await http.post("/sign-in", json={"token": api_setup.token("ann")})
        assert signed_in.json()["signed_in"]

        provider.now += COOLDOWN_SECONDS
        provider.status, provider.description = 200, DESCRIPTION
        assert await read_endpoint(http) == DESCRIPTION["authorization_endpoint"]


async def test_codes_that_fail_are_limited(api_setup: ApiSetup) -> None:
    """16.2.9: and people who sign in are not."""
    provider = Provider(token=api_setup.token("ann"))
    async with browser(api_setup, provider.client()) as http:
        for _ in range(PER_ADDRESS + 1):
            assert (await http.post("/sign-in", json={"provider": ANSWER})).is_success
        provider.token = None
        for _ in range(PER_ADDRESS):
            assert_problem(await http.post("/sign-in", json={"provider": ANSWER}), 401)
        count = len(provider.requests)
        refused = await http.post("/sign-in", json={"provider": ANSWER})
        assert_problem(refused, 429, "try again in 6 s")
        assert refused.headers["Retry-After"] == "6"
        assert len(provider.requests) == count

        provider.now += 6
        assert_problem(await http.post("/sign-in", json={"provider": ANSWER}), 401)


def fail(limit: AttemptLimit, address: str, times: int = 1) -> None:
    for _ in range(times):
        with pytest.raises(ZeroDivisionError), limit.attempt(address):
            raise ZeroDivisionError


def is_refused(limit: AttemptLimit, address: str) -> bool:
    try:
        fail(limit, address)
    except Refusal as refusal:
        return refusal.status == HTTPStatus.TOO_MANY_REQUESTS
    return False


@pytest.mark.parametrize(
    ("first", "same", "other"),
    [
        ("192.0.2.1", "::ffff:192.0.2.1", "192.0.2.2"),
        ("2001:db8::1", "2001:db8:0:0:ffff::2", "2001:db8:0:1::1"),
        ("fe80::1%eth0", "fe80::2", "fe81::1"),
        ("", "", "192.0.2.1"),
    ],
)
def test_an_address_is_limited_and_others_are_not(first: str, same: str, other: str) -> None:
    """16.2.9"""
    limit = AttemptLimit(lambda: 0.0)
    fail(limit, first, PER_ADDRESS)
    assert is_refused(limit, same)
    assert not is_refused(limit, other)


def test_many_addresses_are_limited_together_and_forgotten() -> None:
    """16.2.9"""
    now = 0.0
    limit = AttemptLimit(lambda: now)
    for number in range(TOGETHER):
        fail(limit, f"10.0.0.{number}")
    assert is_refused(limit, "10.1.0.1")
    now += SECONDS / TOGETHER
    assert not is_refused(limit, "10.1.0.1")
    for number in range(MAX_ADDRESSES + 2):
        now += SECONDS
        fail(limit, f"host-{number}")
    assert limit.address_count <= MAX_ADDRESSES


def test_attempts_at_a_time_are_limited() -> None:
    """16.2.9"""
    limit = AttemptLimit(lambda: 0.0)
    running = [limit.attempt(f"10.0.0.{number}") for number in range(AT_ONCE)]
    for each in running:
        each.__enter__()
    assert is_refused(limit, "10.0.1.1")
    running[0].__exit__(None, None, None)
    assert not is_refused(limit, "10.0.1.1")


Sent = Sequence[bytes]


@asynccontextmanager
async def server(parts: Sent, *, is_endless: bool = False) -> AsyncGenerator[str]:
    """A server that sends these bytes; yields its URL."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            for part in parts:
                writer.write(part)
                await writer.drain()
            if is_endless:
                await reader.read()
        except OSError:
            return
        finally:
            writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with listening:
        host, port = listening.sockets[0].getsockname()
        yield f"http://{host}:{port}/keys"


async def test_an_answer_that_never_ends_or_is_too_large_is_not_read() -> None:
    """16.2.9"""
    head = b"HTTP/1.1 200 OK\r\n\r\n"
    async with server([head, b"{"], is_endless=True) as url, open_http() as http:
        with pytest.raises(ProviderFault, match=r"within 0.1 seconds"):
            await request_document(http, "GET", url, seconds=0.1)
    async with server([head, *[b"x" * 65536] * (MAX_BYTES // 65536 + 1)]) as url:
        with pytest.raises(ProviderFault, match="more than"):
            await fetch_document(url)
    async with server([b"HTTP/1.1 302 Found\r\nLocation: /other\r\nContent-Length: 0\r\n\r\n"]) as url:
        with pytest.raises(ProviderFault, match="HTTP 302"):
            await fetch_document(url)
    with pytest.raises(ProviderFault):
        await fetch_document("http://127.0.0.1:1/keys")


async def test_strangers_learn_only_how_to_sign_in(api_setup: ApiSetup) -> None:
    """16.2.10: the addresses of other servers are for people who are signed in."""
    async with browser(api_setup, Provider().client()) as http:
        before = (await http.get("/sign-in")).json()
        assert {name for name, value in before.items() if value} == {"required", "provider"}
        signed_in = await http.post("/sign-in", json={"token": api_setup.token("ann")})
        assert signed_in.json()["temporal_workflows_url"] == "http://temporal.internal/"


@pytest.mark.parametrize("path", ["/sign-in", "/sign-out"])
async def test_a_large_body_of_a_stranger_is_refused(api_setup: ApiSetup, path: str) -> None:
    """8.8.3"""
    async with browser(api_setup, Provider().client()) as http:
        assert_problem(await http.post(path, json={"token": "x" * 20_000}), 413)
