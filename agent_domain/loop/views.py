"""The attributes of an execution that criteria read, in its facts and in its full state.

`ExecutionFacts` and `AgentState` both implement these protocols. Criteria that read only
`ExecutionView` work on either, so they can govern a durable execution.
"""

from typing import Protocol

from everstep.agent_domain.loop.continuation import Signalled
from everstep.agent_domain.loop.error_policy import ErrorContext
from everstep.agent_domain.loop.facts import StateInfo
from everstep.agent_domain.loop.run_context import RunContext
from everstep.agent_domain.loop.step_facts import StepType
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.values import FrozenDict


class StepView(Protocol):
    """The attributes of a step that criteria read."""

    @property
    def finish_reason(self) -> str | None:
        """The reason why the model stopped."""
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
        """The type of the step."""
        ...


class ExecutionView(Signalled, Protocol):
    """The attributes of an execution that criteria read."""

    @property
    def step_count(self) -> int:
        """The number of completed steps, including failure steps."""
        ...

    @property
    def usage(self) -> Usage:
        """Tokens used, including those of the latest step."""
        ...

    @property
    def tokens(self) -> int:
        """All tokens used, including those of child executions."""
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
        """The number of failed steps in a row, up to and including the latest."""
        ...

    @property
    def error_context(self) -> ErrorContext:
        """The latest failure, for the error policy."""
        ...

    @property
    def run(self) -> RunContext:
        """The user and the request; in a durable execution without the request's metadata."""
        ...

    @property
    def repeated_calls(self) -> int:
        """How often the last call was made in a row with the same result."""
        ...

    @property
    def marks(self) -> FrozenDict:
        """Small values that processors and hooks set."""
        ...
