"""The publisher of a writing process, over real sockets."""

import asyncio
import json
import socket
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any
from uuid import UUID, uuid4

import pytest
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

from everstep.agent_domain.errors import StoreUnavailable
from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.stream import link
from everstep.agent_domain.stream.bus import TextChunk, encode_frame
from everstep.agent_domain.stream.envelopes import Attempt
from everstep.agent_domain.stream.gateways import ANNOUNCE_SECONDS, GATEWAY_EXPIRY_SECONDS
from everstep.agent_domain.stream.link import (
    EpochMessage,
    PushMessage,
    interest_messages,
    link_token,
    parse_writer_message,
)
from everstep.agent_domain.stream.records import StoredEnvelope
from everstep.agent_domain.values import EMPTY, frozen_map
from everstep.broadcast_gateway.links import WriterLinks
from everstep.broadcast_gateway.metrics import GatewayMetrics
from everstep.streams import encoded_frames, publisher
from everstep.streams.publisher import DirectBus

AT = datetime(2026, 1, 16, 10, 5, tzinfo=UTC)
REF = ExecutionRef(uuid4(), session_id=uuid4())
STREAM = REF.stream_id
SECRET = "any secret that is long enough for all"  # noqa: S105 -- no secret
LIMIT = 20
LONG = 60.0


def an_envelope(seq: int, stream_id: UUID = STREAM, size: int = 0) -> StoredEnvelope:
    payload = frozen_map({"text": "x" * size}) if size else EMPTY
    return StoredEnvelope(stream_id, seq, UUID(int=seq), "agent.status", REF.execution_id, payload, AT)


def a_chunk(index: int) -> TextChunk:
    return TextChunk(REF, Attempt(1), index, index, "ö\n", 1, AT)


async def wait_until(holds: Callable[[], bool]) -> None:
    """Wait for data from a socket."""
    async with asyncio.timeout(10):
        while not holds():  # noqa: ASYNC110 -- there is no event for a socket that was read
            await asyncio.sleep(0.001)


class FakeGateway:
    """Accepts connections, and records the frames of each connection separately."""

    def __init__(self) -> None:
        self.id = uuid4()
        self.url = ""
        self.connections: list[ServerConnection] = []
        self.told: list[list[str]] = []
        self.pushed: list[list[tuple[UUID, Any]]] = []
        self.messages = 0
        self.refused = 0
        self.wanted = dict[UUID, None]()
        self.reads = asyncio.Event()
        self.reads.set()
        self._server: Server | None = None
        self._port: int = 0

    async def listen(self) -> None:
        """Listen; a second time at the same address."""
        self._server = await serve(
            self._serve,
            "127.0.0.1",
            self._port,
            process_request=self._refusal,
            subprotocols=[Subprotocol(link.SUBPROTOCOL)],
            compression=None,
            max_size=None,
            max_queue=1,
            ping_interval=None,
            close_timeout=0.1,
        )
        self._port = int(next(iter(self._server.sockets)).getsockname()[1])
        self.url = f"ws://127.0.0.1:{self._port}/link"

    async def stop(self) -> None:
        """As when the process is killed."""
        self.reads.set()
        if self._server:
            for each in self.connections:
                each.transport.abort()
            self._server.close()
            await self._server.wait_closed()

    async def want(self, *stream_ids: UUID) -> None:
        """Subscribe to these streams, too."""
        self.wanted |= dict.fromkeys(stream_ids)
        for message in interest_messages(stream_ids):
            await self.connections[-1].send(message)

    async def unwant(self, *stream_ids: UUID) -> None:
        for message in interest_messages((), stream_ids):
            await self.connections[-1].send(message)

    @property
    def received_numbers(self) -> list[Any]:
        """The numbers of envelopes, and the positions of chunks, over the last connection."""
        found = [body for _, body in self.pushed[-1]] if self.pushed else []
        return [body["seq"] or f"chunk {body['payload']['chunk_index']}" for body in found]

    def _refusal(self, connection: ServerConnection, request: Request) -> Response | None:
        if request.headers["Authorization"] == f"Bearer {link_token(SECRET)}":
            return None
        self.refused += 1
        return connection.respond(HTTPStatus.UNAUTHORIZED, "no")

    async def _serve(self, connection: ServerConnection) -> None:
        assert connection.subprotocol == link.SUBPROTOCOL
        told, pushed = list[str](), list[tuple[UUID, Any]]()
        self.connections.append(connection)
        self.told.append(told)
        self.pushed.append(pushed)
        try:
            for message in interest_messages(self.wanted):
                await connection.send(message)
            while True:
                await self.reads.wait()
                match parse_writer_message(await connection.recv(decode=False)):
                    case EpochMessage(epoch):
                        told.append(epoch)
                    case PushMessage(lines):
                        assert told, "the epoch comes first"
                        self.messages += 1
                        pushed += [(stream_id, json.loads(body)) for stream_id, body in lines]
        except ConnectionClosed:
            pass


