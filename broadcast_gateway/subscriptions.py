"""Those who watch: a cursor for each stream that they watch, and one for all who are up to date.

Whoever is up to date is in an *audience*, which has one cursor: what is new is put together once, and the
same bytes are written to everybody in it. Whoever is not (because he has just joined, resumes, or is slow)
has a cursor of his own and is sent the same frames from it, until he has caught up and joins the audience.

Nothing here waits. A viewer has a function that takes bytes, and is told when its transport wants no more.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from sys import maxsize

from everstep.agent_domain.stream.reader import Position
from everstep.broadcast_gateway.frames import Entry, Wire
from everstep.broadcast_gateway.streams import Cursor, Stream
from everstep.broadcast_gateway.wires.closing import Closing


@dataclass(frozen=True, slots=True)
class Joined:
    """What somebody who subscribes is answered: what follows comes after this seq of this epoch."""

    epoch: str
    seq: int
    recovered: bool
    """Whether that is where he was; otherwise he has to fetch the history."""


@dataclass(frozen=True, slots=True)
class Rows:
    """A subscription needs what the table has after a seq."""

    subscription: "Subscription"
    after: int


@dataclass(frozen=True, slots=True)
class Fallen:
    """A viewer cannot be served without a gap any more: close him, he may resume."""

    viewer: "Viewer"


Need = Rows | Fallen
"""What cannot be done here."""


class Viewer:
    """A connection."""

    __slots__ = ("_moved_at", "_unsent", "close", "is_paused", "subscriptions", "write")

    def __init__(self, write: Callable[[bytes], object], close: Callable[[Closing], object]) -> None:
        self.write = write
        """Takes bytes at once, and may say so (`pause`) that it wants no more for now."""
        self.close = close
        """Ends the connection, for this reason."""
        self.subscriptions: dict[str, Subscription] = {}
        """By the name of the channel."""
        self.is_paused = False
        self._unsent = 0
        self._moved_at = 0.0

    def pause(self, now: float, unsent: int) -> None:
        """Its transport wants no more; so many bytes of what it took are still there."""
        self.is_paused = True
        self._unsent = unsent
        self._moved_at = now
        for subscription in self.subscriptions.values():
            subscription.leave_audience()

    def resume(self) -> list[Need]:
        """Its transport takes bytes again."""
        self.is_paused = False
        return [need for each in tuple(self.subscriptions.values()) if (need := each.catch_up())]

    def is_stuck(self, now: float, unsent: int, patience: float) -> bool:
        """Whether it has taken nothing for so long, though it should have; ask every second or so."""
        if unsent < self._unsent:
            self._unsent = unsent
            self._moved_at = now
        return self.is_paused and now - self._moved_at >= patience

    def leave(self) -> None:
        """The connection is gone."""
        for channel in tuple(self.subscriptions):
            self.unsubscribe(channel)

    def unsubscribe(self, channel: str) -> None:
        """It no longer watches this."""
        if subscription := self.subscriptions.pop(channel, None):
            subscription.end()


class Subscription:
    """A viewer on a stream."""

    __slots__ = ("_audience", "_cursor", "_is_asking", "_is_replaying", "_rows", "viewer")

    def __init__(self, viewer: Viewer, audience: "Audience", cursor: Cursor) -> None:
        self.viewer = viewer
        self._audience = audience
        self._cursor: Cursor | None = cursor
        """Its own; None while it shares the audience's, and when it has ended."""
        self._rows: Sequence[Entry] = ()
        """Of the table: what comes before the ring."""
        self._is_asking = False
        self._is_replaying = False
        audience.behind[self] = None

    @property
    def stream(self) -> Stream:
        """What is watched."""
        return self._audience.stream

    @property
    def has_fallen(self) -> bool:
        """Whether it was so slow that what it needs next has left the ring."""
        cursor = self._cursor
        return (
            cursor is not None
            and self.viewer.is_paused
            and not self._is_replaying
            and not self._audience.stream.reaches(cursor)
        )

    def catch_up(self) -> Need | None:
        """Send what there is, as much as the transport takes; up to date, it joins the audience."""
        audience = self._audience
        while (cursor := self._cursor) and not self.viewer.is_paused and not self._is_asking:
            if audience.stream.reaches(cursor):
                self._is_replaying = False
                self._rows = ()
                frames = audience.stream.frames(cursor, audience.wire, audience.room)
            elif self._rows and self._rows[-1].seq > cursor.seq:
                frames = self._replay(cursor)
            else:
                self._is_asking = self._is_replaying = True
                return Rows(self, cursor.seq)
            if frames:
                self.viewer.write(b"".join(frames))
            else:
                if audience.admits(self, cursor):
                    self._cursor = None
                break
        return None

    def loaded(self, rows: Sequence[Entry], oldest: int) -> Need | None:
        """What the table has after the seq that was asked for, and the first seq that it still has at all."""
        self._is_asking = False
        if self._cursor is None:
            return None
        self._audience.stream.pruned(oldest)
        if not rows or rows[0].seq != self._cursor.seq + 1:
            return Fallen(self.viewer)
        self._rows = rows
        return self.catch_up()

    def leave_audience(self) -> None:
        """Go on from the same place alone."""
        audience = self._audience
        if self in audience.live:
            del audience.live[self]
            audience.behind[self] = None
            self._cursor = audience.cursor.copy()

    def end(self) -> None:
        """Nothing more is sent."""
        self._cursor = None
        self._audience.live.pop(self, None)
        self._audience.behind.pop(self, None)

    def _replay(self, cursor: Cursor) -> list[bytes]:
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
    """Those who watch a stream over one wire."""

    __slots__ = ("behind", "cursor", "live", "room", "stream", "wire")

    def __init__(self, stream: Stream, wire: Wire) -> None:
        self.stream = stream
        self.wire = wire
        self.room = stream.limits.room
        self.live: dict[Subscription, None] = {}
        """Who is up to date, all at the cursor."""
        self.behind: dict[Subscription, None] = {}
        self.cursor = Cursor(0, {})

    def admits(self, subscription: Subscription, cursor: Cursor) -> bool:
        """Let one in who has been sent what everybody here has been sent."""
        if not self.live:
            self.cursor = cursor
        elif not cursor.is_at(self.cursor):
            return False
        del self.behind[subscription]
        self.live[subscription] = None
        return True

    def send(self) -> list[Need]:
        """Send everybody what is new to him."""
        if self.live:
            if self.stream.reaches(self.cursor):
                self._send_live()
            else:
                # More came at once than the ring holds.
                for subscription in tuple(self.live):
                    subscription.leave_audience()
        needs: list[Need] = []
        for subscription in tuple(self.behind):
            if subscription.has_fallen:
                needs.append(Fallen(subscription.viewer))
            elif need := subscription.catch_up():
                needs.append(need)
        return needs

    def _send_live(self) -> None:
        data = b"".join(self.stream.frames(self.cursor, self.wire, maxsize))
        if data:
            # Who is told to pause while he is written to leaves, and takes the cursor along as it is now.
            for subscription in tuple(self.live):
                subscription.viewer.write(data)


