"""The delay of the event loop: how late a timer fires, because other code occupies the loop."""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from time import monotonic
from typing import Final

from everstep.agent_domain.background import keep_running
from everstep.telemetry import metrics

log = logging.getLogger(__name__)

INTERVAL: Final = 0.25
WINDOW: Final = 60
"""How many of the last delays are considered: those of 15 seconds."""


@asynccontextmanager
async def measured_event_loop() -> AsyncGenerator[None]:
    """Measure the running loop within the block."""
    delays = deque[float]([0.0], maxlen=WINDOW)
    task = asyncio.create_task(
        keep_running(
            "the measurement of the event loop",
            partial(_measure, delays),
            sleep=asyncio.sleep,
            clock=monotonic,
            log=log,
        )
    )
    try:
        with metrics.EVENT_LOOP_LAG.source(lambda: {(): max(delays)}):
            yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _measure(delays: deque[float]) -> None:
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + INTERVAL
        await asyncio.sleep(INTERVAL)
        delays.append(max(loop.time() - due, 0.0))
