"""An HTTP server that sends exactly these bytes, and records its requests."""

import asyncio
import json
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, TypeAlias

JSON_HEADERS = {"Content-Type": "application/json"}
SSE_HEADERS = {"Content-Type": "text/event-stream"}


class StreamBreak(Enum):
    """How a stream is broken."""

    CUT = auto()
    """The connection is dropped."""
    STALL = auto()
    """The server sends nothing more until the client disconnects."""


Piece: TypeAlias = bytes | StreamBreak


@dataclass(frozen=True)
class Reply:
    """One response; each chunk is written separately."""

    pieces: Sequence[Piece] = ()
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=lambda: SSE_HEADERS)

    @classmethod
    def json(cls, status: int, body: object, **headers: str) -> "Reply":
        """An error, or any other response that is not a stream."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return cls((json.dumps(body).encode(),), status, JSON_HEADERS | named)


@dataclass(frozen=True)
class ReceivedRequest:
    """One request as it arrived."""

    path: str
    headers: Mapping[str, str]
    body: dict[str, Any]
    connection: int


class WireServer:
    """Plays its replies in order; the last one repeats."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.replies: list[Reply] = []
        self.requests: list[ReceivedRequest] = []
        self.connections = 0
        self.hung_up = asyncio.Event()

    def answers(self, *replies: Reply | Iterable[Piece]) -> None:
        """The next replies; a list of chunks is a stream with status 200."""
        self.replies = [r if isinstance(r, Reply) else Reply(tuple(r)) for r in replies]

    async def on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until either side closes it."""
        self.connections += 1
        number = self.connections
        try:
            while await self._serve_request(reader, writer, number):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            self.hung_up.set()
        finally:
            writer.close()

    async def _serve_request(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int
    ) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in head[1:] if line)}
        body = await reader.readexactly(int(headers["content-length"]))
        self.requests.append(ReceivedRequest(head[0].split()[1], headers, json.loads(body), number))
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        lines = [f"{name}: {value}" for name, value in reply.headers.items()]
        begin = [f"HTTP/1.1 {reply.status} X", "Transfer-Encoding: chunked", *lines, "", ""]
        writer.write("\r\n".join(begin).encode())
        return await self._send_reply(reply, reader, writer)

    async def _send_reply(
        self, reply: Reply, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        for piece in reply.pieces:
            if piece is StreamBreak.CUT:
                await writer.drain()
                return False
            if piece is StreamBreak.STALL:
                await writer.drain()
                await reader.read()
                self.hung_up.set()
                return False
            assert isinstance(piece, bytes)
            writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            await writer.drain()
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True


@asynccontextmanager
async def wire_server() -> AsyncGenerator[WireServer]:
    """A server on a free port."""
    holder: list[WireServer] = []
    serving: set[asyncio.Task[None]] = set()

    def on_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(holder[0].on_connection(reader, writer))
        serving.add(task)
        task.add_done_callback(serving.discard)

    server = await asyncio.start_server(on_connection, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    holder.append(WireServer(f"http://127.0.0.1:{port}"))
    try:
        yield holder[0]
    finally:
        server.close()
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)
