"""Thousands of frames of malicious clients: other viewers are unaffected, and no object remains."""

import asyncio
import gc
import logging
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager, suppress
from random import Random

import pytest
from websockets.server import ServerProtocol

from everstep.broadcast_gateway.connections import ViewerConnection
from everstep.broadcast_gateway.limits import GatewayLimits
from everstep.broadcast_gateway.protocols import ProtocolHandler
from everstep.broadcast_gateway.subscriptions import Subscription, Viewer
from tests.broadcast_gateway.gateways import (
    PATIENCE,
    Client,
    RunningGateway,
    Writer,
    open_gateway,
    open_viewer,
    open_writer,
)
from tests.broadcast_gateway.hostile import Visitor
from tests.broadcast_gateway.writers import SESSION

FRAMES = 4_000
AT_ONCE = 100
HELD = (ViewerConnection, ProtocolHandler, ServerProtocol, Subscription, Viewer)
"""The objects of a connection."""

BOUNDS = GatewayLimits(
    sweep_seconds=0.05,
    hello_seconds=2.0,
    ping_after=1.0,
    silent_after=15.0,
    closing_seconds=0.5,
    drain_seconds=0.05,
)


def count_objects() -> Counter[str]:
    """The number of objects, including those that only a garbage collector would find."""
    return Counter(type(each).__name__ for each in gc.get_objects() if isinstance(each, HELD))


@contextmanager
def no_garbage_collection() -> Generator[None]:
    """Switch the garbage collector off for the time of the block."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def until_alone(gateway: RunningGateway) -> None:
    """Wait until only one viewer and its stream are left."""
    house = gateway.gateway.house

    def is_alone() -> bool:
        there = house.metrics.render().decode()
        is_watched = [*gateway.hub.stream_ids] == [SESSION]
        return is_watched and not house.tasks and "everstep_gateway_connections 1.0\n" in there

    async with asyncio.timeout(PATIENCE):
        while not is_alone():  # noqa: ASYNC110 -- no signal
            await asyncio.sleep(0.01)


async def until_same_count(before: Counter[str]) -> None:
    """Wait until there are as many objects as before: the last one examined may be held until the next."""
    with suppress(TimeoutError):
        async with asyncio.timeout(5):
            while count_objects() != before:  # noqa: ASYNC110 -- no signal
                await asyncio.sleep(0.1)
    assert count_objects() == before


async def tell(writer: Writer, gateway: RunningGateway, enough: asyncio.Event) -> None:
    """Push more and more until stopped. Frames from other viewers are read and not answered."""
    while not enough.is_set():
        await writer.push(*gateway.table.store())
        with suppress(TimeoutError):
            async with asyncio.timeout(0.005):
                while True:
                    await writer.interest()


async def read_all(viewer: Client, gateway: RunningGateway, telling: asyncio.Task[None]) -> None:
    """Read everything stored, in order."""
    read = 0
    while not telling.done() or read < len(gateway.table.streams[SESSION]):
        read += 1
        assert await viewer.seqs(1) == [read]


async def visits(gateway: RunningGateway, seed: int) -> Counter[str]:
    """Run many visits in parallel until all frames are sent; counts each outcome."""
    ends, sent, number = Counter[str](), 0, 0

    async def come() -> None:
        nonlocal sent, number
        while sent < FRAMES:
            number += 1
            dice = Random(f"{seed} {number}")  # noqa: S311 -- no secret
            visitor = Visitor(gateway.port, dice)
            ends[await visitor.visit(dice.randint(1, 30))] += 1
            sent += visitor.sent

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(come())
    return ends


@pytest.mark.parametrize("seed", [7])
async def test_other_viewers_are_unaffected_and_nothing_remains(
    seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Each connection is closed with a code of the table, or stays usable. Follows rule 7.8.2."""
    async with (
        open_gateway(bounds=BOUNDS) as gateway,
        open_writer(gateway) as writer,
        open_viewer(gateway) as viewer,
    ):
        await viewer.sub()
        await writer.interest()
        await until_alone(gateway)
        with no_garbage_collection():
            before, tasks = count_objects(), len(asyncio.all_tasks())
            enough = asyncio.Event()
            telling = asyncio.create_task(tell(writer, gateway, enough))
            reading = asyncio.create_task(read_all(viewer, gateway, telling))
            ends = await visits(gateway, seed)
            enough.set()
            await telling
            await writer.push(*gateway.table.store())
            await reading
            await until_alone(gateway)
            await until_same_count(before)
            assert len(asyncio.all_tasks()) == tasks
        assert ends["usable"] > 20
        assert {"closed 3500", "closed 4300", "closed 1002", "closed 1009"} <= ends.keys()
        assert list(gateway.gateway.house.users) == [("default", "ann")]
    assert [each for each in caplog.records if each.levelno >= logging.ERROR] == []
