"""Both ways from writers to gateways, direct links and NATS: each test runs on both."""

import asyncio
import json
import socket
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any
from uuid import UUID, uuid4

import pytest
import pytest_asyncio

from everstep.agent_domain.stream.bus import EnvelopeBus
from everstep.broadcast_gateway.links import WriterLinks
from everstep.broadcast_gateway.metrics import GatewayMetrics
from everstep.streams.nats_connection import NatsServers
from everstep.streams.nats_publisher import NatsBus, announced_url
from everstep.streams.nats_subscriber import NatsSubscriber
from everstep.streams.publisher import DirectBus
from tests.everstep.streams.test_publisher import (
    SECRET,
    STREAM,
    a_chunk,
    an_envelope,
    wait_until,
)
from tests.nats_server import NatsServer, open_nats

pytestmark = pytest.mark.asyncio(loop_scope="module")


class RecordingHub:
    """What a gateway received, and how often it was asked to compare its streams with the table."""

    def __init__(self, *stream_ids: UUID) -> None:
        self.stream_ids: set[UUID] = {*stream_ids}
        self.on_interest: Callable[[UUID, bool], object] = lambda _stream_id, _is_wanted: None
        self.pushed: list[tuple[UUID, dict[str, Any], str]] = []
        self.comparisons: list[UUID | None] = []

    def push(self, stream_id: UUID, body: bytes, epoch: str) -> None:
        self.pushed.append((stream_id, json.loads(body), epoch))

    def request_comparison(self, stream_id: UUID | None = None) -> None:
        self.comparisons.append(stream_id)

    def want(self, stream_id: UUID) -> None:
        self.stream_ids.add(stream_id)
        self.on_interest(stream_id, True)

    def unwant(self, stream_id: UUID) -> None:
        self.stream_ids.discard(stream_id)
        self.on_interest(stream_id, False)

    @property
    def numbers(self) -> list[Any]:
        """The numbers of envelopes, and the indexes of chunks."""
        return [body["seq"] or f"chunk {body['payload']['chunk_index']}" for _, body, _ in self.pushed]


class Registry:
    """The gateways that have announced themselves."""

    def __init__(self) -> None:
        self.epoch = "of-now"
        self.urls: dict[UUID, str] = {}
        self.answers = asyncio.Event()
        self.answers.set()

    async def announce(self, gateway_id: UUID, url: str) -> None:
        self.urls[gateway_id] = url

    async def withdraw(self, gateway_id: UUID) -> None:
        del self.urls[gateway_id]

    async def active_gateways(self, within_seconds: float) -> tuple[str, Sequence[tuple[UUID, str]]]:
        del within_seconds
        await self.answers.wait()
        return self.epoch, [*self.urls.items()]


class Ways:
    """Opens writers and gateways of one kind."""

    def __init__(self, nats: NatsServer | None) -> None:
        self.nats = nats
        self.registry = Registry()

    @property
    def servers(self) -> NatsServers:
        assert self.nats
        return NatsServers.of(self.nats.url)

    @asynccontextmanager
    async def gateway(self, hub: Any, secret: str = SECRET) -> AsyncGenerator[UUID]:
        own = uuid4()
        async with AsyncExitStack() as stack:
            if self.nats:
                subscriber = NatsSubscriber(hub, self.servers, secret)
                await stack.enter_async_context(subscriber.open())
                url = announced_url(secret)
            else:
                listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
                links = WriterLinks(hub, GatewayMetrics(), secret)
                await stack.enter_async_context(links.open_server(listener))
                url = f"ws://127.0.0.1:{listener.getsockname()[1]}"
            await self.registry.announce(own, url)
            yield own
            await self.registry.withdraw(own)

    @asynccontextmanager
    async def writer(self, secret: str = SECRET, limit: int = 1000) -> AsyncGenerator[EnvelopeBus]:
        bus = (
            NatsBus(self.servers, self.registry, secret, refresh=0.01, limit=limit)
            if self.nats
            else DirectBus(self.registry, secret, refresh=0.01, limit=limit, first_pause=0.01)
        )
        bus.start()
        try:
            yield bus
        finally:
            await bus.aclose()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def nats() -> AsyncGenerator[NatsServer]:
    async with open_nats() as server:
        yield server


@pytest.fixture(params=["direct", "nats"])
def ways(request: pytest.FixtureRequest, nats: NatsServer) -> Ways:
    return Ways(nats if request.param == "nats" else None)


async def wait_for_interest(bus: EnvelopeBus, stream_ids: Collection[UUID] = (STREAM,)) -> None:
    await wait_until(lambda: all(map(bus.has_subscribers, stream_ids)))


async def test_wanted_streams_are_delivered_in_order(ways: Ways) -> None:
    """7.1.1, 7.2: envelopes as stored, the text between them, and the epoch."""
    hub = RecordingHub(STREAM)
    async with ways.gateway(hub), ways.writer() as bus:
        await wait_for_interest(bus)
        bus.publish(STREAM, [an_envelope(1), an_envelope(2)])
        bus.publish_chunk(STREAM, a_chunk(0))
        bus.publish_chunk(STREAM, a_chunk(1))
        bus.publish(STREAM, [an_envelope(3)])
        await wait_until(lambda: len(hub.pushed) == 5)
    assert hub.numbers == [1, 2, "chunk 0", "chunk 1", 3]
    assert {(stream_id, epoch) for stream_id, _, epoch in hub.pushed} == {(STREAM, "of-now")}
    assert hub.pushed[2][1]["payload"]["content"] == "ö\n"


