"""Writing down what exists nowhere else: an answer that was paid for, a result whose effect is there.

To leave the next try to Temporal would lose both: another attempt asks the model again, and of a tool that
runs at most once it knows only that it may have run. So as long as this worker lives it waits for the store.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from temporalio import activity

from everstep.agent_domain.errors import StoreUnavailable

T = TypeVar("T")

FIRST_WAIT, LONGEST_WAIT = 0.1, 2.0
"""Seconds between two tries."""


async def until_written(write: Callable[[], Awaitable[T]]) -> T:
    """Write until it is written; a write that was made without our hearing of it is found by the next."""
    wait = FIRST_WAIT
    while True:
        try:
            return await write()
        except StoreUnavailable as error:
            activity.logger.warning("the store is not there, trying again: %s", error)
        await asyncio.sleep(wait)
        wait = min(2 * wait, LONGEST_WAIT)
