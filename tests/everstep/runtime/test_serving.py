"""The API on a port: its address, its input limits, and its shutdown."""

import asyncio
import socket
from collections.abc import AsyncGenerator

import httpx2
import pytest
from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from everstep.agent_domain.errors import InvalidInput
from everstep.http_api.metrics import Metrics
from everstep.http_api.middleware import RequestMiddleware
from everstep.runtime import serving
from everstep.runtime.serving import serve_app


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Returns the length of the body."""
    assert scope["type"] == "http"
    size, more = 0, True
    while more:
        message = await receive()
        size, more = size + len(message.get("body", b"")), message.get("more_body", False)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": str(size).encode()})


async def test_it_answers_at_its_url_until_it_stops() -> None:
    async with serve_app(echo, "127.0.0.1", 0) as url:
        async with httpx2.AsyncClient() as client:
            answer = await client.post(url, content=b"12345")
        assert answer.text == "5"
        assert "server" not in answer.headers

    async with httpx2.AsyncClient() as client:
        with pytest.raises(httpx2.ConnectError):
            await client.get(url)


async def cut_short(scope: Scope, receive: Receive, send: Send) -> None:
    """Begins a response and gives it up."""
    await receive()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"1", "more_body": True})


async def test_a_stream_that_is_given_up_is_no_error_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """17.2.6: the client reads too slowly, or is gone."""
    async with serve_app(cut_short) as url, httpx2.AsyncClient() as client:
        with pytest.raises(httpx2.RemoteProtocolError):
            await client.get(url)
    assert caplog.messages == []


async def test_a_busy_port_is_replaced_where_that_is_allowed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(InvalidInput, match=f"port {port} of 127.0.0.1 cannot be used"):
            async with serve_app(echo, "127.0.0.1", port):
                pass
        async with serve_app(echo, "127.0.0.1", port, or_any=True) as url:
            assert str(port) not in url


async def test_an_invalid_host_is_reported() -> None:
    with pytest.raises(InvalidInput, match="EVERSTEP_HTTP_HOST"):
        async with serve_app(echo, "no such host.invalid", 0):
            pass


async def test_a_wildcard_address_is_shown_as_one_that_works() -> None:
    async with serve_app(echo, "0.0.0.0", 0) as url, httpx2.AsyncClient() as client:  # noqa: S104 -- a test
        assert url.startswith("http://127.0.0.1:")
        assert (await client.get(url)).text == "0"


async def test_a_request_in_progress_is_answered_before_it_stops() -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        begun.set()
        await go_on.wait()
        await echo(scope, receive, send)

    async with httpx2.AsyncClient() as client:
        async with serve_app(slow, "127.0.0.1", 0) as url:
            answer = asyncio.create_task(client.post(url, content=b"x"))
            await begun.wait()
            asyncio.get_running_loop().call_later(0.2, go_on.set)
        assert (await answer).text == "1"


async def body_chunks(size: int) -> AsyncGenerator[bytes]:
    """A body without a length."""
    for _ in range(size // 10):
        yield b"x" * 10


async def test_a_chunked_body_is_limited_on_the_wire() -> None:
    async with (
        serve_app(RequestMiddleware(echo, Metrics(), 100), "127.0.0.1", 0) as url,
        httpx2.AsyncClient() as client,
    ):
        assert (await client.post(url, content=body_chunks(100))).text == "100"
        answer = await client.post(url, content=body_chunks(110))

    assert answer.status_code == 413
    assert answer.headers["connection"] == "close"


async def test_a_body_has_to_arrive_in_time() -> None:
    edge = RequestMiddleware(echo, Metrics(), 100, patience=0.05)
    async with serve_app(edge, "127.0.0.1", 0) as url:
        host, port = url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\nhalf")
        answer = (await reader.read()).decode()
        writer.close()
        await writer.wait_closed()

    assert answer.startswith("HTTP/1.1 408 ")
    assert "send the same request again" in answer


async def test_a_client_that_disconnects_while_sending_is_not_logged_as_an_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    metrics = Metrics()
    async with serve_app(RequestMiddleware(echo, metrics, 100), "127.0.0.1", 0) as url:
        host, port = url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\nhalf")
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    assert 'status="499"' in metrics.render().decode()
    assert "everstep_http_requests_in_progress 0.0" in metrics.render().decode()
    assert "Traceback" not in caplog.text


async def test_a_client_that_disconnects_before_its_request_is_read_is_no_server_error() -> None:
    """A request without a body: the application's first read finds the connection closed."""

    async def read(scope: Scope, receive: Receive, send: Send) -> None:
        await Request(scope, receive).body()

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        pytest.fail(f"sent {message} to a closed connection")

    metrics = Metrics()
    headers = [(b"host", b"x")]
    scope = {"type": "http", "method": "GET", "raw_path": b"/", "query_string": b"", "headers": headers}
    await RequestMiddleware(read, metrics)(scope, receive, send)

    assert 'status="499"' in metrics.render().decode()


async def test_a_request_that_outlasts_the_shutdown_may_be_sent_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Uvicorn's own response would be plain text with 500."""
    monkeypatch.setattr(serving, "SHUTDOWN_SECONDS", 0)
    begun = asyncio.Event()

    async def hang(scope: Scope, receive: Receive, send: Send) -> None:
        del scope, receive, send
        begun.set()
        await asyncio.Event().wait()

    async with httpx2.AsyncClient() as client:
        async with serve_app(RequestMiddleware(hang, Metrics())) as url:
            request = asyncio.create_task(client.post(url))
            await begun.wait()
        answer = await request

    assert answer.status_code == 503
    assert answer.headers["Retry-After"] == "1"
    assert answer.json()["type"] == "urn:everstep:problem:unavailable"
    assert "send the same request again" in answer.json()["detail"]
