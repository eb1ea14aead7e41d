"""A gateway on real sockets, with a table and a token service that the test controls."""

import asyncio
import json
import socket
import time
from collections.abc import AsyncGenerator, Collection, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed
from websockets.typing import Origin, Subprotocol

from everstep.agent_domain.errors import StoreUnavailable
from everstep.agent_domain.hosts import AllowedHosts
from everstep.agent_domain.stream import link
from everstep.agent_domain.stream.channels import Channel, channel_signature
from everstep.agent_domain.stream.envelopes import Envelope
from everstep.agent_domain.stream.records import EventRecord
from everstep.broadcast_gateway.frames import RelayedEntry
from everstep.broadcast_gateway.hub import Hub, HubTimings
from everstep.broadcast_gateway.limits import STREAM_LIMITS, GatewayLimits, StreamLimits
from everstep.broadcast_gateway.links import WriterLinks
from everstep.broadcast_gateway.metrics import GatewayMetrics
from everstep.broadcast_gateway.ports import Guest, JournalPage, NotAdmitted, RecordedText
from everstep.broadcast_gateway.protocols import GatewayContext
from everstep.broadcast_gateway.server import GatewayServer
from everstep.broadcast_gateway.wires import websocket
from everstep.streams.nats_connection import NatsServers
from everstep.streams.nats_subscriber import NatsSubscriber
from tests.broadcast_gateway.writers import EXECUTION, SESSION, entry, envelope

KEY, SECRET = "app", "secret-of-the-test"
PATIENCE = 20.0
QUICK = HubTimings(grace=0.001, announce_delay=0.01, compare=0.05, retry=0.01, max_retry=0.05, linger=0.2)


@dataclass
class Table:
    """The stored envelopes, and the number of reads."""

    epoch: str = "first"
    streams: dict[UUID, list[RelayedEntry]] = field(default_factory=dict[UUID, list[RelayedEntry]])
    oldest: int = 1
    noted: dict[str, RecordedText | None] = field(default_factory=dict[str, RecordedText | None])
    is_away: bool = False
    reads: int = 0

    def store(self, count: int = 1, stream_id: UUID = SESSION) -> list[RelayedEntry]:
        """Store this many more envelopes of any kind."""
        rows = self.streams.setdefault(stream_id, [])
        new = [entry(len(rows) + place + 1) for place in range(count)]
        rows += new
        return new

    def store_record(self, record: EventRecord, execution_id: UUID = EXECUTION) -> RelayedEntry:
        """Store and push one more envelope with this content."""
        rows = self.streams.setdefault(SESSION, [])
        rows.append(entry(len(rows) + 1, record, execution_id))
        return rows[-1]

    async def read_page(self, stream_id: UUID, after: int | None, limit: int) -> JournalPage | None:
        self._look()
        rows = self.streams.get(stream_id)
        if rows is None:
            return None
        wanted = [] if after is None else [row for row in rows if row.seq > max(after, self.oldest - 1)]
        return JournalPage(self.epoch, len(rows), self.oldest, wanted[:limit])

    async def read_heads(self, stream_ids: Collection[UUID]) -> tuple[str, Mapping[UUID, int]]:
        self._look()
        return self.epoch, {each: len(self.streams[each]) for each in stream_ids if each in self.streams}

    async def read_texts(self, stream_id: UUID) -> Mapping[str, RecordedText | None]:
        self._look()
        return dict(self.noted)

    def _look(self) -> None:
        self.reads += 1
        if self.is_away:
            raise StoreUnavailable("the table is away")


@dataclass
class Keys:
    """A token is a name; `ann for 0.5` is valid for half a second."""

    is_away: bool = False
    banned: set[str] = field(default_factory=set[str])
    closed: set[UUID] = field(default_factory=set[UUID])
    inside: Mapping[UUID, UUID] = field(default_factory=dict[UUID, UUID])

    async def authenticate_viewer(self, token: str) -> Guest:
        if self.is_away:
            raise StoreUnavailable("nobody knows")
        name, _, seconds = token.partition(" for ")
        if name in self.banned:
            raise NotAdmitted("who is that?")
        return Guest("default", name, time.time() + float(seconds) if seconds else None)

    async def is_good_key(self, key_id: UUID) -> bool:
        if self.is_away:
            raise StoreUnavailable("nobody knows")
        return str(key_id) not in self.banned

    async def find_stream(self, channel: Channel, guest: Guest | None) -> UUID | None:
        if self.is_away:
            raise StoreUnavailable("nobody knows")
        stream_id = self.inside.get(channel.stream_id, channel.stream_id)
        return None if stream_id in self.closed else stream_id


@dataclass
class RunningGateway:
    """A running gateway and its parts."""

    gateway: GatewayServer
    table: Table
    keys: Keys
    port: int
    link_port: int
    parts: AsyncExitStack

    async def stop(self) -> None:
        """Stop it as SIGTERM does."""
        await self.parts.aclose()

    @property
    def hub(self) -> Hub:
        return self.gateway.house.hub


