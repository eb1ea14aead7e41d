"""Commands for running executions; they are stored before the workflow is notified."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from everstep.agent_domain.ids import ExecutionRef


class CommandKind(StrEnum):
    """The kinds of commands; the first three resolve requests."""

    INPUT = "input"
    APPROVAL = "approval"
    BUDGET = "budget"
    STEER = "steer"
    PAUSE = "pause"
    RESUME = "resume"
    CANCEL = "cancel"


@dataclass(frozen=True, slots=True)
class Command:
    """A command that has to be delivered to an execution's workflow.

    It is stored in the transaction that accepts it, before Temporal is called. If the process crashes in
    between, the next attempt with the same key or the reconciler delivers it.
    """

    ref: ExecutionRef
    key: str
    """The idempotency key within the execution, and the id of the workflow update."""
    kind: CommandKind
    call_id: str | None = None
    """The call whose request is resolved."""
    is_denied: bool = False
    is_delivered: bool = False
    """Whether the workflow needs no further delivery."""


@dataclass(frozen=True, slots=True)
class SentCommand:
    """A command that was stored, whether or not its workflow has received it."""

    kind: CommandKind
    sent_at: datetime


def cancel_command_key(key: str) -> str:
    """The key of the cancel command that belongs to this request key."""
    return f"{CommandKind.CANCEL}/{key}"


@dataclass(frozen=True, slots=True)
class Steering:
    """The state of a message that was sent to a running execution."""

    execution: ExecutionRef
    """The execution to which it was sent."""
    heard_by: ExecutionRef
    """The execution that receives it."""
    otherwise: ExecutionRef
    """The execution that receives it if the first one ends before its next step."""
    is_settled: bool
    """Whether this is final: a step has received the message, or another execution begins with it."""

    @property
    def is_moved(self) -> bool:
        """Whether another execution receives it."""
        return self.heard_by != self.execution
