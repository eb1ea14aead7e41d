"""Server-sent events: the same streams over an iterator."""

import asyncio
import re
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from everstep.agent_domain.errors import InvalidInput, StoreUnavailable
from everstep.agent_domain.stream import envelopes
from everstep.agent_domain.stream.channels import Admission, position_from_event_id
from everstep.agent_domain.stream.envelopes import Attempt
from everstep.agent_domain.stream.reader import Place, Position
from everstep.broadcast_gateway.ports import RecordedText
from everstep.broadcast_gateway.sse import Feeds
from tests.broadcast_gateway.gateways import RunningGateway, open_gateway, open_writer
from tests.broadcast_gateway.writers import AT, EXECUTION, SESSION


async def open_feed(
    gateway: RunningGateway, since: Position | None = None, quiet: float = 15.0
) -> AsyncGenerator[bytes]:
    return await Feeds(gateway.hub, quiet).open(SESSION, True, since)


async def events(feed: AsyncGenerator[bytes], count: int) -> list[dict[str, str]]:
    """Read the next events, field by field."""
    data = b""
    async with asyncio.timeout(20):
        while data.count(b"\n\n") < count:
            data += await anext(feed)
    blocks = data.decode().split("\n\n")[:count]
    return [dict(line.split(": ", 1) for line in each.split("\n") if line) for each in blocks]


async def test_events_follow_the_last_one_that_was_read() -> None:
    """7.8.1"""
    async with open_gateway() as gateway, open_writer(gateway) as writer:
        gateway.table.store(3)
        async with aclosing(await open_feed(gateway, position_from_event_id("first:1"))) as feed:
            joined, second, third = await events(feed, 3)
            assert joined["event"] == "joined"
            assert joined["data"] == '{"epoch":"first","seq":1,"recovered":true}'
            assert (second["id"], third["id"]) == ("first:2", "first:3")
            assert third["event"] == "agent.tool.started"
            await writer.interest()
            await writer.push(*gateway.table.store(1))
            assert (await events(feed, 1))[0]["id"] == "first:4"
            chunk = envelopes.stream_chunk_record(Attempt(1), 0, "a\nb", is_complete=False, after_seq=4)
            await writer.stream(chunk)
            (event,) = await events(feed, 1)
            assert "id" not in event
            assert '"content":"a\\nb"' in event["data"]


async def test_text_under_way_comes_as_a_snapshot() -> None:
    """7.8.4"""
    async with open_gateway() as gateway:
        gateway.table.store(1)
        gateway.table.noted[str(EXECUTION)] = RecordedText(Place(1, 1, 2), "Once upon", 1, AT)
        async with aclosing(await open_feed(gateway)) as feed:
            _, snapshot = await events(feed, 2)
            assert snapshot["event"] == "agent.stream.snapshot"


async def test_a_feed_ends_when_its_token_expires() -> None:
    """8.10.3: also a feed with constant activity."""
    async with open_gateway() as gateway, open_writer(gateway) as writer:
        gateway.table.store(1)
        ends = time.time() + 0.3
        feed = await Feeds(gateway.hub).open(SESSION, True, None, Admission(ends))

        async def goes_on() -> None:
            await writer.interest()
            while True:
                await writer.push(*gateway.table.store(1))
                await asyncio.sleep(0.01)

        going_on = asyncio.create_task(goes_on())
        async with asyncio.timeout(20):
            received = [data async for data in feed]
        going_on.cancel()
        assert time.time() >= ends
        assert b"event: bye" in received[-1]
        assert b"The token has expired" in received[-1]


async def test_a_feed_ends_when_its_key_is_revoked() -> None:
    """8.10.3"""
    answers = iter([True, True, False])

    async def is_good() -> bool:
        return next(answers)

    async with open_gateway() as gateway:
        gateway.table.store(1)
        feed = await Feeds(gateway.hub, recheck=0.02).open(SESSION, True, None, Admission(None, is_good))
        async with asyncio.timeout(20):
            received = [data async for data in feed]
        assert b"event: bye" in received[-1]
        assert b"no longer" in received[-1]


async def test_a_changed_history_sends_a_goodbye() -> None:
    """7.8.4"""
    async with open_gateway() as gateway:
        gateway.table.store(1)
        async with aclosing(await open_feed(gateway)) as feed:
            await events(feed, 1)
            gateway.table.epoch = "second"
            (bye,) = await events(feed, 1)
            assert (bye["event"], bye["retry"]) == ("bye", "1000")
            with pytest.raises(StopAsyncIteration):
                await anext(feed)


async def test_quiet_streams_send_keepalives() -> None:
    async with open_gateway() as gateway, aclosing(await open_feed(gateway, quiet=0.01)) as feed:
        await events(feed, 1)
        assert await anext(feed) == b":\n\n"


async def test_a_slow_reader_gets_everything_and_holds_little() -> None:
    """7.8.2"""
    async with open_gateway() as gateway:
        gateway.table.store(900)
        feed = await open_feed(gateway, Position())
        data = b""
        async with asyncio.timeout(20), aclosing(feed):
            while b"id: first:900\n" not in data:
                data += (taken := await anext(feed))
                assert len(taken) < 200_000
        ids = re.findall(rb"^id: first:(\d+)$", data, re.MULTILINE)
        assert [*map(int, ids)] == [*range(901)]


async def test_feeds_are_limited_and_refused_after_the_end() -> None:
    async with open_gateway() as gateway:
        feeds = Feeds(gateway.hub, limit=1)
        first = await feeds.open(SESSION, True, None)
        with pytest.raises(StoreUnavailable):
            await feeds.open(SESSION, True, None)
        await anext(first)
        feeds.close()
        assert b"event: bye" in await anext(first)
        with pytest.raises(StopAsyncIteration):
            await anext(first)
        with pytest.raises(StoreUnavailable):
            await feeds.open(SESSION, True, None)


async def test_viewers_are_refused_while_the_table_is_away() -> None:
    async with open_gateway() as gateway:
        gateway.table.is_away = True
        with pytest.raises(StoreUnavailable):
            await open_feed(gateway)


@pytest.mark.parametrize("last", ["", "x", "first:", "first:x", "-1", "first:-1", "9" * 30, "x" * 200 + ":1"])
def test_invalid_ids_are_refused(last: str) -> None:
    with pytest.raises(InvalidInput):
        position_from_event_id(last)
