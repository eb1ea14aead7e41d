"""The writer of text for the bench of the buses: the bus of a worker, without a worker around it."""

import asyncio
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from typing import Final
from uuid import UUID, uuid4

import uvloop
from crowd import run_commands

from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.stream.bus import EnvelopeBus, TextChunk
from everstep.agent_domain.stream.envelopes import Attempt
from everstep.runtime.bus_choice import open_bus
from everstep.runtime.settings import Settings
from everstep.store.engine import create_engine

READY_SECONDS: Final = 30.0


@dataclass(frozen=True)
class Written:
    """What was written in a period."""

    words: int
    per_stream: int
    """Words of each stream since the writer was opened."""
    seconds: float
    cpu: float


class Writer:
    """Writes words to all streams in turns, each with a mark (`bench/crowd.py`)."""

    def __init__(self) -> None:
        self._stack = AsyncExitStack()
        self._bus: EnvelopeBus | None = None
        self._refs: list[tuple[UUID, ExecutionRef]] = []
        self._number = 0

    async def open(self, settings: Settings, streams: list[UUID]) -> None:
        """Open the bus, and wait until a gateway wants all streams."""
        engine = create_engine(settings.require("database_url", ""))
        self._stack.push_async_callback(engine.dispose)
        self._bus = bus = await self._stack.enter_async_context(open_bus(settings, engine))
        self._refs = [(each, ExecutionRef(uuid4(), session_id=each)) for each in streams]
        self._number = 0
        async with asyncio.timeout(READY_SECONDS):
            while not all(map(bus.has_subscribers, streams)):  # noqa: ASYNC110 -- there is no event for it
                await asyncio.sleep(0.01)

    async def close(self) -> None:
        """Close the bus."""
        await self._stack.aclose()

    async def write(self, rate: float, seconds: float) -> Written:
        """Write words at a rate per second, of all streams together."""
        bus, count = self._bus, len(self._refs)
        assert bus
        total = int(rate * seconds) // count * count
        began, cpu = time.monotonic(), time.process_time()
        for place in range(total):
            pause = began + place / rate - time.monotonic()
            # To wake up for each word would take longer than what is measured: a millisecond's together.
            if pause > 0:
                await asyncio.sleep(pause + 0.001)
            elif place % count == 0:
                await asyncio.sleep(0)
            stream, ref = self._refs[place % count]
            number = self._number + place // count + 1
            bus.publish_chunk(stream, self._word(ref, number))
        self._number += total // count
        spent = time.monotonic() - began
        # What is queued is sent in this time, and counts.
        await asyncio.sleep(0.2)
        return Written(total, self._number, spent, time.process_time() - cpu)

    def _word(self, ref: ExecutionRef, number: int) -> TextChunk:
        text = f"#{number:010}{time.monotonic_ns():019} "
        return TextChunk(ref, Attempt(1, 1), number - 1, (number - 1) * len(text), text, 1, datetime.now(UTC))


def in_process(pipe: Connection) -> None:
    """The process of the writer."""
    uvloop.run(run_commands(pipe, Writer))
