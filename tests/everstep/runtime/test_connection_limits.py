"""Limits of a connection to the HTTP API: sizes, times and counts, over real sockets."""

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from starlette.types import Receive, Scope, Send

from everstep.http_api.metrics import Metrics
from everstep.http_api.middleware import (
    MAX_HEAD,
    MAX_HEADERS,
    MAX_SIGN_IN,
    MAX_SIGN_INS,
    SIGN_IN_PATHS,
    RequestMiddleware,
)
from everstep.runtime.connection_limits import SPARE_CONNECTIONS, ConnectionLimits
from everstep.runtime.serving import serve_app

QUICK = ConnectionLimits(
    connections=50, per_address=10, head_seconds=0.2, idle_seconds=0.4, stall_seconds=0.2, linger_seconds=0.2
)
PATIENT = ConnectionLimits()
GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
LAST = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


async def answer_without_reading(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers without reading the body."""
    del scope, receive
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"5")]})
    await send({"type": "http.response.body", "body": b"hello"})


class RawClient:
    """A raw socket client."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def answer(self) -> bytes:
        """All bytes until the server closes the connection."""
        async with asyncio.timeout(20):
            try:
                return await self.reader.read()
            except ConnectionResetError:
                return b""

    async def status(self) -> str:
        """The status of the next response."""
        async with asyncio.timeout(20):
            return (await self.reader.readuntil(b"\r\n")).split()[1].decode()


class RunningServer:
    """A server, and its clients."""

    def __init__(self, url: str, metrics: Metrics) -> None:
        self.host, _, port = url.removeprefix("http://").partition(":")
        self.port = int(port)
        self.metrics = metrics
        self._open = list[asyncio.StreamWriter]()

    async def client(self) -> RawClient:
        reader, writer = await asyncio.open_connection(self.host, self.port)
        self._open.append(writer)
        return RawClient(reader, writer)

    async def response_to(self, data: bytes) -> bytes:
        """The complete response to these bytes."""
        client = await self.client()
        client.send(data)
        try:
            return await client.answer()
        finally:
            client.writer.transport.abort()

    def close(self) -> None:
        for writer in self._open:
            writer.transport.abort()


@asynccontextmanager
async def server(
    app: object = answer_without_reading, limits: ConnectionLimits = PATIENT, **edge: int
) -> AsyncGenerator[RunningServer]:
    metrics = Metrics()
    async with serve_app(RequestMiddleware(app, metrics, **edge), "127.0.0.1", 0, limits) as url:  # type: ignore[arg-type]
        dialer = RunningServer(url, metrics)
        try:
            yield dialer
        finally:
            dialer.close()


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"a" * 4_000_000,
        b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"a" * MAX_HEAD + b"\r\n\r\n",
        b"GET /" + b"a" * 4_000_000,
        b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 100_000,
        b"GET / HTTP/1.1\r\nHost: x\r\n" + b"A: b\r\n" * MAX_HEADERS + b"\r\n",
    ],
    ids=["endless header", "large header", "endless line", "endless headers", "many headers"],
)
async def test_headers_that_are_too_large_are_refused(head: bytes) -> None:
    """8.8.1"""
    async with server() as dialer:
        answer = await dialer.response_to(head)

    assert answer.startswith(b"HTTP/1.1 431 ")
    assert b"application/problem+json" in answer


async def test_headers_may_be_as_large_as_the_limit() -> None:
    async with server() as dialer:
        head = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nA: "
        head += b"a" * (MAX_HEAD - len(head) - 100) + b"\r\n\r\n"
        assert (await dialer.response_to(head)).startswith(b"HTTP/1.1 200 ")
        lines = b"A: b\r\n" * (MAX_HEADERS - 2)
        head = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + lines + b"\r\n"
        assert (await dialer.response_to(head)).startswith(b"HTTP/1.1 200 ")


async def test_incomplete_headers_time_out_also_while_they_grow() -> None:
    """8.8.1"""
    async with server(limits=QUICK) as dialer:
        half = await dialer.client()
        half.send(GET[:-2])
        drops = await dialer.client()

        async def drip() -> None:
            drops.send(GET[:-2])
            while not drops.reader.at_eof():
                drops.send(b"A: b\r\n")
                await asyncio.sleep(0.02)

        dripping = asyncio.create_task(drip())
        assert (await half.answer()).startswith(b"HTTP/1.1 408 ")
        assert (await drops.answer()).startswith(b"HTTP/1.1 408 ")
        dripping.cancel()


