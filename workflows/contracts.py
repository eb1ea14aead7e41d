"""What clients say to the workflow, and what it answers. References only: bodies are in the store."""

from dataclasses import dataclass
from uuid import UUID

from everstep.agent_domain.agents.plan import ExecutionPlan
from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.loop.facts import ExecutionFacts, StateInfo
from everstep.agent_domain.loop.status import AgentStatus, ExecutionStatus, StopReason
from everstep.agent_domain.loop.usage import Usage

WORKFLOW = "AgentExecution"
ID_PREFIX = "agent-execution/"
"""What the ids of executions' workflows begin with, and those of others do not."""
CHILD_STANDS = "child_stands"
PARENT_STANDS = "parent_stands"


def workflow_id(ref: ExecutionRef) -> str:
    """The id of an execution's workflow, the same whoever starts it."""
    return f"{ID_PREFIX}{ref.execution_id}"


def execution_id_of(workflow_id: str) -> UUID | None:
    """The execution that a workflow's id names; None if it names none."""
    if not workflow_id.startswith(ID_PREFIX):
        return None
    try:
        execution_id = UUID(workflow_id.removeprefix(ID_PREFIX))
    except ValueError:
        return None
    # There are several ways to write the same id, and one of them is ours.
    return execution_id if workflow_id == f"{ID_PREFIX}{execution_id}" else None


@dataclass(frozen=True, slots=True)
class ExecutionInput:
    """An execution as its workflow begins or goes on."""

    ref: ExecutionRef
    plan: ExecutionPlan
    search_attributes: bool = False
    """Whether the server knows Everstep's search attributes."""
    facts: ExecutionFacts | None = None
    """Carried over when history was cut; None at the first start."""
    settlements: int = 0
    """How often the execution was settled so far."""
    is_subagent: bool = False
    """Whether another execution waits for this one."""
    clocks: StateInfo | None = None
    """Those that it begins with: its session's, read once when it was started."""


@dataclass(frozen=True, slots=True)
class ExecutionResult:
    """How an execution ended."""

    status: AgentStatus
    stop_reason: StopReason
    steps: int
    usage: Usage
    unheard: int = 0
    """Steered messages that came too late."""
    seconds: float = 0.0
    """How long it worked."""
    child_tokens: int = 0
    """What the executions used that it started, and those that these started."""

    @property
    def tokens(self) -> int:
        """All that was used."""
        return self.usage.total + self.child_tokens


@dataclass(frozen=True, slots=True)
class ExecutionProgress:
    """Where an execution stands, as its workflow sees it."""

    status: ExecutionStatus
    facts: ExecutionFacts


@dataclass(frozen=True, slots=True)
class Answered:
    """A person has answered or decided about this call; what they said is in the store."""

    call_id: str
    denied: bool = False
    """Whether they said no; what the call may do, only the store decides."""


@dataclass(frozen=True, slots=True)
class ChildStanding:
    """A child waits for people, or goes on."""

    execution_id: UUID
    status: ExecutionStatus
