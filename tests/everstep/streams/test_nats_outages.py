"""NATS fails while text streams: viewers lose nothing, and get nothing twice."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import pytest

from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.stream import envelopes
from everstep.agent_domain.stream.bus import TextChunk, encode_frame
from everstep.agent_domain.stream.envelopes import Attempt
from everstep.agent_domain.stream.reader import Place
from everstep.agent_domain.stream.records import EventRecord, StoredEnvelope
from everstep.agent_domain.values import frozen_map
from everstep.broadcast_gateway.frames import RelayedEntry, parse_envelope
from everstep.broadcast_gateway.ports import RecordedText
from everstep.streams import nats_connection
from everstep.streams.nats_connection import NatsServers
from everstep.streams.nats_publisher import NatsBus
from everstep.telemetry.metrics import BUS_CONNECTED
from tests.broadcast_gateway.gateways import SECRET, Client, RunningGateway, Table, open_gateway, open_viewer
from tests.broadcast_gateway.writers import AT, EXECUTION, SESSION, execution_end, step_end
from tests.everstep.streams.test_publisher import wait_until
from tests.nats_server import NatsServer, open_nats

REF = ExecutionRef(EXECUTION, session_id=SESSION)


class Directory:
    """The epoch of the table; gateways are found over NATS."""

    async def active_gateways(self, within_seconds: float) -> tuple[str, Sequence[tuple[UUID, str]]]:
        del within_seconds
        return Table.epoch, ()

    async def announce(self, gateway_id: UUID, url: str) -> None:
        raise NotImplementedError

    async def withdraw(self, gateway_id: UUID) -> None:
        raise NotImplementedError


class Worker:
    """Stores and publishes what an execution does, as a worker does."""

    def __init__(self, table: Table, bus: NatsBus) -> None:
        self.table = table
        self.bus = bus
        self.text = ""
        self.chunks = 0

    @property
    def seq(self) -> int:
        return len(self.table.streams.get(SESSION, ()))

    def store(self, record: EventRecord) -> None:
        payload, seq = frozen_map(record.payload), self.seq + 1
        stored = StoredEnvelope(SESSION, seq, UUID(int=seq), record.type, EXECUTION, payload, AT)
        entry = parse_envelope(encode_frame(stored))
        assert isinstance(entry, RelayedEntry)
        self.table.streams.setdefault(SESSION, []).append(entry)
        if self.bus.has_subscribers(SESSION):
            self.bus.publish(SESSION, [stored])

    def write(self, words: str, step: int, attempt: int = 1) -> None:
        chunk = TextChunk(REF, Attempt(step, attempt), self.chunks, len(self.text), words, self.seq, AT)
        self.text += words
        self.chunks += 1
        # Recorded at most once a second by a real worker, and here always.
        place = Place(step, attempt, self.chunks)
        self.table.noted[str(EXECUTION)] = RecordedText(place, self.text, self.seq, AT)
        if self.bus.has_subscribers(SESSION):
            self.bus.publish_chunk(SESSION, chunk)

    def end_step(self, step: int) -> None:
        self.table.noted[str(EXECUTION)] = None
        self.store(step_end(step))
        self.text, self.chunks = "", 0


@asynccontextmanager
async def open_worker(nats: NatsServer, table: Table, limit: int = 1000) -> AsyncGenerator[Worker]:
    bus = NatsBus(NatsServers.of(nats.url), Directory(), SECRET, refresh=0.01, limit=limit)
    bus.start()
    try:
        yield Worker(table, bus)
    finally:
        await bus.aclose()


@asynccontextmanager
async def open_all(nats: NatsServer, table: Table) -> AsyncGenerator[tuple[RunningGateway, Client, Worker]]:
    """A gateway, its viewer, and a worker."""
    servers = NatsServers.of(nats.url)
    async with open_gateway(table, nats=servers) as gateway, open_viewer(gateway, max_size=None) as viewer:
        assert (await viewer.sub())["type"] == "sub_ok"
        async with open_worker(nats, table) as worker:
            yield gateway, viewer, worker


class Screen:
    """What a viewer sees; violations fail at once."""

    def __init__(self, viewer: Client) -> None:
        self.viewer = viewer
        self.seqs: list[int] = []
        self.texts: dict[tuple[int, int], str] = {}
        """By step and attempt."""

    async def until(self, seq: int) -> None:
        """Read up to an envelope."""
        while not self.seqs or self.seqs[-1] < seq:
            self.see(await self.viewer.next())

    async def until_text(self, step: int, text: str, attempt: int = 1) -> None:
        while self.texts.get((step, attempt)) != text:
            self.see(await self.viewer.next())

    def see(self, frame: dict[str, Any]) -> None:
        if frame["seq"] is not None:
            assert frame["seq"] == len(self.seqs) + 1
            self.seqs.append(frame["seq"])
            return
        payload = frame["payload"]
        key = payload["step_number"], payload["attempt"]
        assert key == max([key, *self.texts]), "an older attempt"
        if "next_index" in payload:
            assert payload["content"].startswith(self.texts.get(key, ""))
            self.texts[key] = payload["content"]
        elif payload["content"]:
            self.texts[key] = self.texts.get(key, "") + payload["content"]


async def test_viewers_lose_nothing_while_nats_is_killed() -> None:
    """Follows rule 7.8.6: they get envelopes from the table meanwhile, and text again afterwards."""
    async with open_nats() as nats, open_all(nats, Table(streams={SESSION: []})) as (_, viewer, worker):
        screen = Screen(viewer)
        await wait_until(lambda: worker.bus.has_subscribers(SESSION))
        worker.store(envelopes.tool_started_record("call_1", "add", {}, step_number=1))
        worker.write("Once ", 1)
        await screen.until_text(1, "Once ")

        await nats.kill()
        await wait_until(lambda: not worker.bus.has_subscribers(SESSION))
        assert BUS_CONNECTED.values == {(): 0.0}
        worker.write("upon ", 1)
        worker.end_step(1)
        # Without NATS the gateway finds it in the table.
        await screen.until(2)

        await nats.start()
        await wait_until(lambda: worker.bus.has_subscribers(SESSION))
        worker.write("a ", 2)
        worker.write("time", 2)
        await screen.until_text(2, "a time")
        assert BUS_CONNECTED.values == {(): 1.0}
        worker.end_step(2)
        worker.store(execution_end())
        await screen.until(4)
    assert screen.seqs == [1, 2, 3, 4]
    assert screen.texts[2, 1] == "a time"


async def test_text_of_a_worker_that_died_is_superseded() -> None:
    """Follows rule 7.8.6: another worker goes on over its own connection, in order."""
    table = Table(streams={SESSION: []})
    async with open_nats() as nats, open_all(nats, table) as (_, viewer, first):
        screen = Screen(viewer)
        await wait_until(lambda: first.bus.has_subscribers(SESSION))
        first.write("It was ", 1)
        await screen.until_text(1, "It was ")
        first.bus.connection.reconnect()  # It loses its queue, as a killed process does.
        async with open_worker(nats, table) as second:
            await wait_until(lambda: second.bus.has_subscribers(SESSION))
            second.store(envelopes.attempt_superseded_record(Attempt(1, 1), 2))
            second.write("It is", 1, attempt=2)
            await screen.until_text(1, "It is", attempt=2)
            first.bus.publish_chunk(SESSION, TextChunk(REF, Attempt(1, 1), 1, 7, "late", 0, AT))
            second.end_step(1)
            second.store(execution_end())
            await screen.until(3)
    assert screen.seqs == [1, 2, 3]
    assert screen.texts == {(1, 1): "It was ", (1, 2): "It is"}


async def test_a_gateway_that_was_killed_is_replaced() -> None:
    """Follows rule 7.8.6: its viewer goes on where it was, at another gateway."""
    table = Table(streams={SESSION: []})
    async with open_nats() as nats, open_worker(nats, table) as worker:
        servers = NatsServers.of(nats.url)
        async with open_gateway(table, nats=servers) as gateway, open_viewer(gateway) as viewer:
            reply, screen = await viewer.sub(), Screen(viewer)
            await wait_until(lambda: worker.bus.has_subscribers(SESSION))
            worker.store(envelopes.tool_started_record("call_1", "add", {}, step_number=1))
            worker.write("Once ", 1)
            await screen.until_text(1, "Once ")
        await wait_until(lambda: not worker.bus.has_subscribers(SESSION))
        worker.write("upon ", 1)
        async with open_gateway(table, nats=servers) as gateway, open_viewer(gateway) as viewer:
            screen.viewer = viewer
            await viewer.sub(since={"epoch": reply["epoch"], "seq": 1})
            await wait_until(lambda: worker.bus.has_subscribers(SESSION))
            worker.write("a time", 1)
            await screen.until_text(1, "Once upon a time")
            worker.end_step(1)
            await screen.until(2)


async def test_a_server_that_hangs_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half-open connections are noticed by pings, also while nothing can be written."""
    monkeypatch.setattr(nats_connection, "PING_SECONDS", 0.1)
    monkeypatch.setattr(nats_connection, "CONNECT_SECONDS", 0.3)
    async with open_nats() as nats, open_all(nats, Table(streams={SESSION: []})) as (_, viewer, worker):
        screen = Screen(viewer)
        await wait_until(lambda: worker.bus.has_subscribers(SESSION))
        nats.hang()
        try:
            await wait_until(lambda: not worker.bus.has_subscribers(SESSION))
            worker.store(envelopes.tool_started_record("call_1", "add", {}, step_number=1))
            await screen.until(1)
        finally:
            nats.go_on()
        await wait_until(lambda: worker.bus.has_subscribers(SESSION))
        worker.write("Once", 1)
        await screen.until_text(1, "Once")


async def test_an_envelope_that_is_too_large_for_nats_is_read_in_the_table() -> None:
    """7.8.6"""
    async with open_nats() as nats, open_all(nats, Table(streams={SESSION: []})) as (_, viewer, worker):
        await wait_until(lambda: worker.bus.has_subscribers(SESSION))
        text = "long " * 300_000
        worker.store(EventRecord("long", "agent.tool.completed", {"call_id": "call_1", "result": text}))
        worker.store(envelopes.tool_started_record("call_2", "add", {}, step_number=1))
        async with asyncio.timeout(10):
            one, two = await viewer.next(), await viewer.next()
    assert (one["seq"], two["seq"]) == (1, 2)
    assert one["payload"]["result"] == text
