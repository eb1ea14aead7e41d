"""A gateway that sends what a test scripts: a real WebSocket server with nothing behind it."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from everstep.agent_domain.loop.status import WireStatus
from everstep.agent_domain.stream import envelopes
from everstep.agent_domain.stream.envelopes import Attempt, Envelope
from tests.broadcast_gateway import writers
from tests.broadcast_gateway.writers import SESSION, envelope

DEADLINE = 30.0
CHANNEL = f"agent.session.{SESSION}"
EPOCH = "of-now"

Frame = dict[str, Any]


# Frames.


def stored_frame(seq: int) -> Frame:
    """A stored envelope, with defaults for the rest."""
    return _frame_of(seq, envelope(envelopes.tool_started_record(f"call_{seq}", "add", {}, step_number=1)))


def step_end(seq: int, step_number: int = 1) -> Frame:
    return _frame_of(seq, envelope(writers.step_end(step_number)))


def attempt_end(seq: int) -> Frame:
    return _frame_of(seq, envelope(writers.attempt_end(1, 1)))


def execution_end(seq: int) -> Frame:
    record = envelopes.status_changed_record(
        WireStatus.COMPLETED, WireStatus.PROCESSING, change=seq, step_count=1, last_response="Done."
    )
    return _frame_of(seq, envelope(record))


def _frame_of(seq: int, envelope: Envelope) -> Frame:
    return envelope.numbered(seq).to_dict()


def chunk(index: int, content: str, *, step: int = 1, attempt: int = 1) -> Frame:
    """A chunk of text; without text, it closes the attempt."""
    record = envelopes.stream_chunk_record(Attempt(step, attempt), index, content, is_complete=not content)
    return envelope(record).to_dict()


def snapshot(next_index: int, content: str, *, step: int = 1) -> Frame:
    """A snapshot of the text so far."""
    return envelope(envelopes.stream_snapshot_record(Attempt(step, 1), next_index, content, None)).to_dict()


# Connections.


@dataclass(frozen=True)
class Connection:
    """A client's connection."""

    socket: ServerConnection

    async def send(self, *frames: Frame | str | bytes) -> None:
        """Send these; anything but an object is sent unchanged."""
        for frame in frames:
            await self.socket.send(json.dumps(frame) if isinstance(frame, dict) else frame)

    async def receive(self, kind: str) -> Frame:
        """Read the next frame except pings, which must have this type."""
        async with asyncio.timeout(DEADLINE):
            while (frame := json.loads(await self.socket.recv()))["type"] == "ping" != kind:
                pass
        assert frame["type"] == kind, frame
        return frame

    async def welcome(self, ping_after: float = 60.0) -> str:
        """Welcome the client and return its token."""
        token = (await self.receive("hello"))["token"]
        await self.send({"type": "welcome", "ping_after": ping_after})
        return token

    async def accept_subscription(
        self, seq: int | None = None, *, channel: str = CHANNEL, recovered: bool = True
    ) -> Any:
        """Accept the next subscription and return its position."""
        asked = await self.receive("sub")
        assert asked["channel"] == channel
        since: Any = asked.get("since")
        at: int = since["seq"] if seq is None else seq
        await self.send(
            {"type": "sub_ok", "channel": channel, "epoch": EPOCH, "seq": at, "recovered": recovered}
        )
        return since

    def cut(self) -> None:
        """Cut the connection without a close frame."""
        self.socket.transport.abort()

    async def close_code(self) -> int | None:
        """Wait until the client closes and return its code. Frames before that are ignored."""
        async with asyncio.timeout(DEADLINE):
            try:
                async for _ in self.socket:
                    pass
            except ConnectionClosed:
                pass
        return self.socket.close_code


@dataclass
class ScriptedGateway:
    """The server for all clients of a test."""

    url: str = ""
    _connections: asyncio.Queue[Connection] = field(default_factory=asyncio.Queue[Connection])

    async def next_connection(self) -> Connection:
        """Wait for the next connection."""
        async with asyncio.timeout(DEADLINE):
            return await self._connections.get()

    async def next_client(self, ping_after: float = 60.0) -> Connection:
        """Wait for the next connection and welcome it."""
        connection = await self.next_connection()
        await connection.welcome(ping_after)
        return connection

    async def on_connection(self, socket: ServerConnection) -> None:
        """Pass the connection to the test."""
        self._connections.put_nowait(Connection(socket))
        await socket.wait_closed()

    @property
    def is_left_alone(self) -> bool:
        """Whether no unexpected client has connected."""
        return self._connections.empty()


@asynccontextmanager
async def scripted_gateway() -> AsyncGenerator[ScriptedGateway]:
    """Open a scripted gateway on a free port."""
    gateway = ScriptedGateway()
    protocols = [Subprotocol("everstep.v1")]
    async with serve(
        gateway.on_connection, "127.0.0.1", 0, subprotocols=protocols, ping_interval=None, close_timeout=1
    ) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        gateway.url = f"ws://127.0.0.1:{port}/v1"
        yield gateway
