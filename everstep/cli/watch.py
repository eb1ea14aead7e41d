"""Watching over the gateway meanwhile: it says when there is something new, and what the model writes.

What is shown is read from the table, or from the API, as if there were no gateway. So it may be away, come
back or never have been there: then one only looks more often.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from uuid import UUID

from everstep.agent_domain.errors import EverstepError
from everstep.streams.client import Stream
from everstep.streams.client_events import News, Wrote

logger = logging.getLogger(__name__)

CALM_SECONDS = 2.0
"""Between two looks while the gateway would say if anything happened."""


def unheard(news: News) -> None:
    """Nobody wants to hear of it at once."""
    del news


class Watch:
    """What the gateway has said since somebody looked; without a stream, nothing."""

    def __init__(self, news: Stream | None = None, heard: Callable[[News], object] = unheard) -> None:
        self._news = news
        self._heard = heard
        self._wrote = dict[UUID, Wrote]()
        self._is_new = asyncio.Event()
        self._has_happened = False
        self._was_live = False

    def wrote(self, execution_id: UUID) -> Wrote | None:
        """What an execution's model has written so far, in the step that it wrote last."""
        return self._wrote.get(execution_id)

    async def rest(self, seconds: float) -> bool:
        """Wait until something is new, or so long if nobody would say; whether it is time to look."""
        # What happened while it was on its way to the gateway nobody has said: the first rest is a short one.
        is_live = self._news is not None and self._news.is_live
        seconds, self._was_live = CALM_SECONDS if is_live and self._was_live else seconds, is_live
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._is_new.wait()
        is_time = self._has_happened or not self._is_new.is_set()
        self._has_happened = False
        self._is_new.clear()
        return is_time

    async def follow(self) -> None:
        """Listen until the gateway has no more to say, as it may from the beginning."""
        if self._news is None:
            return
        try:
            async with aclosing(self._news) as news:
                async for event in news:
                    if isinstance(event, Wrote):
                        self._wrote[event.execution_id] = event
                    else:
                        self._has_happened = True
                    self._is_new.set()
                    self._heard(event)
        except EverstepError as error:
            # What is stored is shown all the same.
            logger.info("nothing more comes over the gateway: %s", error)


@asynccontextmanager
async def watching(
    url: str | None, channel: str, token: str | None, heard: Callable[[News], object] = unheard
) -> AsyncGenerator[Watch]:
    """Watch meanwhile, if there is a gateway."""
    watch = Watch(_stream(url, channel, token), heard)
    task = asyncio.create_task(watch.follow())
    try:
        yield watch
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def _stream(url: str | None, channel: str, token: str | None) -> Stream | None:
    try:
        return None if url is None else Stream(url, channel, token)
    except EverstepError as error:
        logger.warning("the gateway is not used: %s", error)
        return None