async def test_the_second_request_has_the_same_limits() -> None:
    async with server(limits=QUICK) as dialer:
        client = await dialer.client()
        client.send(GET + GET[:10])
        answer = await client.answer()

    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"HTTP/1.1 408 " in answer


@pytest.mark.parametrize("before", [b"", GET], ids=["never", "between requests"])
async def test_a_connection_that_sends_nothing_is_closed(before: bytes) -> None:
    """8.8.1"""
    async with server(limits=QUICK) as dialer:
        answer = await dialer.response_to(before)

    assert answer.count(b"HTTP/1.1") == len(before[:1])


async def test_connections_are_limited_by_address_and_in_total() -> None:
    """8.8.2"""
    lasting = replace(PATIENT, linger_seconds=60)
    for limits in (replace(lasting, per_address=5), replace(lasting, connections=5)):
        async with server(limits=limits) as dialer:
            let_in = [await dialer.client() for _ in range(5)]
            refused = await dialer.client()
            assert (await refused.answer()).startswith(b"HTTP/1.1 503 ")
            beyond = [await dialer.client() for _ in range(5 + SPARE_CONNECTIONS * 2)]
            # Further connections get no response at all.
            assert [await client.answer() for client in beyond[SPARE_CONNECTIONS:]] == [b""] * (
                5 + SPARE_CONNECTIONS
            )
            for client in let_in:
                client.send(GET)
                assert await client.status() == "200"
            # A closed connection frees its slot.
            let_in[0].writer.transport.abort()
            for client in beyond:
                client.writer.transport.abort()
            async with asyncio.timeout(20):
                # The server notices the disconnect later.
                while b" 200 " not in await dialer.response_to(LAST):
                    pass


async def test_a_refusal_reaches_a_client_that_is_still_sending() -> None:
    """8.8.3"""

    async def refuses(scope: Scope, receive: Receive, send: Send) -> None:
        del scope, receive
        await send({"type": "http.response.start", "status": 401, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"no"})

    body = b"x" * 900_000
    post = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
    async with server(refuses) as dialer:
        client = await dialer.client()
        client.send(post)
        # Before any of the body is sent.
        assert await client.status() == "401"
        client.send(body)
        assert b"connection: close" in (await client.answer()).lower()
        assert (await dialer.response_to(post + body)).startswith(b"HTTP/1.1 401 ")


async def test_a_body_is_not_read_from_the_socket_before_the_application_reads_it() -> None:
    """8.8.3"""
    asked = asyncio.Event()

    async def waits(scope: Scope, receive: Receive, send: Send) -> None:
        await asked.wait()
        await answer_without_reading(scope, receive, send)

    async with server(waits) as dialer:
        client = await dialer.client()
        # The kernel buffers a part of it.
        client.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        client.send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 64000000\r\n\r\n" + b"x" * 64_000_000)
        left = client.writer.transport.get_write_buffer_size()
        for _ in range(100):
            await asyncio.sleep(0.001)
        held_back = client.writer.transport.get_write_buffer_size()
        asked.set()
        assert await client.status() == "200"

    assert left >= held_back > 50_000_000


async def test_all_bodies_together_are_limited() -> None:
    """8.8.3"""
    go_on, reading = asyncio.Event(), asyncio.Semaphore(0)

    async def reads(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive()).get("more_body"):
            pass
        reading.release()
        await go_on.wait()
        await answer_without_reading(scope, receive, send)

    post = b"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 400\r\n\r\n" + b"x" * 400
    async with server(reads, max_bodies=1000) as dialer:
        clients = [await dialer.client() for _ in range(2)]
        for client in clients:
            client.send(post)
            await reading.acquire()
        third = await dialer.response_to(post)
        assert third.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after: 1" in third
        go_on.set()
        for client in clients:
            assert await client.status() == "200"
        # Their memory was released.
        assert (await dialer.response_to(post)).startswith(b"HTTP/1.1 200 ")


async def test_an_event_stream_takes_no_room_from_the_bodies_of_others() -> None:
    """8.8.3: it may take hours."""
    streaming = asyncio.Semaphore(0)

    async def streams(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive()).get("more_body"):
            pass
        if scope["path"] == "/":
            await answer_without_reading(scope, receive, send)
            return
        headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        streaming.release()
        await asyncio.Event().wait()

    rest = b"Host: x\r\nConnection: close\r\nContent-Length: 900\r\n\r\n" + b"x" * 900
    async with server(streams, max_bodies=1000) as dialer:
        for _ in range(2):
            (await dialer.client()).send(b"POST /stream HTTP/1.1\r\n" + rest)
            await streaming.acquire()
        answer = await dialer.response_to(b"POST / HTTP/1.1\r\n" + rest)
        assert answer.startswith(b"HTTP/1.1 200 ")


