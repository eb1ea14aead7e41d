"""All watched streams: takes the envelopes that writers push, and reads what is missing from the table.

A stream detects what is missing; the hub reads it, one read at a time per stream and at a limited rate. It
knows no sockets: every viewer has a `Viewer`.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from everstep.agent_domain.background import note_failure
from everstep.agent_domain.errors import StoreUnavailable
from everstep.agent_domain.stream.reader import Position
from everstep.broadcast_gateway.frames import Chunk, Wire, read
from everstep.broadcast_gateway.limits import LIMITS, Limits
from everstep.broadcast_gateway.metrics import Metrics
from everstep.broadcast_gateway.ports import Journal, Page
from everstep.broadcast_gateway.streams import Stream
from everstep.broadcast_gateway.subscriptions import Fallen, Joined, Need, Relay, Rows, Viewer
from everstep.broadcast_gateway.wires.closing import BEGIN_ANEW, NOT_NOW, TOO_SLOW

logger = logging.getLogger(__name__)

PAGE = 1000
"""Envelopes per read."""
READS = 4
"""Concurrent reads of the table."""
HEADS = 1000
"""Streams per comparison of heads."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Intervals between reads of the table, in seconds."""

    grace: float = 0.005
    """How long an envelope that arrived early waits for its predecessors before they are read."""
    settled: float = 0.25
    """The delay after which writers know that a stream is watched; what they did not push before is read."""
    compare: float = 3.0
    """Between two comparisons of all heads."""
    retry: float = 0.05
    """Before a read of missing data is repeated; doubles."""
    most: float = 1.0
    """The upper limit of `retry`: texts are recorded once a second."""
    linger: float = 30.0
    """How long a stream without viewers is kept, for viewers that reconnect."""


class Watched:
    """A stream and the reads that are running for it."""

    __slots__ = ("id", "joining", "left_at", "mending", "opening", "pages", "relay")

    def __init__(self, stream_id: UUID, stream: Stream) -> None:
        self.id = stream_id
        self.relay = Relay(stream)
        self.opening: asyncio.Task[None] | None = None
        """The read that opens the stream, or that looks for newer envelopes."""
        self.mending: asyncio.Task[None] | None = None
        self.pages: dict[int, asyncio.Task[Page]] = {}
        """Reads of the table by the seq they start after, shared by viewers that are behind at the same
        place.
        """
        self.joining = 0
        self.left_at: float | None = None

    @property
    def stream(self) -> Stream:
        """The cached stream."""
        return self.relay.stream

    @property
    def is_used(self) -> bool:
        """Whether it has viewers or will have one soon."""
        return self.joining > 0 or self.relay.is_watched


