"""How a stream is read, the same for everybody who reads one: clients, and the gateway itself.

Envelopes that are stored are counted by `seq`. One that is not above the last is dropped, the next one is
applied, and a higher one means that something is missing.

The *draft* of an execution is the text of its step while the model writes it. Its chunks are counted within
their attempt, by the same rule. What a later attempt writes replaces what an earlier one wrote, and so does a
snapshot, for a reader who missed some. The stored message of a completed step wins over its draft.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from sys import maxsize
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from everstep.agent_domain.checks import whole
from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.loop.status import WireStatus
from everstep.agent_domain.stream.envelopes import Envelope, EnvelopeType
from everstep.agent_domain.values import listed, parse_uuid, reading, require_map, valid_text

MAX_NUMBER = 2**63 - 1
"""The largest that PostgreSQL can count to."""
MAX_EPOCH = 100
"""Characters."""
MAX_DRAFTS = 100
"""So many steps of one stream may be under way in a position."""
REMEMBERED_ENDS = 1000
"""So many executions that have ended are remembered, so that late chunks do not bring them back."""

Attempted = tuple[int, int]
"""A step's number and an attempt's: later attempts compare as greater."""

ENDED: Attempted = (maxsize, 0)
"""After every attempt: nothing more is written."""


class Taken(StrEnum):
    """What became of something that was read."""

    APPLIED = "applied"
    DROPPED = "dropped"
    """It was there already, or belongs to what is over."""
    RESYNC = "resync"
    """Something before it is missing: nothing was applied, and the reader has to ask for it."""


class Place(NamedTuple):
    """How far a draft has come: which chunk of which attempt comes next. Later ones compare as greater."""

    step_number: int
    attempt: int
    next_index: int

    @property
    def attempted(self) -> Attempted:
        """The attempt that writes."""
        return self[:2]


class Draft:
    """What the latest attempt of an execution's latest step wrote, as far as it is known."""

    __slots__ = ("_parts", "floor", "is_complete", "place")

    def __init__(self, floor: Attempted = (0, 0)) -> None:
        self.floor = floor
        """Nothing of an attempt before this one is accepted any more."""
        self.place = Place(*floor, 0)
        self.is_complete = False
        """Whether its closing chunk was read, and so everything before it."""
        self._parts: list[str] = []

    @property
    def content(self) -> str:
        """The text so far."""
        return "".join(self._parts)

    @property
    def is_settled(self) -> bool:
        """Whether its step is over: the stored message wins over the text."""
        return self.place.attempted < self.floor

    def take(self, at: Place, content: str, is_complete: bool) -> Taken:
        """A chunk, with its own index for the next one's."""
        attempted = at.attempted
        if attempted < self.floor:
            return Taken.DROPPED
        if attempted != self.place.attempted:
            self._begin(attempted)
        if at != self.place:
            return Taken.DROPPED if at < self.place else Taken.RESYNC
        self._parts.append(content)
        self.place = Place(*attempted, at.next_index + 1)
        self.is_complete = is_complete
        return Taken.APPLIED

    def replace(self, at: Place, content: str) -> Taken:
        """A snapshot: all that was written before this place."""
        if at.attempted < self.floor or at <= self.place:
            # Chunks are cut once, by the writer: an older snapshot of the same attempt says nothing new.
            return Taken.DROPPED
        self._begin(at.attempted)
        self._parts.append(content)
        self.place = at
        return Taken.APPLIED

    def fence(self, floor: Attempted) -> None:
        """Whatever was written before this attempt is over."""
        if floor <= self.floor:
            return
        if floor[0] == self.place.step_number:
            self._begin(floor)
        self.floor = floor

    def settle(self, step_number: int, content: str) -> None:
        """The stored message of this step: it wins over the text, and nothing is added to it."""
        if step_number == self.place.step_number:
            self._parts = [content]
            self.is_complete = True
        self.fence((step_number + 1, 0))

    def _begin(self, attempted: Attempted) -> None:
        self.floor = attempted
        self.place = Place(*attempted, 0)
        self.is_complete = False
        self._parts = []


_TERMINAL = frozenset(status.value for status in WireStatus if status.is_terminal)


def fence_of(kind: str, payload: Mapping[str, Any]) -> Attempted | None:
    """The first attempt that may still write after a stored envelope, if it puts an end to earlier ones."""
    match kind:
        case EnvelopeType.AGENT_STEP_COMPLETED:
            return _count(payload, "step_number") + 1, 0
        case EnvelopeType.AGENT_ATTEMPT_SUPERSEDED:
            return _count(payload, "step_number"), _count(payload, "next_attempt")
        case EnvelopeType.AGENT_STATUS if payload["status"] in _TERMINAL:
            return ENDED
        case _:
            return None


def place_of(payload: Mapping[str, Any], index: str) -> Place:
    """Where a chunk (by its `chunk_index`) or a snapshot (by its `next_index`) belongs."""
    return Place(_count(payload, "step_number"), _count(payload, "attempt", 1), _count(payload, index))


