"""All watched streams: takes the envelopes that writers push, and reads what is missing from the table.

A stream detects what is missing; the hub reads it, one read at a time per stream and at a limited rate. It
knows no sockets: every viewer has a `Viewer`.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable
from contextlib import suppress
from dataclasses import dataclass
from time import time
from typing import Any
from uuid import UUID

from everstep.agent_domain.background import note_failure
from everstep.agent_domain.errors import StoreUnavailable
from everstep.agent_domain.stream.reader import Position
from everstep.broadcast_gateway.frames import RelayedChunk, Wire, parse_envelope
from everstep.broadcast_gateway.limits import STREAM_LIMITS, StreamLimits
from everstep.broadcast_gateway.metrics import GatewayMetrics
from everstep.broadcast_gateway.ports import Journal, JournalPage
from everstep.broadcast_gateway.streams import CachedStream
from everstep.broadcast_gateway.subscriptions import (
    HubRequest,
    Relay,
    RowsNeeded,
    SubscribeReply,
    Viewer,
    ViewerTooSlow,
)
from everstep.broadcast_gateway.wires.closing import HISTORY_CHANGED, STORE_UNAVAILABLE, TOO_SLOW
from everstep.telemetry import tracing
from everstep.telemetry.metrics import GATEWAY_LAG

logger = logging.getLogger(__name__)

PAGE_SIZE = 1000
"""Envelopes per read."""
MAX_READS = 4
"""Concurrent reads of the table."""
HEADS_PER_READ = 1000
"""Streams per comparison of heads."""


@dataclass(frozen=True, slots=True)
class HubTimings:
    """Intervals between reads of the table, in seconds."""

    grace: float = 0.005
    """How long an envelope that arrived early waits for its predecessors before they are read."""
    announce_delay: float = 0.25
    """The delay after which writers know that a stream is watched; what they did not push before is read."""
    compare: float = 3.0
    """Between two comparisons of all heads."""
    retry: float = 0.05
    """Before a read of missing data is repeated; doubles."""
    max_retry: float = 1.0
    """The upper limit of `retry`: texts are recorded once a second."""
    linger: float = 30.0
    """How long a stream without viewers is kept, for viewers that reconnect."""


HUB_TIMINGS = HubTimings()


class WatchedStream:
    """A stream and the reads that are running for it."""

    __slots__ = ("id", "joining", "left_at", "mending", "opening", "pages", "relay")

    def __init__(self, stream_id: UUID, stream: CachedStream) -> None:
        self.id = stream_id
        self.relay = Relay(stream)
        self.opening: asyncio.Task[None] | None = None
        """The read that opens the stream, or that looks for newer envelopes."""
        self.mending: asyncio.Task[None] | None = None
        self.pages: dict[int, asyncio.Task[JournalPage]] = {}
        """Reads of the table by the seq they start after, shared by viewers that are behind at the same
        place.
        """
        self.joining = 0
        self.left_at: float | None = None

    @property
    def stream(self) -> CachedStream:
        """The cached stream."""
        return self.relay.stream

    @property
    def is_in_use(self) -> bool:
        """Whether it has viewers or will have one soon."""
        return self.joining > 0 or self.relay.is_watched


class Hub:
    """Relays streams to viewers."""

    def __init__(
        self,
        journal: Journal,
        metrics: GatewayMetrics,
        *,
        limits: StreamLimits = STREAM_LIMITS,
        timings: HubTimings = HubTimings(),
    ) -> None:
        self._journal = journal
        self._metrics = metrics
        self._limits = limits
        self._timings = timings
        self._streams: dict[UUID, WatchedStream] = {}
        self._by_stream: dict[CachedStream, WatchedStream] = {}
        self._changed: dict[WatchedStream, None] = {}
        self._to_compare: dict[UUID, None] | None = {}
        """Streams whose heads are compared next; None for all."""
        self._compare_soon = asyncio.Event()
        self._reads = asyncio.Semaphore(MAX_READS)
        self._tasks = set[asyncio.Task[Any]]()
        self.on_interest: Callable[[UUID, bool], object] = _ignore_interest
        """Called when a stream is wanted from now on, and when it is no longer."""

    @property
    def stream_ids(self) -> Collection[UUID]:
        """The ids of all watched streams."""
        return self._streams.keys()

    # Viewers.

    async def join(
        self,
        viewer: Viewer,
        channel: str,
        stream_id: UUID,
        *,
        is_session: bool,
        wire: Callable[[str], Wire],
        since: Position | None = None,
    ) -> SubscribeReply:
        """Subscribe a viewer to a stream.

        Send the viewer the reply first, then call `catch_up`: nothing is sent before.

        Args:
            viewer: The viewer.
            channel: The key of the subscription within the viewer.
            stream_id: The stream.
            is_session: Whether it is the stream of a session rather than of a single execution.
            wire: Makes the wire, given the epoch.
            since: The position to resume from; None for the head.

        Returns:
            The position from which the viewer will be sent envelopes.

        Raises:
            StoreUnavailable: The table cannot be read now.
        """
        attributes = {"gen_ai.conversation.id": str(stream_id)}
        with tracing.open_span(
            "everstep.gateway.subscribe", lambda: attributes, kind="server", traceparent=viewer.traceparent
        ):
            return await self._join(viewer, channel, stream_id, is_session, wire, since)

    async def _join(  # noqa: PLR0917 -- the arguments of `join`
        self,
        viewer: Viewer,
        channel: str,
        stream_id: UUID,
        is_session: bool,
        wire: Callable[[str], Wire],
        since: Position | None,
    ) -> SubscribeReply:
        is_fresh = False
        while True:
            watched = self._watch(stream_id, is_session=is_session)
            watched.joining += 1
            try:
                if (epoch := watched.stream.epoch) and not watched.stream.is_void:
                    joined = watched.relay.subscribe(viewer, channel, wire(epoch), since, is_fresh=is_fresh)
                    if joined:
                        return joined
                await self._wait_open(watched, since)
                is_fresh = True
            finally:
                watched.joining -= 1
            if watched.stream.is_void:
                self._drop_void(watched)
            elif watched.stream.epoch is None:
                raise StoreUnavailable("the stream could not be read")

    def catch_up(self, viewer: Viewer, channel: str) -> None:
        """Send the envelopes that the viewer has missed."""
        if need := viewer.subscriptions[channel].catch_up():
            self.fulfil([need])

    def fulfil(self, needs: Iterable[HubRequest]) -> None:
        """Read the requested rows, and close the viewers that cannot be served any more."""
        for need in needs:
            match need:
                case RowsNeeded():
                    self._spawn(self._replay(need))
                case ViewerTooSlow(viewer):
                    viewer.close(TOO_SLOW)

    # Writers.

    def push(self, stream_id: UUID, body: bytes, epoch: str) -> None:
        """Add an envelope or a chunk as its writer pushed it.

        Raises:
            InvalidInput: It is malformed.
        """
        watched = self._streams.get(stream_id)
        if watched is None:
            return
        envelope, stream = parse_envelope(body), watched.stream
        if stream.epoch not in (None, epoch):
            # Either the writer or this gateway does not know of a new history yet: read the epoch from the
            # table.
            self._compare_later(stream_id)
            return
        if isinstance(envelope, RelayedChunk):
            stream.add_chunk(envelope)
            GATEWAY_LAG.observe(max(time() - envelope.timestamp.timestamp(), 0.0))
        else:
            stream.add_entries((envelope,), epoch)
        self._metrics.count_push(is_chunk=isinstance(envelope, RelayedChunk))
        self._schedule_send(watched)

    def request_comparison(self, stream_id: UUID | None = None) -> None:
        """Compare the head of a stream, or of all, with the table soon: pushes may have been lost."""
        if stream_id is not None:
            self._compare_later(stream_id)
            return
        self._to_compare = None
        self._compare_soon.set()

    # The table.

    async def run(self) -> None:
        """Compare the streams with the table periodically, until cancelled.

        Doubtful streams are compared at once. All streams are compared at the interval, however often some
        are doubtful.
        """
        loop = asyncio.get_running_loop()
        due = loop.time() + self._timings.compare
        try:
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(due):
                        await self._compare_soon.wait()
                        await asyncio.sleep(self._timings.grace)
                to_compare, self._to_compare = self._to_compare, {}
                if to_compare is None or loop.time() >= due:
                    to_compare, due = None, loop.time() + self._timings.compare
                self._compare_soon.clear()
                self._drop_idle()
                await self._compare([*self._streams] if to_compare is None else [*to_compare])
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _compare(self, stream_ids: list[UUID]) -> None:
        for start in range(0, len(stream_ids), HEADS_PER_READ):
            asked = stream_ids[start : start + HEADS_PER_READ]
            try:
                async with self._reads:
                    # The first envelope of a stream may be stored and pushed during the read.
                    had_envelopes = {each for each in asked if self._has_envelopes(each)}
                    epoch, heads = await self._journal.read_heads(asked)
            except StoreUnavailable as error:
                logger.warning("comparing the heads of streams failed: %s", error)
                return
            for stream_id in asked:
                if watched := self._streams.get(stream_id):
                    head = heads.get(stream_id)
                    # Stored envelopes disappear only when the session is deleted.
                    is_gone = head is None and stream_id in had_envelopes
                    self._apply_head(watched, epoch, head or 0, is_gone=is_gone)

    def _has_envelopes(self, stream_id: UUID) -> bool:
        watched = self._streams.get(stream_id)
        return watched is not None and watched.stream.epoch is not None and watched.stream.head > 0

    def _apply_head(self, watched: WatchedStream, epoch: str, head: int, *, is_gone: bool) -> None:
        stream = watched.stream
        if stream.epoch is None:
            return
        if stream.epoch != epoch or is_gone:
            stream.is_void = True
        else:
            stream.note_head(head)
        if stream.is_void or stream.hole is not None:
            self._schedule_send(watched)

    async def _wait_open(self, watched: WatchedStream, since: Position | None) -> None:
        """Read how far the stream has come, in one read for all callers that wait."""
        if watched.opening is None:
            watched.opening = self._spawn(self._open(watched, since))
        # A caller may be cancelled before the read completes; the others still wait.
        await asyncio.shield(watched.opening)

    async def _open(self, watched: WatchedStream, since: Position | None) -> None:
        try:
            stream = watched.stream
            if stream.epoch is None:
                await self._read_texts(watched, await self._read_first(watched, since))
            else:
                await self._read_next(watched)
            self._schedule_send(watched)
        finally:
            watched.opening = None

    async def _read_first(self, watched: WatchedStream, since: Position | None) -> bool:
        """Read the rows after a position, for other viewers that reconnect as well, or else only the head."""
        after = since.seq if since else None
        page = await self._page(watched.id, after)
        rows = page.entries
        if after is None or (rows and rows[-1].seq < page.head):
            after, rows = page.head, ()
        watched.stream.add_rows(min(after, page.head), rows, epoch=page.epoch, oldest=page.oldest)
        return page.head > 0

    async def _read_next(self, watched: WatchedStream) -> None:
        stream = watched.stream
        page = await self._page(watched.id, stream.head)
        stream.add_rows(stream.head, page.entries, epoch=page.epoch, oldest=page.oldest)
        stream.note_head(page.head)

    async def _read_texts(self, watched: WatchedStream, has_envelopes: bool = True) -> None:
        """Read the texts in progress, as far as they were recorded."""
        if not has_envelopes:
            return
        async with self._reads:
            texts = await self._journal.read_texts(watched.id)
        self._metrics.count_read("texts")
        stream = watched.stream
        for execution_id, _ in stream.lacking:
            if execution_id not in texts:
                stream.end_execution(execution_id)
        for execution_id, text in texts.items():
            if text is not None:
                stream.add_text(
                    execution_id, text.at, text.content, after_seq=text.after_seq, timestamp=text.timestamp
                )

    async def _read_missing(self, watched: WatchedStream) -> None:
        """Read missing data until the stream is complete."""
        stream, pause = watched.stream, self._timings.retry
        await asyncio.sleep(self._timings.grace)
        try:
            while self._by_stream.get(stream) is watched and not stream.is_void:
                before = stream.head
                try:
                    if stream.hole is not None:
                        await self._read_next(watched)
                    elif stream.lacking:
                        await self._read_texts(watched)
                except StoreUnavailable as error:
                    logger.warning("reading the missing part of a stream failed, retrying: %s", error)
                self._schedule_send(watched)
                if stream.hole is None and not stream.lacking:
                    break
                if stream.head == before:
                    await asyncio.sleep(pause)
                    pause = min(pause * 2, self._timings.max_retry)
        finally:
            watched.mending = None
            if self._by_stream.get(stream) is watched:
                self._schedule_send(watched)

    async def _replay(self, rows: RowsNeeded) -> None:
        subscription = rows.subscription
        watched = self._by_stream.get(subscription.stream)
        if watched is None:
            return
        try:
            page = await self._shared_page(watched, rows.after)
        except StoreUnavailable:
            subscription.viewer.close(STORE_UNAVAILABLE)
            return
        if page.epoch != watched.stream.epoch:
            watched.stream.is_void = True
            self._schedule_send(watched)
        elif need := subscription.add_rows(page.entries, page.oldest):
            self.fulfil([need])

    async def _shared_page(self, watched: WatchedStream, after: int) -> JournalPage:
        reading = watched.pages.get(after)
        if reading is None:
            reading = watched.pages[after] = self._spawn(self._page(watched.id, after))
            loop = asyncio.get_running_loop()
            loop.call_later(self._timings.max_retry, watched.pages.pop, after, None)
        return await asyncio.shield(reading)

    async def _page(self, stream_id: UUID, after: int | None) -> JournalPage:
        async with self._reads:
            page = await self._journal.read_page(stream_id, after, PAGE_SIZE)
            if page is None:
                # The stream has no envelopes yet.
                page = JournalPage((await self._journal.read_heads(()))[0], 0, 1)
        self._metrics.count_read("envelopes")
        return page

    # Streams.

    def _watch(self, stream_id: UUID, *, is_session: bool) -> WatchedStream:
        watched = self._streams.get(stream_id)
        if watched is None:
            stream = CachedStream(stream_id if is_session else None, self._limits)
            watched = self._streams[stream_id] = self._by_stream[stream] = WatchedStream(stream_id, stream)
            self.on_interest(stream_id, True)
            asyncio.get_running_loop().call_later(
                self._timings.announce_delay, self._compare_later, stream_id
            )
        return watched

    def _compare_later(self, stream_id: UUID) -> None:
        if self._to_compare is not None:
            self._to_compare[stream_id] = None
        self._compare_soon.set()

    def _drop_idle(self) -> None:
        """Drop the streams that have had no viewers for a while."""
        now = asyncio.get_running_loop().time()
        for watched in [*self._streams.values()]:
            if watched.is_in_use:
                watched.left_at = None
            elif watched.left_at is None:
                watched.left_at = now
            elif now - watched.left_at >= self._timings.linger:
                self._drop(watched)

    def _drop(self, watched: WatchedStream) -> None:
        if self._by_stream.pop(watched.stream, None):
            del self._streams[watched.id]
            self._changed.pop(watched, None)
            self.on_interest(watched.id, False)

    def _schedule_send(self, watched: WatchedStream) -> None:
        """Send what is new at the end of this loop iteration, with everything else that arrives in it."""
        if not self._changed:
            asyncio.get_running_loop().call_soon(self._send)
        self._changed[watched] = None

    def _send(self) -> None:
        changed, self._changed = self._changed, {}
        for watched in changed:
            stream = watched.stream
            if stream.is_void:
                self._drop_void(watched)
                continue
            self.fulfil(watched.relay.send())
            if watched.mending is None and stream.epoch and (stream.hole is not None or stream.lacking):
                watched.mending = self._spawn(self._read_missing(watched))

    def _drop_void(self, watched: WatchedStream) -> None:
        """Drop a stream whose history has changed; its viewers have to join again."""
        self._drop(watched)
        for viewer in watched.relay.viewers:
            viewer.close(HISTORY_CHANGED)

    def _spawn(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error and not isinstance(error, StoreUnavailable):
            note_failure("the relay of a stream", error, logger)


def _ignore_interest(stream_id: UUID, is_wanted: bool) -> None:
    del stream_id, is_wanted
