"""What a durable execution needs from its store, as ports and the values that pass through them.

Every write is idempotent: it carries a key, or finds what an earlier attempt recorded and returns
that instead of writing again. What a write tells viewers is stored in the same transaction.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, Generic, Protocol, TypeVar
from uuid import UUID, uuid5

from pydantic import BaseModel, ConfigDict

from agent_domain.announcements import Announcement
from agent_domain.capabilities.approvals import ApprovalRule
from agent_domain.errors import EverstepError
from agent_domain.facts import StateInfo
from agent_domain.messages import Message, Messages
from agent_domain.notes import NO_NOTES, Notes
from agent_domain.status import ExecutionStatus, StopReason
from agent_domain.step_error import StepError
from agent_domain.step_facts import NOTHING_BESIDES, Besides, CallNeed, StepFacts
from agent_domain.tools import ToolCall
from agent_domain.usage import Usage
from agent_domain.values import EMPTY, FrozenDict, frozen_map

DEFAULT_TENANT = "default"

Row = TypeVar("Row")


class NotFound(EverstepError, LookupError):
    """The tenant has nothing of that kind under that name; somebody else may."""

    def __init__(self, kind: str, name: object) -> None:
        super().__init__(f"There is no {kind} {name}")


class StoreUnavailable(EverstepError):
    """The store cannot be reached or serve this now; the same call can be made again."""


class ExecutionEnded(EverstepError):
    """What was to be written belongs to an execution that has ended; nothing was written."""

    def __init__(self, execution_id: UUID, status: ExecutionStatus) -> None:
        self.status = status
        super().__init__(f"The execution {execution_id} has ended as {status}")


@dataclass(frozen=True, slots=True)
class ExecutionRef:
    """Which execution, and whose."""

    execution_id: UUID
    tenant_id: str = DEFAULT_TENANT
    session_id: UUID | None = None

    @property
    def stream_id(self) -> UUID:
        """The stream that its envelopes go to: its session's, or one of its own."""
        return self.session_id or self.execution_id


class ExecutionSpec(BaseModel):
    """What an execution's row holds of its agent: everything that may not travel through Temporal."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    agent: str
    llm_preset: str | None = None
    cached_context: Mapping[str, Any] = EMPTY
    """`CachedContext.to_dict()`: system prompt, tool schemas, response format."""
    approvals: Mapping[str, Any] = EMPTY
    definition_hash: str = ""
    listed: Mapping[str, Any] | None = None
    """What its toolsets listed, once they were asked: by toolset, as `ListedTool.to_dict()`."""


@dataclass(frozen=True, slots=True)
class NewExecution:
    """An execution that was accepted and has not begun."""

    ref: ExecutionRef
    spec: ExecutionSpec
    messages: Messages
    """What it begins with, after the conversation of `continues`, if that is set."""
    user_id: str | None = None
    continues: UUID | None = None
    parent_agent_id: UUID | None = None
    parent_execution_id: UUID | None = None
    metadata: FrozenDict = EMPTY
    plan: FrozenDict = EMPTY
    continues_until: int | None = None
    """The last step of `continues` that belongs to the conversation; None for all of it."""
    is_queued: bool = False
    """Whether it has to wait for its turn in its session."""
    queue_rank: int = 1
    """Lower ones have their turn first."""
    notes: FrozenDict = EMPTY
    """What Everstep notes of its origin."""
    task_queue: str | None = None
    """Whose workers know its agent; children are at work where their parent is."""
    session_seconds: float | None = None
    """Working time of its session so far; None: what the store knows of it. Only a parent knows more."""


@dataclass(frozen=True, slots=True)
class EventRecord:
    """An envelope to be stored: `key` is unique within the execution and gives it its id."""

    key: str
    type: str
    payload: Mapping[str, Any]
    announces: Announcement | None = None
    """The message that a session stores beside it."""


def nothing_to_tell(_known: object) -> tuple[EventRecord, ...]:
    """Where viewers are told nothing."""
    return ()


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
class Resolution:
    """What a person decided or answered."""

    kind: str
    """`answer`, `default`, `approve`, `deny` or `edit`."""
    value: Any = None
    reason: str | None = None
    key: str | None = None
    """Who says so again under the same key, has been heard."""
    remember: ApprovalRule | None = None
    """Which later calls of the execution are allowed by this approval."""

    @property
    def is_denied(self) -> bool:
        """Whether a person said no."""
        return self.kind == "deny"

    @property
    def edited_args(self) -> FrozenDict | None:
        """The arguments that replace the requested ones."""
        return frozen_map(self.value, "args") if self.kind == "edit" else None


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


@dataclass(frozen=True, slots=True)
class CallRecord:
    """The one result of a call."""

    call_id: str
    result: Any
    error: StepError | None
    text: str
    """What the model reads."""
    started_at: datetime
    completed_at: datetime
    seconds: float
    success: bool = True
    besides: Besides = NOTHING_BESIDES


@dataclass(frozen=True, slots=True)
class Reservation:
    """A call that this attempt may run, or what is known of it already."""

    call: ToolCall
    step_number: int
    index: int
    metadata: FrozenDict
    recorded: CallRecord | None = None
    is_uncertain: bool = False
    """An earlier attempt reserved the call and left no result: its effect is unknown."""
    resolution: Resolution | None = None
    """What people decided about it or answered."""
    answer: Resolution | None = None
    """What they answered once they had allowed it to ask."""
    broadcast: Mapping[str, Any] = EMPTY
    """How much viewers are told, as the execution's plan has it."""
    earlier: tuple[ToolCall, ...] = ()
    """The calls before this one in the same response."""
    allowed: tuple[ApprovalRule, ...] = ()
    """The calls that people have allowed for the whole execution."""