class Relay:
    """A stream and all who watch it."""

    __slots__ = ("_audiences", "stream")

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self._audiences: dict[Wire, Audience] = {}

    @property
    def is_watched(self) -> bool:
        """Whether anybody is there."""
        return any(audience.live or audience.behind for audience in self._audiences.values())

    @property
    def viewers(self) -> set[Viewer]:
        """Everybody."""
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
    ) -> Joined | None:
        """Let a viewer watch, from where he was if that is possible; `catch_up` then sends what he missed.

        None if the table has to be read first: then ask again, with `is_fresh`.
        """
        stream = self.stream
        epoch = stream.epoch
        if epoch is None or (since and not is_fresh and stream.is_behind(since)):
            return None
        viewer.unsubscribe(channel)
        audience = self._audiences.get(wire)
        if audience is None:
            audience = self._audiences[wire] = Audience(stream, wire)
        if since and stream.recovers(since):
            cursor = Cursor(since.seq, {str(of): place for of, place in since.drafts.items()})
            answer = Joined(epoch, since.seq, recovered=True)
        else:
            cursor = Cursor(stream.head, {})
            answer = Joined(epoch, stream.head, recovered=False)
        viewer.subscriptions[channel] = Subscription(viewer, audience, cursor)
        return answer

    def send(self) -> list[Need]:
        """Send everybody what is new; call it once for all that came in one turn of the loop."""
        return [need for audience in self._audiences.values() for need in audience.send()]
