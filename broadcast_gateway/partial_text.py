"""The draft of an execution as the gateway holds it: its text, its last chunks, and those that are early."""

from datetime import UTC, datetime
from uuid import UUID

from everstep.agent_domain.stream.envelopes import Attempt, Envelope, EnvelopeType, stream_snapshot
from everstep.agent_domain.stream.reader import Attempted, Draft, Place, Taken
from everstep.agent_domain.values import json_text
from everstep.broadcast_gateway.frames import Chunk, News, Wire
from everstep.broadcast_gateway.limits import Limits


class OpenDraft:
    """What an execution writes, and what brings its viewers up to it."""

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
        """What was written in an earlier step whose end has not been heard of."""

    @property
    def place(self) -> Place:
        """How far it has come."""
        return self._draft.place

    @property
    def floor(self) -> Attempted:
        """The first attempt that may write."""
        return self._draft.floor

    @property
    def size(self) -> int:
        """In bytes, about; frames come on top."""
        return len(self._draft.content) + sum(len(chunk.body) for chunk in self._last)

    def take(self, chunk: Chunk, seen: range) -> Taken:
        """A chunk as it came, by somebody who has seen these envelopes; one that cannot be placed is kept."""
        taken = self._apply(chunk, seen)
        if taken is Taken.RESYNC:
            self._early[chunk.at] = chunk
            if len(self._early) > self._limits.early_chunks:
                del self._early[next(iter(self._early))]
        elif taken is Taken.APPLIED:
            self.retry(seen)
        return taken

    def retry(self, seen: range) -> None:
        """Something has changed: take those that can be placed now."""
        for at in sorted(self._early):
            if self._apply(self._early[at], seen) is not Taken.RESYNC:
                del self._early[at]

    def lacks_text(self, head: int) -> bool:
        """Whether chunks wait for something that no envelope will bring."""
        return any(chunk.after_seq <= head for chunk in self._early.values())

    def replace(self, at: Place, content: str, after_seq: int, timestamp: datetime, seen: range) -> Taken:
        """The text before this place, as its writer kept it."""
        self._turn_to(at.attempted)
        taken = self._draft.replace(at, content)
        if taken is Taken.APPLIED:
            self._last = []
            self._changed(after_seq, timestamp)
            self.retry(seen)
        return taken

    def follow_up(self, floor: Attempted) -> "OpenDraft":
        """What is written from this attempt on."""
        after = OpenDraft(self._execution_id, self._limits, floor)
        after._early = self._early
        return after

    def rest(self, place: Place | None, wire: Wire, session_id: UUID | None) -> list[bytes]:
        """What a viewer who has come to this place has not been sent; None for one who comes upon it."""
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
        """Whether what would have put an end to it has been seen, and all that is to be sent before it.

        After an envelope that is older than all that were seen, its attempt may have been over long ago.
        """
        if chunk.after_seq in seen:
            return True
        return chunk.after_seq < seen.stop and chunk.at.attempted == self._draft.place.attempted

    def _turn_to(self, attempted: Attempted) -> None:
        """A later attempt begins to write; what an earlier step wrote may not have been sent to everybody."""
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
        """All but the closing chunk, which says by itself that the text is complete."""
        if self._snapshot is None:
            own = self._draft.place
            attempt = Attempt(own.step_number, own.attempt)
            upto = own.next_index - self._draft.is_complete
            record = stream_snapshot(attempt, upto, self._draft.content, self._after_seq or None)
            envelope = Envelope.of(record, session_id, UUID(self._execution_id), self._timestamp)
            body = json_text(envelope.to_dict()).encode()
            self._snapshot = News(EnvelopeType.AGENT_STREAM_SNAPSHOT, body)
        return self._snapshot
