"""Follows a channel of the gateway, which signals news and streams the model's text.

What is shown is read from the database or the API, with or without a gateway. If the gateway is missing or
unavailable, the reader only polls more often.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from uuid import UUID

from everstep.agent_domain.errors import EverstepError
from everstep.streams.client_events import StreamEvent, Wrote
from everstep.streams.gateway_client import Stream

logger = logging.getLogger(__name__)

CALM_SECONDS = 2.0
"""Seconds between two polls while the gateway is connected and would signal news."""


def ignore_event(event: StreamEvent) -> None:
    """Ignore an event."""
    del event


class Watch:
    """The events of the gateway since the last poll; without a stream there are none.

    Args:
        news: The stream of the channel.
        heard: Called with each event at once.
    """

    def __init__(
        self, stream: Stream | None = None, on_event: Callable[[StreamEvent], object] = ignore_event
    ) -> None:
        self._news = stream
        self._heard = on_event
        self._wrote = dict[UUID, Wrote]()
        self._is_new = asyncio.Event()
        self._has_happened = False
        self._was_live = False

    def latest_text(self, execution_id: UUID) -> Wrote | None:
        """The text that an execution's model has streamed so far in its latest step."""
        return self._wrote.get(execution_id)

    async def wait(self, seconds: float) -> bool:
        """Wait for news, or for some seconds if the gateway would not signal any.

        Returns:
            Whether it is time to poll; False if only text was streamed.
        """
        # Events from before the connection was live were not signalled: the first wait is a short one.
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
        """Read the stream until it ends or fails."""
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
            # Polling still shows everything that is stored.
            logger.info("the stream of the gateway ended: %s", error)


@asynccontextmanager
async def open_watch(
    url: str | None, channel: str, token: str | None, on_event: Callable[[StreamEvent], object] = ignore_event
) -> AsyncGenerator[Watch]:
    """Open a watch that follows a channel in the background; without a URL it has no events."""
    watch = Watch(_open_stream(url, channel, token), on_event)
    task = asyncio.create_task(watch.follow())
    try:
        yield watch
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def _open_stream(url: str | None, channel: str, token: str | None) -> Stream | None:
    try:
        return None if url is None else Stream(url, channel, token)
    except EverstepError as error:
        logger.warning("the gateway is not used: %s", error)
        return None
