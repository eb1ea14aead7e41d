"""Retries writes of data that exists nowhere else.

Examples are a reply that was paid for, and the result of a tool that has run.

Leaving the retry to Temporal would lose the data: the next attempt would ask the model again, and of a tool
that runs at most once it would only know that it may have run. So this worker waits for the store as long as
it lives.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from temporalio import activity

from everstep.agent_domain.errors import StoreUnavailable

T = TypeVar("T")

FIRST_WAIT, LONGEST_WAIT = 0.1, 2.0
"""Seconds between two tries."""


async def write_with_retry(write: Callable[[], Awaitable[T]]) -> T:
    """Call `write` until the store is available.

    Writes are idempotent: if the store committed one but its reply was lost, the next try finds it.
    """
    wait = FIRST_WAIT
    while True:
        try:
            return await write()
        except StoreUnavailable as error:
            activity.logger.warning("the store is unavailable, retrying: %s", error)
        await asyncio.sleep(wait)
        wait = min(2 * wait, LONGEST_WAIT)
