"""Steps in the store: their beginning, the model's reply, processing, and their rows."""

import sys
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal
from enum import Enum, auto
from typing import Any, Final, TypeAlias
from uuid import UUID

from everstep.agent_domain.capabilities.approvals import ApprovalRule
from everstep.agent_domain.capabilities.rights import DecisionPolicy
from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.loop.boundary import Boundary
from everstep.agent_domain.loop.budget import BudgetUnit
from everstep.agent_domain.loop.facts import StateInfo
from everstep.agent_domain.loop.run_context import NO_RUN_CONTEXT, RunContext
from everstep.agent_domain.loop.step_error import StepError
from everstep.agent_domain.loop.step_facts import CallNeed, StepFacts
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.messages.compaction import Compaction
from everstep.agent_domain.messages.messages import Messages
from everstep.agent_domain.storage.budget_ledger import (
    BudgetOwner,
    BudgetSpending,
    BudgetTerms,
    parse_budget_list,
)
from everstep.agent_domain.storage.calls import CallRow
from everstep.agent_domain.storage.executions import ExecutionSpec
from everstep.agent_domain.storage.metadata_changes import NO_METADATA_CHANGES, MetadataChanges
from everstep.agent_domain.stream.records import EventRecord, no_event_records
from everstep.agent_domain.tools.tools import ToolCall
from everstep.agent_domain.values import EMPTY, FrozenDict


@dataclass(frozen=True, slots=True)
class PreviousStep:
    """The last step with a reply, and how many of its calls have failed since."""

    facts: StepFacts
    failed_calls: int = 0
    duration_ms: float = field(default=0.0, compare=False)
    """From its start to its completion, or to now."""
    inner_usage: Usage = Usage()
    """Tokens used by model calls of its tools, hooks and processors so far."""
    step_errors: tuple[StepError, ...] = field(default=(), compare=False)
    """Its own errors with their messages, or those of its failed calls if it has none."""

    @property
    def cost_usd(self) -> Decimal | None:
        """What all model calls of the step cost so far, in US dollars; None if it is unknown."""
        return step_cost(self.facts, self.inner_usage)

    @property
    def errors(self) -> int:
        """The number of errors in the step."""
        return len(self.facts.own_errors) or len(self.facts.pseudo_errors) + self.failed_calls


def step_cost(facts: StepFacts, inner_usage: Usage) -> Decimal | None:
    """What a step cost, in US dollars; None if it is unknown, as for an answer without counted tokens."""
    if not facts.is_failure and not facts.usage.total:
        return None
    return (facts.usage + inner_usage).cost_usd


MessagePlace: TypeAlias = tuple[int, int]
"""The step of a message in its execution, and its index there, which is negative before the step's reply."""

STEERING_END: Final = -1000
"""Steering messages are placed below this index of their step; hook messages between it and the reply."""


def is_steering(place: MessagePlace) -> bool:
    """Whether the message at this place came from a person while the execution ran."""
    step, index = place
    return step > 0 and index < STEERING_END


RESULTS_FROM: Final = 1000
"""The index of the first result within a step, above that of any reply."""


def result_index(call_index: int) -> int:
    """Return the first index of a call's result."""
    return RESULTS_FROM * (call_index + 1)


EARLIER_EXECUTION: Final = (-1, 0)
"""The place of all messages of the executions that this one continues."""