class FakeRegistry:
    """The addresses of the gateways, and whether they can be read."""

    def __init__(self, *gateways: FakeGateway) -> None:
        self.present_ones = list(gateways)
        self.epoch = "of-now"
        self.is_away = False
        self.asked = 0

    async def announce(self, gateway_id: UUID, url: str) -> None:
        raise NotImplementedError

    async def withdraw(self, gateway_id: UUID) -> None:
        raise NotImplementedError

    async def active_gateways(self, within_seconds: float) -> tuple[str, Sequence[tuple[UUID, str]]]:
        self.asked += 1
        if self.is_away:
            raise StoreUnavailable("not now")
        return self.epoch, [(each.id, each.url) for each in self.present_ones]


@asynccontextmanager
async def open_gateways(count: int = 1) -> AsyncGenerator[list[FakeGateway]]:
    gateways = [FakeGateway() for _ in range(count)]
    for each in gateways:
        await each.listen()
    try:
        yield gateways
    finally:
        for each in gateways:
            await each.stop()


@asynccontextmanager
async def open_publisher(
    registry: FakeRegistry, secret: str = SECRET, limit: int = LIMIT, ping: float = LONG
) -> AsyncGenerator[DirectBus]:
    bus = DirectBus(registry, secret, refresh=0.01, limit=limit, first_pause=0.01, ping=ping)
    bus.start()
    try:
        yield bus
    finally:
        await bus.aclose()


