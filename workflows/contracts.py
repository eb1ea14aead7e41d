"""The workflow's inputs, outputs and update arguments. References only: bodies stay in the store."""

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from uuid import UUID

from everstep.agent_domain.agents.plan import ExecutionPlan
from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.loop.facts import ExecutionFacts, StateInfo
from everstep.agent_domain.loop.run_context import RunContext
from everstep.agent_domain.loop.status import AgentStatus, ExecutionStatus, StopReason
from everstep.agent_domain.loop.usage import NO_COST, Usage, sum_costs

WORKFLOW = "AgentExecution"
ID_PREFIX = "agent-execution/"
"""Prefix of the workflow ids of executions. Other workflows in the namespace do not have it."""
CHILD_STATUS_SIGNAL = "child_stands"
PARENT_PAUSE_SIGNAL = "parent_stands"

PEOPLE_SIGNALS = ("user_input", "approve", "steer", "cancel")
"""The signals that services with only a Temporal client send. Their payloads are read by an activity."""
SIGNAL_ACTIVITY = "everstep.signal"
"""The activity that validates and carries out one of these signals."""


def workflow_id(ref: ExecutionRef) -> str:
    """Return the workflow id of an execution. Every way of starting it uses the same id."""
    return f"{ID_PREFIX}{ref.execution_id}"


def execution_id_of(workflow_id: str) -> UUID | None:
    """Return the id of the execution that a workflow id names; None if the id has another form."""
    if not workflow_id.startswith(ID_PREFIX):
        return None
    try:
        execution_id = UUID(workflow_id.removeprefix(ID_PREFIX))
    except ValueError:
        return None
    # `UUID()` accepts several spellings of the same id; only the canonical one is used for workflows.
    return execution_id if workflow_id == f"{ID_PREFIX}{execution_id}" else None


@dataclass(frozen=True, slots=True)
class RefusedSignal:
    """A signal that changed nothing."""

    signal: str
    """Its name."""
    reason: str
    at: datetime


@dataclass(frozen=True, slots=True)
class SignalInput:
    """A signal for the activity to carry out: its place in the history, where its payload and sender are."""

    ref: ExecutionRef
    signal: str
    number: int
    """Its number among the `PEOPLE_SIGNALS` of this run of the workflow, from 1."""


@dataclass(frozen=True, slots=True)
class SignalReply:
    """Whether a signal was carried out."""

    refusal: str | None = None
    """Why not; None if it was."""
    error_type: str | None = None
    """The type of the refusal, for the log."""


@dataclass(frozen=True, slots=True)
class ExecutionInput:
    """The input of an execution's workflow, at its start and after continue-as-new."""

    ref: ExecutionRef
    plan: ExecutionPlan
    search_attributes: bool = False
    """Whether the Temporal server has Everstep's search attributes registered."""
    facts: ExecutionFacts | None = None
    """Carried over by continue-as-new; None at the first start."""
    settlements: int = 0
    """How many times the status has been recorded so far."""
    is_subagent: bool = False
    """Whether a parent execution waits for this one."""
    clocks: StateInfo | None = None
    """The session's clocks, read once when the execution was started."""
    refused: tuple[RefusedSignal, ...] = ()
    """Carried over by continue-as-new."""
    run: RunContext | None = None
    """The ids of the user and the request, if the plan has criteria that may read them."""
    public_url: str = ""
    """The URL of the installation for people, without a slash at its end; empty if it has none."""
    is_paused: bool = False
    """Whether the execution begins paused: a person paused it before it started."""


@dataclass(frozen=True, slots=True)
class ExecutionResult:
    """How an execution ended."""

    status: AgentStatus
    stop_reason: StopReason
    steps: int
    usage: Usage
    unheard: int = 0
    """Steering messages that arrived too late."""
    seconds: float = 0.0
    """Seconds of work."""
    child_tokens: int = 0
    """Tokens used by child executions and their descendants."""
    child_cost_usd: Decimal | None = NO_COST
    """What those cost, in US dollars; None if it is unknown."""

    @property
    def cost_usd(self) -> Decimal | None:
        """What the execution and its child executions cost, in US dollars; None if it is unknown."""
        own = self.usage.cost_usd if self.usage.total or not self.steps else None
        return sum_costs(own, self.child_cost_usd)

    @property
    def tokens(self) -> int:
        """Tokens used in total."""
        return self.usage.total + self.child_tokens


@dataclass(frozen=True, slots=True)
class ExecutionProgress:
    """The status and the facts of an execution, as its workflow sees them."""

    status: ExecutionStatus
    facts: ExecutionFacts
    refused: tuple[RefusedSignal, ...] = ()
    """The last signals that were refused, oldest first."""


@dataclass(frozen=True, slots=True)
class CallReply:
    """A call was answered or decided on by a person; the answer itself is in the store."""

    call_id: str
    denied: bool = False
    """Whether the call was denied. The store alone decides what an allowed call may do."""


@dataclass(frozen=True, slots=True)
class ChildStatus:
    """A child execution was paused, resumed or cancelled."""

    execution_id: UUID
    status: ExecutionStatus
    result: ExecutionResult | None = None
    """Its result, if it was cancelled: the SDK passes no details of a cancelled child to its parent."""