@dataclass(frozen=True, slots=True)
class RecordCall:
    """A call's result, its place in the conversation, and what it changes in the metadata."""

    ref: ExecutionRef
    step_number: int
    index: int
    record: CallRecord
    messages: Messages
    notes: Notes = NO_NOTES
    events: Sequence[EventRecord] = ()
    attempt: int = 1


@dataclass(frozen=True, slots=True)
class RecordProcessing:
    """What processors and hooks made of a step that is complete."""

    ref: ExecutionRef
    number: int
    outcome: FrozenDict
    """`Processed.to_dict()`, which an attempt that comes later is given."""
    added: Added = NOTHING_ADDED


@dataclass(frozen=True, slots=True)
class InnerReply:
    """What a model answered to a tool or a processor, in the midst of a step."""

    key: str
    """Which question it is: the same for every attempt."""
    digest: str
    """Of what was asked; another question is asked anew."""
    response: FrozenDict
    """`InferenceResponse.to_dict()`."""


@dataclass(frozen=True, slots=True)
class Settlement:
    """A change of an execution's standing that belongs to no model or tool call."""

    ref: ExecutionRef
    key: str
    """The same key settles once."""
    status: ExecutionStatus
    step: StepFacts | None = None
    """A failure step or an abandoned one, to be recorded."""
    errors: Sequence[StepError] = ()
    outcome: FrozenDict | None = None
    stop_reason: StopReason | None = None
    step_count: int | None = None
    usage: Usage | None = None
    error_message: str | None = None
    error_told: str | None = None
    """What anyone may read of it."""
    output: FrozenDict | None = None
    snapshot: FrozenDict | None = None
    is_final: bool = False
    is_debug: bool = False
    """Whether the snapshot is the full state."""
    worked_seconds: float | None = None
    """How long the execution has worked; None where nobody counted, then what is recorded is added up."""
    cancelled_calls: Sequence[tuple[str, int, Messages]] = ()
    """Calls that end unanswered: id, place, and what the conversation says of them."""
    events: Sequence[EventRecord] = ()
    only_pending: bool = False
    """Only if the execution has not begun."""


class RequestState(StrEnum):
    """Where a question to people stands."""

    OPEN = "open"
    RESOLVED = "resolved"


@dataclass(frozen=True, slots=True)
class RequestRow:
    """A question or an approval that somebody was or is asked for."""

    id: UUID
    ref: ExecutionRef
    call_id: str
    kind: CallNeed
    state: RequestState
    tool: str
    args: FrozenDict
    args_digest: str
    request: FrozenDict
    resolution: Resolution | None
    created_at: datetime
    step_number: int
    """The step of the call."""