class Hub:
    """Relays streams to viewers."""

    def __init__(
        self, journal: Journal, metrics: Metrics, *, limits: Limits = LIMITS, pace: Pace = Pace()
    ) -> None:
        self._journal = journal
        self._metrics = metrics
        self._limits = limits
        self._timings = pace
        self._streams: dict[UUID, Watched] = {}
        self._by_stream: dict[Stream, Watched] = {}
        self._changed: dict[Watched, None] = {}
        self._to_compare: dict[UUID, None] | None = {}
        """Streams whose heads are compared next; None for all."""
        self._compare_soon = asyncio.Event()
        self._reads = asyncio.Semaphore(READS)
        self._tasks = set[asyncio.Task[Any]]()
        self.on_interest: Callable[[UUID, bool], object] = _nobody
        """Called when a stream is wanted from now on, and when it is no longer."""

    @property
    def wanted(self) -> Collection[UUID]:
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
    ) -> Joined:
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
        is_fresh = False
        while True:
            watched = self._watch(stream_id, is_session=is_session)
            watched.joining += 1
            try:
                if (epoch := watched.stream.epoch) and not watched.stream.is_void:
                    joined = watched.relay.subscribe(viewer, channel, wire(epoch), since, is_fresh=is_fresh)
                    if joined:
                        return joined
                await self._opened(watched, since)
                is_fresh = True
            finally:
                watched.joining -= 1
            if watched.stream.is_void:
                self._void(watched)
            elif watched.stream.epoch is None:
                raise StoreUnavailable("the stream could not be read")

    def catch_up(self, viewer: Viewer, channel: str) -> None:
        """Send the envelopes that the viewer has missed."""
        if need := viewer.subscriptions[channel].catch_up():
            self.meet([need])

    def meet(self, needs: Iterable[Need]) -> None:
        """Read the requested rows, and close the viewers that cannot be served any more."""
        for need in needs:
            match need:
                case Rows():
                    self._spawn(self._replay(need))
                case Fallen(viewer):
                    viewer.close(TOO_SLOW)

    # Writers.

    def pushed(self, stream_id: UUID, body: bytes, epoch: str) -> None:
        """Add an envelope or a chunk as its writer pushed it.

        Raises:
            InvalidInput: It is malformed.
        """
        watched = self._streams.get(stream_id)
        if watched is None:
            return
        told, stream = read(body), watched.stream
        if stream.epoch not in (None, epoch):
            # Either the writer or this gateway does not know of a new history yet: read the epoch from the
            # table.
            self._doubt(stream_id)
            return
        if isinstance(told, Chunk):
            stream.chunk(told)
        else:
            stream.append((told,), epoch)
        self._metrics.pushed(is_chunk=isinstance(told, Chunk))
        self._has_changed(watched)

    def compare(self) -> None:
        """Compare the heads of all streams soon, because pushes may have been lost."""
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
                doubted, self._to_compare = self._to_compare, {}
                if doubted is None or loop.time() >= due:
                    doubted, due = None, loop.time() + self._timings.compare
                self._compare_soon.clear()
                self._leave()
                await self._compare([*self._streams] if doubted is None else [*doubted])
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _compare(self, stream_ids: list[UUID]) -> None:
        for start in range(0, len(stream_ids), HEADS):
            try:
                async with self._reads:
                    epoch, heads = await self._journal.heads(stream_ids[start : start + HEADS])
            except StoreUnavailable as error:
                logger.warning("comparing the heads of streams failed: %s", error)
                return
            for stream_id in stream_ids[start : start + HEADS]:
                if watched := self._streams.get(stream_id):
                    self._compared(watched, epoch, heads.get(stream_id))

    def _compared(self, watched: Watched, epoch: str, head: int | None) -> None:
        stream = watched.stream
        if stream.epoch is None:
            return
        # Stored envelopes disappear only when the session is deleted.
        is_gone = head is None and stream.head > 0
        if stream.epoch != epoch or is_gone:
            stream.is_void = True
        else:
            stream.noticed(head or 0)
        if stream.is_void or stream.hole is not None:
            self._has_changed(watched)

    async def _opened(self, watched: Watched, since: Position | None) -> None:
        """Read how far the stream has come, in one read for all callers that wait."""
        if watched.opening is None:
            watched.opening = self._spawn(self._open(watched, since))
        # A caller may be cancelled before the read completes; the others still wait.
        await asyncio.shield(watched.opening)

    async def _open(self, watched: Watched, since: Position | None) -> None:
        try:
            stream = watched.stream
            if stream.epoch is None:
                await self._read_texts(watched, await self._read_first(watched, since))
            else:
                await self._read_on(watched)
            self._has_changed(watched)
        finally:
            watched.opening = None

    async def _read_first(self, watched: Watched, since: Position | None) -> bool:
        """Read the rows after a position, for other viewers that reconnect as well, or else only the head."""
        after = since.seq if since else None
        page = await self._page(watched.id, after)
        rows = page.entries
        if after is None or (rows and rows[-1].seq < page.head):
            after, rows = page.head, ()
        watched.stream.loaded(min(after, page.head), rows, epoch=page.epoch, oldest=page.oldest)
        return page.head > 0

    async def _read_on(self, watched: Watched) -> None:
        stream = watched.stream
        page = await self._page(watched.id, stream.head)
        stream.loaded(stream.head, page.entries, epoch=page.epoch, oldest=page.oldest)
        stream.noticed(page.head)

    async def _read_texts(self, watched: Watched, is_begun: bool = True) -> None:
        """Read the texts in progress, as far as they were recorded."""
        if not is_begun:
            return
        async with self._reads:
            texts = await self._journal.texts(watched.id)
        self._metrics.read("texts")
        stream = watched.stream
        for execution_id, _ in stream.lacking:
            if execution_id not in texts:
                stream.ended(execution_id)
        for execution_id, text in texts.items():
            if text is not None:
                stream.partial(
                    execution_id, text.at, text.content, after_seq=text.after_seq, timestamp=text.timestamp
                )

    async def _mend(self, watched: Watched) -> None:
        """Read missing data until the stream is complete."""
        stream, pause = watched.stream, self._timings.retry
        await asyncio.sleep(self._timings.grace)
        try:
            while self._by_stream.get(stream) is watched and not stream.is_void:
                before = stream.head
                try:
                    if stream.hole is not None:
                        await self._read_on(watched)
                    elif stream.lacking:
                        await self._read_texts(watched)
                except StoreUnavailable as error:
                    logger.warning("reading the missing part of a stream failed, retrying: %s", error)
                self._has_changed(watched)
                if stream.hole is None and not stream.lacking:
                    break
                if stream.head == before:
                    await asyncio.sleep(pause)
                    pause = min(pause * 2, self._timings.most)
        finally:
            watched.mending = None
            if self._by_stream.get(stream) is watched:
                self._has_changed(watched)

    async def _replay(self, rows: Rows) -> None:
        subscription = rows.subscription
        watched = self._by_stream.get(subscription.stream)
        if watched is None:
            return
        try:
            page = await self._shared_page(watched, rows.after)
        except StoreUnavailable:
            subscription.viewer.close(NOT_NOW)
            return
        if page.epoch != watched.stream.epoch:
            watched.stream.is_void = True
            self._has_changed(watched)
        elif need := subscription.loaded(page.entries, page.oldest):
            self.meet([need])

    async def _shared_page(self, watched: Watched, after: int) -> Page:
        reading = watched.pages.get(after)
        if reading is None:
            reading = watched.pages[after] = self._spawn(self._page(watched.id, after))
            loop = asyncio.get_running_loop()
            loop.call_later(self._timings.most, watched.pages.pop, after, None)
        return await asyncio.shield(reading)

    async def _page(self, stream_id: UUID, after: int | None) -> Page:
        async with self._reads:
            page = await self._journal.page(stream_id, after, PAGE)
            if page is None:
                # The stream has no envelopes yet.
                page = Page((await self._journal.heads(()))[0], 0, 1)
        self._metrics.read("envelopes")
        return page

    # Streams.

    def _watch(self, stream_id: UUID, *, is_session: bool) -> Watched:
        watched = self._streams.get(stream_id)
        if watched is None:
            stream = Stream(stream_id if is_session else None, self._limits)
            watched = self._streams[stream_id] = self._by_stream[stream] = Watched(stream_id, stream)
            self.on_interest(stream_id, True)
            asyncio.get_running_loop().call_later(self._timings.settled, self._doubt, stream_id)
        return watched

    def _doubt(self, stream_id: UUID) -> None:
        if self._to_compare is not None:
            self._to_compare[stream_id] = None
        self._compare_soon.set()

    def _leave(self) -> None:
        """Drop the streams that have had no viewers for a while."""
        now = asyncio.get_running_loop().time()
        for watched in [*self._streams.values()]:
            if watched.is_used:
                watched.left_at = None
            elif watched.left_at is None:
                watched.left_at = now
            elif now - watched.left_at >= self._timings.linger:
                self._forget(watched)

    def _forget(self, watched: Watched) -> None:
        if self._by_stream.pop(watched.stream, None):
            del self._streams[watched.id]
            self._changed.pop(watched, None)
            self.on_interest(watched.id, False)

    def _has_changed(self, watched: Watched) -> None:
        """Send what is new at the end of this loop iteration, with everything else that arrives in it."""
        if not self._changed:
            asyncio.get_running_loop().call_soon(self._send)
        self._changed[watched] = None

    def _send(self) -> None:
        changed, self._changed = self._changed, {}
        for watched in changed:
            stream = watched.stream
            if stream.is_void:
                self._void(watched)
                continue
            self.meet(watched.relay.send())
            if watched.mending is None and stream.epoch and (stream.hole is not None or stream.lacking):
                watched.mending = self._spawn(self._mend(watched))

    def _void(self, watched: Watched) -> None:
        """Drop a stream whose history has changed; its viewers have to join again."""
        self._forget(watched)
        for viewer in watched.relay.viewers:
            viewer.close(BEGIN_ANEW)

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


def _nobody(stream_id: UUID, is_wanted: bool) -> None:
    del stream_id, is_wanted
