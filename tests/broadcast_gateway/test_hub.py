"""The hub's reads of the table, with viewers that have no sockets."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from uuid import UUID

import pytest

from everstep.agent_domain.errors import InvalidInput, StoreUnavailable
from everstep.agent_domain.stream import envelopes
from everstep.agent_domain.stream.envelopes import Attempt
from everstep.agent_domain.stream.reader import Position
from everstep.broadcast_gateway.hub import Hub
from everstep.broadcast_gateway.limits import STREAM_LIMITS, StreamLimits
from everstep.broadcast_gateway.metrics import GatewayMetrics
from everstep.broadcast_gateway.subscriptions import SubscribeReply
from everstep.broadcast_gateway.wires.closing import HISTORY_CHANGED, STORE_UNAVAILABLE
from everstep.broadcast_gateway.wires.websocket import NATIVE
from tests.broadcast_gateway.gateways import QUICK, Table
from tests.broadcast_gateway.writers import SESSION, Screen, body, entries, entry, envelope

CHANNEL = "a channel"
SMALL = StreamLimits(ring=5)


@dataclass
class Room:
    """A hub, its table, and its requests to writers."""

    hub: Hub
    table: Table
    wishes: list[tuple[UUID, bool]]

    async def joins(self, since: Position | None = None) -> tuple[Screen, SubscribeReply]:
        screen = Screen()
        joined = await self.hub.join(
            screen.viewer, CHANNEL, SESSION, is_session=True, wire=lambda _: NATIVE, since=since
        )
        self.hub.catch_up(screen.viewer, CHANNEL)
        return screen, joined


@asynccontextmanager
async def a_room(limits: StreamLimits = STREAM_LIMITS) -> AsyncGenerator[Room]:
    table, wishes = Table(), list[tuple[UUID, bool]]()
    hub = Hub(table, GatewayMetrics(), limits=limits, timings=QUICK)
    hub.on_interest = lambda stream_id, is_wanted: wishes.append((stream_id, is_wanted))
    comparing = asyncio.create_task(hub.run())
    try:
        yield Room(hub, table, wishes)
    finally:
        comparing.cancel()
        await asyncio.gather(comparing, return_exceptions=True)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 -- no signal
            await asyncio.sleep(0.001)


async def expect_frames(screen: Screen, *expected: str) -> None:
    """Exactly these frames, and no more."""
    seen: list[str] = []

    def look() -> bool:
        seen.extend(screen.summaries())
        return len(seen) >= len(expected)

    await until(look)
    assert seen == [*expected]


async def test_a_gap_in_the_ring_is_read_once_for_all_who_need_it() -> None:
    async with a_room(SMALL) as room:
        room.table.store(40)
        first, _ = await room.joins()
        looks = room.table.reads
        screens = [first, *[(await room.joins(Position(10)))[0] for _ in range(8)]]
        for screen in screens[1:]:
            await expect_frames(screen, *map(str, range(11, 41)))
        assert room.table.reads - looks < 5
        room.table.store()
        for screen in screens:
            await expect_frames(screen, "41")


async def test_a_viewer_of_old_pages_is_asked_to_reconnect_while_the_table_is_away() -> None:
    async with a_room(SMALL) as room:
        room.table.store(40)
        await room.joins()
        room.table.is_away = True
        screen, _ = await room.joins(Position(10))
        await until(lambda: screen.closings)
        assert screen.closings == [STORE_UNAVAILABLE]


async def test_a_viewer_of_old_pages_of_another_history_starts_over() -> None:
    """7.8.4"""
    async with a_room(SMALL) as room:
        room.table.store(40)
        await room.joins()
        room.table.epoch = "second"
        screen, _ = await room.joins(Position(10))
        await until(lambda: screen.closings)
        assert screen.closings[0] == HISTORY_CHANGED


async def test_a_position_ahead_of_the_gateway_is_accepted_once_the_table_confirms_it() -> None:
    async with a_room() as room:
        room.table.store(2)
        await room.joins()
        room.table.store(3)
        _, joined = await room.joins(Position(5))
        assert joined == SubscribeReply("first", 5, recovered=True)
        _, joined = await room.joins(Position(9))
        assert joined == SubscribeReply("first", 5, recovered=False)


async def test_an_empty_stream_can_be_watched() -> None:
    async with a_room() as room:
        screen, joined = await room.joins(Position())
        assert joined == SubscribeReply("first", 0, recovered=True)
        room.table.store()
        await expect_frames(screen, "1")


async def test_the_first_envelope_of_a_stream_may_arrive_while_the_heads_of_streams_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """7.8.1: the history of the stream has not changed."""
    async with a_room() as room:
        screen, _ = await room.joins()
        read_heads, pushed = room.table.read_heads, asyncio.Event()

        async def read(stream_ids: Collection[UUID]) -> tuple[str, Mapping[UUID, int]]:
            heads = await read_heads(stream_ids)
            if not pushed.is_set():
                [first] = room.table.store()
                room.hub.push(SESSION, first.body, "first")
                await asyncio.sleep(0)
                pushed.set()
            return heads

        monkeypatch.setattr(room.table, "read_heads", read)
        await pushed.wait()
        room.table.store()
        await expect_frames(screen, "1", "2")
        assert screen.closings == []


async def test_all_streams_are_compared_even_if_one_is_compared_often() -> None:
    """7.8.1: a lost envelope is found, even while pushes need table reads all the time."""
    async with a_room() as room:
        room.table.store(1)
        screen, _ = await room.joins()
        other = UUID(int=77)
        await room.hub.join(Screen().viewer, CHANNEL, other, is_session=True, wire=lambda _: NATIVE)

        async def push() -> None:
            while True:
                room.hub.push(other, entry(1).body, "another history")
                await asyncio.sleep(0.002)

        pushing, looks = asyncio.create_task(push()), room.table.reads
        # Long after the first one was read because it was new.
        await until(lambda: room.table.reads > looks + 20)
        room.table.store(1)
        await expect_frames(screen, "2")
        pushing.cancel()


async def test_an_unwatched_stream_is_kept_for_a_while() -> None:
    async with a_room() as room:
        screen, _ = await room.joins()
        assert room.wishes == [(SESSION, True)]
        screen.viewer.end()
        again, _ = await room.joins()
        again.viewer.end()
        await until(lambda: not room.hub.stream_ids)
        assert room.wishes == [(SESSION, True), (SESSION, False)]


async def test_waiting_for_the_table_times_out_and_the_next_viewer_tries_again() -> None:
    async with a_room() as room:
        room.table.is_away = True
        with pytest.raises(StoreUnavailable):
            await room.joins()
        room.table.is_away = False
        assert (await room.joins())[1].epoch == "first"


async def test_a_push_before_the_table_was_read_counts() -> None:
    async with a_room() as room:
        first, second, third = room.table.store(3)
        joining = asyncio.create_task(room.joins(Position()))
        await asyncio.sleep(0)
        room.hub.push(SESSION, entry(4).body, "first")
        screen, _ = await joining
        room.table.streams[SESSION] = entries(1, 4)
        await expect_frames(screen, *(str(each.seq) for each in (first, second, third)), "4")


async def test_unwatched_streams_are_not_read() -> None:
    async with a_room() as room:
        room.hub.push(SESSION, b"nonsense", "first")
        await room.joins()
        for nonsense in (b"nonsense", b"[]", b'{"seq":1}', b"[" * 100_000):
            with pytest.raises(InvalidInput):
                room.hub.push(SESSION, nonsense, "first")


async def test_text_of_an_execution_that_has_ended_is_dropped() -> None:
    """7.8.4"""
    async with a_room() as room:
        room.table.store(1)
        screen, _ = await room.joins()
        record = envelopes.stream_chunk_record(Attempt(1, 1), 5, "late", is_complete=False, after_seq=1)
        # The text before it is missing, and the table shows that no attempt writes any more.
        room.hub.push(SESSION, body(envelope(record)), "first")
        room.table.store(1)
        await expect_frames(screen, "2")


async def test_pushes_continue_while_the_table_is_away() -> None:
    async with a_room() as room:
        room.table.store(1)
        screen, _ = await room.joins()
        room.table.is_away = True
        room.hub.push(SESSION, entry(2).body, "first")
        await expect_frames(screen, "2")
        room.hub.push(SESSION, entry(4).body, "first")
        looks = room.table.reads
        await until(lambda: room.table.reads > looks + 3)
        assert screen.summaries() == []
        room.table.streams[SESSION] = entries(1, 4)
        room.table.is_away = False
        await expect_frames(screen, "3", "4")
