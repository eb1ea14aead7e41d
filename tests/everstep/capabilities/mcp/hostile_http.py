"""A hostile MCP server over HTTP, without the SDK, which would prevent the violations."""

import asyncio
import gzip
import json
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import uvicorn

HUGE = 25_000_000
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Headers = dict[str, str]


class HostileHttp:
    """The requests that it received, with their headers, and its configured behaviour."""

    def __init__(self) -> None:
        self.url = ""
        self.seen: list[tuple[str, Headers]] = []
        self.sessions = 0
        self.token = ""
        """If set, the only accepted token."""
        self.forgets_with = 0
        """If set, the HTTP status of the next call: its session has expired."""
        self.never = asyncio.Event()

    @property
    def methods(self) -> list[str]:
        return [method for method, _ in self.seen]

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        if scope["method"] == "DELETE":
            await respond(send, 200, b"")
            return
        if scope["method"] != "POST":
            await respond(send, 405, b"")
            return
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        request: dict[str, Any] = json.loads(body)
        self.seen.append((request.get("method", ""), headers))
        if self.token and headers.get("authorization") != f"Bearer {self.token}":
            said = {"error": f"the token {headers.get('authorization')} is no good"}
            await respond(send, 401, json.dumps(said).encode())
            return
        await self._respond_to_request(request, headers, send)

    async def _respond_to_request(self, request: dict[str, Any], headers: Headers, send: Send) -> None:
        match request.get("method"):
            case "initialize":
                self.sessions += 1
                result: dict[str, Any] = {
                    "protocolVersion": request["params"]["protocolVersion"],
                    "capabilities": {"tools": {}},
                    "serverInfo": {"name": "hostile", "version": "1"},
                }
                session = [(b"mcp-session-id", f"session-{self.sessions}".encode())]
                await respond(send, 200, result_body(request, result), session)
            case "tools/list":
                names = [
                    "whoami",
                    "never",
                    "slow",
                    "huge",
                    "gzipped",
                    "cut",
                    "status",
                    "html",
                    "late_stream",
                    "echo_secret",
                ]
                tools = [{"name": name, "inputSchema": {"type": "object"}} for name in names]
                await respond(send, 200, result_body(request, {"tools": tools}))
            case "tools/call":
                await self._call_tool(request, headers, send)
            case "notifications/cancelled":
                await self.never.wait()
            case _ if "id" in request:
                error = {
                    "jsonrpc": "2.0",
                    "id": None,
                    "error": {"code": -32601, "message": "Method not found"},
                }
                await respond(send, 404, json.dumps(error).encode())
            case _:
                await respond(send, 202, b"")

    async def _call_tool(self, request: dict[str, Any], headers: Headers, send: Send) -> None:
        if self.forgets_with:
            error = {
                "jsonrpc": "2.0",
                "id": None,
                "error": {"code": -32000, "message": "No valid session ID"},
            }
            status, self.forgets_with = self.forgets_with, 0
            await respond(send, status, json.dumps(error).encode())
            return
        who = headers.get("authorization", "nobody")
        args: dict[str, Any] = request["params"].get("arguments") or {}
        match request["params"]["name"]:
            case "whoami":
                await respond(send, 200, text_result(request, who))
            case "slow":
                await asyncio.sleep(args["seconds"])
                await respond(send, 200, text_result(request, "slept"))
            case "never":
                await self.never.wait()
            case "late_stream":
                await begin(send, 200, kind=b"text/event-stream")
                for _ in range(3):
                    await send({"type": "http.response.body", "body": b": still here\n\n", "more_body": True})
                event = b"event: message\ndata: " + text_result(request, "by stream") + b"\n\n"
                await send({"type": "http.response.body", "body": event})
            case "echo_secret":
                error = {"code": -32603, "message": f"no {who}"}
                text = json.dumps({"jsonrpc": "2.0", "id": request["id"], "error": error})
                await respond(send, 200, text.encode())
            case other:
                await answer_badly(other, request, args, send)


async def answer_badly(tool: str, request: dict[str, Any], args: dict[str, Any], send: Send) -> None:
    match tool:
        case "huge":
            await respond(send, 200, text_result(request, "x" * HUGE))
        case "gzipped":
            packed = gzip.compress(text_result(request, "x" * HUGE), compresslevel=1)
            await respond(send, 200, packed, [(b"content-encoding", b"gzip")])
        case "cut":
            whole = text_result(request, "x" * 1_000)
            await begin(send, 200, [(b"content-length", str(len(whole)).encode())])
            await send({"type": "http.response.body", "body": whole[:500], "more_body": True})
            raise ConnectionError("cut off, as ordered")
        case "status":
            await respond(send, args["status"], b"<html>no</html>", kind=b"text/html")
        case _:
            await respond(send, 200, b"<html>hello</html>", kind=b"text/html")


def result_body(request: dict[str, Any], result: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}).encode()


def text_result(request: dict[str, Any], text: str) -> bytes:
    return result_body(request, {"content": [{"type": "text", "text": text}]})


async def begin(
    send: Send,
    status: int,
    headers: list[tuple[bytes, bytes]] | None = None,
    kind: bytes = b"application/json",
) -> None:
    start = {"type": "http.response.start", "status": status}
    await send({**start, "headers": [(b"content-type", kind), *(headers or [])]})


async def respond(
    send: Send,
    status: int,
    body: bytes,
    headers: list[tuple[bytes, bytes]] | None = None,
    kind: bytes = b"application/json",
) -> None:
    await begin(send, status, headers, kind)
    await send({"type": "http.response.body", "body": body})


@asynccontextmanager
async def hostile_http() -> AsyncGenerator[HostileHttp]:
    """The server, on a free port."""
    app = HostileHttp()
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        app.url = f"http://127.0.0.1:{listening.getsockname()[1]}/mcp"
        config = uvicorn.Config(app, log_config=None, lifespan="off", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve([listening]))
        try:
            yield app
        finally:
            app.never.set()
            server.should_exit = True
            await serving
