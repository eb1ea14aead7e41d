"""Records the start of an operation only if the operation outlasts a short delay.

A slow operation is visible as started while it runs; a quick one is written once, together with its end. That
halves the transactions of quick operations, and slow ones do not wait for the write of their start. Use it
only for operations that may run again, as other processes do not know yet that this one has started.
"""

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

from everstep.activities.store_retry import write_with_retry

START_DELAY = 0.02
"""Seconds: longer than most operations that return at once, shorter than a user notices."""


class DeferredStart:
    """Calls `write` if the body of this context manager runs for longer than `delay` seconds."""

    __slots__ = ("_delay", "_timer", "_write", "_writing", "is_due")

    def __init__(
        self, write: Callable[[], Awaitable[object]], delay: float, *, is_written: bool = False
    ) -> None:
        """Prepare the start.

        Args:
            write: Records the start; retried while the store is unavailable.
            delay: Seconds to wait before writing.
            is_written: Whether the start is recorded already.
        """
        self._write = write
        self._delay = delay
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None
        self.is_due = is_written
        """Whether the start is recorded or being recorded."""

    async def __aenter__(self) -> Self:
        if not self.is_due:
            self._timer = asyncio.get_running_loop().call_later(self._delay, self._start_writing)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._writing and error is None:
                await self._writing
        finally:
            if self._timer:
                self._timer.cancel()
            if self._writing:
                self._writing.cancel()
                await asyncio.gather(self._writing, return_exceptions=True)

    def _start_writing(self) -> None:
        self.is_due = True
        self._writing = asyncio.create_task(self._write_start())

    async def _write_start(self) -> None:
        # The task is kept for as long as the body runs, and with it a result would be.
        await write_with_retry(self._write)
