"""A gateway with the native protocol and configurable faults."""

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any
from uuid import UUID, uuid4

from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from everstep.agent_domain.loop.status import WireStatus
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.stream import envelopes
from everstep.agent_domain.stream.envelopes import (
    Attempt,
    Envelope,
    stream_chunk_record,
    stream_snapshot_record,
)
from everstep.agent_domain.stream.reader import Place, Position, Reader
from everstep.agent_domain.stream.records import EventRecord
from everstep.streams.backoff import ClientTimings

AT = datetime(2026, 1, 16, 10, 5, tzinfo=UTC)
QUICK = ClientTimings(first_delay=0.001, max_delay=0.01, reply_timeout=5.0)
TOKEN = "let me in"  # noqa: S105 -- no secret


class Fault(StrEnum):
    """What fails when a frame is sent."""

    NONE = "none"
    CUT = "cut"
    CRASH = "crash"
    BYE = "bye"
    CLOSE = "close"
    TWICE = "twice"
    DROP = "drop"
    GARBAGE = "garbage"
    FORGET = "forget"
    """The epoch has changed."""


@dataclass
class ScriptedExecution:
    """The output of an execution, in order: stored envelopes with numbers, and chunks between them."""

    execution_id: UUID = field(default_factory=uuid4)
    session_id: UUID | None = None
    told: list[Envelope] = field(default_factory=list[Envelope])
    texts: dict[int, str] = field(default_factory=dict[int, str])
    """By step: the stored messages."""
    seq: int = 0

    @property
    def stored_envelopes(self) -> list[Envelope]:
        """Envelopes, which have a number."""
        return [envelope for envelope in self.told if envelope.seq]

    @property
    def channel(self) -> str:
        """The channel of the execution."""
        if self.session_id:
            return f"agent.session.{self.session_id}"
        return f"agent.execution.{self.execution_id}"

    def append_event(self, record: EventRecord) -> None:
        """Append an envelope."""
        self.seq += 1
        self.told.append(Envelope.of(record, self.session_id, self.execution_id, AT).numbered(self.seq))

    def append_chunk(self, step: int, attempt: int, index: int, content: str) -> None:
        """Append a chunk of the model's text, if it is not empty."""
        chunk = stream_chunk_record(
            Attempt(step, attempt), index, content, is_complete=not content, after_seq=self.seq
        )
        self.told.append(Envelope.of(chunk, self.session_id, self.execution_id, AT))

    def append_step(self, number: int, *attempts: Sequence[str]) -> None:
        """Append a step: the text of the last attempt is the stored one."""
        self.append_event(envelopes.step_started_record(number, 1, []))
        for attempt, words in enumerate(attempts, 1):
            for index, word in enumerate(words):
                self.append_chunk(number, attempt, index, word)
            if attempt < len(attempts):
                self.append_event(envelopes.attempt_superseded_record(Attempt(number, attempt), attempt + 1))
            else:
                self.append_chunk(number, attempt, len(words), "")
                self.texts[number] = "".join(words)
        done = envelopes.step_completed_record(
            number, has_tool_calls=False, errors=0, finish_reason="stop", usage=Usage(), duration_ms=1
        )
        self.append_event(done)

    def append_status(self, status: WireStatus, previous: WireStatus) -> None:
        """Append a status change."""
        self.append_event(envelopes.status_changed_record(status, previous, change=self.seq, step_count=0))

    def append_end(self) -> "ScriptedExecution":
        """Complete the execution."""
        self.append_status(WireStatus.COMPLETED, WireStatus.PROCESSING)
        return self


def a_scripted_execution(*texts: Sequence[str]) -> ScriptedExecution:
    """One step for each text, and the end."""
    told = ScriptedExecution()
    told.append_status(WireStatus.PROCESSING, WireStatus.IDLE)
    for number, words in enumerate(texts, 1):
        told.append_step(number, words)
    return told.append_end()


