"""Records the model's partial text for viewers who join during a step."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from time import monotonic

from temporalio import activity

from everstep.activities.failpoints import Failpoint, Strike
from everstep.activities.live_text import LiveText
from everstep.agent_domain.background import keep_running
from everstep.agent_domain.errors import StoreUnavailable
from everstep.agent_domain.storage.execution_store import ExecutionStore

NOTE_SECONDS = 1.0
"""Seconds between two records: one row per token would overload the store."""


class TextCheckpoints:
    """The text of one attempt at a step."""

    def __init__(self, store: ExecutionStore, live: LiveText, strike: Strike) -> None:
        self.store = store
        self.live = live
        self.strike = strike

    def add_text(self, content: str) -> None:
        """Add text from the model."""
        self.live.add_text(content)
        self.strike(Failpoint.INFER_DURING_STREAM)

    @asynccontextmanager
    async def checkpoints(self) -> AsyncGenerator[None]:
        """Record the text periodically while the body runs.

        In a task apart from the heartbeats: a store that hangs must not make the worker look dead.
        """
        recording: asyncio.Task[None] | None = None

        def start_recording() -> None:
            nonlocal recording
            recording = asyncio.create_task(
                keep_running(
                    "the notes of partial text",
                    self._record_periodically,
                    sleep=asyncio.sleep,
                    clock=monotonic,
                    log=activity.logger,
                )
            )

        timer = asyncio.get_running_loop().call_later(NOTE_SECONDS, start_recording)
        try:
            yield
        finally:
            timer.cancel()
            if recording:
                recording.cancel()
                await asyncio.gather(recording, return_exceptions=True)

    async def _record_periodically(self) -> None:
        recorded_length = 0
        while True:
            if len(self.live.text) != recorded_length and self.live.has_started:
                recorded_length = await self._record(recorded_length)
            await asyncio.sleep(NOTE_SECONDS)

    async def _record(self, recorded_length: int) -> int:
        """Record the text, and return the length that is recorded now."""
        length = len(self.live.text)
        try:
            is_current = await self.live.record(self.store)
        except StoreUnavailable as error:
            activity.logger.warning("the partial text could not be recorded: %s", error)
            return recorded_length
        if not is_current:
            # Another worker has taken over, and the cancel has not reached this one yet.
            self.live.stop()
        return length