async def test_only_wanted_streams_are_sent(ways: Ways) -> None:
    other, hub = uuid4(), RecordingHub()
    async with ways.gateway(hub), ways.writer() as bus:
        bus.publish(STREAM, [an_envelope(1)])
        hub.want(STREAM)
        hub.want(other)
        await wait_for_interest(bus, [STREAM, other])
        hub.unwant(STREAM)
        await wait_until(lambda: not bus.has_subscribers(STREAM))
        bus.publish(STREAM, [an_envelope(2)])
        bus.publish_chunk(STREAM, a_chunk(0))
        bus.publish(other, [an_envelope(3, other)])
        await wait_until(lambda: bool(hub.pushed))
    assert hub.numbers == [3]


async def test_each_gateway_gets_its_wanted_streams(ways: Ways) -> None:
    other, one, two = uuid4(), RecordingHub(STREAM), RecordingHub()
    async with ways.gateway(one), ways.writer() as bus:
        await wait_for_interest(bus)
        async with ways.gateway(two):
            two.want(other)
            await wait_for_interest(bus, [STREAM, other])
            bus.publish(STREAM, [an_envelope(1)])
            bus.publish(other, [an_envelope(2, other)])
            await wait_until(lambda: bool(one.pushed and two.pushed))
        await wait_until(lambda: not bus.has_subscribers(other))
        assert bus.has_subscribers(STREAM)
    assert (one.numbers, two.numbers) == ([1], [2])


async def test_several_writers_reach_a_gateway(ways: Ways) -> None:
    hub = RecordingHub(STREAM)
    async with ways.gateway(hub), ways.writer() as one, ways.writer() as two:
        await wait_for_interest(one)
        await wait_for_interest(two)
        one.publish(STREAM, [an_envelope(1)])
        await wait_until(lambda: len(hub.pushed) == 1)
        two.publish(STREAM, [an_envelope(2)])
        await wait_until(lambda: len(hub.pushed) == 2)
    assert hub.numbers == [1, 2]


async def test_a_new_epoch_is_sent_with_what_follows(ways: Ways) -> None:
    """7.8.4"""
    hub = RecordingHub(STREAM)
    async with ways.gateway(hub), ways.writer() as bus:
        await wait_for_interest(bus)
        ways.registry.epoch = "of-then"

        def arrives() -> bool:
            bus.publish(STREAM, [an_envelope(1)])
            return any(epoch == "of-then" for _, _, epoch in hub.pushed)

        await wait_until(arrives)


async def test_what_is_published_before_the_epoch_is_known_waits_for_it(nats: NatsServer) -> None:
    """7.8.4: gateways drop frames of another epoch, and show no text without its beginning."""
    hub, ways = RecordingHub(STREAM), Ways(nats)
    async with ways.gateway(hub):
        ways.registry.answers.clear()
        async with ways.writer() as bus:
            # Over NATS the interest of a gateway arrives without the table.
            await wait_for_interest(bus)
            bus.publish_chunk(STREAM, a_chunk(0))
            ways.registry.answers.set()
            await wait_until(lambda: bool(hub.pushed))
    assert [(epoch, body["payload"]["chunk_index"]) for _, body, epoch in hub.pushed] == [("of-now", 0)]


async def test_a_gateway_that_returns_is_served_again(ways: Ways) -> None:
    """7.8.1: a writer or a gateway that comes back makes streams be compared with the table."""
    hub = RecordingHub(STREAM)
    async with ways.writer() as bus:
        async with ways.gateway(hub):
            await wait_for_interest(bus)
        await wait_until(lambda: not bus.has_subscribers(STREAM))
        bus.publish(STREAM, [an_envelope(1)])
        async with ways.gateway(hub):
            await wait_for_interest(bus)
            bus.publish(STREAM, [an_envelope(2)])
            await wait_until(lambda: bool(hub.pushed))
    assert hub.numbers == [2]
    assert None in hub.comparisons


async def test_a_writer_with_another_secret_reaches_no_gateway(
    ways: Ways, caplog: pytest.LogCaptureFixture
) -> None:
    """7.8.5: and its log says why."""
    hub = RecordingHub(STREAM)
    async with ways.gateway(hub), ways.writer() as good, ways.writer("another secret " * 3) as bad:
        await wait_for_interest(good)
        await wait_until(lambda: "EVERSTEP_BROADCAST_SECRET" in caplog.text)
        assert not bad.has_subscribers(STREAM)
        bad.publish(STREAM, [an_envelope(1)])
        good.publish(STREAM, [an_envelope(2)])
        await wait_until(lambda: bool(hub.pushed))
    assert hub.numbers == [2]


async def test_queued_frames_are_sent_before_a_writer_closes(ways: Ways) -> None:
    hub = RecordingHub(STREAM)
    async with ways.gateway(hub):
        async with ways.writer() as bus:
            await wait_for_interest(bus)
            bus.publish(STREAM, [an_envelope(seq, size=10_000) for seq in range(1, 301)])
        await wait_until(lambda: len(hub.pushed) == 300)
    assert hub.numbers == [*range(1, 301)]


async def test_a_frame_that_cannot_be_encoded_is_left_out(
    ways: Ways, caplog: pytest.LogCaptureFixture
) -> None:
    """Follows rule 7.8.1: a reader detects the gap by the numbers."""
    hub, broken = RecordingHub(STREAM), a_chunk(0)
    object.__setattr__(broken, "content", "\ud800")
    async with ways.gateway(hub), ways.writer() as bus:
        await wait_for_interest(bus)
        bus.publish_chunk(STREAM, broken)
        bus.publish(STREAM, [an_envelope(1)])
        await wait_until(lambda: bool(hub.pushed))
    assert hub.numbers == [1]
    assert "cannot be encoded" in caplog.text
