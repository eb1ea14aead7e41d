"""What somebody who watches is told, and why it may end."""

from dataclasses import dataclass
from typing import TypeAlias
from uuid import UUID

from everstep.agent_domain.errors import EverstepError
from everstep.agent_domain.stream.envelopes import Envelope
from everstep.agent_domain.stream.reader import ENDED, fence_of


@dataclass(frozen=True, slots=True)
class Happened:
    """Something that is stored: each once, in order."""

    envelope: Envelope

    def ends(self, execution_id: UUID) -> bool:
        """Whether it is the end of this execution."""
        envelope = self.envelope
        return envelope.execution_id == execution_id and fence_of(envelope.type, envelope.payload) == ENDED


@dataclass(frozen=True, slots=True)
class Wrote:
    """The model has written some more of a step's text. The stored message of the step wins over it."""

    execution_id: UUID
    step_number: int
    attempt: int
    text: str
    """All that this attempt has written so far."""
    new: str
    """What was added to what was told before of the same attempt; empty if the text was replaced."""
    is_complete: bool = False
    """Whether nothing more is written in this attempt."""


@dataclass(frozen=True, slots=True)
class Reload:
    """What was told before is void: load it anew over the HTTP API. What follows comes after this `seq`."""

    epoch: str
    seq: int


News: TypeAlias = Happened | Wrote | Reload


class StreamRefused(EverstepError):
    """This stream cannot be watched like this, and trying again would not help; the text says what would."""

    def __init__(self, text: str, code: int | None = None) -> None:
        self.code = code
        """Of the closing, if there was one: docs/streaming.md lists them."""
        super().__init__(text)
