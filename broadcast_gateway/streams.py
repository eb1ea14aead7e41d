"""One stream: the epoch and head of its history, a ring of its last envelopes, and the texts in progress.

A stream accepts envelopes in any order and any number of times, from writers and from the table. It reports
what is missing (`hole`, `lacking`); its owner reads that and hands it over.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from uuid import UUID

from everstep.agent_domain.stream.reader import (
    AFTER_ALL_ATTEMPTS,
    AttemptKey,
    Place,
    Position,
    ReadOutcome,
    remember_end,
)
from everstep.broadcast_gateway.frames import RelayedChunk, RelayedEntry, Wire
from everstep.broadcast_gateway.limits import STREAM_LIMITS, StreamLimits
from everstep.broadcast_gateway.partial_text import OpenDraft

BEGINNING = Place(0, 0, 0)
"""A place before every draft."""


class StreamCursor:
    """The position of a viewer in a stream, or of all viewers at the same position."""

    __slots__ = ("is_joining", "places", "seq")

    def __init__(self, seq: int, places: dict[str, Place], *, is_joining: bool = True) -> None:
        self.seq = seq
        self.places = places
        """The places in the drafts, by execution."""
        self.is_joining = is_joining
        """True until the cursor has reached the head once: a joining viewer enters drafts in the middle and
        has read only what its places say. Later it has read everything of every draft that existed when it
        was at the head.
        """

    def copy(self) -> "StreamCursor":
        """Return a copy that moves independently."""
        return StreamCursor(self.seq, dict(self.places), is_joining=self.is_joining)

    def is_at(self, other: "StreamCursor") -> bool:
        """Whether both are at the same position."""
        return self.seq == other.seq and self.places == other.places and not self.is_joining

    def place(self, execution_id: str) -> Place | None:
        """Return the place in a draft; None if the viewer enters it in the middle."""
        return self.places.get(execution_id, None if self.is_joining else BEGINNING)


class CachedStream:
    """The cached part of one stream."""

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

    def __init__(self, session_id: UUID | None, limits: StreamLimits = STREAM_LIMITS) -> None:
        self.session_id = session_id
        """The session of the stream; None for the stream of an execution."""
        self.epoch: str | None = None
        """The epoch of the history; None until the table has been read. Nothing is sent before."""
        self.head = 0
        """The seq of the last envelope that can be sent."""
        self.oldest = 1
        """The seq of the first envelope known to be in the table still."""
        self.is_void = False
        """Whether the history has changed or lost the next envelope: close all viewers and drop the stream.
        """
        self.limits = limits
        self._seen_since = 0
        """All envelopes from this seq to the head have been received."""
        self._known = 0
        self._pushed: str | None = None
        """The epoch of the envelopes that writers push."""
        self._ring: list[RelayedEntry] = []
        self._size = 0
        self._early: dict[int, RelayedEntry] = {}
        self._drafts: dict[str, OpenDraft] = {}
        self._closed: dict[int, OpenDraft] = {}
        """The drafts that ended with an envelope of the ring, by its seq."""
        self._ended: dict[str, None] = {}

    # Missing data.

    @property
    def first(self) -> int:
        """The seq of the first envelope in the ring; that of the next one, if the ring is empty."""
        return self._ring[0].seq if self._ring else self.head + 1

    @property
    def hole(self) -> int | None:
        """The seq after which the table has to be read; None if nothing is missing."""
        return self.head if self.epoch is None or self._known > self.head else None

    @property
    def lacking(self) -> list[tuple[str, Place]]:
        """Executions whose text is incomplete from this place on: read their rows.

        Pass the current step to `partial`, and an execution without one to `ended`.
        """
        drafts = self._drafts.items()
        return [(of, draft.place) for of, draft in drafts if draft.lacks_text(self.head)]

    def note_head(self, head: int) -> None:
        """Record that the table has an envelope with this seq."""
        self._known = max(self._known, head)

    def prune(self, oldest: int) -> None:
        """Record that the table has no envelopes before this seq any more."""
        self.oldest = max(self.oldest, oldest)

    # Incoming data.

    def add_entries(self, entries: Iterable[RelayedEntry], epoch: str) -> bool:
        """Add envelopes from writers, in any order; returns whether there are more to send now."""
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
                self._add_entry(entry)
            elif self.epoch is None or entry.seq > self.head:
                self._known = max(self._known, entry.seq)
                # Envelopes beyond the limit are read from the table, which has to be read for the hole
                # anyway.
                if len(self._early) < self.limits.early:
                    self._early[entry.seq] = entry
        if self.epoch is not None:
            self._add_early()
        return self.head > before

    def add_rows(self, after: int, rows: Sequence[RelayedEntry], *, epoch: str, oldest: int) -> None:
        """Add the rows that the table has after a seq.

        Args:
            after: The seq.
            rows: The rows.
            epoch: The epoch of the table.
            oldest: The first seq that the table still has.
        """
        if self.epoch is None:
            # Envelopes pushed before this read count if they are of this epoch.
            self.add_entries((), epoch)
            self.epoch = epoch
            self._seen_since = self.head = rows[0].seq - 1 if rows else after
        self.prune(oldest)
        # Rows that were pruned before they were read here can no longer be sent.
        if self.epoch != epoch or oldest > self.head + 1:
            self.is_void = True
            return
        for row in rows:
            if row.seq == self.head + 1:
                self._add_entry(row)
        self._early = {seq: entry for seq, entry in self._early.items() if seq > self.head}
        self._add_early()

    def add_chunk(self, chunk: RelayedChunk) -> ReadOutcome:
        """Add a chunk; on `RESYNC` it waits, and `hole` or `lacking` reports for what."""
        if chunk.execution_id in self._ended:
            return ReadOutcome.DROPPED
        self._known = max(self._known, chunk.after_seq)
        return self._draft_of(chunk.execution_id).add_chunk(chunk, self._seen)

    def add_text(
        self, execution_id: str, at: Place, content: str, *, after_seq: int, timestamp: datetime
    ) -> ReadOutcome:
        """Add the text before a place, as recorded in its step's row."""
        if execution_id in self._ended:
            return ReadOutcome.DROPPED
        self._known = max(self._known, after_seq)
        if after_seq > self.head:
            return ReadOutcome.RESYNC
        return self._draft_of(execution_id).replace(at, content, after_seq, timestamp, self._seen)

    def end_execution(self, execution_id: str) -> None:
        """Drop the draft of an execution that has ended."""
        self._drafts.pop(execution_id, None)
        remember_end(self._ended, execution_id)

    # Outgoing data.

    def can_resume_from(self, since: Position) -> bool:
        """Whether a viewer can resume from there without a gap."""
        return self._is_same_history(since) and self.oldest - 1 <= since.seq <= self.head

    def is_behind(self, since: Position) -> bool:
        """Whether a position is ahead of this cache, so that only the table can tell if it is valid."""
        return self._is_same_history(since) and since.seq > self.head

    def has_frames_after(self, cursor: StreamCursor) -> bool:
        """Whether the ring has the envelopes after the cursor."""
        return cursor.seq + 1 >= self.first

    def frames(self, cursor: StreamCursor, wire: Wire, room: int) -> list[bytes]:
        """Return the frames after a cursor, and move the cursor.

        An empty list means that the cursor is at the head and has been sent all texts in progress.

        Args:
            cursor: A cursor that the ring reaches.
            wire: The viewer's wire.
            room: The number of bytes after which to stop, roughly.
        """
        frames: list[bytes] = []
        if cursor.seq < self.head:
            for entry in self._ring[cursor.seq + 1 - self.first :]:
                if draft := self._closed.get(entry.seq):
                    frames += draft.missing_frames(cursor.place(entry.execution_id), wire, self.session_id)
                frame = entry.frame(wire)
                frames.append(frame)
                cursor.seq = entry.seq
                room -= len(frame)
                if room <= 0:
                    return frames
        places: dict[str, Place] = {}
        for execution_id, draft in self._drafts.items():
            place = cursor.place(execution_id)
            frames += draft.missing_frames(place, wire, self.session_id)
            # A viewer that was connected to another gateway may have read more than is known here.
            places[execution_id] = draft.place if place is None else max(place, draft.place)
        cursor.places = places
        cursor.is_joining = False
        return frames

    @property
    def _seen(self) -> range:
        return range(0) if self.epoch is None else range(self._seen_since, self.head + 1)

    def _is_same_history(self, since: Position) -> bool:
        return since.epoch is None or since.epoch == self.epoch

    def _draft_of(self, execution_id: str) -> OpenDraft:
        draft = self._drafts.get(execution_id)
        if draft is None:
            draft = self._drafts[execution_id] = OpenDraft(execution_id, self.limits)
        return draft

    def _add_early(self) -> None:
        """Add the early envelopes and chunks that fit now."""
        while entry := self._early.pop(self.head + 1, None):
            self._add_entry(entry)
        seen = self._seen
        for draft in self._drafts.values():
            draft.retry(seen)

    def _add_entry(self, entry: RelayedEntry) -> None:
        self.head = entry.seq
        self._ring.append(entry)
        self._size += len(entry.body)
        if entry.fence is not None:
            self._end_draft(entry, entry.fence)
        while len(self._ring) > self.limits.ring or (
            self._size > self.limits.ring_bytes and len(self._ring) > 1
        ):
            self._evict(self._ring[0])

    def _end_draft(self, entry: RelayedEntry, fence: AttemptKey) -> None:
        draft = self._draft_of(entry.execution_id)
        if fence <= draft.floor:
            # The draft is of a later step already.
            ended, draft.before = draft.before, None
        else:
            ended = draft
            if fence == AFTER_ALL_ATTEMPTS:
                self.end_execution(entry.execution_id)
            else:
                self._drafts[entry.execution_id] = draft.next_draft(fence)
        # The text of an abandoned attempt is not sent any more.
        if ended and ended.place.next_index and fence[0] > ended.place.step_number:
            self._closed[entry.seq] = ended
            self._size += ended.size

    def _evict(self, entry: RelayedEntry) -> None:
        del self._ring[0]
        self._size -= len(entry.body)
        if draft := self._closed.pop(entry.seq, None):
            self._size -= draft.size
