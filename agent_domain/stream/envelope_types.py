"""The types of envelopes, and the values that their payloads name."""

from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID

from everstep.agent_domain.checks import require_integer_at_least


class EnvelopeType(StrEnum):
    """The types of envelopes. Readers skip types that they do not know."""

    AGENT_STATUS = "agent.status"
    AGENT_STEP_STARTED = "agent.step.started"
    AGENT_STEP_COMPLETED = "agent.step.completed"
    AGENT_TOOL_STARTED = "agent.tool.started"
    AGENT_TOOL_COMPLETED = "agent.tool.completed"
    AGENT_STREAM_CHUNK = "agent.stream.chunk"
    AGENT_STREAM_SNAPSHOT = "agent.stream.snapshot"
    AGENT_CONTINUATION = "agent.continuation"
    AGENT_INPUT_REQUESTED = "agent.input.requested"
    AGENT_INPUT_RECEIVED = "agent.input.received"
    AGENT_APPROVAL_REQUESTED = "agent.approval.requested"
    AGENT_APPROVAL_RESOLVED = "agent.approval.resolved"
    AGENT_ATTEMPT_SUPERSEDED = "agent.attempt.superseded"


EPHEMERAL = frozenset({EnvelopeType.AGENT_STREAM_CHUNK, EnvelopeType.AGENT_STREAM_SNAPSHOT})
"""Neither stored nor replayed: their content is useless once the step is complete."""

TELEMETRY = "agent."
"""The prefix of the types that report on an execution; other types announce a stored message."""

TIME_DIGITS = 3
MESSAGE_DIGITS = 6
"""An announcement has the `created_at` of its message, so that both sort the same."""


def time_digits(kind: str) -> int:
    """The number of digits after the second in an envelope of this type."""
    return TIME_DIGITS if kind.startswith(TELEMETRY) else MESSAGE_DIGITS


def channel_name(session_id: UUID | None, execution_id: UUID) -> str:
    """The channel of an execution: that of its session, or its own if it has no session."""
    return f"agent.execution.{execution_id}" if session_id is None else f"agent.{session_id}"


@dataclass(frozen=True, slots=True, order=True)
class Attempt:
    """An attempt of a step's model call; later ones compare as greater."""

    step_number: int
    number: int = 1

    def __post_init__(self) -> None:
        require_integer_at_least("step_number", self.step_number, 0)
        require_integer_at_least("attempt", self.number, 1)

    @property
    def key(self) -> str:
        """Identifies the attempt within the execution."""
        return f"step/{self.step_number}/attempt/{self.number}"


class InputSource(StrEnum):
    """The source of an answer."""

    USER = "user"
    DEFAULT = "default"
