"""The draft of an execution in the gateway: its text, its last chunks, and its early chunks."""

from datetime import UTC, datetime
from uuid import UUID

from everstep.agent_domain.stream.envelopes import Attempt, Envelope, EnvelopeType, stream_snapshot
from everstep.agent_domain.stream.reader import Attempted, Draft, Place, Taken
from everstep.agent_domain.values import json_text
from everstep.broadcast_gateway.frames import Chunk, News, Wire
from everstep.broadcast_gateway.limits import Limits


class OpenDraft:
    """The text that an execution is writing, and the frames that bring a viewer up to date with it."""

    __slots__ = (
        "_after_seq",
        "_draft",
        "_early",
        "_execution_id",
        "_last",
        "_limits",
        "_snapshot",
        "_timestamp",
        "before",
    )

    def __init__(self, execution_id: str, limits: Limits, floor: Attempted = (0, 0)) -> None:
        self._execution_id = execution_id
        self._limits = limits
        self._draft = Draft(floor)
        self._last: list[Chunk] = []
        """The chunks right before its place."""
        self._early: dict[Place, Chunk] = {}
        self._snapshot: News | None = None
        self._after_seq = 0
        self._timestamp = datetime.min.replace(tzinfo=UTC)
        self.before: OpenDraft | None = None
        """The draft of an earlier step whose end has not been received yet."""

    @property
    def place(self) -> Place:
        """The attempt and the index of the next chunk."""
        return self._draft.place

    @property
    def floor(self) -> Attempted:
        """The first attempt that may write."""
        return self._draft.floor

    @property
    def size(self) -> int:
        """Its size in bytes, roughly; frames are extra."""
        return len(self._draft.content) + sum(len(chunk.body) for chunk in self._last)

    def take(self, chunk: Chunk, seen: range) -> Taken:
        """Add a chunk; one that does not fit yet is kept for later.

        Args:
            chunk: The chunk as it arrived.
            seen: The seqs of the stored envelopes that have been received.
        """
        taken = self._apply(chunk, seen)
        if taken is Taken.RESYNC:
            self._early[chunk.at] = chunk
            if len(self._early) > self._limits.early_chunks:
                del self._early[next(iter(self._early))]
        elif taken is Taken.APPLIED:
            self.retry(seen)
        return taken

    def retry(self, seen: range) -> None:
        """Add the early chunks that fit now."""
        for at in sorted(self._early):
            if self._apply(self._early[at], seen) is not Taken.RESYNC:
                del self._early[at]

    def lacks_text(self, head: int) -> bool:
        """Whether chunks wait for text that no envelope will bring."""
        return any(chunk.after_seq <= head for chunk in self._early.values())

    def replace(self, at: Place, content: str, after_seq: int, timestamp: datetime, seen: range) -> Taken:
        """Replace the text before this place by the text that its writer recorded."""
        self._turn_to(at.attempted)
        taken = self._draft.replace(at, content)
        if taken is Taken.APPLIED:
            self._last = []
            self._changed(after_seq, timestamp)
            self.retry(seen)
        return taken

    def follow_up(self, floor: Attempted) -> "OpenDraft":
        """Return the draft of the text from this attempt on."""
        after = OpenDraft(self._execution_id, self._limits, floor)
        after._early = self._early
        return after

    def rest(self, place: Place | None, wire: Wire, session_id: UUID | None) -> list[bytes]:
        """Return the frames that a viewer lacks.

        Args:
            place: The viewer's place in this draft; None if it has none.
            wire: The viewer's wire.
            session_id: The session for the envelope of a snapshot.
        """
        own = self._draft.place
        if place is not None and place >= own:
            return []
        frames = self.before.rest(place, wire, session_id) if self.before else []
        if place is not None:
            missing = own.next_index - (place.next_index if place.attempted == own.attempted else 0)
            if missing <= len(self._last):
                return frames + [chunk.frame(wire) for chunk in self._last[-missing:]]
        elif not own.next_index:
            return frames
        frames.append(self._snapshot_for(session_id).frame(wire))
        if self._draft.is_complete:
            frames.append(self._last[-1].frame(wire))
        return frames

    def _apply(self, chunk: Chunk, seen: range) -> Taken:
        attempted = chunk.at.attempted
        if attempted >= self._draft.floor and not self._follows(chunk, seen):
            return Taken.RESYNC
        self._turn_to(attempted)
        taken = self._draft.take(chunk.at, chunk.content, chunk.is_complete)
        if taken is Taken.APPLIED:
            self._last.append(chunk)
            if len(self._last) > self._limits.chunks:
                del self._last[0]
            self._changed(chunk.after_seq, chunk.timestamp)
        return taken

    def _follows(self, chunk: Chunk, seen: range) -> bool:
        """Whether all envelopes that could end its attempt or must be sent before it have been received.

        After an envelope older than all received ones, the attempt may have ended long ago.
        """
        if chunk.after_seq in seen:
            return True
        return chunk.after_seq < seen.stop and chunk.at.attempted == self._draft.place.attempted

    def _turn_to(self, attempted: Attempted) -> None:
        """Start the draft of a later attempt; keeps an earlier step's text that viewers may still lack."""
        own = self._draft.place
        if attempted == own.attempted or attempted < self._draft.floor:
            return
        if own.next_index and attempted[0] > own.step_number:
            self.before = before = OpenDraft(self._execution_id, self._limits)
            before._draft, before._last = self._draft, self._last
            before._changed(self._after_seq, self._timestamp)
        self._draft = Draft(attempted)
        self._last = []
        self._snapshot = None

    def _changed(self, after_seq: int, timestamp: datetime) -> None:
        self._snapshot = None
        self._after_seq = after_seq
        self._timestamp = timestamp

    def _snapshot_for(self, session_id: UUID | None) -> News:
        """Everything but the closing chunk, which marks the text as complete."""
        if self._snapshot is None:
            own = self._draft.place
            attempt = Attempt(own.step_number, own.attempt)
            upto = own.next_index - self._draft.is_complete
            record = stream_snapshot(attempt, upto, self._draft.content, self._after_seq or None)
            envelope = Envelope.of(record, session_id, UUID(self._execution_id), self._timestamp)
            body = json_text(envelope.to_dict()).encode()
            self._snapshot = News(EnvelopeType.AGENT_STREAM_SNAPSHOT, body)
        return self._snapshot
