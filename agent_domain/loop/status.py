"""The three vocabularies for the status of an execution, and the table that maps them.

The domain uses `AgentStatus`, the database and the API `ExecutionStatus`, the event stream
`WireStatus`. They are never mixed: a `Situation` translates.
"""

from enum import StrEnum
from typing import Final, NamedTuple


class AgentStatus(StrEnum):
    """The status of an agent, in the domain and in snapshots."""

    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    FAILED = "failed"

    @property
    def is_terminal(self) -> bool:
        """Whether the agent has ended."""
        return self is not AgentStatus.IN_PROGRESS


class ExecutionStatus(StrEnum):
    """The status of an execution, in the database and the API."""

    PENDING = "pending"
    RUNNING = "running"
    PAUSED = "paused"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        """Whether the execution has ended."""
        return self in {ExecutionStatus.COMPLETED, ExecutionStatus.FAILED, ExecutionStatus.CANCELLED}


class WireStatus(StrEnum):
    """The status of an execution, in the event stream."""

    IDLE = "idle"
    PROCESSING = "processing"
    PAUSED = "paused"
    COMPLETED = "completed"
    STOPPED = "stopped"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        """Whether the execution has ended."""
        return self not in {WireStatus.IDLE, WireStatus.PROCESSING, WireStatus.PAUSED}


TERMINAL_WIRE_STATUSES: Final = frozenset(status for status in WireStatus if status.is_terminal)
"""For payloads, whose status may be one that a later version added."""


class StopReason(StrEnum):
    """Why an execution ended."""

    COMPLETED = "completed"
    STEPS_LIMIT = "steps_limit"
    TOKEN_LIMIT = "token_limit"  # noqa: S105 -- a stop reason, not a secret
    TIME_LIMIT = "time_limit"
    RETRY_LIMIT = "retry_limit"
    ERROR = "error"
    FINISH_REASON = "finish_reason"
    GUARD = "guard"
    USER_REQUESTED = "user_requested"

    @property
    def is_resource_limit(self) -> bool:
        """Whether it is a limit that vetoes further work, but not an answer that already exists."""
        return self in {StopReason.STEPS_LIMIT, StopReason.TOKEN_LIMIT, StopReason.TIME_LIMIT}


class Situation(NamedTuple):
    """One row of the table: the same status in all three vocabularies."""

    agent: AgentStatus
    execution: ExecutionStatus
    wire: WireStatus


CREATED = Situation(AgentStatus.IN_PROGRESS, ExecutionStatus.PENDING, WireStatus.IDLE)
RUNNING = Situation(AgentStatus.IN_PROGRESS, ExecutionStatus.RUNNING, WireStatus.PROCESSING)
WAITING = Situation(AgentStatus.IN_PROGRESS, ExecutionStatus.PAUSED, WireStatus.PAUSED)


def final_situation(status: AgentStatus, reason: StopReason) -> Situation:
    """The final status in all three vocabularies, from the agent's status and the stop reason."""
    if status is AgentStatus.FAILED or reason is StopReason.ERROR:
        return Situation(AgentStatus.FAILED, ExecutionStatus.FAILED, WireStatus.FAILED)
    if reason is StopReason.USER_REQUESTED:
        return Situation(AgentStatus.COMPLETED, ExecutionStatus.CANCELLED, WireStatus.CANCELLED)
    wire = WireStatus.COMPLETED if reason is StopReason.COMPLETED else WireStatus.STOPPED
    return Situation(AgentStatus.COMPLETED, ExecutionStatus.COMPLETED, wire)
