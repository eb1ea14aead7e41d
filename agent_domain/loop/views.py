"""What decisions may read of an execution, be it bare facts or a full state.

`ExecutionFacts` and `AgentState` both fit these views. Criteria that ask for no more than
`ExecutionView` judge either, so they can govern a durable execution.
"""

from datetime import datetime
from typing import Protocol, Self

from everstep.agent_domain.loop.continuation import ContinuationOutcome, Signalled
from everstep.agent_domain.loop.error_policy import ErrorContext
from everstep.agent_domain.loop.facts import CritiqueFacts, StateInfo
from everstep.agent_domain.loop.status import AgentStatus
from everstep.agent_domain.loop.step_facts import CallFacts, StepType
from everstep.agent_domain.loop.usage import Usage


class StepView(Protocol):
    """What criteria read of a step."""

    @property
    def finish_reason(self) -> str | None:
        """Why the model stopped writing."""
        ...

    @property
    def has_tool_calls(self) -> bool:
        """Whether the response called tools, successfully or not."""
        ...

    @property
    def has_errors(self) -> bool:
        """Whether anything failed."""
        ...

    @property
    def step_type(self) -> StepType:
        """What the step turned out to be."""
        ...


class ExecutionView(Signalled, Protocol):
    """What criteria read of an execution."""

    @property
    def step_count(self) -> int:
        """Completed steps, failure steps included."""
        ...

    @property
    def usage(self) -> Usage:
        """Tokens used, the latest step's included."""
        ...

    @property
    def tokens(self) -> int:
        """All that was used, by executions that calls started as well."""
        ...

    @property
    def state_info(self) -> StateInfo:
        """Identity, age and working time."""
        ...

    @property
    def elapsed_seconds(self) -> float:
        """Wall-clock time since the run began or was resumed."""
        ...

    @property
    def current_step(self) -> StepView | None:
        """The latest step."""
        ...

    @property
    def trailing_failures(self) -> int:
        """Failed steps in a row, up to and including the latest."""
        ...

    @property
    def error_context(self) -> ErrorContext:
        """What the error policy judges."""
        ...

    @property
    def critique(self) -> CritiqueFacts | None:
        """The latest critique."""
        ...


class LoopState(Signalled, Protocol):
    """What the loop itself reads; the criteria read more."""

    @property
    def status(self) -> AgentStatus:
        """Where the agent stands."""
        ...

    @property
    def is_paused(self) -> bool:
        """Whether somebody paused the execution."""
        ...

    @property
    def awaits_reply(self) -> bool:
        """Whether a step has begun and nothing has come back for it."""
        ...

    @property
    def pending(self) -> tuple[CallFacts, ...]:
        """The calls of the step under way that have no result yet."""
        ...

    @property
    def awaits_processing(self) -> bool:
        """Whether the current step is complete, and processors have not seen it."""
        ...

    @property
    def next_step_number(self) -> int:
        """The number of the step under way, or of the next."""
        ...

    @property
    def steered(self) -> int:
        """How many messages wait for the next step boundary."""
        ...

    @property
    def last_outcome(self) -> ContinuationOutcome | None:
        """What the latest evaluation came to."""
        ...

    def at(self, now: datetime) -> Self:
        """The same, looked at now."""
        ...

    def requested(self) -> Self:
        """The same with another step asked for."""
        ...