class TestDelivery:
    async def test_wanted_streams_are_delivered_in_order(self) -> None:
        """7.1.1, 7.2: envelopes as stored, and the text between them."""
        async with open_gateways() as (gateway,), open_publisher(FakeRegistry(gateway)) as bus:
            await wait_until(lambda: bool(gateway.connections))
            await gateway.want(STREAM)
            await wait_until(lambda: bus.has_subscribers(STREAM))

            bus.publish(STREAM, [an_envelope(1), an_envelope(2)])
            bus.publish_chunk(STREAM, a_chunk(0))
            bus.publish_chunk(STREAM, a_chunk(1))
            bus.publish(STREAM, [an_envelope(3)])
            await wait_until(lambda: len(gateway.received_numbers) == 5)

            assert gateway.received_numbers == [1, 2, "chunk 0", "chunk 1", 3]
            assert gateway.told == [["of-now"]]
            assert gateway.messages == 1
            assert {stream_id for stream_id, _ in gateway.pushed[0]} == {STREAM}
            bodies = [body for _, body in gateway.pushed[0]]
            assert bodies[0] == {
                "type": "agent.status",
                "session_id": str(REF.session_id),
                "execution_id": str(REF.execution_id),
                "timestamp": "2026-01-16T10:05:00.000Z",
                "payload": {},
                "id": str(UUID(int=1)),
                "seq": 1,
            }
            assert bodies[2]["payload"]["content"] == "ö\n"

    async def test_lines_wait_for_others_only_while_there_are_many(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """18.1.2: they are sent together, without loss and in order."""
        monkeypatch.setattr(publisher, "JOIN_SECONDS", 0.02)
        async with (
            open_gateways() as (gateway,),
            open_publisher(FakeRegistry(gateway), limit=10_000) as bus,
        ):
            await wait_until(lambda: bool(gateway.connections))
            await gateway.want(STREAM)
            await wait_until(lambda: bus.has_subscribers(STREAM))

            async def send(first: int, count: int) -> int:
                """Send one after the other; return the number of messages."""
                before, expected = gateway.messages, [f"chunk {index}" for index in range(first + count)]
                for index in range(first, first + count):
                    bus.publish_chunk(STREAM, a_chunk(index))
                    await asyncio.sleep(0)
                    await asyncio.sleep(0.0005)
                await wait_until(lambda: len(gateway.received_numbers) == len(expected))
                assert gateway.received_numbers == expected
                return gateway.messages - before

            monkeypatch.setattr(publisher, "BUSY_LINES", 10**9)
            apart = await send(0, 200)
            monkeypatch.setattr(publisher, "BUSY_LINES", 1)
            # From the next measurement of the rate on.
            await send(200, 200)
            together = await send(400, 200)

        assert apart > 150
        assert together < 50

    async def test_only_wanted_streams_are_sent(self) -> None:
        other = uuid4()
        async with open_gateways() as (gateway,), open_publisher(FakeRegistry(gateway)) as bus:
            await wait_until(lambda: bool(gateway.connections))
            assert not bus.has_subscribers(STREAM)
            bus.publish(STREAM, [an_envelope(1)])
            await gateway.want(STREAM, other)
            await wait_until(lambda: bus.has_subscribers(STREAM) and bus.has_subscribers(other))
            await gateway.unwant(STREAM)
            await wait_until(lambda: not bus.has_subscribers(STREAM))
            bus.publish(STREAM, [an_envelope(2)])
            bus.publish(other, [an_envelope(3, other)])
            await wait_until(lambda: bool(gateway.received_numbers))
            assert gateway.received_numbers == [3]

    async def test_each_gateway_gets_its_wanted_streams(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """And frames for both are encoded once."""
        other, written = uuid4(), list[int]()

        def once(frame: Any) -> bytes:
            written.append(frame.seq)
            return encode_frame(frame)

        monkeypatch.setattr(encoded_frames, "encode_frame", once)
        async with open_gateways(2) as (one, two), open_publisher(FakeRegistry(one, two)) as bus:
            await wait_until(lambda: bool(one.connections and two.connections))
            await one.want(STREAM)
            await two.want(STREAM, other)
            await wait_until(lambda: bus.has_subscribers(other) and len(interested_links(bus, STREAM)) == 2)

            bus.publish(STREAM, [an_envelope(1)])
            bus.publish(other, [an_envelope(2, other)])
            await wait_until(lambda: len(two.received_numbers) == 2 and bool(one.received_numbers))

            assert (one.received_numbers, two.received_numbers, written) == ([1], [1, 2], [1, 2])

    async def test_crash_tests_may_drop_frames(self) -> None:
        async with open_gateways() as (gateway,):
            frames = iter([False, True, False])
            bus = DirectBus(FakeRegistry(gateway), SECRET, refresh=0.01, loses=lambda: next(frames))
            bus.start()
            gateway.wanted[STREAM] = None
            await wait_until(lambda: bus.has_subscribers(STREAM))
            bus.publish(STREAM, [an_envelope(1), an_envelope(2), an_envelope(3)])
            await wait_until(lambda: len(gateway.received_numbers) == 2)
            await bus.aclose()
            assert gateway.received_numbers == [1, 3]

    async def test_many_lines_are_sent_in_several_messages(self) -> None:
        async with open_gateways() as (gateway,), open_publisher(FakeRegistry(gateway)) as bus:
            gateway.wanted[STREAM] = None
            await wait_until(lambda: bus.has_subscribers(STREAM))
            bus.publish(
                STREAM, [an_envelope(seq, size=link.MAX_LINK_MESSAGE_BYTES // 3) for seq in range(1, 10)]
            )
            await wait_until(lambda: len(gateway.received_numbers) == 9)
            assert gateway.received_numbers == list(range(1, 10))
            assert gateway.messages == 5

    async def test_an_unwritable_envelope_is_omitted(self, caplog: pytest.LogCaptureFixture) -> None:
        """Follows rule 7.8.1: a reader detects the gap by the numbers."""
        broken = TextChunk(REF, Attempt(1), 0, 0, "\ud800", 1, AT)
        async with open_gateways() as (gateway,), open_publisher(FakeRegistry(gateway)) as bus:
            gateway.wanted[STREAM] = None
            await wait_until(lambda: bus.has_subscribers(STREAM))
            bus.publish_chunk(STREAM, broken)
            bus.publish(STREAM, [an_envelope(1)])
            await wait_until(lambda: bool(gateway.received_numbers))
        assert gateway.received_numbers == [1]
        assert "cannot be encoded" in caplog.text

    async def test_queued_frames_are_sent_before_the_publisher_closes(self) -> None:
        async with open_gateways() as (gateway,):
            gateway.wanted[STREAM] = None
            async with open_publisher(FakeRegistry(gateway), limit=1000) as bus:
                await wait_until(lambda: bus.has_subscribers(STREAM))
                bus.publish(STREAM, [an_envelope(seq, size=10_000) for seq in range(1, 501)])
            assert not bus.has_subscribers(STREAM)
            await wait_until(lambda: len(gateway.received_numbers) == 500)

    async def test_a_publisher_that_never_started_closes(self) -> None:
        await DirectBus(FakeRegistry(), SECRET).aclose()


def interested_links(bus: DirectBus, stream_id: UUID) -> list[Any]:
    """The connections whose gateway wants a stream."""
    links: dict[Any, Any] = vars(bus)["_links"]
    return [each for each in links.values() if stream_id in each.wanted]


class TestLinks:
    async def test_a_restarted_gateway_is_connected_again(self) -> None:
        """7.8.1: it subscribes again."""
        async with open_gateways() as (gateway,), open_publisher(FakeRegistry(gateway)) as bus:
            gateway.wanted[STREAM] = None
            await wait_until(lambda: bus.has_subscribers(STREAM) and gateway.told == [["of-now"]])
            await gateway.stop()
            await wait_until(lambda: not bus.has_subscribers(STREAM))
            bus.publish(STREAM, [an_envelope(1)])
            await gateway.listen()
            await wait_until(lambda: bus.has_subscribers(STREAM))
            bus.publish(STREAM, [an_envelope(2)])
            await wait_until(lambda: bool(gateway.received_numbers))
            assert (gateway.received_numbers, gateway.told) == ([2], [["of-now"], ["of-now"]])

    async def test_gateways_come_and_go(self) -> None:
        """One that is gone from the registry is served while it is connected, and not reconnected."""
        async with open_gateways(2) as (one, two):
            one.wanted[STREAM] = two.wanted[STREAM] = None
            registry = FakeRegistry(one)
            async with open_publisher(registry) as bus:
                await wait_until(lambda: bus.has_subscribers(STREAM))
                registry.present_ones = [two]
                await wait_until(lambda: len(interested_links(bus, STREAM)) == 2)
                bus.publish(STREAM, [an_envelope(1)])
                await wait_until(lambda: one.received_numbers == two.received_numbers == [1])
                await one.connections[0].close()
                await wait_until(lambda: len(vars(bus)["_links"]) == 1)
                assert len(one.connections) == 1

    async def test_a_returning_gateway_is_connected_again(self) -> None:
        async with open_gateways() as (gateway,):
            gateway.wanted[STREAM] = None
            registry = FakeRegistry(gateway)
            async with open_publisher(registry) as bus:
                await wait_until(lambda: bus.has_subscribers(STREAM))
                registry.present_ones = []
                asked = registry.asked
                await wait_until(lambda: registry.asked > asked + 1)
                assert bus.has_subscribers(STREAM)
                await gateway.connections[0].close()
                registry.present_ones = [gateway]
                await wait_until(lambda: len(gateway.connections) == 2 and bus.has_subscribers(STREAM))

    async def test_an_unreachable_gateway_is_retried(self) -> None:
        async with open_gateways() as (gateway,):
            await gateway.stop()
            async with open_publisher(FakeRegistry(gateway)) as bus:
                await wait_until(lambda: bool(vars(bus)["_links"]))
                gateway.wanted[STREAM] = None
                await gateway.listen()
                await wait_until(lambda: bus.has_subscribers(STREAM))

    async def test_a_writer_with_another_secret_is_refused(self, caplog: pytest.LogCaptureFixture) -> None:
        """And logs so once."""
        async with open_gateways() as (gateway,), open_publisher(FakeRegistry(gateway), secret="loud") as bus:  # noqa: S106 -- a fake secret
            await wait_until(lambda: gateway.refused > 2)
            assert not bus.has_subscribers(STREAM)
        assert gateway.connections == []
        assert caplog.text.count("is EVERSTEP_BROADCAST_SECRET the same?") == 1

    async def test_without_a_gateway_no_stream_is_wanted(self) -> None:
        registry = FakeRegistry()
        async with open_publisher(registry) as bus:
            await wait_until(lambda: registry.asked > 1)
            assert not bus.has_subscribers(STREAM)
            bus.publish(STREAM, [an_envelope(1)])
            bus.publish_chunk(STREAM, a_chunk(0))

    async def test_while_the_registry_is_unreachable_known_gateways_are_kept(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with open_gateways() as (gateway,):
            gateway.wanted[STREAM] = None
            registry = FakeRegistry(gateway)
            async with open_publisher(registry) as bus:
                await wait_until(lambda: bus.has_subscribers(STREAM))
                registry.is_away = True
                asked = registry.asked
                await wait_until(lambda: registry.asked > asked + 2)
                bus.publish(STREAM, [an_envelope(1)])
                await wait_until(lambda: gateway.received_numbers == [1])
                await gateway.connections[0].close()
                await wait_until(lambda: len(gateway.told) == 2 and gateway.told[1] == ["of-now"])
                registry.is_away, registry.epoch = False, "of-then"
                await wait_until(lambda: gateway.told[-1] == ["of-now", "of-then"])
        assert caplog.text.count("looking up the gateways failed") == 1

    async def test_a_new_epoch_is_sent_before_what_follows(self) -> None:
        """7.8.4"""
        async with open_gateways() as (gateway,):
            gateway.wanted[STREAM] = None
            registry = FakeRegistry(gateway)
            async with open_publisher(registry) as bus:
                await wait_until(lambda: bus.has_subscribers(STREAM) and gateway.told == [["of-now"]])
                registry.epoch = "of-then"
                await wait_until(lambda: gateway.told == [["of-now", "of-then"]])

    async def test_frames_of_another_gateway_version_are_ignored(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with open_gateways() as (gateway,), open_publisher(FakeRegistry(gateway)) as bus:
            await wait_until(lambda: bool(gateway.connections))
            await gateway.connections[0].send("nonsense")
            await gateway.connections[0].send('{"later": true}')
            await gateway.want(STREAM)
            await wait_until(lambda: bus.has_subscribers(STREAM))
            assert len(gateway.connections) == 1
        assert "cannot be read" in caplog.text


async def publish_until_full(bus: DirectBus, gateway: FakeGateway) -> int:
    """Publish until the socket blocks; returns the number of envelopes."""
    (each,) = interested_links(bus, STREAM)
    seq = 0
    while not await is_queue_stuck(each):
        seq += 1
        bus.publish(STREAM, [an_envelope(seq, size=200_000)])
    return seq


async def is_queue_stuck(each: Any) -> bool:
    """Whether the queue does not shrink, over many turns of the event loop."""
    for _ in range(20):
        if not len(each._outbox):  # noqa: SLF001
            return False
        await asyncio.sleep(0.001)
    return True


class TestSlowness:
    async def test_chunks_are_dropped_first(self) -> None:
        """Follows rule 7.8.2: a gateway that hangs delays no other, and gets every envelope once it reads."""
        async with open_gateways() as (gateway,), open_publisher(FakeRegistry(gateway)) as bus:
            gateway.wanted[STREAM] = None
            await wait_until(lambda: bus.has_subscribers(STREAM))
            gateway.reads.clear()
            last = await publish_until_full(bus, gateway)
            for index in range(3 * LIMIT):
                bus.publish_chunk(STREAM, a_chunk(index))
            for seq in range(last + 1, last + LIMIT):
                bus.publish(STREAM, [an_envelope(seq)])
            gateway.reads.set()
            await wait_until(lambda: last + LIMIT - 1 in gateway.received_numbers)

            assert gateway.received_numbers == list(range(1, last + LIMIT))
            assert len(gateway.connections) == 1

    async def test_a_gateway_that_is_too_far_behind_is_reconnected(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Follows rule 7.8.2: and reads the missed envelopes from the table."""
        async with open_gateways() as (gateway,), open_publisher(FakeRegistry(gateway)) as bus:
            gateway.wanted[STREAM] = None
            await wait_until(lambda: bus.has_subscribers(STREAM))
            gateway.reads.clear()
            last = await publish_until_full(bus, gateway)
            for seq in range(last + 1, last + LIMIT + 2):
                bus.publish(STREAM, [an_envelope(seq)])
            assert not bus.has_subscribers(STREAM)
            gateway.reads.set()
            await wait_until(lambda: len(gateway.connections) == 2 and bus.has_subscribers(STREAM))
            bus.publish(STREAM, [an_envelope(1000)])
            await wait_until(lambda: gateway.received_numbers == [1000])
        assert "does not keep up" in caplog.text

    async def test_a_gateway_that_does_not_answer_is_disconnected(self) -> None:
        """A half-open connection."""
        async with open_gateways() as (gateway,), open_publisher(FakeRegistry(gateway), ping=0.1) as bus:
            gateway.wanted[STREAM] = None
            await wait_until(lambda: bus.has_subscribers(STREAM))
            gateway.connections[0].transport.pause_reading()
            await wait_until(lambda: len(gateway.connections) > 1)

    async def test_a_gateway_that_reads_nothing_is_disconnected_before_the_queue_is_too_long(self) -> None:
        """Pings cannot pass the unread data."""
        async with (
            open_gateways() as (gateway,),
            open_publisher(FakeRegistry(gateway), limit=10_000, ping=0.2) as bus,
        ):
            gateway.wanted[STREAM] = None
            await wait_until(lambda: bus.has_subscribers(STREAM))
            gateway.connections[0].transport.pause_reading()
            bus.publish(STREAM, [an_envelope(seq, size=200_000) for seq in range(1, 101)])
            await wait_until(lambda: len(gateway.connections) > 1)
            assert len(gateway.pushed[0]) < 100

    async def test_a_hung_gateway_does_not_delay_a_publisher_that_closes(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(publisher, "FLUSH_SECONDS", 0.05)
        async with open_gateways() as (gateway,):
            gateway.wanted[STREAM] = None
            async with asyncio.timeout(10), open_publisher(FakeRegistry(gateway)) as bus:
                await wait_until(lambda: bus.has_subscribers(STREAM))
                gateway.reads.clear()
                await publish_until_full(bus, gateway)


def test_the_registry_expires_after_the_announcement_interval() -> None:
    assert GATEWAY_EXPIRY_SECONDS > 3 * ANNOUNCE_SECONDS


class FakeHub:
    """The calls that a hub received."""

    def __init__(self) -> None:
        self.stream_ids = {STREAM}
        self.on_interest: Callable[[UUID, bool], None] = lambda _stream_id, _is_wanted: None
        self.told: list[tuple[UUID, bytes, str]] = []

    def push(self, stream_id: UUID, body: bytes, epoch: str) -> None:
        self.told.append((stream_id, body, epoch))

    def request_comparison(self) -> None:
        """The publisher disconnected."""


async def test_publisher_and_hub_understand_each_other() -> None:
    hub, gateway, other = FakeHub(), FakeGateway(), uuid4()
    heard: Any = hub
    with socket.create_server(("127.0.0.1", 0)) as listener:
        gateway.url = f"ws://127.0.0.1:{listener.getsockname()[1]}"
        links = WriterLinks(heard, GatewayMetrics(), SECRET)
        async with links.open_server(listener), open_publisher(FakeRegistry(gateway)) as bus:
            await wait_until(lambda: bus.has_subscribers(STREAM))
            hub.on_interest(other, True)
            await wait_until(lambda: bus.has_subscribers(other))
            hub.on_interest(STREAM, False)
            await wait_until(lambda: not bus.has_subscribers(STREAM))
            bus.publish(STREAM, [an_envelope(1)])
            bus.publish(other, [an_envelope(2, other)])
            await wait_until(lambda: bool(hub.told))

    ((stream_id, body, epoch),) = hub.told
    assert (stream_id, json.loads(body)["seq"], epoch) == (other, 2, "of-now")
