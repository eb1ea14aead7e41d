"""Feedback of people on answers."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final
from uuid import UUID

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.values import valid_text

MAX_FEEDBACK: Final = 4_000
"""Characters of the words."""


class Rating(StrEnum):
    """Whether an answer was good."""

    UP = "up"
    DOWN = "down"


@dataclass(frozen=True, slots=True)
class Feedback:
    """Feedback on an answer: a rating, words, or both."""

    rating: Rating | None
    text: str | None
    by: str
    """The user or the service that gave it."""
    at: datetime

    def __post_init__(self) -> None:
        words = valid_text(self.text or "", "the feedback").strip() or None
        object.__setattr__(self, "text", words)
        if self.rating is None and words is None:
            raise InvalidInput("the feedback is empty; send a rating, up or down, or words")
        if words is not None and len(words) > MAX_FEEDBACK:
            raise InvalidInput(
                f"the feedback has {len(words)} characters, more than {MAX_FEEDBACK}; be shorter"
            )


@dataclass(frozen=True, slots=True)
class AnswerFeedback:
    """Feedback with the answer that it is about."""

    id: UUID
    """The id of the message with the answer."""
    session_id: UUID
    execution_id: UUID | None
    agent: str | None
    answer: str
    feedback: Feedback
    created_at: datetime
    """The time of the answer."""