@dataclass(frozen=True, slots=True)
class StepInput:
    """The stored input of a step."""

    spec: ExecutionSpec
    messages: Messages
    """The conversation so far, including the results of the previous step."""
    metadata: FrozenDict
    agent_id: UUID
    parent_agent_id: UUID | None = None
    plan: Mapping[str, Any] = EMPTY
    """`ExecutionPlan` as data: it governs the execution, regardless of the defaults in its worker's code."""
    before: PreviousStep | None = None
    allowed: tuple[ApprovalRule, ...] = ()
    """Rules of calls that people have approved for the whole execution."""
    task: str | None = None
    """The text of the message that began the execution."""
    clocks: StateInfo = StateInfo()
    """The times with which the execution began: those of its session."""
    places: tuple[MessagePlace, ...] = ()
    """The place of each message, in order."""
    run: RunContext = NO_RUN_CONTEXT
    """The user and the request of the execution."""
    compaction: Compaction | None = None
    """What of the messages requests contain no longer."""
    compactions: tuple[Compaction, ...] = ()
    """All compactions of the execution itself, as they were recorded."""
    operator_units: tuple[BudgetUnit, ...] = ()
    """The units of the operator's budgets that apply to the execution."""

    def compactions_of(self, number: int) -> tuple[Compaction, ...]:
        """The compactions that were recorded before the reply of this step."""
        return tuple(each for each in self.compactions if each.step == number)

    def with_conversation(self, other: "StepInput") -> "StepInput":
        """A copy with the conversation of another input."""
        return replace(
            self,
            messages=other.messages,
            places=other.places,
            compaction=other.compaction,
            compactions=other.compactions,
        )

    def budget_terms(self, ref: ExecutionRef) -> BudgetTerms:
        """The budgets under which the execution calls models."""
        owner = BudgetOwner(ref, self.run.user_id)
        return BudgetTerms(owner, parse_budget_list(self.plan.get("budgets")), self.operator_units)

    def before_step(self, number: int) -> "StepInput":
        """The input without the messages of this step, also without those that it reads."""
        return self._before((number, -sys.maxsize))

    def before_reply(self, number: int) -> "StepInput":
        """The input without the reply of this step and everything after it."""
        return self._before((number, 0))

    def _before(self, place: MessagePlace) -> "StepInput":
        count = bisect_left(self.places, place)
        fits = self.compaction is not None and self.compaction.replaced <= count
        compaction = self.compaction if fits else None
        return replace(
            self, messages=self.messages[:count], places=self.places[:count], compaction=compaction
        )

    @property
    def max_steps(self) -> int | None:
        """The plan's limit of steps."""
        return self.plan.get("max_steps")

    @property
    def is_debug(self) -> bool:
        """Whether the full state is kept after each step."""
        return bool(self.plan.get("debug"))

    @property
    def broadcast(self) -> Mapping[str, Any]:
        """The plan's broadcast configuration: how much viewers receive."""
        return self.plan.get("broadcast", EMPTY)


@dataclass(frozen=True, slots=True)
class BeginStep:
    """The beginning of a step, which also settles the previous one."""

    ref: ExecutionRef
    number: int
    attempt: int
    outcome: FrozenDict | None
    """The outcome of the evaluation after the previous step (`ContinuationOutcome.to_dict()`)."""
    hears: int = 0
    """How many steered messages enter the conversation before this step."""
    events: Callable[["BegunStep"], Sequence[EventRecord]] = no_event_records
    """Builds the envelopes to store, given the begun step."""
    known: StepInput | None = None
    """The input, if the caller has read it and no message is added; its conversation is not read again."""
    boundary: Boundary | None = None
    """What that evaluation has read of which there is no other record."""


@dataclass(frozen=True, slots=True)
class PartialText:
    """The next part of the text that a step's model is still writing, for viewers that join late."""

    ref: ExecutionRef
    number: int
    attempt: int
    text: str
    next_index: int | None = None
    """The index of the chunk that follows the text. Without it, viewers do not receive the text."""
    after_seq: int | None = None
    """The stored envelope that the chunks follow."""
    offset: int = 0
    """How many characters of the text come before this part. They are stored already, and all after them is
    replaced.
    """


class PartialTextOutcome(Enum):
    """What became of a text that was to be stored with others."""

    STORED = auto()
    CANCELLED = auto()
    """Stored, and its execution is to be cancelled."""
    BUSY = auto()
    """Another transaction holds its step: store it later."""
    REPLACED = auto()
    """A later attempt or a reply has replaced this attempt, or the text before this part is not stored."""


@dataclass(frozen=True, slots=True)
class RetryWait:
    """The wait before the retry of a model call that failed in transport."""

    attempt: int
    """The attempt that failed."""
    since: datetime
    """When the first of the consecutive attempts failed."""
    until: datetime
    """When the next one begins."""
    told: str
    """The text for users during the wait."""
    error: str
    """The error message for operators."""
    usage: Usage = Usage()
    """What the failed attempts used, as far as the provider charged them."""


