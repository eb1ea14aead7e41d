"""Records the start of an operation only if the operation outlasts a short delay.

A slow operation is visible as started while it runs; a quick one is written once, together with its end. That
halves the transactions of quick operations, and slow ones do not wait for the write of their start. Use it
only for operations that may run again, as other processes do not know yet that this one has started.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

from everstep.activities.store_retry import write_with_retry

START_DELAY = 0.02
"""Seconds: longer than most operations that return at once, shorter than a user notices."""


@asynccontextmanager
async def deferred_start(
    write: Callable[[], Awaitable[object]], delay: float, *, is_written: bool = False
) -> AsyncGenerator[asyncio.Event]:
    """Call `write` if the body runs for longer than `moment` seconds.

    Args:
        write: Records the start; retried while the store is unavailable.
        delay: Seconds to wait before writing.
        is_written: Whether the start is recorded already.

    Yields:
        An event that is set once the start is recorded or being recorded.
    """
    is_due = asyncio.Event()
    if is_written:
        is_due.set()
        yield is_due
        return

    writing: asyncio.Task[object] | None = None

    def start_writing() -> None:
        nonlocal writing
        is_due.set()
        writing = asyncio.create_task(write_with_retry(write))

    timer = asyncio.get_running_loop().call_later(delay, start_writing)
    try:
        yield is_due
        if writing:
            await writing
    finally:
        timer.cancel()
        if writing:
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)