@dataclass(frozen=True, slots=True)
class ExecutionRow:
    """An execution as clients see it."""

    ref: ExecutionRef
    agent: str
    status: ExecutionStatus
    step_count: int
    usage: FrozenDict
    stop_reason: StopReason | None
    output: FrozenDict | None
    error_message: str | None
    metadata: FrozenDict
    created_at: datetime
    started_at: datetime | None
    completed_at: datetime | None
    parent_execution_id: UUID | None = None
    user_id: str | None = None
    definition_hash: str | None = None
    """Which definition governs it, where one execution was asked for; lists leave it out."""
    last_snapshot_id: UUID | None = None
    clocks: StateInfo = StateInfo()
    """Those that it begins with: its session's."""
    error_told: str | None = None
    """What anyone may read of the error message; None in rows of older releases."""


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
class CallRow:
    """A call as clients see it."""

    call: ToolCall
    state: str
    attempts: int
    record: CallRecord | None
    index: int = 0
    """Its place among the calls of its step."""
    edited_args: FrozenDict | None = None
    """The arguments that a person put in place of the model's."""

    @property
    def allowed(self) -> ToolCall:
        """The call as it runs: with the arguments that people left it."""
        if self.edited_args is None:
            return self.call
        return replace(self.call, args=self.edited_args, malformed=None)


@dataclass(frozen=True, slots=True)
class StoredEnvelope:
    """An envelope in its place."""

    stream_id: UUID
    seq: int
    id: UUID
    type: str
    execution_id: UUID
    payload: FrozenDict
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Page(Generic[Row]):
    """Some rows in the order of their list, and where the next page begins."""

    rows: tuple[Row, ...]
    cursor: str | None = field(default=None)


def request_id(execution_id: UUID, call_id: str) -> UUID:
    """The id of the question that a call asks."""
    return uuid5(execution_id, f"request/{call_id}")


def question_id(execution_id: UUID, call_id: str) -> UUID:
    """The id of the question that a call asks once people have allowed it."""
    return uuid5(execution_id, f"question/{call_id}")


def follow_up_id(execution_id: UUID, key: str | None = None) -> UUID:
    """The id of the execution that begins with a message which the one that it was sent to did not hear.

    In a session each such message begins one, named by the message's key. Elsewhere there is no queue, so all
    of them begin one together.
    """
    return uuid5(execution_id, "steered" if key is None else f"steered/{key}")