@dataclass(frozen=True, slots=True)
class BegunStep:
    """The input of a step, or the reply that an earlier attempt recorded."""

    material: StepInput
    recorded: StepFacts | None = None
    previous_attempt: int | None = None
    """The latest earlier attempt that began this step, if there was one."""
    was_silent: bool = False
    """Whether that attempt failed without having written any text."""
    after_seq: int | None = None
    """The last envelope of the stream, after those of this beginning."""
    wait: RetryWait | None = None
    """The wait between the previous attempt and this one."""


@dataclass(frozen=True, slots=True)
class CallToRecord:
    """A call of a reply, to be recorded."""

    call: ToolCall
    need: CallNeed
    args_digest: str
    request: FrozenDict | None = None
    """The question to a person, if the call asks one: prompt, choices, schema."""
    policy: DecisionPolicy | None = None
    """Who may decide about the call, if it needs an approval."""


@dataclass(frozen=True, slots=True)
class HookAdditions:
    """Messages and metadata changes of hooks and processors."""

    opening: Messages = ()
    """Messages before the conversation."""
    said: Messages = ()
    """Messages at the current end of the conversation."""
    notes: MetadataChanges = NO_METADATA_CHANGES


NO_ADDITIONS = HookAdditions()


@dataclass(frozen=True, slots=True)
class RecordReply:
    """A model's reply, which is recorded once and then final."""

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
    """The beginning of the step, if it is not stored yet; `events` contains its envelopes."""
    added: "HookAdditions" = field(default_factory=lambda: NO_ADDITIONS)
    """The additions of hooks before the model call."""
    spending: BudgetSpending | None = None
    """What replaces the reservation of the model call; None without one."""
    first_text_seconds: float | None = None
    """From the request to the model until its first text; None without text."""


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
    """The number of its messages from people or hooks that precede the model call."""
    processed: int = 0
    """The number of its messages, at the end, that processors added."""
    response: FrozenDict | None = None
    """`InferenceResponse.to_dict()`, if the caller requested responses."""
    next_index: int | None = None
    """The index of the chunk that follows `partial_text`; None if viewers receive no chunks."""
    after_seq: int | None = None
    """The stored envelope that those chunks follow."""
    processing_seconds: float = 0.0
    """How long processors ran."""
    wait: RetryWait | None = None
    """The step's latest wait for a retry, which may be over."""
    compactions: tuple[Compaction, ...] = ()
    """The compactions before its reply."""
    processing_usage: Usage = Usage()
    """Tokens used by model calls of processors and of hooks after the step."""
    failed_attempts: tuple[int, ...] = ()
    """The attempts at its model call that failed in transport."""
    message_keys: tuple[str, ...] = ()
    """The keys of the messages to the running execution that it received."""
    first_text_seconds: float | None = None
    """From the request to the model until its first text; None without text, and in earlier releases."""

    @property
    def inner_usage(self) -> Usage:
        """Tokens used by model calls of its tools, hooks and processors."""
        records = (call.record for call in self.calls if call.record)
        return sum((record.besides.usage for record in records), self.processing_usage)

    @property
    def cost_usd(self) -> Decimal | None:
        """What all model calls of the step cost so far, in US dollars; None if it is unknown."""
        return step_cost(self.facts, self.inner_usage) if self.facts else None

    @property
    def waits(self) -> RetryWait | None:
        """The current wait: None if the step has a reply or a later attempt has begun."""
        is_over = self.facts is not None or self.wait is None or self.wait.attempt != self.attempt
        return None if is_over else self.wait

    @property
    def duration_ms(self) -> float | None:
        """The time from start to end; None while the step runs."""
        return (
            None
            if self.completed_at is None
            else (self.completed_at - self.started_at).total_seconds() * 1000
        )


@dataclass(frozen=True, slots=True)
class RecordProcessing:
    """The outcome of processors and hooks after a completed step."""

    ref: ExecutionRef
    number: int
    outcome: FrozenDict
    """`Processed.to_dict()`, which later attempts receive."""
    added: HookAdditions = NO_ADDITIONS