@asynccontextmanager
async def open_gateway(
    table: Table | None = None,
    *,
    bounds: GatewayLimits | None = None,
    limits: StreamLimits = STREAM_LIMITS,
    pace: HubTimings = QUICK,
    keys: Keys | None = None,
    origins: Collection[str] = (),
    nats: NatsServers | None = None,
    hosts: AllowedHosts | None = None,
) -> AsyncGenerator[RunningGateway]:
    table, keys, metrics = table or Table(), keys or Keys(), GatewayMetrics()
    hub = Hub(table, metrics, limits=limits, timings=pace)
    bounds = bounds or GatewayLimits(drain_seconds=0.05, closing_seconds=1.0)
    house = GatewayContext(hub, keys, metrics, bounds, {KEY: SECRET})
    bus = NatsSubscriber(hub, nats, SECRET) if nats else WriterLinks(hub, metrics, SECRET)
    gateway = GatewayServer(house, origins, hosts)
    with listener() as front, listener() as back:
        ports = front.getsockname()[1], back.getsockname()[1]
        async with AsyncExitStack() as parts:
            await parts.enter_async_context(
                bus.open() if isinstance(bus, NatsSubscriber) else bus.open_server(back)
            )
            await parts.enter_async_context(gateway.open_server(front))
            yield RunningGateway(gateway, table, keys, *ports, parts)


def listener() -> socket.socket:
    made = socket.create_server(("127.0.0.1", 0))
    made.setblocking(False)
    return made


@dataclass
class Client:
    socket: ClientConnection

    async def send(self, **frame: Any) -> None:
        await self.socket.send(json.dumps(frame))

    async def next(self) -> dict[str, Any]:
        async with asyncio.timeout(PATIENCE):
            return json.loads(await self.socket.recv())

    async def until(self, **expected: Any) -> dict[str, Any]:
        """Read up to the next frame with these fields, and skip the frames before it."""
        while True:
            frame = await self.next()
            if expected.items() <= frame.items():
                return frame

    async def seqs(self, count: int) -> list[int | None]:
        """The numbers of the next envelopes."""
        return [(await self.next())["seq"] for _ in range(count)]

    async def sub(self, channel: str = f"agent.session.{SESSION}", **since: Any) -> dict[str, Any]:
        await self.send(type="sub", channel=channel, **since)
        return await self.next()

    async def end(self) -> tuple[int, list[dict[str, Any]]]:
        """The close code, and the frames before it."""
        frames: list[dict[str, Any]] = []
        async with asyncio.timeout(PATIENCE):
            with suppress(ConnectionClosed):
                while True:
                    frames.append(json.loads(await self.socket.recv()))
        return self.socket.close_code or 0, frames


@asynccontextmanager
async def raw(url: str, origin: str | None = None, **options: Any) -> AsyncGenerator[Client]:
    async with connect(
        url, origin=Origin(origin) if origin else None, compression=None, close_timeout=0.2, **options
    ) as ws:
        yield Client(ws)


def native_socket(running: RunningGateway, **options: Any) -> AbstractAsyncContextManager[Client]:
    """A connection without any frames yet."""
    url = f"ws://127.0.0.1:{running.port}/v1"
    return raw(url, subprotocols=[Subprotocol(websocket.SUBPROTOCOL)], **options)


@asynccontextmanager
async def open_viewer(running: RunningGateway, name: str = "ann", **options: Any) -> AsyncGenerator[Client]:
    """A viewer with the native protocol after its hello."""
    async with native_socket(running, **options) as client:
        await client.send(type="hello", token=name)
        assert await client.next() == {
            "type": "welcome",
            "ping_after": running.gateway.house.limits.ping_after,
        }
        yield client


@dataclass
class Writer:
    socket: ClientConnection
    table: Table

    async def push(self, *entries: RelayedEntry, stream_id: UUID = SESSION) -> None:
        lines = [f"{stream_id} ".encode() + each.body for each in entries]
        for message in link.pack_lines(lines):
            await self.socket.send(message, text=True)

    async def stream(self, record: EventRecord, execution_id: UUID = EXECUTION) -> None:
        await self.say(envelope(record, execution_id))

    async def say(self, envelope: Envelope, stream_id: UUID = SESSION) -> None:
        for message in link.pack_lines([link.line_from(stream_id, envelope.to_json())]):
            await self.socket.send(message, text=True)

    async def interest(self) -> link.InterestMessage:
        async with asyncio.timeout(PATIENCE):
            return link.parse_gateway_message(await self.socket.recv())


@asynccontextmanager
async def open_writer(running: RunningGateway, secret: str = SECRET) -> AsyncGenerator[Writer]:
    headers = {"Authorization": f"Bearer {link.link_token(secret)}"}
    async with connect(
        f"ws://127.0.0.1:{running.link_port}",
        additional_headers=headers,
        subprotocols=[Subprotocol(link.SUBPROTOCOL)],
        compression=None,
    ) as ws:
        writer = Writer(ws, running.table)
        await ws.send(link.epoch_message(running.table.epoch))
        yield writer


@asynccontextmanager
async def pusher_client(
    running: RunningGateway, key: str = KEY, protocol: str = "7"
) -> AsyncGenerator[Client]:
    url = f"ws://127.0.0.1:{running.port}/app/{key}?protocol={protocol}&client=js&version=8.6.0&flash=false"
    async with raw(url) as client:
        yield client


def joining(socket_id: str, channel: str, data: str | None = None, secret: str = SECRET) -> dict[str, Any]:
    signature = channel_signature(secret, socket_id, channel, data)
    sent = {"channel": channel, "auth": f"{KEY}:{signature}"} | (
        {} if data is None else {"channel_data": data}
    )
    return {"event": "pusher:subscribe", "data": sent}


@asynccontextmanager
async def watching_pair() -> AsyncGenerator[tuple[RunningGateway, Client, Client]]:
    async with open_gateway() as gateway, open_viewer(gateway) as viewer, pusher_client(gateway) as other:
        await other.next()
        yield gateway, viewer, other