@dataclass
class ScriptedGateway:
    """Sends a tale to its subscribers; a subscriber that reconnects gets the frames that it missed."""

    tale: ScriptedExecution
    faults: Iterator[Fault] = field(default_factory=lambda: iter(()))
    ping_after: float = 10.0
    token: str | None = TOKEN
    """The accepted token; None accepts any."""
    epoch: str = "first"
    received: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """The frames that it received."""
    connections: int = 0
    at: int = 0
    """How much of the tale has been published."""
    until: int | None = None
    """How much may be published for now."""
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    url: str = ""

    @asynccontextmanager
    async def open(self) -> AsyncGenerator["ScriptedGateway"]:
        """Listen on a free port."""
        async with serve(
            self._accept, "127.0.0.1", 0, subprotocols=[Subprotocol("everstep.v1")], ping_interval=None
        ) as up:
            self.url = f"ws://127.0.0.1:{up.sockets[0].getsockname()[1]}"
            yield self

    def publish_until(self, until: int | None = None) -> None:
        """Publish more of the tale."""
        self.until = until
        self.go_on.set()

    async def _accept(self, socket: ServerConnection) -> None:
        self.connections += 1
        with suppress(ConnectionClosed):
            await self.serve_connection(socket)

    async def serve_connection(self, socket: ServerConnection) -> None:
        """One connection, from hello to its end."""
        hello = json.loads(await socket.recv())
        self.received.append(hello)
        if hello["type"] != "hello" or hello["token"] != (self.token or hello["token"]):
            await self.send_close_frame(socket, 3502, None)
            return
        await socket.send(json.dumps({"type": "welcome", "ping_after": self.ping_after}))
        inbox = asyncio.Queue[dict[str, Any] | None]()
        reading = asyncio.create_task(self._receive(socket, inbox))
        try:
            while (frame := await inbox.get()) is not None:
                if frame["type"] == "sub":
                    await self._serve_subscription(socket, frame, inbox)
        finally:
            reading.cancel()

    async def _receive(self, socket: ServerConnection, inbox: "asyncio.Queue[dict[str, Any] | None]") -> None:
        with suppress(ConnectionClosed):
            async for text in socket:
                frame = json.loads(text)
                self.received.append(frame)
                if frame["type"] == "ping":
                    await self.on_ping(socket)
                else:
                    inbox.put_nowait(frame)
        inbox.put_nowait(None)
        self.go_on.set()

    async def on_ping(self, socket: ServerConnection) -> None:
        """The client sent a ping."""
        await socket.send('{"type": "pong"}')

    async def _serve_subscription(
        self, socket: ServerConnection, frame: dict[str, Any], inbox: "asyncio.Queue[dict[str, Any] | None]"
    ) -> None:
        if frame["channel"] != self.tale.channel:
            error = {"type": "sub_error", "channel": frame["channel"], "message": "there is none"}
            await socket.send(json.dumps(error))
            return
        since = Position.from_dict(frame["since"]) if "since" in frame else None
        happened = self.tale.told[: self.at]
        head = max((envelope.seq or 0 for envelope in happened), default=0)
        recovered = since is not None and since.epoch in (None, self.epoch) and since.seq <= head
        start = since.seq if since and recovered else head
        answer = {"type": "sub_ok", "channel": frame["channel"], "epoch": self.epoch, "seq": start}
        await socket.send(json.dumps(answer | {"recovered": recovered}))
        missed = [envelope for envelope in happened if (envelope.seq or 0) > start]
        for envelope in (*missed, *self._drafts(happened, since if recovered else None)):
            await self.send(socket, envelope)
            if not inbox.empty():
                return
        while self.until is not None or self.at < len(self.tale.told):
            if self.until is not None and self.at >= min(self.until, len(self.tale.told)):
                self.go_on.clear()
                await self.go_on.wait()
                if not inbox.empty():
                    return
                continue
            self.at += 1
            await self.send(socket, self.tale.told[self.at - 1])
            if not inbox.empty():
                return

    def _drafts(self, happened: list[Envelope], since: Position | None) -> Iterator[Envelope]:
        """The part of the current text that a subscriber needs that has read so far."""
        reader = Reader()
        for envelope in happened:
            reader.take(envelope)
        for of, draft in reader.drafts.items():
            if draft.is_settled or not draft.place.next_index:
                continue
            seen = (since.drafts.get(of) if since else None) or Place(0, 0, 0)
            chunks = [
                each for each in happened if each.seq is None and _position(each)[:2] == draft.place[:2]
            ]
            if seen.attempted == draft.place.attempted:
                yield from chunks[seen.next_index :]
            else:
                step, attempt, index = draft.place
                written = stream_snapshot_record(Attempt(step, attempt), index, draft.content, self.tale.seq)
                yield Envelope.of(written, self.tale.session_id, of, AT)

    async def send(self, socket: ServerConnection, envelope: Envelope) -> None:
        """Send one envelope, or fail in the configured way."""
        text = json.dumps(envelope.to_dict(), default=dict)
        match fault := next(self.faults, Fault.NONE):
            case Fault.NONE:
                await socket.send(text)
            case Fault.TWICE:
                await socket.send(text)
                await socket.send(text)
            case Fault.DROP:
                # A gap after the last envelope would never be detected.
                if envelope is self.tale.told[-1]:
                    await socket.send(text)
            case Fault.GARBAGE:
                await socket.send(text[: len(text) // 2])
                await socket.wait_closed()
                raise ConnectionClosed(None, None)
            case Fault.CUT:
                await socket.send(text)
                socket.transport.abort()
                raise ConnectionClosed(None, None)
            case Fault.CRASH | Fault.CLOSE:
                await socket.close(1011 if fault is Fault.CRASH else 3000)
                raise ConnectionClosed(None, None)
            case Fault.BYE:
                await self.send_close_frame(socket, 3000, 0.0)
            case Fault.FORGET:
                self.epoch += "'"
                await self.send_close_frame(socket, 3002, 0.0)

    async def send_close_frame(self, socket: ServerConnection, code: int, reconnect_in: float | None) -> None:
        """The last frame."""
        farewell = {"type": "bye", "code": code, "reason": "so it is", "reconnect_in": reconnect_in}
        await socket.send(json.dumps(farewell))
        await socket.close(code)
        raise ConnectionClosed(None, None)


def _position(envelope: Envelope) -> Place:
    payload = envelope.payload
    return Place(payload["step_number"], payload["attempt"], payload["chunk_index"])
