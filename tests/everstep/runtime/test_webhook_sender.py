"""Requests to receivers of webhooks, and the secrets that sign them."""

import asyncio
import base64
import socket
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from ipaddress import ip_address
from ssl import SSLContext
from typing import Any

import httpcore2
import pytest

from everstep.agent_domain.capabilities.network import Address
from everstep.agent_domain.errors import InvalidInput
from everstep.runtime import webhook_sender
from everstep.runtime.url_files import resolve_host
from everstep.runtime.webhook_sender import HttpSender, SealedSecrets

KEY, OTHER_KEY = (base64.b64encode(bytes([each]) * 32).decode() for each in (1, 2))


@asynccontextmanager
async def receiver(response: bytes | None) -> AsyncGenerator[tuple[str, list[bytes]]]:
    """Receives requests at the name `hook.test`, and answers with these bytes, or not at all."""
    requests: list[bytes] = []

    async def on_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            requests.append(await reader.readuntil(b"\r\n\r\n"))
            if response is not None:
                writer.write(response)
                await writer.drain()
            await reader.read()
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        ended.set()

    ended = asyncio.Event()

    server = await asyncio.start_server(on_connection, "127.0.0.1", 0)
    async with server:
        yield f"http://hook.test:{server.sockets[0].getsockname()[1]}/events", requests
        await ended.wait()


def resolver(address: str) -> Callable[[str], Awaitable[Sequence[Address]]]:
    async def resolve(name: str) -> Sequence[Address]:
        del name
        return [ip_address(address)]

    return resolve


TO_LOOPBACK = HttpSender(allows_private=True, resolve=resolver("127.0.0.1"))


@pytest.mark.parametrize(
    ("status", "more", "error"),
    [
        ("204 No Content", b"", None),
        ("500 Error", b"", "the receiver answered with HTTP 500"),
        ("302 Found\r\nLocation: http://127.0.0.1/", b"", "the receiver answered with HTTP 302"),
        ("200 OK\r\nContent-Encoding: gzip", b"x" * 1_000_000, None),
    ],
    ids=["accepted", "refused", "redirected", "talkative"],
)
async def test_a_response_decides_about_the_attempt(status: str, more: bytes, error: str | None) -> None:
    """18.6.6: redirects are not followed, and little of a response is read."""
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(more)}\r\n\r\n".encode()
    async with receiver(head + more) as (url, requests):
        outcome = await TO_LOOPBACK.send(url, {"webhook-id": "evt_1"}, b"{}")

    assert (outcome.response_status, outcome.error) == (int(status[:3]), error)
    (request,) = requests
    assert request.startswith(b"POST /events HTTP/1.1\r\n")
    assert b"host: hook.test:" in request.lower()
    assert b"webhook-id: evt_1\r\n" in request.lower()


async def test_certificates_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """18.6.8: reading them for each delivery would hold up everything else in the process."""
    reads, read = list[SSLContext](), httpcore2.default_ssl_context

    def count(**given: bool) -> SSLContext:
        reads.append(read(**given))
        return reads[-1]

    monkeypatch.setattr(httpcore2, "default_ssl_context", count)
    for _ in range(3):
        async with receiver(b"HTTP/1.1 204 No Content\r\n\r\n") as (url, _):
            await TO_LOOPBACK.send(url, {}, b"{}")
    assert len(reads) <= 1


async def test_names_that_are_not_answered_hold_up_no_other_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """18.6.8: a receiver's name server that hangs takes one thread, and none of the event loop's."""
    go_on, asked = threading.Event(), list[str]()

    def getaddrinfo(name: str, *given: object, **named: object) -> list[Any]:
        asked.append(name)
        if name == "hangs.test":
            go_on.wait(30)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("93.184.216.34", 0))]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    hanging = [asyncio.create_task(resolve_host("hangs.test")) for _ in range(50)]
    try:
        async with asyncio.timeout(10):
            assert await resolve_host("hook.test") == [ip_address("93.184.216.34")]
            await asyncio.get_running_loop().getaddrinfo("model.test", 443)
        assert sorted(asked) == ["hangs.test", "hook.test", "model.test"]
    finally:
        go_on.set()
    assert len(await asyncio.gather(*hanging)) == len(hanging)


async def test_a_receiver_that_hangs_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """18.6.8"""
    monkeypatch.setattr(webhook_sender, "SECONDS", 0.05)
    async with receiver(None) as (url, _):
        outcome = await TO_LOOPBACK.send(url, {}, b"{}")
    assert outcome.error == "no response within 0.05 seconds"


async def test_a_name_that_resolves_to_a_private_address_later_gets_no_request() -> None:
    """18.6.7"""
    url = "https://hook.test/events"
    await HttpSender(resolve=resolver("93.184.216.34")).check_url(url)
    outcome = await HttpSender(resolve=resolver("127.0.0.1")).send(url, {}, b"{}")
    assert "is not public" in (outcome.error or "")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://hook.test/", "use https"),
        ("ftp://hook.test/", "use https"),
        ("hook.test", "use https"),
        ("https://", "use https"),
        ("https://ann:secret@hook.test/", "a user or a password"),
        ("https://hook.test:0/", "port 0"),
        ("https://hook.test:99999/", "port 99999"),
        ("https://hook.test/a b", "has spaces"),
        (f"https://hook.test/{'a' * 2000}", "too long"),
        ("https://127.0.0.1/", "is not public"),
        ("https://[::1]/", "is not public"),
        ("https://10.1.2.3/", "is not public"),
        ("https://169.254.169.254/latest/meta-data", "is not public"),
        ("https://[::ffff:127.0.0.1]/", "is not public"),
        ("https://2130706433/", "is not a host name"),
        ("https://0x7f.1/", "is not a host name"),
        ("https://mixed.test/", "is not public"),
        ("https://nowhere.test/", "is not known"),
    ],
)
async def test_a_url_that_may_not_receive_events_is_refused(url: str, words: str) -> None:
    """18.6.7"""

    async def resolve(name: str) -> Sequence[Address]:
        if name == "nowhere.test":
            raise OSError("no such name")
        if name == "mixed.test":
            return [ip_address("93.184.216.34"), ip_address("192.168.0.1")]
        return [ip_address("93.184.216.34")]

    with pytest.raises(InvalidInput, match=words):
        await HttpSender(resolve=resolve).check_url(url)


def test_a_secret_is_encrypted_with_the_payload_key() -> None:
    """18.6.4"""
    box = SealedSecrets(KEY)
    sealed = box.seal("whsec_abc")

    assert "whsec" not in sealed
    assert box.open(sealed) == "whsec_abc"
    assert box.open("whsec_from_before") == "whsec_from_before"
    assert SealedSecrets(None).seal("whsec_abc") == "whsec_abc"
    for other in (SealedSecrets(OTHER_KEY), SealedSecrets(None)):
        with pytest.raises(InvalidInput, match="another payload_key"):
            other.open(sealed)
