"""Feeds: a viewer whose transport is an iterator that an HTTP server reads, as events or as lines of JSON."""

import asyncio
import math
import time
from collections.abc import AsyncGenerator
from uuid import UUID

from everstep.agent_domain.errors import StoreUnavailable
from everstep.agent_domain.stream.channels import UNLIMITED_ADMISSION, Admission
from everstep.agent_domain.stream.reader import Position
from everstep.broadcast_gateway.hub import Hub
from everstep.broadcast_gateway.limits import GatewayLimits
from everstep.broadcast_gateway.subscriptions import Viewer
from everstep.broadcast_gateway.wires import event_source, lines
from everstep.broadcast_gateway.wires.closing import EXPIRED, FULL, RESTARTING, UNAUTHORIZED, Closing
from everstep.broadcast_gateway.wires.lines import FeedFormat

HIGH_WATER = 64 * 1024
"""Bytes in the buffer above which the viewer is paused."""
QUIET_SECONDS = 15.0
"""The interval of comments that keep an idle connection open."""
MAX_FEEDS = 1000
"""Concurrent feeds: each occupies a connection of a server that has other work to do."""

RECHECK_SECONDS = GatewayLimits().recheck_seconds

_KEY = "feed"


class Feed:
    """The events for one viewer."""

    def __init__(
        self, hub: Hub, quiet: float, admission: Admission, recheck: float, form: FeedFormat
    ) -> None:
        self._hub = hub
        self._form = form
        self._quiet = quiet
        self._admission = admission
        self._recheck = recheck
        self._waiting: list[bytes] = []
        self._size = 0
        self._has_data = asyncio.Event()
        self._closing: Closing | None = None
        self.viewer = Viewer(self._put, self.close)

    async def join(self, stream_id: UUID, *, is_session: bool, since: Position | None) -> None:
        """Subscribe, before the HTTP response starts.

        Raises:
            StoreUnavailable: The table cannot be read now.
        """
        answer = await self._hub.join(
            self.viewer,
            _KEY,
            stream_id,
            is_session=is_session,
            wire=self._form.wire,
            since=since,
        )
        self._put(self._form.joined(answer))
        self._hub.catch_up(self.viewer, _KEY)

    async def frames(self) -> AsyncGenerator[bytes]:
        """Yield all events as they come; ends with the closing event."""
        loop = asyncio.get_running_loop()
        expires, is_good = self._admission.expires_at, self._admission.is_still_valid
        ends = math.inf if expires is None else loop.time() + expires - time.time()
        check_at = math.inf if is_good is None else loop.time() + self._recheck
        try:
            while self._closing is None:
                try:
                    async with asyncio.timeout_at(min(loop.time() + self._quiet, ends, check_at)):
                        await self._has_data.wait()
                    yield self._take()
                except TimeoutError:
                    yield self._form.keepalive
                if loop.time() >= ends:
                    self.close(EXPIRED)
                elif is_good is not None and loop.time() >= check_at:
                    check_at = loop.time() + self._recheck
                    if not await is_good():
                        self.close(UNAUTHORIZED)
                if self.viewer.is_paused and self._closing is None:
                    self._hub.fulfil(self.viewer.resume())
            yield self._take() + self._form.bye(self._closing)
        finally:
            self.viewer.end()

    def close(self, closing: Closing) -> None:
        """End the feed with this reason."""
        self.viewer.end()
        self._closing = self._closing or closing
        self._has_data.set()

    def _put(self, data: bytes) -> None:
        self._waiting.append(data)
        self._size += len(data)
        self._has_data.set()
        if self._size > HIGH_WATER and not self.viewer.is_paused:
            self.viewer.pause(asyncio.get_running_loop().time(), self._size)

    def _take(self) -> bytes:
        data = b"".join(self._waiting)
        self._waiting.clear()
        self._size = 0
        self._has_data.clear()
        return data


class Feeds:
    """All feeds of a process."""

    def __init__(
        self,
        hub: Hub,
        quiet: float = QUIET_SECONDS,
        limit: int = MAX_FEEDS,
        recheck: float = RECHECK_SECONDS,
    ) -> None:
        self._hub = hub
        self._quiet = quiet
        self._recheck = recheck
        self._most = limit
        self._open: dict[Feed, None] = {}
        self._is_closed = False

    async def open(
        self,
        stream_id: UUID,
        is_session: bool,
        since: Position | None,
        admission: Admission = UNLIMITED_ADMISSION,
    ) -> AsyncGenerator[bytes]:
        """Open a feed of a stream, as server-sent events.

        Args:
            stream_id: The stream.
            is_session: Whether it is the stream of a session rather than of a single execution.
            since: The position to resume from; None for the head.
            admission: How long the viewer may watch.

        Raises:
            StoreUnavailable: There are too many feeds, the process stops, or the table cannot be read.
        """
        return await self._open_feed(stream_id, is_session, since, admission, event_source.FORMAT)

    async def open_lines(
        self,
        stream_id: UUID,
        is_session: bool,
        since: Position | None,
        admission: Admission = UNLIMITED_ADMISSION,
    ) -> AsyncGenerator[bytes]:
        """Open a feed of a stream, as lines of JSON; the arguments are those of `open`.

        Raises:
            StoreUnavailable: There are too many feeds, the process stops, or the table cannot be read.
        """
        return await self._open_feed(stream_id, is_session, since, admission, lines.FORMAT)

    async def _open_feed(
        self,
        stream_id: UUID,
        is_session: bool,
        since: Position | None,
        admission: Admission,
        form: FeedFormat,
    ) -> AsyncGenerator[bytes]:
        if self._is_closed or len(self._open) >= self._most:
            raise StoreUnavailable((RESTARTING if self._is_closed else FULL).reason)
        feed = Feed(self._hub, self._quiet, admission, self._recheck, form)
        self._open[feed] = None
        try:
            await feed.join(stream_id, is_session=is_session, since=since)
        except BaseException:
            self._end(feed)
            raise
        return self._frames(feed)

    @property
    def viewer_count(self) -> int:
        """How many feeds are open."""
        return len(self._open)

    def close(self) -> None:
        """Close all feeds, and open no more."""
        self._is_closed = True
        for feed in [*self._open]:
            feed.close(RESTARTING)

    async def _frames(self, feed: Feed) -> AsyncGenerator[bytes]:
        try:
            async for data in feed.frames():
                yield data
        finally:
            self._end(feed)

    def _end(self, feed: Feed) -> None:
        feed.viewer.end()
        self._open.pop(feed, None)
