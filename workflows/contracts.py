"""What clients say to the workflow, and what it answers. References only: bodies are in the store."""

from dataclasses import dataclass
from uuid import UUID

from agent_domain.facts import ExecutionFacts
from agent_domain.plan import ExecutionPlan
from agent_domain.ports import ExecutionRef
from agent_domain.status import AgentStatus, ExecutionStatus, StopReason
from agent_domain.usage import Usage

WORKFLOW = "AgentExecution"
CHILD_STANDS = "child_stands"
PARENT_STANDS = "parent_stands"


def workflow_id(ref: ExecutionRef) -> str:
    """The id of an execution's workflow, the same whoever starts it."""
    return f"agent-execution/{ref.execution_id}"


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
