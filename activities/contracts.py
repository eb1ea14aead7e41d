"""Inputs and results of the activities: facts and references, never bodies.

These values are written to workflow history. They hold ids, counts, kinds and reasons; prompts, messages,
arguments and results stay in the store, where the activity that produced them put them. Values equal to their
default are left out, which halves their size: so no default may ever change.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from pydantic import model_validator

from everstep.agent_domain.agents.plan import ExecutionPlan, Profile
from everstep.agent_domain.checks import require_integer_at_least
from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.loop.budget import Budget, ExhaustedBudget
from everstep.agent_domain.loop.facts import StateInfo
from everstep.agent_domain.loop.marks import former_marks
from everstep.agent_domain.loop.repeated_calls import LoopReminder
from everstep.agent_domain.loop.run_context import RunContext
from everstep.agent_domain.loop.status import AgentStatus, ExecutionStatus, StopReason
from everstep.agent_domain.loop.step_error import StepError
from everstep.agent_domain.loop.step_facts import (
    NOTHING_BESIDES,
    Besides,
    CallFacts,
    CallNeed,
    StepFacts,
)
from everstep.agent_domain.loop.usage import NO_COST, Usage
from everstep.agent_domain.stream.broadcast_config import BroadcastConfig
from everstep.agent_domain.tools.tools import Effect
from everstep.agent_domain.values import EMPTY, FrozenDict

INFER_BRIEFLY = "infer_briefly"
INFER, RUN_TOOL, PROCESS, SETTLE, EXPIRE = "infer", "run_tool", "process", "settle", "expire"
REQUEST_CANCEL = "request_cancel"
SPAWN, REPORT, CLOSE = "spawn", "report", "close"


@dataclass(frozen=True, slots=True)
class InferInput:
    """Ask the model for a step."""

    ref: ExecutionRef
    number: int
    outcome: FrozenDict | None = None
    """The evaluation after the previous step, in its compact form."""
    hears: int = 0
    model_attempts: int | None = 3
    info: StateInfo | None = None
    """The clocks at the start of the step, in debug mode, which keeps the state before each step."""
    retry_seconds: float | None = None
    """How long model calls are retried; None for the value of the model's preset."""
    marks: FrozenDict = EMPTY
    """The marks of the execution so far, for hooks."""
    reminder: LoopReminder | None = None
    """What the model reads first, because it repeats itself."""
    is_last_turn: bool = False
    """Whether the model has to answer now, without tools."""
    clock: tuple[float, float] | None = None
    """The seconds since the run began or was resumed, and those of work, when the step was decided."""
    profile: Profile = Profile.REGULAR

    def __post_init__(self) -> None:
        require_integer_at_least("number", self.number, 1)


@dataclass(frozen=True, slots=True)
class ToolInput:
    """Run one call of a step."""

    ref: ExecutionRef
    agent: str
    number: int
    call_id: str
    effect: Effect = Effect.IDEMPOTENT
    need: CallNeed = CallNeed.RUN
    marks: FrozenDict = EMPTY
    """The marks of the execution so far, for hooks."""


@dataclass(frozen=True, slots=True)
class ToolOutput:
    """The result of a call."""

    call: CallFacts
    seconds: float
    besides: Besides = NOTHING_BESIDES


@dataclass(frozen=True, slots=True)
class ProcessInput:
    """Run the processors on a completed step."""

    ref: ExecutionRef
    agent: str
    number: int
    usage: Usage = Usage()
    marks: FrozenDict = EMPTY
    """The marks of the execution so far."""


@dataclass(frozen=True, slots=True)
class ProcessOutput:
    """The result of the processors."""

    seconds: float = 0.0
    besides: Besides = NOTHING_BESIDES
    error: StepError | None = None
    """The error of a processor, without its message; the failed step itself is recorded."""

    @model_validator(mode="before")
    @classmethod
    def _read_former_marks(cls, data: Any) -> Any:
        """Read results of histories and rows in which the critique was a field of its own."""
        former = former_marks(data)
        if not former:
            return data
        besides: dict[str, Any] = data.get("besides") or {}
        wishes: dict[str, Any] = {**(besides.get("wishes") or {}), "marks": former}
        return {**data, "besides": {**besides, "wishes": wishes}}