def _count(payload: Mapping[str, Any], name: str, minimum: int = 0) -> int:
    value = payload[name]
    whole(name, value, minimum)
    if value > MAX_NUMBER:
        raise InvalidInput(f"{name} is larger than anything that is counted here")
    return value


Id = TypeVar("Id")


def remember(ended: dict[Id, None], execution_id: Id) -> None:
    """Note an execution that has ended, and forget the one that ended longest ago."""
    ended[execution_id] = None
    if len(ended) > REMEMBERED_ENDS:
        del ended[next(iter(ended))]


@dataclass(frozen=True, slots=True)
class Position:
    """How far somebody has read a stream; in JSON, whoever shows it again goes on from there."""

    seq: int = 0
    """The last stored envelope."""
    epoch: str | None = None
    """Of which history; None for whichever there is."""
    drafts: Mapping[UUID, Place] = field(default_factory=dict[UUID, Place])
    """Where the text of steps under way has come to, by execution."""

    def to_dict(self) -> dict[str, Any]:
        """The written form."""
        written = [{"execution_id": str(of), **place._asdict()} for of, place in self.drafts.items()]
        return {"epoch": self.epoch, "seq": self.seq} | ({"drafts": written} if written else {})

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Position":
        """Read the written form; what it does not know is ignored."""
        with reading("the position"):
            require_map(data)
            epoch = data.get("epoch")
            if epoch is not None and len(valid_text(epoch, "epoch")) > MAX_EPOCH:
                raise InvalidInput("epoch is longer than any")
            written = listed(data.get("drafts", ()), "drafts")
            if len(written) > MAX_DRAFTS:
                raise InvalidInput(f"there are {len(written)} drafts; send at most {MAX_DRAFTS}")
            drafts = {
                parse_uuid(each["execution_id"], "execution_id"): place_of(each, "next_index")
                for each in written
            }
            return cls(_count(data, "seq"), epoch, drafts)


class Reader:
    """Reads one stream: a session's has the envelopes and the drafts of several executions."""

    __slots__ = ("_ended", "drafts", "epoch", "seq")

    def __init__(self, since: Position | None = None) -> None:
        since = since or Position()
        self.epoch = since.epoch
        self.seq = since.seq
        self.drafts: dict[UUID, Draft] = {}
        """What is being written, by execution; the text of a settled one is worth what its message says."""
        self._ended: dict[UUID, None] = {}

    @property
    def position(self) -> Position:
        """Where to go on from: of more drafts than it can name, the last ones."""
        places = [(of, draft.place) for of, draft in self.drafts.items() if not draft.is_settled]
        return Position(self.seq, self.epoch, dict(places[-MAX_DRAFTS:]))

    def joined(self, epoch: str, seq: int, *, recovered: bool) -> None:
        """What follows comes after this; where nothing was recovered, what was read so far is void."""
        self.epoch = epoch
        if not recovered:
            self.seq = seq
            self.drafts.clear()
            self._ended.clear()

    def take(self, envelope: Envelope) -> Taken:
        """The next envelope that came, stored or streamed."""
        with reading(f"the payload of {envelope.type}"):
            if envelope.seq is not None:
                return self._stored(envelope, envelope.seq)
            if envelope.execution_id in self._ended:
                return Taken.DROPPED
            return self._streamed(envelope)

    def settle(self, execution_id: UUID, step_number: int, content: str) -> None:
        """The stored message of a completed step, wherever it was read."""
        if draft := self.drafts.get(execution_id):
            draft.settle(step_number, content)

    def _stored(self, envelope: Envelope, seq: int) -> Taken:
        if seq != self.seq + 1:
            return Taken.DROPPED if seq <= self.seq else Taken.RESYNC
        floor = fence_of(envelope.type, envelope.payload)
        self.seq = seq
        if floor == ENDED:
            self.drafts.pop(envelope.execution_id, None)
            remember(self._ended, envelope.execution_id)
        elif floor:
            self._draft(envelope).fence(floor)
        return Taken.APPLIED

    def _streamed(self, envelope: Envelope) -> Taken:
        payload = envelope.payload
        match envelope.type:
            case EnvelopeType.AGENT_STREAM_CHUNK:
                at = place_of(payload, "chunk_index")
                content, is_complete = valid_text(payload["content"], "content"), bool(payload["is_complete"])
                return self._draft(envelope).take(at, content, is_complete)
            case EnvelopeType.AGENT_STREAM_SNAPSHOT:
                at = place_of(payload, "next_index")
                content = valid_text(payload["content"], "content")
                return self._draft(envelope).replace(at, content)
            case _:
                return Taken.DROPPED

    def _draft(self, envelope: Envelope) -> Draft:
        return self.drafts.setdefault(envelope.execution_id, Draft())