class ExecutionStore(Protocol):
    """Keeps executions. Every method is one transaction."""

    async def accept(self, new: NewExecution) -> ExecutionRow:
        """Store a pending execution; the same id again returns what is there."""
        ...

    async def material(self, ref: ExecutionRef) -> Material:
        """What the next step would be made from."""
        ...

    async def preview_step(self, ref: ExecutionRef, number: int) -> BegunStep:
        """What `begin_step` returns for a step that hears nobody; nothing is written."""
        ...

    async def begin_step(self, begin: BeginStep) -> BegunStep:
        """Settle the step before, mark this one as started; a recorded one is returned as it is."""
        ...

    async def note_partial(
        self,
        ref: ExecutionRef,
        number: int,
        attempt: int,
        text: str,
        *,
        next_index: int | None = None,
        after_seq: int | None = None,
    ) -> bool:
        """Keep the text so far, for those who join late; False if this attempt has no say any more.

        With the index of the chunk that goes on where it ends, viewers may be told of it, else not.
        """
        ...

    async def note_failure(self, ref: ExecutionRef, number: int, attempt: int) -> int:
        """Count a model call of this step that failed in transport; the count so far, this one included."""
        ...

    async def note_wait(
        self, ref: ExecutionRef, number: int, wait: RetryWait, events: Sequence[EventRecord] = ()
    ) -> None:
        """Write down that a step waits for its next attempt, unless it has that one or a reply by now."""
        ...

    async def record_reply(self, reply: RecordReply) -> StepFacts:
        """Record what the model answered; what an earlier attempt recorded wins."""
        ...

    async def ask(self, ref: ExecutionRef, call_id: str, request: FrozenDict) -> None:
        """Open the question of a call that people have allowed; again changes nothing."""
        ...

    async def preview_call(self, ref: ExecutionRef, call_id: str) -> Reservation:
        """What `reserve_call` returns; nothing is written."""
        ...

    async def reserve_call(
        self,
        ref: ExecutionRef,
        call_id: str,
        attempt: int,
        events: Callable[[Reservation], Sequence[EventRecord]] = nothing_to_tell,
    ) -> Reservation:
        """Take a call in hand before it has any effect."""
        ...

    async def record_call(self, record: RecordCall) -> CallRecord:
        """Record a call's result; what an earlier attempt recorded wins."""
        ...

    async def record_processing(self, record: RecordProcessing) -> FrozenDict:
        """Record what processors made of a step; what an earlier attempt recorded wins."""
        ...

    async def processing(self, ref: ExecutionRef, number: int) -> FrozenDict | None:
        """What processors made of a step, if that is recorded."""
        ...

    async def inner_reply(self, ref: ExecutionRef, key: str) -> InnerReply | None:
        """What a model answered to this question, if it was asked."""
        ...

    async def record_inner_reply(self, ref: ExecutionRef, reply: InnerReply, usage: Usage) -> InnerReply:
        """Record what a model answered, and what it cost; what an earlier attempt recorded wins."""
        ...

    async def record_listed(self, ref: ExecutionRef, tools: FrozenDict) -> FrozenDict:
        """Record the tools that toolsets list for this execution; what was recorded before wins."""
        ...

    async def listed(self, ref: ExecutionRef) -> FrozenDict | None:
        """The tools that toolsets listed for this execution, if they were asked."""
        ...

    async def settle(self, settlement: Settlement) -> bool:
        """Change the execution's standing; False if this key was settled before, or the execution ended."""
        ...

    async def keep_snapshot(self, ref: ExecutionRef, number: int, state: FrozenDict) -> bool:
        """Keep the full state after a step, for debugging; False if there is one of this step."""
        ...

    async def steer(
        self, ref: ExecutionRef, key: str, message: Message, announces: Announcement | None = None
    ) -> bool:
        """Keep a message for the next step boundary, and the command that says so to the workflow.

        Returns:
            False if this key was there before.

        Raises:
            ExecutionEnded: Nothing is stored.
        """
        ...

    async def steering(self, ref: ExecutionRef, key: str) -> Steering | None:
        """What became of a message that was sent under this key."""
        ...

    async def command(self, ref: ExecutionRef, key: str, kind: CommandKind) -> tuple[Command, bool]:
        """Keep a command that the workflow has to be told.

        Returns:
            The command, and whether it is new; the one that was kept under this key before, if there is one.

        Raises:
            ExecutionEnded: There is no such command, and nothing is stored.
        """
        ...

    async def undelivered(self, ref: ExecutionRef) -> Sequence[Command]:
        """The commands of which the execution's workflow may not know, in the order in which they came."""
        ...

    async def mark_delivered(self, command: Command) -> None:
        """Note that nothing is left to tell of a command."""
        ...

    async def withdraw(self, command: Command) -> None:
        """Forget a command that the workflow refused."""
        ...

    async def open_requests(self, ref: ExecutionRef) -> tuple[RequestRow, ...]:
        """The questions that wait, oldest first."""
        ...

    async def requests_within(self, ref: ExecutionRef) -> Sequence[RequestRow]:
        """All requests of an execution and of its subagents, resolved ones too, oldest first."""
        ...

    async def request(self, ref: ExecutionRef, request_id: UUID) -> RequestRow | None:
        """One question."""
        ...

    async def resolve(
        self, ref: ExecutionRef, request_id: UUID, resolution: Resolution, events: Sequence[EventRecord] = ()
    ) -> bool:
        """Answer a question, and keep the command that says so to the workflow.

        Returns:
            False if it was answered before, or if the execution is being cancelled.
        """
        ...

    async def resolved_under(self, ref: ExecutionRef, key: str) -> RequestRow | None:
        """The request that was answered or decided under this key."""
        ...

    async def execution(self, ref: ExecutionRef) -> ExecutionRow | None:
        """One execution, as it stands."""
        ...

    async def executions(
        self,
        tenant_id: str,
        *,
        status: ExecutionStatus | None = None,
        cursor: str | None = None,
        limit: int = 50,
    ) -> Page[ExecutionRow]:
        """Executions, newest first."""
        ...

    async def steps(
        self, ref: ExecutionRef, last: int | None = None, *, with_responses: bool = False
    ) -> tuple[StepRow, ...]:
        """What an execution did, step by step; only its last steps, if so many are asked for."""
        ...

    async def steps_after(self, ref: ExecutionRef, after: int = 0, limit: int = 50) -> Page[StepRow]:
        """A page of what an execution did, from after a step; the cursor is the `after` of the next page."""
        ...

    async def transcript(self, ref: ExecutionRef) -> Messages:
        """The conversation of an execution, what it continues included."""
        ...

    async def envelopes(
        self, tenant_id: str, stream_id: UUID, after: int = 0, limit: int = 1000
    ) -> tuple[StoredEnvelope, ...]:
        """Stored envelopes of a stream in order, from after a position."""
        ...