@dataclass(frozen=True, slots=True)
class SpawnInput:
    """Accept the child that a call starts."""

    ref: ExecutionRef
    agent: str
    number: int
    call_id: str
    tokens_left: int | None = None
    """Tokens that the parent may still use; the child gets no more."""
    session_seconds: float = 0.0
    """Seconds that the session has worked so far, including the parent."""
    broadcast: BroadcastConfig | None = None
    """The parent's broadcast settings, as its viewers also see the child; None for those of the child's
    agent.
    """
    budgets: tuple[Budget, ...] = ()
    """The parent's budgets, which the child shares."""


@dataclass(frozen=True, slots=True)
class SpawnOutput:
    """The child's plan, or the result of the call if it starts no child."""

    plan: ExecutionPlan | None = None
    answered: ToolOutput | None = None
    run: RunContext | None = None
    """The ids of the user and the request, if the plan has criteria that may read them."""


@dataclass(frozen=True, slots=True)
class ReportInput:
    """Record the end of a child as the result of its call."""

    ref: ExecutionRef
    agent: str
    number: int
    call_id: str
    seconds: float = 0.0
    """Seconds that the child worked."""
    tokens: int = 0
    """Tokens of the child and its descendants."""
    is_lost: bool = False
    """Whether the child could report neither itself."""
    cost_usd: Decimal | None = NO_COST
    """What the child and its descendants cost, in US dollars; None if it is unknown."""


@dataclass(frozen=True, slots=True)
class CloseInput:
    """Record the end of a child that did not record it itself."""

    ref: ExecutionRef
    status: ExecutionStatus
    workflow_id: str = ""
    """The child's workflow; empty in histories of older releases, which did not wait for its end."""


@dataclass(frozen=True, slots=True)
class StoredEnd:
    """The end that the store already has of an execution, recorded by another process."""

    status: ExecutionStatus
    stop_reason: StopReason

    @property
    def agent_status(self) -> AgentStatus:
        """The same status in the words of the domain."""
        return AgentStatus.FAILED if self.status is ExecutionStatus.FAILED else AgentStatus.COMPLETED


@dataclass(frozen=True, slots=True)
class SettleInput:
    """Record the status of an execution."""

    ref: ExecutionRef
    agent: str
    key: str
    status: ExecutionStatus
    step: StepFacts | None = None
    """A step that no activity recorded: abandoned, or a failure."""
    failure: str | None = None
    """The operator's description of a failure that only the workflow saw."""
    completes_step: bool = False
    """Whether this completes the last step."""
    outcome: FrozenDict | None = None
    agent_status: AgentStatus = AgentStatus.IN_PROGRESS
    stop_reason: StopReason | None = None
    step_count: int = 0
    usage: Usage = Usage()
    waiting: tuple[str, ...] = ()
    """The calls that wait for people."""
    asks: bool = False
    """Whether they wait for answers; otherwise for approvals."""
    info: StateInfo = StateInfo()
    """The execution's clocks."""
    seconds_under_way: float = 0.0
    """Seconds of the current step, which the clocks do not include yet."""
    marks: FrozenDict = EMPTY
    """The marks of the execution, for snapshots."""
    budget: ExhaustedBudget | None = None
    """The budget that the execution waits for, or that ends it."""
    elapsed_seconds: float | None = None
    """At an end: the seconds since the run began or was resumed."""
    steered: int = 0
    """At an end: the steering messages that arrived too late."""


@dataclass(frozen=True, slots=True)
class ExpiryInput:
    """Find out when the approvals of waiting calls expire, and deny those that are due."""

    ref: ExecutionRef
    calls: tuple[str, ...]
    due: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ExpiryOutput:
    """When the approvals of calls expire, and which calls were denied."""

    seconds_left: Mapping[str, float] = field(default_factory=dict[str, float])
    """Seconds until the approval of an undecided call expires; calls without a limit are left out."""
    denied: tuple[str, ...] = ()
    """Calls that are due; a call about which someone decided first is not among them."""


def step_with_outputs(step: StepFacts, outputs: Sequence[ToolOutput]) -> StepFacts:
    """Return the step with the results of calls that ran concurrently."""
    seconds = max(output.seconds for output in outputs)
    besides = sum((output.besides for output in outputs), NOTHING_BESIDES)
    return step.settled((output.call for output in outputs), seconds, besides)


WRITTEN_WITHOUT_DEFAULTS = (
    InferInput,
    ToolInput,
    ToolOutput,
    StepFacts,
    ProcessInput,
    ProcessOutput,
    SpawnInput,
    ReportInput,
)
