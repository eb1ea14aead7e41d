"""Keeps the server informed that an activity lives, whatever it waits for."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from temporalio import activity

HEARTBEAT_SECONDS = 0.25
"""A cancel reaches an activity with its next heartbeat."""


@asynccontextmanager
async def pulse() -> AsyncGenerator[None]:
    """Heartbeats while the body runs; local activities have none and need none."""
    if activity.info().is_local:
        yield
        return
    beating = asyncio.create_task(_beat())
    try:
        yield
    finally:
        beating.cancel()
        await asyncio.gather(beating, return_exceptions=True)


async def _beat() -> None:
    # Not at once: most activities are over before their first one, which would be a call to the server.
    while True:
        await asyncio.sleep(HEARTBEAT_SECONDS)
        activity.heartbeat()
