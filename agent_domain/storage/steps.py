"""Steps as the store records them: begun, answered by the model, and read again."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from everstep.agent_domain.capabilities.approvals import ApprovalRule
from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.loop.facts import StateInfo
from everstep.agent_domain.loop.step_error import StepError
from everstep.agent_domain.loop.step_facts import CallNeed, StepFacts
from everstep.agent_domain.messages.messages import Messages
from everstep.agent_domain.storage.calls import CallRow
from everstep.agent_domain.storage.executions import ExecutionSpec
from everstep.agent_domain.storage.metadata_changes import NO_NOTES, Notes
from everstep.agent_domain.stream.records import EventRecord, nothing_to_tell
from everstep.agent_domain.tools.tools import ToolCall
from everstep.agent_domain.values import EMPTY, FrozenDict


@dataclass(frozen=True, slots=True)
class StepBefore:
    """The last step that the model answered, and how many of its calls failed since."""

    facts: StepFacts
    failed_calls: int = 0
    duration_ms: float = field(default=0.0, compare=False)
    """From its start until now, or until it was complete."""

    @property
    def errors(self) -> int:
        """How much went wrong in it."""
        return len(self.facts.own_errors) or len(self.facts.pseudo_errors) + self.failed_calls


@dataclass(frozen=True, slots=True)
class Material:
    """What a step is made from."""

    spec: ExecutionSpec
    messages: Messages
    """The conversation so far, the results of the previous step included."""
    metadata: FrozenDict
    agent_id: UUID
    parent_agent_id: UUID | None = None
    plan: Mapping[str, Any] = EMPTY
    """`ExecutionPlan`, as data: what governs the execution, whatever its worker's code says."""
    before: StepBefore | None = None
    allowed: tuple[ApprovalRule, ...] = ()
    """The calls that people have allowed for the whole execution."""
    task: str | None = None
    """The message that began the execution."""
    clocks: StateInfo = StateInfo()
    """Those that the execution began with: its session's."""

    @property
    def max_steps(self) -> int | None:
        """How many steps there may be."""
        return self.plan.get("max_steps")

    @property
    def is_debug(self) -> bool:
        """Whether the full state is kept after each step."""
        return bool(self.plan.get("debug"))

    @property
    def broadcast(self) -> Mapping[str, Any]:
        """How much viewers are told, as the plan has it."""
        return self.plan.get("broadcast", EMPTY)


@dataclass(frozen=True, slots=True)
class BeginStep:
    """A step begins: the one before is settled, its successor marked as started."""

    ref: ExecutionRef
    number: int
    attempt: int
    outcome: FrozenDict | None
    """What the evaluation after the step before said (`ContinuationOutcome.to_dict()`)."""
    hears: int = 0
    """How many steered messages enter the conversation before this step."""
    events: Callable[["BegunStep"], Sequence[EventRecord]] = nothing_to_tell
    """What viewers are told, given what the step is made from and whether it had begun before."""


@dataclass(frozen=True, slots=True)
class RetryWait:
    """A model call failed in transport and is tried again later."""

    attempt: int
    """The attempt that failed."""
    since: datetime
    """When the first of the attempts in a row failed."""
    until: datetime
    """When the next one begins."""
    told: str
    """What is shown to anyone meanwhile."""
    error: str
    """What went wrong, for the operator."""


@dataclass(frozen=True, slots=True)
class BegunStep:
    """What to make the step from, or what an earlier attempt already made of it."""

    material: Material
    recorded: StepFacts | None = None
    previous_attempt: int | None = None
    """The latest attempt that had begun this step before, if one had."""
    was_silent: bool = False
    """That attempt failed, and had written nothing by then."""
    after_seq: int | None = None
    """The last envelope of its stream, once viewers were told of this beginning."""
    wait: RetryWait | None = None
    """What the attempt before waited for."""


@dataclass(frozen=True, slots=True)
class CallToRecord:
    """A call of a reply, on its way into the ledger."""

    call: ToolCall
    need: CallNeed
    args_digest: str
    request: FrozenDict | None = None
    """What a person is asked, where one is: prompt, choices, schema."""


@dataclass(frozen=True, slots=True)
class Added:
    """What hooks and processors added to an execution, besides what models and tools said."""

    opening: Messages = ()
    """Before the conversation."""
    said: Messages = ()
    """Where the conversation stands."""
    notes: Notes = NO_NOTES


NOTHING_ADDED = Added()


@dataclass(frozen=True, slots=True)
class RecordReply:
    """What the model answered: recorded once, whatever happens afterwards."""

    ref: ExecutionRef
    number: int
    attempt: int
    facts: StepFacts
    errors: Sequence[StepError]
    """The step's own errors with their messages, which the facts leave out."""
    response: FrozenDict
    """`InferenceResponse.to_dict()`."""
    messages: Messages
    calls: Sequence[CallToRecord] = ()
    events: Sequence[EventRecord] = ()
    begins: BeginStep | None = None
    """The beginning of the step, if nobody has written it; viewers are told of it by this reply's events."""
    added: "Added" = field(default_factory=lambda: NOTHING_ADDED)
    """What hooks added before the model was asked."""


@dataclass(frozen=True, slots=True)
class StepRow:
    """A step as clients see it."""

    number: int
    attempt: int
    facts: StepFacts | None
    errors: tuple[StepError, ...]
    outcome: FrozenDict | None
    partial_text: str
    started_at: datetime
    completed_at: datetime | None
    messages: Messages = ()
    calls: tuple["CallRow", ...] = ()
    heard: int = 0
    """How many of its messages were there before the model was asked, from people or hooks."""
    processed: int = 0
    """How many of its messages, the last ones, processors added."""
    response: FrozenDict | None = None
    """`InferenceResponse.to_dict()`, where it was asked for."""
    next_index: int | None = None
    """The chunk that goes on where `partial_text` ends; None where viewers are told none."""
    after_seq: int | None = None
    """The stored envelope that those chunks follow."""
    processing_seconds: float = 0.0
    """How long processors worked on it."""
    wait: RetryWait | None = None
    """Why and until when the model is not asked, if the step waits for that; also where it has waited."""

    @property
    def waits(self) -> RetryWait | None:
        """The wait that is not over: the step has no reply, and no later attempt has begun."""
        is_over = self.facts is not None or self.wait is None or self.wait.attempt != self.attempt
        return None if is_over else self.wait

    @property
    def duration_ms(self) -> float | None:
        """From start to end; None while it is under way."""
        return (
            None
            if self.completed_at is None
            else (self.completed_at - self.started_at).total_seconds() * 1000
        )


@dataclass(frozen=True, slots=True)
class RecordProcessing:
    """What processors and hooks made of a step that is complete."""

    ref: ExecutionRef
    number: int
    outcome: FrozenDict
    """`Processed.to_dict()`, which an attempt that comes later is given."""
    added: Added = NOTHING_ADDED
