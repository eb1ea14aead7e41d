"""Viewers: a cursor for each subscription, and one shared cursor for all viewers that are up to date.

Viewers that are up to date form an *audience* with one cursor: new frames are joined once, and the same bytes
are written to all of them. A viewer that is not (because it has just joined, resumes, or is slow) has its own
cursor and is sent the same frames from it, until it has caught up and joins the audience.

Nothing here waits. A viewer has a function that takes bytes, and is paused when its transport is full.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from sys import maxsize

from everstep.agent_domain.stream.reader import Position
from everstep.broadcast_gateway.frames import RelayedEntry, Wire
from everstep.broadcast_gateway.streams import CachedStream, StreamCursor
from everstep.broadcast_gateway.wires.closing import Closing


@dataclass(frozen=True, slots=True)
class SubscribeReply:
    """The reply to a subscription: the following envelopes come after this seq of this epoch."""

    epoch: str
    seq: int
    recovered: bool
    """Whether the viewer was resumed at its position; if not, it has to load the history."""


@dataclass(frozen=True, slots=True)
class RowsNeeded:
    """A subscription needs the rows of the table after a seq."""

    subscription: "Subscription"
    after: int


@dataclass(frozen=True, slots=True)
class ViewerTooSlow:
    """A viewer is too slow to be served without a gap: close it, and it may resume."""

    viewer: "Viewer"


HubRequest = RowsNeeded | ViewerTooSlow
"""A request that the hub has to carry out."""


class Viewer:
    """The receiving side of a connection."""

    __slots__ = ("_moved_at", "_unsent", "close", "is_paused", "subscriptions", "traceparent", "write")

    def __init__(self, write: Callable[[bytes], object], close: Callable[[Closing], object]) -> None:
        self.write = write
        """Takes bytes at once, and may call `pause`."""
        self.close = close
        """Closes the connection with this reason."""
        self.subscriptions: dict[str, Subscription] = {}
        """The subscriptions, by the key of their channel."""
        self.is_paused = False
        self.traceparent: str | None = None
        """The trace that its client named."""
        self._unsent = 0
        self._moved_at = 0.0

    def pause(self, now: float, unsent: int) -> None:
        """Pause: the transport is full, and holds so many unsent bytes."""
        self.is_paused = True
        self._unsent = unsent
        self._moved_at = now
        for subscription in self.subscriptions.values():
            subscription.leave_audience()

    def resume(self) -> list[HubRequest]:
        """Continue: the transport accepts bytes again."""
        self.is_paused = False
        return [need for each in tuple(self.subscriptions.values()) if (need := each.catch_up())]

    def is_stuck(self, now: float, unsent: int, patience: float) -> bool:
        """Whether the transport has been full without progress for so long; call it about every second."""
        if unsent < self._unsent:
            self._unsent = unsent
            self._moved_at = now
        return self.is_paused and now - self._moved_at >= patience

    def end(self) -> None:
        """End all subscriptions: the connection is closed."""
        for channel in tuple(self.subscriptions):
            self.unsubscribe(channel)

    def unsubscribe(self, channel: str) -> None:
        """End the subscription of a channel."""
        if subscription := self.subscriptions.pop(channel, None):
            subscription.end()


class Subscription:
    """A viewer's subscription to a stream."""

    __slots__ = ("_audience", "_cursor", "_is_asking", "_is_replaying", "_rows", "viewer")

    def __init__(self, viewer: Viewer, audience: "Audience", cursor: StreamCursor) -> None:
        self.viewer = viewer
        self._audience = audience
        self._cursor: StreamCursor | None = cursor
        """Its own cursor; None while it shares the audience's, and after its end."""
        self._rows: Sequence[RelayedEntry] = ()
        """Rows of the table from before the ring."""
        self._is_asking = False
        self._is_replaying = False
        audience.behind[self] = None

    @property
    def stream(self) -> CachedStream:
        """The stream."""
        return self._audience.stream

    @property
    def is_too_slow(self) -> bool:
        """Whether the viewer was so slow that its next envelope has left the ring."""
        cursor = self._cursor
        return (
            cursor is not None
            and self.viewer.is_paused
            and not self._is_replaying
            and not self._audience.stream.has_frames_after(cursor)
        )

    def catch_up(self) -> HubRequest | None:
        """Send frames until the transport is full or the viewer is up to date, and joins the audience."""
        audience = self._audience
        while (cursor := self._cursor) and not self.viewer.is_paused and not self._is_asking:
            if audience.stream.has_frames_after(cursor):
                self._is_replaying = False
                self._rows = ()
                frames = audience.stream.frames(cursor, audience.wire, audience.room)
            elif self._rows and self._rows[-1].seq > cursor.seq:
                frames = self._replay(cursor)
            else:
                self._is_asking = self._is_replaying = True
                return RowsNeeded(self, cursor.seq)
            if frames:
                self.viewer.write(b"".join(frames))
            else:
                if audience.admit(self, cursor):
                    self._cursor = None
                break
        return None

    def add_rows(self, rows: Sequence[RelayedEntry], oldest: int) -> HubRequest | None:
        """Add the rows after the seq that was asked for.

        Args:
            rows: The rows.
            oldest: The first seq that the table still has.
        """
        self._is_asking = False
        if self._cursor is None:
            return None
        self._audience.stream.prune(oldest)
        if not rows or rows[0].seq != self._cursor.seq + 1:
            return ViewerTooSlow(self.viewer)
        self._rows = rows
        return self.catch_up()

    def leave_audience(self) -> None:
        """Continue alone from the audience's cursor."""
        audience = self._audience
        if self in audience.live:
            del audience.live[self]
            audience.behind[self] = None
            self._cursor = audience.cursor.copy()

    def end(self) -> None:
        """Send nothing more."""
        self._cursor = None
        self._audience.live.pop(self, None)
        self._audience.behind.pop(self, None)

    def _replay(self, cursor: StreamCursor) -> list[bytes]:
        frames: list[bytes] = []
        room = self._audience.room
        for row in self._rows[cursor.seq + 1 - self._rows[0].seq :]:
            frame = row.frame(self._audience.wire)
            frames.append(frame)
            cursor.seq = row.seq
            room -= len(frame)
            if room <= 0:
                break
        return frames


