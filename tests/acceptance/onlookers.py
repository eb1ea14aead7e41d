"""Viewers of every kind, which reconnect whenever they are cut and keep what they receive.

Three of the four implement the reader's rule by hand, each over its own wire; the fourth is the client
library. Violations are recorded as faults: an envelope out of order, text of a finished step, text that does
not continue the previous text, a close code that forbids reconnecting.
"""

import asyncio
import json
from abc import ABC, abstractmethod
from copy import deepcopy
from dataclasses import dataclass, field
from http import HTTPStatus
from random import Random
from typing import Any
from uuid import UUID

import httpx2
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake
from websockets.typing import Subprotocol

from everstep.agent_domain.stream.envelopes import Envelope, EnvelopeType
from everstep.agent_domain.stream.reader import (
    AFTER_ALL_ATTEMPTS,
    AttemptKey,
    Draft,
    Position,
    Reader,
    ReadOutcome,
    fence_from,
)
from everstep.streams.backoff import ClientTimings
from everstep.streams.client_events import Happened, Reload, Wrote
from everstep.streams.gateway_client import Stream as Following
from tests.acceptance.ways import HOST, Way

QUIET = 60.0
"""Seconds of silence after which a viewer reconnects on its own initiative."""
RESYNC = 0.2
"""Seconds before a viewer asks for missing envelopes, which may still be on their way."""


class ConnectionCut(Exception):
    """The connection is unusable; reconnect."""


@dataclass(frozen=True)
class Text:
    """The text of an attempt, as far as it was read."""

    attempt: int
    content: str
    is_complete: bool


@dataclass
class Received:
    """Everything that a viewer received."""

    stored: list[Envelope] = field(default_factory=list[Envelope])
    texts: dict[tuple[UUID, int], Text] = field(default_factory=dict[tuple[UUID, int], Text])
    """By execution and step: the text in progress, or the text at the moment when the step completed."""
    drafts: dict[tuple[UUID, int], Draft] = field(default_factory=dict[tuple[UUID, int], Draft])
    """The reader's draft when a step completed, by the same key."""
    floors: dict[UUID, AttemptKey] = field(default_factory=dict[UUID, AttemptKey])
    faults: list[str] = field(default_factory=list[str])
    words: int = 0
    """The number of text chunks received."""

    def on_envelope(self, envelope: Envelope, reader: Reader | None = None) -> None:
        """Record a stored envelope as it is applied."""
        if envelope.seq != len(self.stored) + 1:
            self.faults.append(f"{envelope.seq} after {len(self.stored)}")
        self.stored.append(envelope)
        floor = fence_from(envelope.type, envelope.payload)
        if floor is None:
            return
        execution_id = envelope.execution_id
        self.floors[execution_id] = max(floor, self.floors.get(execution_id, (0, 0)))
        key = execution_id, envelope.payload.get("step_number", 0)
        if envelope.type == EnvelopeType.AGENT_ATTEMPT_SUPERSEDED:
            text = self.texts.get(key)
            if text and text.attempt < floor[1]:
                del self.texts[key]
        elif floor != AFTER_ALL_ATTEMPTS and reader:
            draft = reader.drafts[execution_id]
            if draft.place.step_number == key[1]:
                self.drafts[key] = deepcopy(draft)

    def on_text(self, execution_id: UUID, step_number: int, text: Text) -> None:
        """Record the whole text of the attempt in progress."""
        self.words += 1
        key, where = (execution_id, step_number), f"step {step_number} of {execution_id}"
        before = self.texts.get(key)
        if (step_number, text.attempt) < self.floors.get(execution_id, (0, 0)):
            self.faults.append(f"text of attempt {text.attempt} that is over: {where}")
        elif before and text.attempt < before.attempt:
            self.faults.append(f"text of attempt {text.attempt} after {before.attempt}: {where}")
        elif before and text.attempt == before.attempt and not text.content.startswith(before.content):
            self.faults.append(f"text that does not go on: {where}")
        self.texts[key] = text


@dataclass(frozen=True)
class Endpoints:
    """The address and credentials of every wire."""

    api: str
    key: str
    app: str = "everstep"

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"}


