"""Stores the progress of a running call, at most once a second, and sends it to viewers.

Tools report as often as they like and from any thread. Only the latest report counts, and a report never
delays or fails its call.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from itertools import count

from temporalio import activity

from everstep.activities.contracts import ToolInput
from everstep.agent_domain.storage.execution_store import ExecutionStore
from everstep.agent_domain.stream.progress_records import call_progress_record
from everstep.agent_domain.tools.progress import PROGRESS_SECONDS, Progress, ReportProgress
from everstep.agent_domain.tools.tools import ToolCall


@asynccontextmanager
async def progress_reports(
    store: ExecutionStore, request: ToolInput, call: ToolCall, attempt: int
) -> AsyncGenerator[ReportProgress]:
    """Accept the reports of a call while the body runs."""
    reports = _Reports(store, request, call, attempt)
    try:
        yield reports.report
    finally:
        await reports.close()


class _Reports:
    """The reports of a call; the task that stores them begins with the first one."""

    def __init__(self, store: ExecutionStore, request: ToolInput, call: ToolCall, attempt: int) -> None:
        self._store = store
        self._request = request
        self._call = call
        self._attempt = attempt
        self._loop = asyncio.get_running_loop()
        self._latest: Progress | None = None
        self._writer: asyncio.Task[None] | None = None
        self._arrived = asyncio.Event()
        self._writes = asyncio.Lock()
        self._is_closed = False

    def report(self, progress: Progress) -> None:
        """Receive the progress, from any thread."""
        # A thread whose call was given up may report after the loop has ended.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._note, progress)

    def _note(self, progress: Progress) -> None:
        if self._is_closed:
            return
        self._latest = progress
        self._arrived.set()
        self._writer = self._writer or asyncio.create_task(self._write())

    async def _write(self) -> None:
        for number in count(1):
            await self._arrived.wait()
            self._arrived.clear()
            if self._latest is not None:
                async with self._writes:
                    await self._store_report(self._latest, number)
            await asyncio.sleep(PROGRESS_SECONDS)

    async def _store_report(self, progress: Progress, number: int) -> None:
        request, call = self._request, self._call
        key = f"{self._attempt}/{number}"
        event = call_progress_record(request.number, call.id, call.name, progress, key=key)
        try:
            await self._store.note_progress(request.ref, call.id, progress, [event])
        except Exception:  # noqa: BLE001 -- a report must not fail its call
            activity.logger.exception("the progress of a call cannot be stored")

    async def close(self) -> None:
        """Store nothing more: the call has its result."""
        self._is_closed = True
        if self._writer:
            # A transaction that is interrupted would cost its connection.
            async with self._writes:
                self._writer.cancel()
            # Not awaited by itself: a cancel of the call would be taken for that of the writer.
            await asyncio.wait([self._writer])
