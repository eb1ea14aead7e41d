"""Clients that send too much, too slowly or nothing: an API process stays small and answers others."""

import asyncio
from time import monotonic

import httpx2
import pytest

from everstep.runtime.connection_limits import ConnectionLimits
from tests.acceptance.front import Front
from tests.acceptance.test_the_api_goes_on import megabytes

pytestmark = pytest.mark.asyncio(loop_scope="session")

GROWTH = 40
"""Megabytes."""
LIMITS = ConnectionLimits()
POST = (
    b"POST /agent/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n"
)

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def open_streams(front: Front) -> Streams:
    """Open a connection."""
    return await asyncio.open_connection("127.0.0.1", front.port)


async def answer(streams: Streams, sent: bytes = b"", wait: float = 60) -> bytes:
    """Read until the server closes the connection."""
    reader, writer = streams
    writer.write(sent)
    try:
        async with asyncio.timeout(wait):
            return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.transport.abort()


async def agents(front: Front) -> int:
    """The response to a caller with a valid request."""
    async with httpx2.AsyncClient(headers={"Authorization": f"Bearer {front.key}"}) as ann:
        return (await ann.get(f"{front.url}/agent/agents")).status_code


async def test_a_head_is_bounded_in_size(front: Front) -> None:
    """8.8.1: one header of 123 MiB; half a million headers."""
    api = await front.api()
    assert await agents(front) == 200
    before = megabytes(api.pid)
    head = b"GET /agent/agents HTTP/1.1\r\nHost: localhost\r\n"

    for sent in (b"A: " + b"a" * 123 * 1024 * 1024, b"A: b\r\n" * 500_000):
        reader, writer = await open_streams(front)
        writer.write(head + sent)
        # The response arrives before it has sent everything.
        async with asyncio.timeout(30):
            assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 431 ")
        writer.transport.abort()

    assert megabytes(api.pid) - before < GROWTH
    assert await agents(front) == 200


async def test_heads_and_silence_are_bounded_in_time(front: Front) -> None:
    """8.8.1: half a head, one that arrives byte by byte, nothing at all, and nothing after a response."""
    await front.api()
    began = monotonic()
    half, drops, silent, idle = [await open_streams(front) for _ in range(4)]

    async def drip() -> None:
        while True:
            drops[1].write(b"A")
            await asyncio.sleep(0.2)

    async def timed_answer(streams: Streams, sent: bytes = b"") -> tuple[bytes, float]:
        return await answer(streams, sent), monotonic() - began

    dripping = asyncio.create_task(drip())
    (
        (half_said, half_took),
        (drops_said, drops_took),
        (_, silent_took),
        (idle_said, idle_took),
    ) = await asyncio.gather(
        timed_answer(half, b"GET / HTTP/1.1\r\nHost"),
        timed_answer(drops, b"GET / HTTP/1.1\r\nHost: localhost\r\n"),
        timed_answer(silent),
        timed_answer(idle, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"),
    )
    dripping.cancel()

    assert half_said.startswith(b"HTTP/1.1 408 ")
    assert drops_said.startswith(b"HTTP/1.1 408 ")
    assert idle_said.startswith(b"HTTP/1.1 200 ")
    assert LIMITS.head_seconds <= half_took < LIMITS.idle_seconds
    assert LIMITS.head_seconds <= drops_took < LIMITS.idle_seconds
    assert LIMITS.idle_seconds <= silent_took
    assert LIMITS.idle_seconds <= idle_took


async def test_bodies_of_strangers_are_not_kept(front: Front) -> None:
    """8.8.3: a thousand of them, without a token and with wrong ones, at once."""
    api = await front.api()
    assert await agents(front) == 200
    before, size = megabytes(api.pid), 256 * 1024
    body = b'{"content": "' + b"x" * (size - 15) + b'"}'
    largest = before

    async def stranger(number: int) -> bytes:
        nonlocal largest
        name = b"" if number % 2 else b"Authorization: Bearer esk_%s\r\n" % (b"x" * 43)
        said = await answer(await open_streams(front), POST % size + name + b"\r\n" + body)
        largest = max(largest, megabytes(api.pid))
        return said

    said = await asyncio.gather(*(stranger(number) for number in range(1000)))

    assert {each[:12] for each in said} <= {b"HTTP/1.1 401", b"HTTP/1.1 503", b""}
    assert sum(each.startswith(b"HTTP/1.1 401") for each in said) >= 400
    assert largest - before < GROWTH, f"{before:.0f} MB before, {largest:.0f} MB at most"
    assert await agents(front) == 200


async def test_a_stranger_is_refused_before_the_body_is_sent(front: Front) -> None:
    """8.8.3"""
    await front.api()
    reader, writer = await open_streams(front)
    writer.write(POST % 200_000 + b"\r\n")

    async with asyncio.timeout(30):
        head = await reader.readuntil(b"\r\n\r\n")

    assert head.startswith(b"HTTP/1.1 401 ")
    assert b"connection: close" in head.lower()
    writer.transport.abort()


async def test_connections_of_one_address_are_bounded(front: Front) -> None:
    """8.8.2"""
    await front.api()
    held = [await open_streams(front) for _ in range(LIMITS.per_address)]
    probe = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"

    refused = await answer(await open_streams(front), probe)
    assert refused.startswith(b"HTTP/1.1 503 ")
    assert b"retry-after: 5" in refused
    # An authenticated caller is served.
    assert (await answer(held.pop(), probe)).startswith(b"HTTP/1.1 200 ")
    for _, writer in held:
        writer.transport.abort()
    async with asyncio.timeout(30):
        # The server notices it at its own pace.
        while not (await answer(await open_streams(front), probe)).startswith(b"HTTP/1.1 200 "):
            pass
