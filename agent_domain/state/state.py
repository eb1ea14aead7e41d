"""The full state of an agent: the facts that decisions read, together with the bodies."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Generic, cast, overload
from uuid import UUID

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.ids import step_id
from everstep.agent_domain.loop.continuation import ContinuationOutcome
from everstep.agent_domain.loop.error_policy import ErrorContext, ErrorPolicy
from everstep.agent_domain.loop.facts import ExecutionFacts, StateInfo
from everstep.agent_domain.loop.run_context import RunContext
from everstep.agent_domain.loop.status import AgentStatus
from everstep.agent_domain.loop.step_error import StepError
from everstep.agent_domain.loop.step_facts import StepType
from everstep.agent_domain.loop.stop_signal import StopSignal
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.messages.cached_context import CachedContext
from everstep.agent_domain.messages.leak_guard import final_response
from everstep.agent_domain.messages.messages import (
    Message,
    Messages,
    MessageStore,
    as_message,
    as_messages,
)
from everstep.agent_domain.messages.response_format import OutputT_co
from everstep.agent_domain.state.execution_data import ExecutionData, last_user_text
from everstep.agent_domain.state.restored_facts import restore_execution, restore_facts
from everstep.agent_domain.state.state_usage import StateUsage
from everstep.agent_domain.state.steps import AgentStep, StepExecution
from everstep.agent_domain.storage.metadata_changes import inherited_metadata
from everstep.agent_domain.tools.resources import Resources
from everstep.agent_domain.tools.tools import ToolExecution
from everstep.agent_domain.values import (
    EMPTY,
    FrozenDict,
    format_optional_moment,
    frozen_document,
    frozen_map,
    parse_optional_uuid,
    read_each,
    read_optional,
    reading,
)

CANCELLED_CALL = "Error: Cancelled before it finished"

_EPOCH = datetime.fromtimestamp(0, UTC)
_NO_ID = UUID(int=0)


@dataclass(frozen=True, slots=True, repr=False)
class AgentState(StateUsage, Generic[OutputT_co]):
    """The complete state of an agent at one time, as a frozen value. Transitions return a new state."""

    agent_id: UUID | None = None
    """Set by the first runner of the state."""
    parent_agent_id: UUID | None = None
    facts: ExecutionFacts = ExecutionFacts()
    message_store: MessageStore = MessageStore()
    metadata: FrozenDict = EMPTY
    cached_context: CachedContext = CachedContext()
    execution: ExecutionData = ExecutionData()

    def __repr__(self) -> str:
        # The whole state can have many megabytes, and debuggers and asyncio call repr() by themselves.
        return f"<AgentState {self.agent_id} {self.status}, {self.step_count} steps>"

    @classmethod
    def empty(cls) -> "AgentState":
        """A state without messages and steps, not started."""
        return cls()

    @property
    def status(self) -> AgentStatus:
        """The agent's status."""
        return self.facts.status

    @property
    def state_info(self) -> StateInfo:
        """Identity, age and working time."""
        return self.facts.state_info

    @property
    def started_at(self) -> datetime | None:
        """When the state was created; None until a runner first sees it."""
        return self.facts.state_info.started_at

    @property
    def messages(self) -> Messages:
        """The conversation that the model sees."""
        return self.message_store.section()

    @property
    def steps(self) -> tuple[AgentStep, ...]:
        """The completed steps of this execution."""
        recorded = tuple(execution.step for execution in self.execution.step_executions)
        step = self.execution.current_step
        return (*recorded, step) if step and self.facts.step_count > len(recorded) else recorded

    @property
    def step_count(self) -> int:
        """The number of completed steps, including failure steps."""
        return self.facts.step_count

    def step_at(self, index: int) -> AgentStep | None:
        """The step at a position, counted from zero."""
        return self.steps[index] if 0 <= index < self.step_count else None

    @property
    def current_step(self) -> AgentStep | None:
        """The step in progress once it has data, else the latest step."""
        return self.execution.current_step

    @property
    def current_step_started_at(self) -> datetime | None:
        """When the step in progress began."""
        return self.facts.step_started_at

    @property
    def execution_started_at(self) -> datetime | None:
        """When the run began or was last resumed."""
        return self.facts.execution_started_at

    @property
    def last_outcome(self) -> ContinuationOutcome | None:
        """The outcome of the latest evaluation, also named `last_continuation_outcome`."""
        return self.facts.last_outcome

    last_continuation_outcome = last_outcome

    @property
    def final_response(self) -> str | None:
        """The agent's last answer to people: neither a tool call nor a repetition of a call's arguments."""
        return final_response(self.messages, [call for step in self.steps for call in step.tool_calls])

    @property
    def output(self) -> OutputT_co | None:
        """The structured result of the execution; None before its end, and if it ended without one."""
        return self.execution.output

    @property
    def task(self) -> str:
        """The message that started the execution: the last user message before its first step."""
        return last_user_text(self.messages) if self.execution.task is None else self.execution.task

    # Attributes that criteria read.

    @property
    def is_paused(self) -> bool:
        """Whether the execution is paused."""
        return self.facts.is_paused

    @property
    def stop_signal(self) -> StopSignal | None:
        """A request to stop that is pending until the next evaluation."""
        return self.facts.stop_signal

    @property
    def continuation_requested(self) -> bool:
        """Whether another step was requested."""
        return self.facts.continuation_requested

    @property
    def trailing_failures(self) -> int:
        """The number of failed steps in a row, up to and including the latest."""
        return self.facts.trailing_failures

    @property
    def error_context(self) -> ErrorContext:
        """The latest failure with its message, for the error policy."""
        return self.facts.context_of(self.current_step)

    @property
    def repeated_calls(self) -> int:
        """How often the last call was made in a row with the same result."""
        return self.facts.repeated.count

    @property
    def elapsed_seconds(self) -> float:
        """Wall-clock time since the run began or was resumed."""
        return self.facts.elapsed_seconds

    @property
    def run(self) -> RunContext:
        """The user and the request."""
        return self.execution.run

    @property
    def marks(self) -> FrozenDict:
        """Small values that processors and hooks set for criteria."""
        return self.facts.marks

    # Copies with changed contents.

    def with_facts(self, facts: ExecutionFacts) -> "AgentState":
        """A copy with other facts; `decide` shows it to the criteria of an in-process run."""
        return replace(self, facts=facts)

    def with_messages(
        self, messages: "str | Message | Iterable[Message | Mapping[str, Any] | str]"
    ) -> "AgentState":
        """A copy with these messages as the whole conversation."""
        store = self.message_store.with_section("messages", as_messages(messages))
        return replace(self, message_store=store)

    def with_message_store(self, store: MessageStore) -> "AgentState":
        """A copy with other conversations."""
        return replace(self, message_store=store)

    def heard(self, *messages: Message) -> "AgentState":
        """A copy with these messages appended to the conversation."""
        return self.with_messages((*self.messages, *messages))

    @overload
    def with_metadata(self, key: str, value: object, /) -> "AgentState": ...
    @overload
    def with_metadata(self, values: Mapping[str, Any], /) -> "AgentState": ...
    def with_metadata(self, key: str | Mapping[str, Any], value: object = None, /) -> "AgentState":
        """A copy with one key set, or with the entries of a map added."""
        values = {key: value} if isinstance(key, str) else key
        return replace(self, metadata=self.metadata.merged(frozen_map(values, "metadata")))

    def without_metadata(self, *keys: str) -> "AgentState":
        """A copy without these keys."""
        kept = {key: value for key, value in self.metadata.items() if key not in keys}
        return replace(self, metadata=FrozenDict(kept))

    def with_mark(self, name: str, value: object) -> "AgentState":
        """A copy with a mark, which criteria read in `marks`; None removes it.

        Args:
            name: The name of the mark.
            value: Small JSON, such as a number or a verdict; workflow history contains it.

        Raises:
            InvalidInput: The value is not JSON, or the marks are too long.
        """
        return replace(self, facts=self.facts.marked(name, value))

    def with_resources(self, resources: Resources) -> "AgentState":
        """A copy with these objects for tools, hooks and processors, in `execution.resources`."""
        return replace(self, execution=replace(self.execution, resources=resources))

    def with_cached_context(self, context: CachedContext) -> "AgentState":
        """A copy with another cached context."""
        return replace(self, cached_context=context)

    def with_user_message(
        self, message: "str | Message | Mapping[str, Any]", reset: bool = True
    ) -> "AgentState":
        """A copy with another user message, in progress; with `reset` it starts a new execution."""
        state = self.for_continuation() if reset else self
        facts = replace(state.facts, status=AgentStatus.IN_PROGRESS)
        return replace(state, facts=facts).heard(as_message(message))

    def for_continuation(self) -> "AgentState":
        """Start a new execution of the same agent in the same conversation."""
        return replace(
            self,
            facts=self.facts.renewed(),
            metadata=inherited_metadata(self.metadata),
            cached_context=CachedContext(),
            execution=ExecutionData(run=self.execution.run, resources=self.execution.resources),
        )

    def with_continuation_outcome(self, outcome: ContinuationOutcome) -> "AgentState":
        """A copy with this as the latest evaluation."""
        return replace(self, facts=replace(self.facts, last_outcome=outcome))

    # Transitions.

    def at(self, now: datetime) -> "AgentState":
        """Update the clock to `now`."""
        return replace(self, facts=self.facts.at(now))

    def identified(self, agent_id: UUID, execution_id: UUID) -> "AgentState":
        """Set the ids that are not set yet."""
        execution = replace(self.execution, execution_id=self.execution.execution_id or execution_id)
        info = replace(self.state_info, id=self.state_info.id or agent_id)
        facts = replace(self.facts, state_info=info)
        return replace(self, agent_id=self.agent_id or agent_id, execution=execution, facts=facts)

    def entered(self, now: datetime) -> "AgentState":
        """A run begins or resumes: its wall clock starts."""
        execution = replace(self.execution, started_at=self.execution.started_at or now, task=self.task)
        return replace(self, facts=self.facts.entered(now), execution=execution)

    def paused(self) -> "AgentState":
        """Pause the execution."""
        return replace(self, facts=self.facts.paused())

    def resumed(self, now: datetime) -> "AgentState":
        """Resume in the same step; the wall clock restarts."""
        return replace(self, facts=self.facts.resumed(now))

    def with_step_started(self, at: datetime, hears: int = 0) -> "AgentState":
        """A step begins, with `hears` steered messages; signals of the previous step are cleared."""
        execution = replace(self.execution, hook_context=EMPTY, started_at=self.execution.started_at or at)
        return replace(self, facts=self.facts.step_started(at, hears), execution=execution)

    def with_hook_context(self, context: Mapping[str, Any]) -> "AgentState":
        """A copy with this data for hooks."""
        return replace(self, execution=replace(self.execution, hook_context=frozen_map(context)))

    def with_current_step(self, step: AgentStep) -> "AgentState":
        """Update the step in progress; once complete, it joins the conversation and its usage counts."""
        before = self.facts.step_count
        facts = self.facts.with_step(step.facts(self.facts.recorded_steps + 1))
        state = replace(self, facts=facts, execution=replace(self.execution, current_step=step))
        return state.heard(*step.output_messages) if facts.step_count > before else state

    def with_stop_signal(self, signal: StopSignal) -> "AgentState":
        """Set a stop signal."""
        return replace(self, facts=self.facts.signalled(signal))

    def with_continuation_requested(self) -> "AgentState":
        """Request another step."""
        return replace(self, facts=self.facts.requested())

    def worked(self, seconds: float) -> "AgentState":
        """Add working time outside of calls, such as a processor's."""
        step = self.current_step
        execution = replace(
            self.execution, current_step=step and replace(step, seconds=step.seconds + seconds)
        )
        return replace(self, facts=self.facts.worked(seconds), execution=execution)

    def spent(self, usage: Usage) -> "AgentState":
        """Add the usage of a model call that was made during a step."""
        step = self.current_step
        step = step and replace(step, inner_usage=step.inner_usage + usage)
        execution = replace(self.execution, current_step=step)
        return replace(self, facts=self.facts.spent(usage), execution=execution)

    def charged(self, tokens: int, cost_usd: Decimal | None = None) -> "AgentState":
        """Add the tokens that a child execution used, and what they cost."""
        return replace(self, facts=self.facts.charged(tokens, cost_usd))

    def processed(self) -> "AgentState":
        """Processors have seen the current step."""
        return replace(self, facts=self.facts.processed())

    def failed(
        self, error: StepError, at: datetime, seconds: float = 0.0, usage: Usage | None = None
    ) -> "AgentState":
        """Turn an exception into a failure step: the step in progress, or the one after a complete step."""
        state = self.recorded(None, at) if self.facts.is_applied else self
        usage, inner_usage = state.usage_of_failure(usage or Usage())
        failure = AgentStep(
            id=state.new_step_id(),
            created_at=at,
            input_messages=state.messages,
            own_errors=(error,),
            own_type=StepType.ERROR,
            own_usage=usage if usage.total or usage.uncounted_calls else None,
            is_failure=True,
            seconds=seconds,
            inner_usage=inner_usage,
        )
        facts = state.facts.failed(error, seconds).spent(usage)
        return replace(state, facts=facts, execution=replace(state.execution, current_step=failure))

    def new_step_id(self) -> UUID:
        """The id of the step in progress, or of the next one."""
        if self.execution.execution_id is None:
            raise InvalidInput(
                "the state has no execution id yet; call identified(agent_id, execution_id) first"
            )
        return step_id(self.execution.execution_id, self.facts.recorded_steps + 1)

    def abandoned(self, at: datetime, outputs: Callable[[AgentStep], Messages]) -> "AgentState":
        """Abandon the step in progress: cancel its pending calls, and make its messages with `outputs`."""
        step = self.current_step
        if self.facts.is_recorded or step is None:
            return replace(self, facts=self.facts.abandoned())
        if not step.is_complete:
            cancelled = (ToolExecution(call, CANCELLED_CALL, None, at, at) for call in step.pending_calls)
            step = step.observed(cancelled)
            step = replace(step, output_messages=outputs(step))
        state = self.with_current_step(step.without_errors())
        return replace(state, facts=state.facts.abandoned())

    def recorded(self, outcome: ContinuationOutcome | None, at: datetime) -> "AgentState":
        """Record the current step, with the outcome of the evaluation after it."""
        step = self.current_step
        if step is None or self.facts.is_recorded:
            return self
        started = self.facts.step_started_at or step.created_at
        number = self.facts.recorded_steps + 1
        return self.with_step_recorded(StepExecution(number, step, outcome, started, at, self.stop_signal))

    def with_step_recorded(self, record: StepExecution) -> "AgentState":
        """Append the record, and clear the data of the step in progress."""
        facts = self.facts
        if not facts.is_applied:
            # A record made by hand: its step was not applied before, and a recorded step waits for no result.
            step = replace(record.step, runs_tools=False)
            facts = facts.with_step(step.facts(facts.recorded_steps + 1))
        execution = replace(
            self.execution,
            step_executions=(*self.execution.step_executions, record),
            current_step=record.step,
            hook_context=None,
        )
        facts = facts.recorded(record.outcome).at(record.completed_at)
        return replace(self, facts=facts, execution=execution)

    def ended(self, outcome: ContinuationOutcome, policy: ErrorPolicy, at: datetime) -> "AgentState":
        """End the execution; an exception of a criterion becomes a failure step."""
        if self.status.is_terminal:
            return self
        state = self.recorded(outcome, at)
        if outcome.failure:
            state = state.failed(outcome.failure, at).recorded(outcome, at)
        execution = replace(state.execution, completed_at=at)
        return replace(state, facts=self.facts.ended(outcome, policy).at(at), execution=execution)

    # Helpers for states made by hand; the loop records by itself.

    def record_step(
        self, step: AgentStep, *, started_at: datetime | None = None, now: datetime | None = None
    ) -> "AgentState":
        """Append a step and make it current, completed at `now`.

        Without `started_at`, it started when the step in progress began, else at `now`, else when created.
        """
        start = started_at or self.facts.step_started_at or now or step.created_at
        state = self.with_current_step(step) if step.is_complete else self
        number = state.facts.recorded_steps + 1
        return state.with_step_recorded(StepExecution(number, step, None, start, max(now or start, start)))

    def fail_with(self, error: BaseException | StepError, at: datetime | None = None) -> "AgentState":
        """Set the status to failed, with a failure step that holds the error.

        Args:
            error: An exception, or a step error; anything else raises `InvalidInput`.
            at: The time; by default the latest time in the state, or the epoch if no runner has seen it.
        """
        given = cast("object", error)
        if not isinstance(given, BaseException | StepError):
            raise InvalidInput(f"fail_with was given {given!r}; pass an exception, such as ValueError('why')")
        step_error = error if isinstance(error, StepError) else StepError.of(error)
        info = self.state_info
        at = at or self.current_step_started_at or info.updated_at or info.started_at or _EPOCH
        state = self if self.execution.execution_id else self.identified(_NO_ID, _NO_ID)
        state = state.failed(step_error, at).recorded(None, at)
        return replace(state, facts=replace(state.facts, status=AgentStatus.FAILED))

    # Serialization.

    def to_dict(self) -> dict[str, Any]:
        """Convert the full state to JSON data, without data that only matters while a step runs."""
        execution, outcome = self.execution, self.last_outcome
        current = None if self.facts.is_recorded else execution.current_step
        return {
            "agentId": str(self.agent_id) if self.agent_id else None,
            "parentAgentId": str(self.parent_agent_id) if self.parent_agent_id else None,
            "status": self.status,
            "isPaused": self.is_paused,
            "usage": self.usage.to_dict(),
            "metadata": self.metadata,
            "stateInfo": self.state_info.to_dict(),
            "messageStore": self.message_store.to_dict(),
            "cachedContext": self.cached_context.to_dict(),
            "executionId": str(execution.execution_id) if execution.execution_id else None,
            "startedAt": format_optional_moment(execution.started_at),
            "completedAt": format_optional_moment(execution.completed_at),
            "steps": [record.to_dict() for record in execution.step_executions],
            "currentStep": current.to_dict() if current else None,
            "lastContinuationOutcome": outcome.to_record() if outcome else None,
            **({} if execution.task is None else {"task": execution.task}),
            **({"marks": self.marks} if self.marks else {}),
            **({} if execution.output_data is None else {"output": execution.output_data}),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "AgentState":
        """Read the JSON form, or an older one with flat `messages`; unknown keys are ignored."""
        with reading("the agent state"):
            return _state_from_data(frozen_document(data, "the state"))


def _state_from_data(data: FrozenDict) -> AgentState:
    records = read_each(data, "steps", StepExecution.from_dict)
    current = read_optional(data, "currentStep", AgentStep.from_dict)
    return AgentState(
        agent_id=parse_optional_uuid(data.get("agentId"), "agentId"),
        parent_agent_id=parse_optional_uuid(data.get("parentAgentId"), "parentAgentId"),
        facts=restore_facts(data, records, current),
        message_store=read_optional(data, "messageStore", MessageStore.from_dict)
        or MessageStore.from_dict(data),
        metadata=frozen_map(data.get("metadata") or {}, "metadata"),
        cached_context=read_optional(data, "cachedContext", CachedContext.from_dict) or CachedContext(),
        execution=restore_execution(data, records, current),
    )
