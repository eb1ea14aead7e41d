"""One stream: its history's epoch and head, a ring of its last envelopes, and what is being written.

A stream takes what writers push, in whatever order and however often it comes, and what was read from the
table. It says what is missing (`hole`, `lacking`); whoever owns it reads that and hands it over.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from uuid import UUID

from everstep.agent_domain.stream.reader import ENDED, Attempted, Place, Position, Taken, remember
from everstep.broadcast_gateway.frames import Chunk, Entry, Wire
from everstep.broadcast_gateway.limits import LIMITS, Limits
from everstep.broadcast_gateway.partial_text import OpenDraft

BEGINNING = Place(0, 0, 0)
"""Before every draft."""


class Cursor:
    """How far a viewer has been sent a stream, or all those who are at the same place."""

    __slots__ = ("is_joining", "places", "seq")

    def __init__(self, seq: int, places: dict[str, Place], *, is_joining: bool = True) -> None:
        self.seq = seq
        self.places = places
        """How far it has come in the drafts, by execution."""
        self.is_joining = is_joining
        """Until it has come to the head once, it comes upon drafts in the middle: it has read what its places
        say and nothing else. Later it has read of every draft all that there was when it was at the head."""

    def copy(self) -> "Cursor":
        """The same, moving on its own."""
        return Cursor(self.seq, dict(self.places), is_joining=self.is_joining)

    def is_at(self, other: "Cursor") -> bool:
        """Whether both have been sent the same."""
        return self.seq == other.seq and self.places == other.places and not self.is_joining

    def place(self, execution_id: str) -> Place | None:
        """How far it has come in a draft; None if it comes upon it."""
        return self.places.get(execution_id, None if self.is_joining else BEGINNING)


class Stream:
    """What the gateway holds of one stream."""

    __slots__ = (
        "_closed",
        "_drafts",
        "_early",
        "_ended",
        "_known",
        "_pushed",
        "_ring",
        "_seen_since",
        "_size",
        "epoch",
        "head",
        "is_void",
        "limits",
        "oldest",
        "session_id",
    )

    def __init__(self, session_id: UUID | None, limits: Limits = LIMITS) -> None:
        self.session_id = session_id
        """The session that it tells of; None for an execution's own stream."""
        self.epoch: str | None = None
        """Which history this is; None until the table was read, and nothing is sent before."""
        self.head = 0
        """The last envelope that can be sent."""
        self.oldest = 1
        """The first envelope that the table still has, as far as is known."""
        self.is_void = False
        """Whether its history has changed, or lost what comes next: close whoever watches, and forget it."""
        self.limits = limits
        self._seen_since = 0
        """Every envelope from there to the head has been seen."""
        self._known = 0
        self._pushed: str | None = None
        """Of which history writers push."""
        self._ring: list[Entry] = []
        self._size = 0
        self._early: dict[int, Entry] = {}
        self._drafts: dict[str, OpenDraft] = {}
        self._closed: dict[int, OpenDraft] = {}
        """What was written until an envelope of the ring put an end to it."""
        self._ended: dict[str, None] = {}

    # What is missing.

    @property
    def first(self) -> int:
        """The first envelope of the ring; the next one to come, if the ring is empty."""
        return self._ring[0].seq if self._ring else self.head + 1

    @property
    def hole(self) -> int | None:
        """The table has to be read from after this seq; None if nothing is missing."""
        return self.head if self.epoch is None or self._known > self.head else None

    @property
    def lacking(self) -> list[tuple[str, Place]]:
        """Executions of whose text something is missing from this place on: read their rows.

        `partial` takes the step under way, `ended` that there is none any more.
        """
        drafts = self._drafts.items()
        return [(of, draft.place) for of, draft in drafts if draft.lacks_text(self.head)]

    def noticed(self, head: int) -> None:
        """Somebody has seen this seq in the table."""
        self._known = max(self._known, head)

    def pruned(self, oldest: int) -> None:
        """What the table had before this seq is gone."""
        self.oldest = max(self.oldest, oldest)

    # What comes in.

    def append(self, entries: Iterable[Entry], epoch: str) -> bool:
        """What writers have stored in this history, in any order; whether there is more to send now."""
        if epoch != self._pushed:
            if self.epoch is not None:
                self.is_void = True
                return False
            self._early.clear()
            self._known = 0
            self._pushed = epoch
        before = self.head
        for entry in entries:
            if self.epoch is not None and entry.seq == self.head + 1:
                self._take(entry)
            elif self.epoch is None or entry.seq > self.head:
                self._known = max(self._known, entry.seq)
                # What does not fit is in the table, which has to be read anyway.
                if len(self._early) < self.limits.early:
                    self._early[entry.seq] = entry
        if self.epoch is not None:
            self._go_on()
        return self.head > before

    def loaded(self, after: int, rows: Sequence[Entry], *, epoch: str, oldest: int) -> None:
        """What the table has after a seq, and the first seq that it has at all."""
        if self.epoch is None:
            # What was pushed meanwhile counts if it is of this history.
            self.append((), epoch)
            self.epoch = epoch
            self._seen_since = self.head = rows[0].seq - 1 if rows else after
        self.pruned(oldest)
        # What was pruned before it was read here can no longer be sent.
        if self.epoch != epoch or oldest > self.head + 1:
            self.is_void = True
            return
        for row in rows:
            if row.seq == self.head + 1:
                self._take(row)
        self._early = {seq: entry for seq, entry in self._early.items() if seq > self.head}
        self._go_on()

    def chunk(self, chunk: Chunk) -> Taken:
        """A chunk as it was streamed; on `RESYNC` it waits, and `hole` or `lacking` says for what."""
        if chunk.execution_id in self._ended:
            return Taken.DROPPED
        self._known = max(self._known, chunk.after_seq)
        return self._draft(chunk.execution_id).take(chunk, self._seen)

    def partial(
        self, execution_id: str, at: Place, content: str, *, after_seq: int, timestamp: datetime
    ) -> Taken:
        """The text before a place, as it stands in its step's row."""
        if execution_id in self._ended:
            return Taken.DROPPED
        self._known = max(self._known, after_seq)
        if after_seq > self.head:
            return Taken.RESYNC
        return self._draft(execution_id).replace(at, content, after_seq, timestamp, self._seen)

    def ended(self, execution_id: str) -> None:
        """The table says that this execution has ended."""
        self._drafts.pop(execution_id, None)
        remember(self._ended, execution_id)

    # What goes out.

    def recovers(self, since: Position) -> bool:
        """Whether a viewer can go on from there without a gap."""
        return self._is_ours(since) and self.oldest - 1 <= since.seq <= self.head

    def is_behind(self, since: Position) -> bool:
        """Whether a viewer says that there is more than is known here: only the table can tell."""
        return self._is_ours(since) and since.seq > self.head

    def reaches(self, cursor: Cursor) -> bool:
        """Whether what comes after it is in the ring."""
        return cursor.seq + 1 >= self.first

    def frames(self, cursor: Cursor, wire: Wire, room: int) -> list[bytes]:
        """What comes after a cursor that the ring reaches, about so many bytes of it; moves the cursor.

        Nothing means that the cursor is at the head, and has been sent all that is being written.
        """
        frames: list[bytes] = []
        if cursor.seq < self.head:
            for entry in self._ring[cursor.seq + 1 - self.first :]:
                if draft := self._closed.get(entry.seq):
                    frames += draft.rest(cursor.place(entry.execution_id), wire, self.session_id)
                frame = entry.frame(wire)
                frames.append(frame)
                cursor.seq = entry.seq
                room -= len(frame)
                if room <= 0:
                    return frames
        places: dict[str, Place] = {}
        for execution_id, draft in self._drafts.items():
            place = cursor.place(execution_id)
            frames += draft.rest(place, wire, self.session_id)
            # A viewer who comes from another gateway may have read more than is known here.
            places[execution_id] = draft.place if place is None else max(place, draft.place)
        cursor.places = places
        cursor.is_joining = False
        return frames

    @property
    def _seen(self) -> range:
        return range(0) if self.epoch is None else range(self._seen_since, self.head + 1)

    def _is_ours(self, since: Position) -> bool:
        return since.epoch is None or since.epoch == self.epoch

    def _draft(self, execution_id: str) -> OpenDraft:
        draft = self._drafts.get(execution_id)
        if draft is None:
            draft = self._drafts[execution_id] = OpenDraft(execution_id, self.limits)
        return draft

    def _go_on(self) -> None:
        """Take what came too early and no longer does."""
        while entry := self._early.pop(self.head + 1, None):
            self._take(entry)
        seen = self._seen
        for draft in self._drafts.values():
            draft.retry(seen)

    def _take(self, entry: Entry) -> None:
        self.head = entry.seq
        self._ring.append(entry)
        self._size += len(entry.body)
        if entry.fence is not None:
            self._end(entry, entry.fence)
        while len(self._ring) > self.limits.ring or (
            self._size > self.limits.ring_bytes and len(self._ring) > 1
        ):
            self._forget(self._ring[0])

    def _end(self, entry: Entry, fence: Attempted) -> None:
        draft = self._draft(entry.execution_id)
        if fence <= draft.floor:
            # It writes in a later step already.
            ended, draft.before = draft.before, None
        else:
            ended = draft
            if fence == ENDED:
                self.ended(entry.execution_id)
            else:
                self._drafts[entry.execution_id] = draft.follow_up(fence)
        # Of an attempt that was given up nothing more is said.
        if ended and ended.place.next_index and fence[0] > ended.place.step_number:
            self._closed[entry.seq] = ended
            self._size += ended.size

    def _forget(self, entry: Entry) -> None:
        del self._ring[0]
        self._size -= len(entry.body)
        if draft := self._closed.pop(entry.seq, None):
            self._size -= draft.size
