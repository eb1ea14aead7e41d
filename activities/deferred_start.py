"""That something began, written while it is under way.

Whatever takes a moment is seen to have begun; whatever is over by then is written once, with its end. That
halves the transactions of what is quick, and what is slow does not wait for its beginning to be written.
Only for what may begin again: nobody else knows yet that it has.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

from everstep.activities.store_retry import until_written

MOMENT = 0.02
"""Seconds; longer than most of what returns at once, shorter than anybody notices."""


@asynccontextmanager
async def begun(
    write: Callable[[], Awaitable[object]], moment: float, *, is_written: bool = False
) -> AsyncGenerator[asyncio.Event]:
    """Writes that the body has begun, unless it is over within the moment; then the event is not set."""
    is_due = asyncio.Event()
    if is_written:
        is_due.set()
        yield is_due
        return

    writing: asyncio.Task[object] | None = None

    def due() -> None:
        nonlocal writing
        is_due.set()
        writing = asyncio.create_task(until_written(write))

    timer = asyncio.get_running_loop().call_later(moment, due)
    try:
        yield is_due
        if writing:
            await writing
    finally:
        timer.cancel()
        if writing:
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)
