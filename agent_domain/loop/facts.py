"""Everything that a decision may depend on, in constant space.

A durable execution carries `ExecutionFacts` from step to step and across continue-as-new: counters,
clocks, the current step's facts, signals. `AgentState` has the same facts together with the bodies.
The current step counts as completed as soon as its last call has a result, and is recorded together
with the outcome of the evaluation that follows.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from pydantic import model_validator

from everstep.agent_domain.loop.budget import ExhaustedBudget, OnExhausted
from everstep.agent_domain.loop.continuation import ContinuationOutcome
from everstep.agent_domain.loop.error_policy import (
    ErrorContext,
    ErrorHandlingDecision,
    ErrorPolicy,
    FailingStep,
    resolve_error_context,
)
from everstep.agent_domain.loop.hook_requests import Wishes
from everstep.agent_domain.loop.marks import changed_marks, former_marks, with_mark
from everstep.agent_domain.loop.repeated_calls import NO_REPEATED_CALLS, LoopReminder, RepeatedCalls
from everstep.agent_domain.loop.run_context import NO_RUN_CONTEXT, RunContext
from everstep.agent_domain.loop.status import AgentStatus, StopReason
from everstep.agent_domain.loop.step_error import StepError
from everstep.agent_domain.loop.step_facts import CallFacts, StepFacts
from everstep.agent_domain.loop.stop_signal import StopSignal
from everstep.agent_domain.loop.usage import NO_COST, Usage, sum_costs
from everstep.agent_domain.values import (
    EMPTY,
    FrozenDict,
    format_optional_moment,
    parse_optional_moment,
    parse_optional_uuid,
    read_optional,
    require_map,
)


@dataclass(frozen=True, slots=True)
class StateInfo:
    """Identity, age and working time of a state."""

    id: UUID | None = None
    started_at: datetime | None = None
    """When the state was created; None until a runner first sees it."""
    updated_at: datetime | None = None
    """The time of the latest update: the `now` of every time limit."""
    cumulative_execution_seconds: float = 0.0
    """Working time of this execution."""
    session_execution_seconds: float = 0.0
    """Working time of all executions of the session."""

    def add_execution_time(self, seconds: float) -> "StateInfo":
        """A copy with both working times increased by `seconds`."""
        return replace(
            self,
            cumulative_execution_seconds=self.cumulative_execution_seconds + seconds,
            session_execution_seconds=self.session_execution_seconds + seconds,
        )

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON data."""
        return {
            "id": str(self.id) if self.id else None,
            "startedAt": format_optional_moment(self.started_at),
            "updatedAt": format_optional_moment(self.updated_at),
            "cumulativeExecutionSeconds": self.cumulative_execution_seconds,
            "sessionExecutionSeconds": self.session_execution_seconds,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "StateInfo":
        """Read the JSON form; missing values are None, missing seconds are 0."""
        require_map(data, "stateInfo")
        return cls(
            parse_optional_uuid(data.get("id"), "stateInfo.id"),
            parse_optional_moment(data.get("startedAt"), "startedAt"),
            parse_optional_moment(data.get("updatedAt"), "updatedAt"),
            read_optional(data, "cumulativeExecutionSeconds", float) or 0.0,
            read_optional(data, "sessionExecutionSeconds", float) or 0.0,
        )


@dataclass(frozen=True, slots=True)
class ExecutionFacts:
    """The progress of an execution, as a frozen value. Transitions return new facts."""

    status: AgentStatus = AgentStatus.IN_PROGRESS
    state_info: StateInfo = StateInfo()
    execution_started_at: datetime | None = None
    step_started_at: datetime | None = None
    """Set while a step is in progress."""
    usage: Usage = Usage()
    child_tokens: int = 0
    """Tokens used by child executions, and by their children in turn."""
    child_cost_usd: Decimal | None = NO_COST
    """What child executions and their children cost, in US dollars; None if it is unknown."""
    recorded_steps: int = 0
    recorded_failures: int = 0
    trailing_recorded_failures: int = 0
    unevaluated_failures: int = 0
    """The failures in a row before the latest recorded step, if no evaluation followed it."""
    current_step: StepFacts | None = None
    """Kept after recording, until the next step has its first facts."""
    is_recorded: bool = True
    """Whether the current step is counted in the recorded numbers."""
    is_processed: bool = False
    """Whether processors have seen the current step."""
    stop_signal: StopSignal | None = None
    continuation_requested: bool = False
    is_paused: bool = False
    steered: int = 0
    """The number of steered messages that wait for the next step boundary."""
    marks: FrozenDict = EMPTY
    """Small values that processors and hooks set for criteria; see the module `marks`."""
    last_outcome: ContinuationOutcome | None = None
    repeated: RepeatedCalls = field(default=NO_REPEATED_CALLS, compare=False)
    """How often the last call was repeated."""
    unknown_effects_apart: bool = False
    """The rule for unknown effects under which the execution runs; see the module `error_policy`."""
    exhausted: ExhaustedBudget | None = None
    """The budget that does not cover the next model call."""
    reminder: LoopReminder | None = None
    """What the model reads in the step that waits for a budget."""
    decision_clock: tuple[float, float] | None = None
    """The clock of the decision to take the step that waits for a budget, if that is not recorded yet."""
    run: RunContext = NO_RUN_CONTEXT
    """The ids of the user and the request, for criteria; the state has them in `execution.run`."""

    @model_validator(mode="before")
    @classmethod
    def _read_former_marks(cls, data: Any) -> Any:
        """Read facts of histories in which the critique was a field of its own."""
        former = former_marks(data)
        return {**data, "marks": former} if former else data

    # Read by criteria.

    @property
    def _unrecorded_step(self) -> StepFacts | None:
        """The current step, if it is complete and not yet recorded."""
        return None if self.is_recorded or not self.current_step or self.pending else self.current_step

    @property
    def is_applied(self) -> bool:
        """Whether the current step is complete and not yet recorded."""
        return self._unrecorded_step is not None

    @property
    def pending(self) -> tuple[CallFacts, ...]:
        """The calls of the current step that have no result yet."""
        return () if self.is_recorded or not self.current_step else self.current_step.pending

    @property
    def awaits_processing(self) -> bool:
        """Whether the current step is complete but not processed; failure steps are not processed."""
        step = self._unrecorded_step
        return step is not None and not step.is_failure and not self.is_processed

    @property
    def tokens(self) -> int:
        """All tokens used, including those of child executions."""
        return self.usage.total + self.child_tokens

    @property
    def seconds_under_way(self) -> float:
        """The working time of the step in progress, which `state_info` includes once the step is complete."""
        return self.current_step.seconds if self.current_step and self.pending else 0.0

    @property
    def step_count(self) -> int:
        """The number of completed steps, including failure steps."""
        return self.recorded_steps + (self._unrecorded_step is not None)

    @property
    def next_step_number(self) -> int:
        """The number of the step in progress, or of the next one."""
        return self.step_count + 1

    @property
    def has_begun(self) -> bool:
        """Whether the first step has started."""
        return self.step_started_at is not None or self.current_step is not None or self.recorded_steps > 0

    @property
    def awaits_reply(self) -> bool:
        """Whether a step has started and the model has not replied."""
        return self.step_started_at is not None and self.is_recorded

    @property
    def awaited_budget(self) -> ExhaustedBudget | None:
        """The budget that a person has to raise before the model is asked."""
        asks = self.exhausted is not None and self.exhausted.on_exhausted is OnExhausted.ASK
        return self.exhausted if asks else None

    @property
    def trailing_failures(self) -> int:
        """The number of failed steps in a row, up to and including the latest.

        A step that was applied and then interrupted by an exception does not reset the count: no
        evaluation followed it, and the failure step after it belongs to it. Otherwise a processor
        that always raises would be retried forever.
        """
        step = self._unrecorded_step
        if step is None:
            return self.trailing_recorded_failures
        return self._failures_before(step) + 1 if step.has_errors else 0

    def _failures_before(self, step: StepFacts) -> int:
        """The number of failures in a row before this step."""
        unevaluated = self.unevaluated_failures if step.is_failure else 0
        return max(unevaluated, self.trailing_recorded_failures)

    @property
    def total_failures(self) -> int:
        """The number of failed steps of this execution."""
        step = self._unrecorded_step
        return self.recorded_failures + (step is not None and step.has_errors)

    @property
    def error_context(self) -> ErrorContext:
        """The latest failure, for the error policy."""
        return self.context_of(self.current_step)

    def context_of(self, step: FailingStep | None) -> ErrorContext:
        """The failure of the current step, given with or without its bodies, for the error policy."""
        return resolve_error_context(
            step,
            self.trailing_failures,
            self.total_failures,
            unknown_effects_apart=self.unknown_effects_apart,
        )

    @property
    def repeated_calls(self) -> int:
        """How often the last call was made in a row with the same result."""
        return self.repeated.count

    @property
    def elapsed_seconds(self) -> float:
        """Wall-clock time since the run began or was resumed."""
        start = self.execution_started_at or self.state_info.started_at
        now = self.state_info.updated_at
        return (now - start).total_seconds() if start and now else 0.0

    @property
    def clock(self) -> tuple[float, float]:
        """The seconds since the run began or was resumed, and those of work, to microseconds."""
        return round(self.elapsed_seconds, 6), round(self.state_info.cumulative_execution_seconds, 6)

    # Transitions.

    def at(self, now: datetime) -> "ExecutionFacts":
        """Update the clock to `now`."""
        info = self.state_info
        started = info.started_at or now
        return replace(self, state_info=replace(info, started_at=started, updated_at=now))

    @classmethod
    def begun(
        cls, clocks: StateInfo | None, now: datetime, run: RunContext | None = None
    ) -> "ExecutionFacts":
        """Start an execution; `clocks` holds the working time of its session so far."""
        return cls(state_info=clocks or StateInfo(), run=run or NO_RUN_CONTEXT).entered(now)

    def entered(self, now: datetime) -> "ExecutionFacts":
        """A run begins or resumes: its wall clock starts."""
        return replace(self.at(now), execution_started_at=now)

    def renewed(self) -> "ExecutionFacts":
        """Reset for a new execution: only identity, age and the session's working time are kept."""
        info = replace(self.state_info, cumulative_execution_seconds=0.0)
        return ExecutionFacts(state_info=info)

    def step_started(self, now: datetime, hears: int = 0) -> "ExecutionFacts":
        """A step begins; signals of the previous step are cleared.

        Args:
            now: When it begins.
            hears: The number of steered messages that enter the conversation with it.
        """
        return replace(
            self.at(now),
            execution_started_at=self.execution_started_at or now,
            step_started_at=now,
            repeated=self.repeated.step_started(),
            stop_signal=None,
            continuation_requested=False,
            is_processed=False,
            steered=self.steered - hears,
            reminder=None,
            decision_clock=None,
        )

    def with_step(self, step: StepFacts) -> "ExecutionFacts":
        """Update the step in progress; its usage and seconds count once it is complete."""
        facts = replace(self, current_step=step.granted(), is_recorded=False).wished(step.besides.wishes)
        was_complete = self._unrecorded_step is not None
        if not step.is_complete or was_complete:
            return facts
        repeated = self.repeated.with_step(call.digest for call in step.calls)
        return replace(facts.charged_for(step), repeated=repeated)

    def charged_for(self, step: StepFacts) -> "ExecutionFacts":
        """Add what a step used, and its seconds."""
        return replace(
            self.worked(step.seconds),
            usage=self.usage + step.usage + step.besides.usage,
            child_tokens=self.child_tokens + step.besides.child_tokens,
            child_cost_usd=sum_costs(self.child_cost_usd, step.besides.child_cost_usd),
        )

    def wished(self, wishes: Wishes) -> "ExecutionFacts":
        """Apply the requests and marks of hooks; an existing stop signal is kept."""
        return replace(
            self,
            stop_signal=self.stop_signal or wishes.stop,
            continuation_requested=self.continuation_requested or wishes.another_step,
            is_paused=self.is_paused or wishes.pause,
            marks=changed_marks(self.marks, wishes.marks),
        )

    def marked(self, name: str, value: object) -> "ExecutionFacts":
        """Set a mark, or remove it with None."""
        return replace(self, marks=with_mark(self.marks, name, value))

    def worked(self, seconds: float) -> "ExecutionFacts":
        """Add working time outside of calls, such as a critic's."""
        return replace(self, state_info=self.state_info.add_execution_time(seconds))

    def spent(self, usage: Usage) -> "ExecutionFacts":
        """Add the usage of a model call that was made during a step."""
        return replace(self, usage=self.usage + usage)

    def charged(self, tokens: int, cost_usd: Decimal | None = None) -> "ExecutionFacts":
        """Add the tokens that a child execution used, and what they cost."""
        cost = sum_costs(self.child_cost_usd, cost_usd)
        return replace(self, child_tokens=self.child_tokens + tokens, child_cost_usd=cost)

    def processed(self) -> "ExecutionFacts":
        """Processors have seen the current step."""
        return replace(self, is_processed=True)

    def failed(self, error: StepError, seconds: float = 0.0) -> "ExecutionFacts":
        """Turn an exception into a failure step: the step in progress, or a new one after a complete step."""
        facts = self.recorded(None) if self._unrecorded_step else self
        failure = StepFacts.failure(facts.recorded_steps + 1, error, seconds)
        return replace(facts.worked(seconds), current_step=failure, is_recorded=False)

    def interrupted(self, step: StepFacts, error: StepError) -> "ExecutionFacts":
        """Turn an exception during the calls of a step into a failure step, with all that the step used."""
        failure = StepFacts.failure(self.recorded_steps + 1, error, step.seconds)
        failure = replace(failure, usage=step.usage, besides=step.granted().besides)
        return replace(self.charged_for(step), current_step=failure, is_recorded=False)

    def abandoned(self) -> "ExecutionFacts":
        """Abandon the step in progress: its pending calls are settled and its errors dropped."""
        step = self.current_step
        if self.is_recorded or step is None:
            return replace(self, step_started_at=None)
        calls = tuple(replace(call, is_settled=True, error=None) for call in step.calls)
        return self.with_step(replace(step, calls=calls, own_errors=(), pseudo_errors=()))

    def recorded(self, outcome: ContinuationOutcome | None) -> "ExecutionFacts":
        """Record the current step, with the outcome of the evaluation after it."""
        unevaluated, step = self.unevaluated_failures, self._unrecorded_step
        if step:
            unevaluated = 0 if outcome else self._failures_before(step)
        return replace(
            self,
            recorded_steps=self.step_count,
            recorded_failures=self.total_failures,
            trailing_recorded_failures=self.trailing_failures,
            unevaluated_failures=unevaluated,
            is_recorded=True,
            step_started_at=None,
            last_outcome=outcome or self.last_outcome,
        )

    def signalled(self, signal: StopSignal) -> "ExecutionFacts":
        """Set a stop signal."""
        return replace(self, stop_signal=signal)

    def requested(self) -> "ExecutionFacts":
        """Request another step."""
        return replace(self, continuation_requested=True)

    def steered_by(self, messages: int = 1) -> "ExecutionFacts":
        """Add messages that wait for the next step boundary."""
        return replace(self, steered=self.steered + messages)

    def paused(self) -> "ExecutionFacts":
        """Pause the execution."""
        return replace(self, is_paused=True)

    def resumed(self, now: datetime) -> "ExecutionFacts":
        """Resume in the same step; the wall clock restarts."""
        return replace(self.entered(now), is_paused=False)

    def budget_exhausted(
        self, budget: ExhaustedBudget, hears: int = 0, reminder: LoopReminder | None = None
    ) -> "ExecutionFacts":
        """A budget does not cover the model call of the step: the step waits, or it is not taken.

        Args:
            budget: The budget.
            hears: The number of steered messages that the step read, if they are given back.
            reminder: What the model would have read in the step, and reads once it is asked.
        """
        if budget.on_exhausted is OnExhausted.ASK:
            # A step that reads messages has recorded them together with the decision.
            clock = self.decision_clock or (None if hears else self.clock)
            return replace(self, exhausted=budget, reminder=reminder, decision_clock=clock)
        return replace(self, exhausted=budget, step_started_at=None, steered=self.steered + hears)

    def budget_raised(self) -> "ExecutionFacts":
        """A person raised the budget."""
        return replace(self, exhausted=None)

    def ended(self, outcome: ContinuationOutcome, policy: ErrorPolicy) -> "ExecutionFacts":
        """End the execution; an exception of a criterion becomes a failure step."""
        if self.status.is_terminal:
            return self
        facts = self.recorded(outcome) if self.is_applied else self
        if outcome.failure:
            facts = facts.failed(outcome.failure).recorded(outcome)
        return facts.closed(outcome, policy)

    def closed(self, outcome: ContinuationOutcome, policy: ErrorPolicy) -> "ExecutionFacts":
        """Set the final status after every step is recorded; a terminal status is kept."""
        if self.status.is_terminal:
            return self
        status = self.final_status(outcome.stop_reason, policy)
        return replace(self, status=status, last_outcome=outcome, step_started_at=None)

    def final_status(self, reason: StopReason, policy: ErrorPolicy) -> AgentStatus:
        """The final status: failed after an error or after a failure step that the policy does not ignore."""
        if reason is StopReason.ERROR:
            return AgentStatus.FAILED
        step = self.current_step
        if step and step.is_failure and reason is not StopReason.USER_REQUESTED:
            ignored = policy.evaluate(self.error_context) is ErrorHandlingDecision.IGNORE
            return AgentStatus.COMPLETED if ignored else AgentStatus.FAILED
        return AgentStatus.COMPLETED
