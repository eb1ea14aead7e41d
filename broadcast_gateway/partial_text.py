"""The draft of an execution in the gateway: its text, its last chunks, and its early chunks."""

from datetime import UTC, datetime
from uuid import UUID

from everstep.agent_domain.stream.envelopes import Attempt, Envelope, EnvelopeType, stream_snapshot_record
from everstep.agent_domain.stream.reader import AttemptKey, Draft, Place, ReadOutcome
from everstep.broadcast_gateway.frames import RelayedChunk, RelayedEnvelope, Wire
from everstep.broadcast_gateway.limits import StreamLimits


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

    def __init__(self, execution_id: str, limits: StreamLimits, floor: AttemptKey = (0, 0)) -> None:
        self._execution_id = execution_id
        self._limits = limits
        self._draft = Draft(floor)
        self._last: list[RelayedChunk] = []
        """The chunks right before its place."""
        self._early: dict[Place, RelayedChunk] = {}
        self._snapshot: RelayedEnvelope | None = None
        self._after_seq = 0
        self._timestamp = datetime.min.replace(tzinfo=UTC)
        self.before: OpenDraft | None = None
        """The draft of an earlier step whose end has not been received yet."""

    @property
    def place(self) -> Place:
        """The attempt and the index of the next chunk."""
        return self._draft.place

    @property
    def floor(self) -> AttemptKey:
        """The first attempt that may write."""
        return self._draft.floor

    @property
    def size(self) -> int:
        """Its size in bytes, roughly; frames are extra."""
        return len(self._draft.content) + sum(len(chunk.body) for chunk in self._last)

    def add_chunk(self, chunk: RelayedChunk, seen: range) -> ReadOutcome:
        """Add a chunk; one that does not fit yet is kept for later.

        Args:
            chunk: The chunk as it arrived.
            seen: The seqs of the stored envelopes that have been received.
        """
        taken = self._apply(chunk, seen)
        if taken is ReadOutcome.RESYNC:
            self._early[chunk.at] = chunk
            if len(self._early) > self._limits.early_chunks:
                del self._early[next(iter(self._early))]
        elif taken is ReadOutcome.APPLIED:
            self.retry(seen)
        return taken

    def retry(self, seen: range) -> None:
        """Add the early chunks that fit now."""
        for at in sorted(self._early):
            if self._apply(self._early[at], seen) is not ReadOutcome.RESYNC:
                del self._early[at]

    def lacks_text(self, head: int) -> bool:
        """Whether chunks wait for text that no envelope will bring."""
        return any(chunk.after_seq <= head for chunk in self._early.values())

    def replace(
        self, at: Place, content: str, after_seq: int, timestamp: datetime, seen: range
    ) -> ReadOutcome:
        """Replace the text before this place by the text that its writer recorded."""
        self._switch_attempt(at.attempted)
        taken = self._draft.replace(at, content)
        if taken is ReadOutcome.APPLIED:
            self._last = []
            self._on_change(after_seq, timestamp)
            self.retry(seen)
        return taken

    def next_draft(self, floor: AttemptKey) -> "OpenDraft":
        """Return the draft of the text from this attempt on."""
        after = OpenDraft(self._execution_id, self._limits, floor)
        after._early = self._early
        return after

    def missing_frames(self, place: Place | None, wire: Wire, session_id: UUID | None) -> list[bytes]:
        """Return the frames that a viewer lacks.

        Args:
            place: The viewer's place in this draft; None if it has none.
            wire: The viewer's wire.
            session_id: The session for the envelope of a snapshot.
        """
        own = self._draft.place
        if place is not None and place >= own:
            return []
        frames = self.before.missing_frames(place, wire, session_id) if self.before else []
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

    def _apply(self, chunk: RelayedChunk, seen: range) -> ReadOutcome:
        attempted = chunk.at.attempted
        if attempted >= self._draft.floor and not self._can_follow(chunk, seen):
            return ReadOutcome.RESYNC
        self._switch_attempt(attempted)
        taken = self._draft.take(chunk.at, chunk.content, chunk.is_complete)
        if taken is ReadOutcome.APPLIED:
            self._last.append(chunk)
            if len(self._last) > self._limits.chunks:
                del self._last[0]
            self._on_change(chunk.after_seq, chunk.timestamp)
        return taken

    def _can_follow(self, chunk: RelayedChunk, seen: range) -> bool:
        """Whether all envelopes that could end its attempt or must be sent before it have been received.

        After an envelope older than all received ones, the attempt may have ended long ago.
        """
        if chunk.after_seq in seen:
            return True
        return chunk.after_seq < seen.stop and chunk.at.attempted == self._draft.place.attempted

    def _switch_attempt(self, attempted: AttemptKey) -> None:
        """Start the draft of a later attempt; keeps an earlier step's text that viewers may still lack."""
        own = self._draft.place
        if attempted == own.attempted or attempted < self._draft.floor:
            return
        if own.next_index and attempted[0] > own.step_number:
            self.before = before = OpenDraft(self._execution_id, self._limits)
            before._draft, before._last = self._draft, self._last
            before._on_change(self._after_seq, self._timestamp)
        self._draft = Draft(attempted)
        self._last = []
        self._snapshot = None

    def _on_change(self, after_seq: int, timestamp: datetime) -> None:
        self._snapshot = None
        self._after_seq = after_seq
        self._timestamp = timestamp

    def _snapshot_for(self, session_id: UUID | None) -> RelayedEnvelope:
        """Everything but the closing chunk, which marks the text as complete."""
        if self._snapshot is None:
            own = self._draft.place
            attempt = Attempt(own.step_number, own.attempt)
            upto = own.next_index - self._draft.is_complete
            record = stream_snapshot_record(attempt, upto, self._draft.content, self._after_seq or None)
            envelope = Envelope.of(record, session_id, UUID(self._execution_id), self._timestamp)
            self._snapshot = RelayedEnvelope(EnvelopeType.AGENT_STREAM_SNAPSHOT, envelope.to_json())
        return self._snapshot
