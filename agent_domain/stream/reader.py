"""The reader of a stream, which clients and the gateway share.

Stored envelopes are numbered by `seq`. An envelope whose number is not above the last one is dropped, the
next number is applied, and a higher number means that envelopes are missing.

The *draft* of an execution is the text of its step while the model writes it. Its chunks are numbered within
their attempt, by the same rule. The text of a later attempt replaces that of an earlier one. So does a
snapshot, for a reader that missed chunks. The stored message of a completed step wins over its draft.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from sys import maxsize
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from everstep.agent_domain.checks import require_integer_at_least
from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.loop.status import TERMINAL_WIRE_STATUSES
from everstep.agent_domain.stream.envelopes import Envelope, EnvelopeType
from everstep.agent_domain.values import as_list, parse_uuid, reading, require_map, valid_text

MAX_NUMBER = 2**63 - 1
"""The largest `bigint` of PostgreSQL."""
MAX_EPOCH = 100
"""The maximum length of an epoch, in characters."""
MAX_DRAFTS = 100
"""The maximum number of drafts in a position."""
MAX_REMEMBERED_ENDS = 1000
"""The number of ended executions to remember, so that late chunks do not recreate their drafts."""

AttemptKey = tuple[int, int]
"""The numbers of a step and of an attempt; later attempts compare as greater."""

AFTER_ALL_ATTEMPTS: AttemptKey = (maxsize, 0)
"""Greater than every attempt: no more text follows."""


class ReadOutcome(StrEnum):
    """The outcome of reading an envelope or chunk."""

    APPLIED = "applied"
    DROPPED = "dropped"
    """It was read before, or belongs to an attempt or execution that is over."""
    RESYNC = "resync"
    """Something before it is missing: nothing was applied, and the reader must request the missing part."""


class Place(NamedTuple):
    """The position in a draft: the next chunk of an attempt. Later positions compare as greater."""

    step_number: int
    attempt: int
    next_index: int

    @property
    def attempted(self) -> AttemptKey:
        """The step and the attempt of the position."""
        return self[:2]


class Draft:
    """The received text of the latest attempt of an execution's latest step."""

    __slots__ = ("_parts", "floor", "is_complete", "place")

    def __init__(self, floor: AttemptKey = (0, 0)) -> None:
        self.floor = floor
        """Text of attempts before this one is dropped."""
        self.place = Place(*floor, 0)
        self.is_complete = False
        """Whether the closing chunk, and so the whole text, was read."""
        self._parts: list[str] = []

    @property
    def content(self) -> str:
        """The text so far."""
        return "".join(self._parts)

    @property
    def is_settled(self) -> bool:
        """Whether its step is over: the stored message wins over the text."""
        return self.place.attempted < self.floor

    def take(self, at: Place, content: str, is_complete: bool) -> ReadOutcome:
        """Read a chunk; `at` has the chunk's own index as `next_index`."""
        attempted = at.attempted
        if attempted < self.floor:
            return ReadOutcome.DROPPED
        if attempted != self.place.attempted:
            self._begin(attempted)
        if at != self.place:
            return ReadOutcome.DROPPED if at < self.place else ReadOutcome.RESYNC
        self._parts.append(content)
        self.place = Place(*attempted, at.next_index + 1)
        self.is_complete = is_complete
        return ReadOutcome.APPLIED

    def replace(self, at: Place, content: str) -> ReadOutcome:
        """Read a snapshot: the whole text before a position."""
        if at.attempted < self.floor or at <= self.place:
            # The writer alone splits the text, so an older snapshot of the same attempt has nothing new.
            return ReadOutcome.DROPPED
        self._begin(at.attempted)
        self._parts.append(content)
        self.place = at
        return ReadOutcome.APPLIED

    def fence(self, floor: AttemptKey) -> None:
        """Drop the text of all attempts before this one."""
        if floor <= self.floor:
            return
        if floor[0] == self.place.step_number:
            self._begin(floor)
        self.floor = floor

    def settle(self, step_number: int, content: str) -> None:
        """Replace the text by the stored message of the step, which is final."""
        if step_number == self.place.step_number:
            self._parts = [content]
            self.is_complete = True
        self.fence((step_number + 1, 0))

    def _begin(self, attempted: AttemptKey) -> None:
        self.floor = attempted
        self.place = Place(*attempted, 0)
        self.is_complete = False
        self._parts = []


def fence_from(kind: str, payload: Mapping[str, Any]) -> AttemptKey | None:
    """The first attempt that may still write after a stored envelope; None if it ends no attempt."""
    match kind:
        case EnvelopeType.AGENT_STEP_COMPLETED:
            return _count(payload, "step_number") + 1, 0
        case EnvelopeType.AGENT_ATTEMPT_SUPERSEDED:
            return _count(payload, "step_number"), _count(payload, "next_attempt")
        case EnvelopeType.AGENT_STATUS if payload["status"] in TERMINAL_WIRE_STATUSES:
            return AFTER_ALL_ATTEMPTS
        case _:
            return None


def place_from(payload: Mapping[str, Any], index: str) -> Place:
    """The position of a chunk or snapshot.

    Args:
        payload: The payload of the envelope.
        index: The key of the index: `chunk_index` of a chunk, or `next_index` of a snapshot.
    """
    return Place(_count(payload, "step_number"), _count(payload, "attempt", 1), _count(payload, index))