@dataclass(eq=False)
class StreamViewer(ABC):
    """Watches one stream over its own wire."""

    name: str
    stream_id: UUID
    is_session: bool
    way: Way
    endpoints: Endpoints
    dice: Random
    received: Received = field(default_factory=Received)
    connections: int = 0
    resyncs: int = 0
    ends: list[str] = field(default_factory=list[str])

    @property
    def channel(self) -> str:
        return f"agent.{'session' if self.is_session else 'execution'}.{self.stream_id}"

    @property
    def position(self) -> object:
        """The current position, for reports."""
        return len(self.received.stored)

    async def watch(self) -> None:
        """Watch until cancelled."""
        while True:
            self.connections += 1
            try:
                await self.connection()
            except (
                ConnectionCut,
                ConnectionClosed,
                InvalidHandshake,
                httpx2.TransportError,
                OSError,
                EOFError,
            ) as end:
                self.ends.append(f"{type(end).__name__}: {end}")
            await asyncio.sleep(self.dice.uniform(0.05, 0.4))

    @abstractmethod
    async def connection(self) -> None:
        """Read one connection from the current position until it ends."""

    def fault(self, what: str) -> None:
        """Record a violation."""
        self.received.faults.append(what)


class ManualViewer(StreamViewer):
    """Implements the reader's rule by hand."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.reader = Reader()

    @property
    def position(self) -> object:
        return self.reader.position.to_dict()

    def on_subscribed(self, answer: dict[str, Any]) -> None:
        """Apply the reply to a subscription."""
        if not answer["recovered"]:
            self.fault(f"not recovered at {self.position}: {answer}")
        self.reader.joined(answer["epoch"], answer["seq"], recovered=answer["recovered"])

    def take(self, envelope: Envelope) -> bool:
        """Return whether the envelope has no gap before it."""
        taken = self.reader.take(envelope)
        if taken is ReadOutcome.APPLIED and envelope.seq is not None:
            self.received.on_envelope(envelope, self.reader)
        elif taken is ReadOutcome.APPLIED:
            draft = self.reader.drafts[envelope.execution_id]
            text = Text(draft.place.attempt, draft.content, draft.is_complete)
            self.received.on_text(envelope.execution_id, draft.place.step_number, text)
        self.resyncs += taken is ReadOutcome.RESYNC
        return taken is not ReadOutcome.RESYNC


class NativeViewer(ManualViewer):
    """`everstep.v1`, frame by frame."""

    async def connection(self) -> None:
        url = f"ws://{HOST}:{self.way.port}/v1"
        protocols = [Subprotocol("everstep.v1")]
        async with connect(
            url, subprotocols=protocols, compression=None, close_timeout=0.2, ping_interval=None, proxy=None
        ) as socket:
            await self._say(socket, type="hello", token=self.endpoints.key)
            await self._subscribe(socket)
            is_asked = True
            while True:
                async with asyncio.timeout(QUIET):
                    frame = json.loads(await socket.recv())
                match frame:
                    case {"payload": _}:
                        if not self.take(Envelope.from_dict(frame)) and not is_asked:
                            is_asked = True
                            await asyncio.sleep(RESYNC)
                            await self._subscribe(socket)
                    case {"type": "sub_ok"}:
                        is_asked = False
                        self.on_subscribed(frame)
                    case {"type": "bye", "code": code}:
                        if code >= 3500:
                            self.fault(f"told to stay away: {frame}")
                        raise ConnectionCut(f"bye: {frame['reason']}")
                    case {"type": "welcome" | "pong"}:
                        pass
                    case other:
                        self.fault(f"what is {other}?")

    async def _subscribe(self, socket: ClientConnection) -> None:
        await self._say(socket, type="sub", channel=self.channel, since=self.reader.position.to_dict())

    async def _say(self, socket: ClientConnection, **frame: Any) -> None:
        await socket.send(json.dumps(frame))


class PusherViewer(ManualViewer):
    """The Pusher protocol as pusher-js speaks it, with a position in the signed channel data."""

    async def connection(self) -> None:
        url = f"ws://{HOST}:{self.way.port}/app/{self.endpoints.app}?protocol=7&client=test&version=1"
        async with (
            httpx2.AsyncClient(base_url=self.endpoints.api, headers=self.endpoints.headers) as http,
            connect(url, compression=None, close_timeout=0.2, ping_interval=None, proxy=None) as socket,
        ):
            socket_id, is_asked = "", True
            while True:
                async with asyncio.timeout(QUIET):
                    frame = json.loads(await socket.recv())
                match frame:
                    case {"event": "pusher:connection_established", "data": data}:
                        socket_id = json.loads(data)["socket_id"]
                        await self._subscribe(http, socket, socket_id)
                    case {"event": "pusher_internal:subscription_succeeded", "data": data}:
                        is_asked = False
                        self.on_subscribed(json.loads(data))
                    case {"event": "pusher:error", "data": {"code": code}}:
                        if not 4100 <= code < 4300:
                            self.fault(f"told to stay away: {frame}")
                        raise ConnectionCut(f"error {frame['data']}")
                    case {"event": "pusher:pong"}:
                        pass
                    case {"channel": channel, "data": data} if channel == f"private-{self.channel}":
                        if not self.take(Envelope.from_dict(json.loads(data))) and not is_asked:
                            is_asked = True
                            await asyncio.sleep(RESYNC)
                            await self._subscribe(http, socket, socket_id)
                    case other:
                        self.fault(f"what is {other}?")

    async def _subscribe(self, http: httpx2.AsyncClient, socket: ClientConnection, socket_id: str) -> None:
        channel = f"private-{self.channel}"
        asked = {"socket_id": socket_id, "channel_name": channel, "since": self.reader.position.to_dict()}
        answer = await http.post("/broadcasting/auth", json=asked)
        if answer.status_code == HTTPStatus.SERVICE_UNAVAILABLE:
            raise ConnectionCut("nobody signs now")
        if answer.status_code != HTTPStatus.OK:
            self.fault(f"not signed: {answer.status_code} {answer.text}")
            raise ConnectionCut("not signed")
        sent = {"event": "pusher:subscribe", "data": {"channel": channel, **answer.json()}}
        await socket.send(json.dumps(sent))


class SseViewer(ManualViewer):
    """Server-sent events as browsers read them: the position is the id of the last event."""

    last = "0"

    async def connection(self) -> None:
        url = f"http://{HOST}:{self.way.port}/agent/streams/{self.stream_id}"
        headers = {**self.endpoints.headers, "Last-Event-ID": self.last}
        async with (
            httpx2.AsyncClient(timeout=QUIET) as http,
            http.stream("GET", url, headers=headers) as answer,
        ):
            if answer.status_code == HTTPStatus.SERVICE_UNAVAILABLE:
                raise ConnectionCut("no events now")
            if answer.status_code != HTTPStatus.OK:
                self.fault(f"no events: {answer.status_code} {await answer.aread()}")
                raise ConnectionCut("no events")
            waiting = b""
            async for data in answer.aiter_raw():
                *events, waiting = (waiting + data).split(b"\n\n")
                for event in events:
                    self._read(event.decode())
        raise ConnectionCut("it ended")

    def _read(self, event: str) -> None:
        fields = dict(line.split(": ", 1) for line in event.split("\n") if line and not line.startswith(":"))
        match fields.get("event"):
            case None:
                return
            case "joined":
                self.on_subscribed(json.loads(fields["data"]))
            case "bye":
                raise ConnectionCut(f"bye: {fields['data']}")
            case kind:
                envelope = Envelope.from_dict(json.loads(fields["data"]))
                if kind != envelope.type:
                    self.fault(f"{kind} is {envelope.type}")
                if not self.take(envelope):
                    raise ConnectionCut("something is missing")
        self.last = fields.get("id", self.last)


class ClientViewer(StreamViewer):
    """The client library."""

    async def connection(self) -> None:
        pace = ClientTimings(first_delay=0.1, max_delay=1.0, reply_timeout=10.0)
        url = f"ws://{HOST}:{self.way.port}"
        stream = Following(url, self.channel, self.endpoints.key, Position(), pace)
        async for event in stream:
            match event:
                case Happened(envelope):
                    self.received.on_envelope(envelope)
                case Wrote():
                    text = Text(event.attempt, event.text, event.is_complete)
                    self.received.on_text(event.execution_id, event.step_number, text)
                case Reload():
                    self.fault(f"to load anew: {event}")
        self.fault("it ended")


def is_settled(draft: Draft, message: str) -> bool:
    """Whether a draft equals the stored message after the message was applied, and stays equal."""
    place = draft.place
    draft.settle(place.step_number, message)
    late = draft.take(place, "late", False)
    return draft.content == message and draft.is_complete and late is ReadOutcome.DROPPED