class Audience:
    """The viewers of a stream on one wire."""

    __slots__ = ("behind", "cursor", "live", "room", "stream", "wire")

    def __init__(self, stream: CachedStream, wire: Wire) -> None:
        self.stream = stream
        self.wire = wire
        self.room = stream.limits.room
        self.live: dict[Subscription, None] = {}
        """The subscriptions that are up to date, all at `cursor`."""
        self.behind: dict[Subscription, None] = {}
        self.cursor = StreamCursor(0, {})

    def admit(self, subscription: Subscription, cursor: StreamCursor) -> bool:
        """Add a subscription whose cursor is at the audience's; returns whether it is."""
        if not self.live:
            self.cursor = cursor
        elif not cursor.is_at(self.cursor):
            return False
        del self.behind[subscription]
        self.live[subscription] = None
        return True

    def send(self) -> list[HubRequest]:
        """Send all viewers the envelopes that are new to them."""
        if self.live:
            if self.stream.has_frames_after(self.cursor):
                self._send_live()
            else:
                # More envelopes arrived at once than the ring holds.
                for subscription in tuple(self.live):
                    subscription.leave_audience()
        needs: list[HubRequest] = []
        for subscription in tuple(self.behind):
            if subscription.is_too_slow:
                needs.append(ViewerTooSlow(subscription.viewer))
            elif need := subscription.catch_up():
                needs.append(need)
        return needs

    def _send_live(self) -> None:
        data = b"".join(self.stream.frames(self.cursor, self.wire, maxsize))
        if data:
            # A viewer whose transport pauses during this write leaves the audience with a copy of the cursor
            # as it is now.
            for subscription in tuple(self.live):
                subscription.viewer.write(data)


class Relay:
    """A stream and all its viewers."""

    __slots__ = ("_audiences", "stream")

    def __init__(self, stream: CachedStream) -> None:
        self.stream = stream
        self._audiences: dict[Wire, Audience] = {}

    @property
    def is_watched(self) -> bool:
        """Whether there are any viewers."""
        return any(audience.live or audience.behind for audience in self._audiences.values())

    @property
    def viewers(self) -> set[Viewer]:
        """All viewers."""
        return {
            each.viewer for audience in self._audiences.values() for each in audience.live | audience.behind
        }

    def subscribe(
        self,
        viewer: Viewer,
        channel: str,
        wire: Wire,
        since: Position | None = None,
        *,
        is_fresh: bool = False,
    ) -> SubscribeReply | None:
        """Subscribe a viewer; `catch_up` then sends what it has missed.

        Args:
            viewer: The viewer.
            channel: The key of the subscription within the viewer.
            wire: The viewer's wire.
            since: The position to resume from, if possible; None for the head.
            is_fresh: Whether the table has just been read.

        Returns:
            The position from which envelopes follow; None if the table has to be read first.
        """
        stream = self.stream
        epoch = stream.epoch
        if epoch is None or (since and not is_fresh and stream.is_behind(since)):
            return None
        viewer.unsubscribe(channel)
        audience = self._audiences.get(wire)
        if audience is None:
            audience = self._audiences[wire] = Audience(stream, wire)
        if since and stream.can_resume_from(since):
            cursor = StreamCursor(since.seq, {str(of): place for of, place in since.drafts.items()})
            answer = SubscribeReply(epoch, since.seq, recovered=True)
        else:
            cursor = StreamCursor(stream.head, {})
            answer = SubscribeReply(epoch, stream.head, recovered=False)
        viewer.subscriptions[channel] = Subscription(viewer, audience, cursor)
        return answer

    def send(self) -> list[HubRequest]:
        """Send all viewers what is new; call it once for all envelopes of one loop iteration."""
        return [need for audience in self._audiences.values() for need in audience.send()]
