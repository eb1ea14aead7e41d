"""The events of the stream client, and the error that ends it."""

from dataclasses import dataclass
from typing import TypeAlias
from uuid import UUID

from everstep.agent_domain.errors import EverstepError
from everstep.agent_domain.stream.envelopes import Envelope
from everstep.agent_domain.stream.reader import AFTER_ALL_ATTEMPTS, fence_from


@dataclass(frozen=True, slots=True)
class Happened:
    """A stored event. Each is sent once, in order."""

    envelope: Envelope

    def ends(self, execution_id: UUID) -> bool:
        """Whether it is the end of this execution."""
        envelope = self.envelope
        return (
            envelope.execution_id == execution_id
            and fence_from(envelope.type, envelope.payload) == AFTER_ALL_ATTEMPTS
        )


@dataclass(frozen=True, slots=True)
class Wrote:
    """The model has written more of a step's text. The stored message of the step supersedes it."""

    execution_id: UUID
    step_number: int
    attempt: int
    text: str
    """The whole text of this attempt so far."""
    new: str
    """The text added since the previous event of the same attempt; empty if the text was replaced."""
    is_complete: bool = False
    """Whether this attempt writes no more text."""


@dataclass(frozen=True, slots=True)
class Reload:
    """The history has changed: load it again over the HTTP API. Later events follow this `seq`."""

    epoch: str
    seq: int


StreamEvent: TypeAlias = Happened | Wrote | Reload


class StreamRefused(EverstepError):
    """The stream cannot be followed, and a retry would not help; the message says what would."""

    def __init__(self, text: str, code: int | None = None) -> None:
        self.code = code
        """The close code, if the gateway sent one; docs/streaming.md lists them."""
        super().__init__(text)
