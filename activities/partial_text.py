"""What the model has written so far, kept for those who join in the middle of a step."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from temporalio import activity

from activities.failpoints import Failpoint, Strike
from activities.live_text import LiveText
from agent_domain.ports import ExecutionStore, StoreUnavailable

NOTE_SECONDS = 1.0
"""So often the text is written down: a row per token would drown the store."""


class PartialText:
    """The text of one attempt at a step."""

    def __init__(self, store: ExecutionStore, live: LiveText, strike: Strike) -> None:
        self.store = store
        self.live = live
        self.strike = strike

    def heard(self, content: str) -> None:
        """Some more text."""
        self.live.heard(content)
        self.strike(Failpoint.INFER_DURING_STREAM)

    @asynccontextmanager
    async def kept(self) -> AsyncGenerator[None]:
        """Written down again and again while the body runs.

        Beside the heartbeats and not with them: a store that hangs must not make the worker look dead.
        """
        noting = asyncio.create_task(self._note())
        try:
            yield
        finally:
            noting.cancel()
            await asyncio.gather(noting, return_exceptions=True)

    async def _note(self) -> None:
        noted, live = 0, self.live
        while True:
            await asyncio.sleep(NOTE_SECONDS)
            length = len(live.text)
            if length == noted or not live.has_begun:
                continue
            try:
                has_say = await live.keep(self.store)
                noted = length
            except StoreUnavailable as error:
                activity.logger.warning("the text so far is not kept: %s", error)
            else:
                if not has_say:
                    # Another worker has taken over, and this one was given up without hearing of it.
                    live.stop()