async def test_sign_ins_that_are_not_sent_completely_take_no_room_from_callers() -> None:
    """8.8.3: their bodies are read before the caller is known."""
    reading = asyncio.Semaphore(0)

    async def reads(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] in SIGN_IN_PATHS:
            reading.release()
        while (await receive()).get("more_body"):
            pass
        await answer_without_reading(scope, receive, send)

    head = b"Host: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
    async with server(reads, max_bodies=MAX_SIGN_IN) as dialer:
        for _ in range(4):
            client = await dialer.client()
            client.send(b"POST /sign-in HTTP/1.1\r\n" + head % MAX_SIGN_IN + b"x" * (MAX_SIGN_IN - 1))
            await reading.acquire()
        answer = await dialer.response_to(b"POST / HTTP/1.1\r\n" + head % MAX_SIGN_IN + b"x" * MAX_SIGN_IN)
        assert answer.startswith(b"HTTP/1.1 200 ")
        large = await dialer.response_to(b"POST /sign-in HTTP/1.1\r\n" + head % (MAX_SIGN_IN + 1))
        assert large.startswith(b"HTTP/1.1 413 ")


async def test_sign_ins_of_one_address_leave_room_for_others() -> None:
    """8.8.3"""
    assert PATIENT.per_address * MAX_SIGN_IN < MAX_SIGN_INS


async def test_a_body_with_two_lengths_is_refused_with_everything_after_it() -> None:
    """8.8.4: a proxy that goes by the other one would take the rest for a request of another client."""
    two = b"Host: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    async with server() as dialer:
        answers = await dialer.response_to(b"POST / HTTP/1.1\r\n" + two + GET)
    assert answers.startswith(b"HTTP/1.1 400 ")
    assert answers.count(b"HTTP/1.1 ") == 1
    assert b"connection: close" in answers.lower()


async def test_a_stream_is_not_ended_by_timeouts() -> None:
    async def streams(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        ended = asyncio.Event()
        asyncio.get_running_loop().call_later(QUICK.idle_seconds * 3, ended.set)
        await send({"type": "http.response.body", "body": b"first", "more_body": True})
        await ended.wait()
        await send({"type": "http.response.body", "body": b"last", "more_body": False})
        del scope, receive

    async with server(streams, QUICK) as dialer:
        answer = await dialer.response_to(LAST)

    assert b"first" in answer
    assert b"last" in answer


async def test_a_client_that_does_not_read_is_disconnected() -> None:
    """8.8.1"""
    size = 64_000_000

    async def sends(scope: Scope, receive: Receive, send: Send) -> None:
        del scope, receive
        head = [(b"content-length", str(size).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        await send({"type": "http.response.body", "body": b"x" * size})

    async with server(sends, QUICK) as dialer:
        client = await dialer.client()
        client.writer.transport.pause_reading()  # type: ignore[attr-defined] -- it reads, too
        client.send(GET * 3)
        async with asyncio.timeout(20):
            while True:
                client.send(b"x")
                try:
                    await client.writer.drain()
                except ConnectionError:
                    break
                await asyncio.sleep(0.01)


async def test_pipelined_requests_are_answered_one_after_the_other() -> None:
    async with server() as dialer:
        answer = await dialer.response_to(GET * 50 + LAST)

    assert answer.count(b"HTTP/1.1 200 ") == 51


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"nonsense\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef",
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
    ids=["tls", "nonsense", "no host", "two lengths", "no chunk"],
)
async def test_an_invalid_request_is_refused(sent: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async def reads(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive()).get("more_body"):
            pass
        await answer_without_reading(scope, receive, send)

    async with server(reads) as dialer:
        answer = await dialer.response_to(sent)

    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"application/problem+json" in answer
    assert "Traceback" not in caplog.text


async def test_an_endless_chunked_body_is_refused() -> None:
    async def reads(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive()).get("more_body"):
            pass
        await answer_without_reading(scope, receive, send)

    async with server(reads, max_body=1000) as dialer:
        client = await dialer.client()
        client.send(
            b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 5000
        )
        assert await client.status() == "413"

        async def goes_on() -> None:
            while True:
                client.send(b"1\r\nx\r\n" * 100)
                await asyncio.sleep(0.01)

        going_on = asyncio.create_task(goes_on())
        # The response ends, regardless of further data.
        await client.answer()
        going_on.cancel()
