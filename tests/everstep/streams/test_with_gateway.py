"""The real client with the real gateway."""

import asyncio
from collections.abc import Callable
from contextlib import aclosing

import pytest

from everstep.agent_domain.stream import envelopes
from everstep.agent_domain.stream.envelopes import Attempt
from everstep.agent_domain.stream.reader import Position
from everstep.agent_domain.stream.records import EventRecord
from everstep.broadcast_gateway.limits import GatewayLimits
from everstep.streams.client_events import Happened, Reload, StreamEvent, StreamRefused, Wrote
from everstep.streams.gateway_client import Stream
from tests.broadcast_gateway.gateways import RunningGateway, open_gateway, open_writer
from tests.broadcast_gateway.writers import EXECUTION, SESSION, execution_end, step_end
from tests.everstep.streams.scripted import QUICK

CHANNEL = f"agent.session.{SESSION}"


def stream_of(gateway: RunningGateway, token: Callable[[], str] = lambda: "ann") -> Stream:
    return Stream(f"ws://127.0.0.1:{gateway.port}", CHANNEL, token, Position(), QUICK)


async def next_event(news: Stream) -> StreamEvent:
    async with asyncio.timeout(20):
        return await anext(news)


def chunk_event(index: int, content: str, after: int) -> EventRecord:
    return envelopes.stream_chunk_record(Attempt(1), index, content, is_complete=not content, after_seq=after)


async def next_seqs(news: Stream, count: int) -> list[int | None]:
    told = [await next_event(news) for _ in range(count)]
    return [event.envelope.seq for event in told if isinstance(event, Happened)]


async def test_stored_envelopes_and_text_arrive() -> None:
    """7.8.1"""
    async with (
        open_gateway() as gateway,
        open_writer(gateway) as writer,
        aclosing(stream_of(gateway)) as news,
    ):
        gateway.table.store(2)
        assert await next_seqs(news, 2) == [1, 2]
        assert news.is_live
        await writer.interest()
        await writer.stream(chunk_event(0, "Once", 2))
        await writer.stream(chunk_event(1, " upon", 2))
        assert await next_event(news) == Wrote(EXECUTION, 1, 1, "Once", "Once")
        assert await next_event(news) == Wrote(EXECUTION, 1, 1, "Once upon", " upon")
        await writer.stream(chunk_event(2, "", 2))
        assert await next_event(news) == Wrote(EXECUTION, 1, 1, "Once upon", "", is_complete=True)
        await writer.push(
            gateway.table.store_record(step_end(1)), gateway.table.store_record(execution_end())
        )
        async with asyncio.timeout(20):
            last = [event async for event in news.until_end(EXECUTION)]
        assert [event.envelope.seq for event in last if isinstance(event, Happened)] == [3, 4]


async def test_an_expired_token_is_replaced() -> None:
    tokens = iter(["ann for 0.1"])
    has_expired = asyncio.Event()

    def token() -> str:
        if (first := next(tokens, None)) is None:
            has_expired.set()
        return first or "ann"

    bounds = GatewayLimits(hello_seconds=0.5, sweep_seconds=0.02, drain_seconds=0.05)
    async with open_gateway(bounds=bounds) as gateway, aclosing(stream_of(gateway, token)) as news:
        gateway.table.store(2)
        assert await next_seqs(news, 2) == [1, 2]
        next_one = asyncio.ensure_future(next_event(news))
        async with asyncio.timeout(20):
            await has_expired.wait()
        gateway.table.store()
        event = await next_one

    assert isinstance(event, Happened)
    assert event.envelope.seq == 3


async def test_after_an_epoch_change_everything_is_loaded_again() -> None:
    """7.8.4"""
    async with open_gateway() as gateway, aclosing(stream_of(gateway)) as news:
        gateway.table.store(2)
        assert await next_seqs(news, 2) == [1, 2]
        gateway.table.epoch = "second"
        assert await next_event(news) == Reload("second", 2)
        gateway.table.store()
        assert await next_seqs(news, 1) == [3]


async def test_an_unknown_viewer_and_an_unknown_channel_are_refused() -> None:
    async with open_gateway() as gateway:
        gateway.keys.closed.add(SESSION)
        with pytest.raises(StreamRefused, match="check the channel's id and the token"):
            await next_event(stream_of(gateway))
        gateway.keys.banned.add("ann")
        with pytest.raises(StreamRefused, match="pass a token"):
            await next_event(stream_of(gateway))
