"""What people command of a running execution, stored before its workflow is told."""

from dataclasses import dataclass
from enum import StrEnum

from everstep.agent_domain.ids import ExecutionRef


class CommandKind(StrEnum):
    """What a workflow is told; the first two are the kinds of requests."""

    INPUT = "input"
    APPROVAL = "approval"
    STEER = "steer"
    PAUSE = "pause"
    RESUME = "resume"
    CANCEL = "cancel"


@dataclass(frozen=True, slots=True)
class Command:
    """Something that an execution's workflow has to be told.

    It is stored in the transaction that accepts it, before Temporal is called, so a process that is lost in
    between loses nothing: the next attempt with the same key tells the workflow, or the reconciler does.
    """

    ref: ExecutionRef
    key: str
    """Its name in the execution, and the id of the workflow's update."""
    kind: CommandKind
    call_id: str | None = None
    """The call that is answered or decided about."""
    is_denied: bool = False
    is_delivered: bool = False
    """Whether nothing is left to tell."""


def cancel_key(key: str) -> str:
    """The key of the command that cancels an execution for this request."""
    return f"{CommandKind.CANCEL}/{key}"


@dataclass(frozen=True, slots=True)
class Steering:
    """What became of a message that was sent to an execution under way."""

    execution: ExecutionRef
    """The execution that it was sent to."""
    heard_by: ExecutionRef
    """The execution that hears it."""
    otherwise: ExecutionRef
    """The execution that hears it if the first one ends before its next step."""
    is_settled: bool
    """Whether this cannot change any more: a step has heard it, or another execution begins with it."""

    @property
    def is_moved(self) -> bool:
        """Whether another execution hears it."""
        return self.heard_by != self.execution