def _count(payload: Mapping[str, Any], name: str, minimum: int = 0) -> int:
    value = payload[name]
    require_integer_at_least(name, value, minimum)
    if value > MAX_NUMBER:
        raise InvalidInput(f"{name} is larger than {MAX_NUMBER}")
    return value


Id = TypeVar("Id")


def remember_end(ended: dict[Id, None], execution_id: Id) -> None:
    """Record an ended execution, and drop the oldest record above the limit."""
    ended[execution_id] = None
    if len(ended) > MAX_REMEMBERED_ENDS:
        del ended[next(iter(ended))]


@dataclass(frozen=True, slots=True)
class Position:
    """A reader's position in a stream; a client sends it as JSON to resume from there."""

    seq: int = 0
    """The number of the last stored envelope."""
    epoch: str | None = None
    """The epoch of the journal; None for the current one."""
    drafts: Mapping[UUID, Place] = field(default_factory=dict[UUID, Place])
    """The positions in the text of running steps, by execution."""

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        drafts = [{"execution_id": str(of), **place._asdict()} for of, place in self.drafts.items()]
        return {"epoch": self.epoch, "seq": self.seq} | ({"drafts": drafts} if drafts else {})

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Position":
        """Read the JSON form; unknown fields are ignored.

        Raises:
            InvalidInput: It is not a position.
        """
        with reading("the position"):
            require_map(data)
            epoch = data.get("epoch")
            if epoch is not None and len(valid_text(epoch, "epoch")) > MAX_EPOCH:
                raise InvalidInput(f"epoch is longer than {MAX_EPOCH} characters")
            entries = as_list(data.get("drafts", ()), "drafts")
            if len(entries) > MAX_DRAFTS:
                raise InvalidInput(f"there are {len(entries)} drafts; send at most {MAX_DRAFTS}")
            drafts = {
                parse_uuid(each["execution_id"], "execution_id"): place_from(each, "next_index")
                for each in entries
            }
            return cls(_count(data, "seq"), epoch, drafts)


class Reader:
    """Reads one stream. A session's stream contains envelopes and drafts of several executions."""

    __slots__ = ("_ended", "drafts", "epoch", "seq")

    def __init__(self, since: Position | None = None) -> None:
        since = since or Position()
        self.epoch = since.epoch
        self.seq = since.seq
        self.drafts: dict[UUID, Draft] = {}
        """The drafts by execution; the text of a settled draft is superseded by its stored message."""
        self._ended: dict[UUID, None] = {}

    @property
    def position(self) -> Position:
        """The position to resume from, with the latest `MAX_DRAFTS` drafts."""
        places = [(of, draft.place) for of, draft in self.drafts.items() if not draft.is_settled]
        return Position(self.seq, self.epoch, dict(places[-MAX_DRAFTS:]))

    def joined(self, epoch: str, seq: int, *, recovered: bool) -> None:
        """Continue after a subscription was confirmed.

        Args:
            epoch: The epoch of the journal.
            seq: The stream's last envelope before the subscription.
            recovered: Whether the gateway sends the missing envelopes. Otherwise the reader starts over
                at `seq`.
        """
        self.epoch = epoch
        if not recovered:
            self.seq = seq
            self.drafts.clear()
            self._ended.clear()

    def take(self, envelope: Envelope) -> ReadOutcome:
        """Read the next envelope, stored or ephemeral."""
        with reading(f"the payload of {envelope.type}"):
            if envelope.seq is not None:
                return self._take_stored(envelope, envelope.seq)
            if envelope.execution_id in self._ended:
                return ReadOutcome.DROPPED
            return self._take_ephemeral(envelope)

    def settle(self, execution_id: UUID, step_number: int, content: str) -> None:
        """Apply the stored message of a completed step to its draft."""
        if draft := self.drafts.get(execution_id):
            draft.settle(step_number, content)

    def _take_stored(self, envelope: Envelope, seq: int) -> ReadOutcome:
        if seq != self.seq + 1:
            return ReadOutcome.DROPPED if seq <= self.seq else ReadOutcome.RESYNC
        floor = fence_from(envelope.type, envelope.payload)
        self.seq = seq
        if floor == AFTER_ALL_ATTEMPTS:
            self.drafts.pop(envelope.execution_id, None)
            remember_end(self._ended, envelope.execution_id)
        elif floor:
            self._draft(envelope).fence(floor)
        return ReadOutcome.APPLIED

    def _take_ephemeral(self, envelope: Envelope) -> ReadOutcome:
        payload = envelope.payload
        match envelope.type:
            case EnvelopeType.AGENT_STREAM_CHUNK:
                at = place_from(payload, "chunk_index")
                content, is_complete = valid_text(payload["content"], "content"), bool(payload["is_complete"])
                return self._draft(envelope).take(at, content, is_complete)
            case EnvelopeType.AGENT_STREAM_SNAPSHOT:
                at = place_from(payload, "next_index")
                content = valid_text(payload["content"], "content")
                return self._draft(envelope).replace(at, content)
            case _:
                return ReadOutcome.DROPPED

    def _draft(self, envelope: Envelope) -> Draft:
        return self.drafts.setdefault(envelope.execution_id, Draft())
