"""What a workflow and its activities say to each other: facts and references, never bodies.

These values stand in workflow history. They hold ids, counts, kinds and reasons; prompts,
messages, arguments and results stay in the store, where the activity that made them put them.
What equals its default is not written there, which halves them: so no default ever changes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from everstep.agent_domain.agents.plan import ExecutionPlan
from everstep.agent_domain.checks import whole
from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.loop.facts import CritiqueFacts, StateInfo
from everstep.agent_domain.loop.status import AgentStatus, ExecutionStatus, StopReason
from everstep.agent_domain.loop.step_error import StepError
from everstep.agent_domain.loop.step_facts import (
    NOTHING_BESIDES,
    Besides,
    CallFacts,
    CallNeed,
    StepFacts,
)
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.stream.broadcast_config import BroadcastConfig
from everstep.agent_domain.tools.tools import Effect
from everstep.agent_domain.values import FrozenDict

INFER, RUN_TOOL, PROCESS, SETTLE = "infer", "run_tool", "process", "settle"
SPAWN, REPORT, CLOSE = "spawn", "report", "close"

QUICK_SECONDS = 5.0
"""A tool that is declared quick and takes longer has failed."""


@dataclass(frozen=True, slots=True)
class InferInput:
    """Ask the model for a step."""

    ref: ExecutionRef
    number: int
    outcome: FrozenDict | None = None
    """The evaluation after the step before, in its compact form."""
    hears: int = 0
    model_attempts: int | None = 3
    info: StateInfo | None = None
    """The clocks as the step begins, where the state before it is kept: in debug mode."""
    retry_seconds: float | None = None
    """How long it is tried again; None: as the model's preset says."""

    def __post_init__(self) -> None:
        whole("number", self.number, 1)


@dataclass(frozen=True, slots=True)
class ToolInput:
    """Run one call of a step."""

    ref: ExecutionRef
    agent: str
    number: int
    call_id: str
    effect: Effect = Effect.IDEMPOTENT
    need: CallNeed = CallNeed.RUN


@dataclass(frozen=True, slots=True)
class ToolOutput:
    """What became of a call."""

    call: CallFacts
    seconds: float
    besides: Besides = NOTHING_BESIDES


@dataclass(frozen=True, slots=True)
class ProcessInput:
    """Show processors a step that is complete."""

    ref: ExecutionRef
    agent: str
    number: int
    usage: Usage = Usage()


@dataclass(frozen=True, slots=True)
class Processed:
    """What came of it."""

    seconds: float = 0.0
    besides: Besides = NOTHING_BESIDES
    critique: CritiqueFacts | None = None
    error: StepError | None = None
    """What a processor raised, without its words: the failure step is recorded."""


@dataclass(frozen=True, slots=True)
class SpawnInput:
    """Accept the child that a call starts."""

    ref: ExecutionRef
    agent: str
    number: int
    call_id: str
    tokens_left: int | None = None
    """What the parent may still use; the child gets no more."""
    session_seconds: float = 0.0
    """How long the session has worked so far, the parent included."""
    broadcast: BroadcastConfig | None = None
    """How much viewers of the parent are told; they see the child, too. None: what the child's agent says."""


@dataclass(frozen=True, slots=True)
class SpawnOutput:
    """What governs the child; or what became of the call, if it starts none."""

    plan: ExecutionPlan | None = None
    answered: ToolOutput | None = None


@dataclass(frozen=True, slots=True)
class ReportInput:
    """Give a call the result that its child's end is."""

    ref: ExecutionRef
    agent: str
    number: int
    call_id: str
    seconds: float = 0.0
    """How long the child worked."""
    tokens: int = 0
    """What it used, and those that it started."""
    is_lost: bool = False
    """Whether the child could say neither itself."""


@dataclass(frozen=True, slots=True)
class CloseInput:
    """Write down the end of a child that did not do so itself."""

    ref: ExecutionRef
    status: ExecutionStatus


@dataclass(frozen=True, slots=True)
class SettleInput:
    """Write down where an execution stands, when no model or tool call does."""

    ref: ExecutionRef
    agent: str
    key: str
    status: ExecutionStatus
    step: StepFacts | None = None
    """A step that no activity recorded: given up, or a failure."""
    failure: str | None = None
    """The operator's sentence about a failure that only the workflow saw."""
    completes_step: bool = False
    """Whether the last step is complete with this."""
    outcome: FrozenDict | None = None
    agent_status: AgentStatus = AgentStatus.IN_PROGRESS
    stop_reason: StopReason | None = None
    step_count: int = 0
    usage: Usage = Usage()
    waiting: tuple[str, ...] = ()
    """The calls that people are asked about."""
    asks: bool = False
    """Whether they are asked for answers; else whether the calls may run."""
    info: StateInfo = StateInfo()
    """The execution's clocks."""
    seconds_under_way: float = 0.0
    """What the step under way has worked so far, which the clocks do not count yet."""


def settled(step: StepFacts, outputs: Sequence[ToolOutput]) -> StepFacts:
    """The step with what became of calls that ran at the same time."""
    seconds = max(output.seconds for output in outputs)
    besides = sum((output.besides for output in outputs), NOTHING_BESIDES)
    return step.settled((output.call for output in outputs), seconds, besides)


WRITTEN_WITHOUT_DEFAULTS = (
    InferInput,
    ToolInput,
    ToolOutput,
    StepFacts,
    ProcessInput,
    Processed,
    SpawnInput,
    ReportInput,
)
