"""Executions as they were recorded, without their bodies: what their decisions read, and what they were.

A what-if repeats decisions over these values (`everstep.agent_domain.what_if`). It reads thousands of
executions, so they contain no message, argument or result.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol
from uuid import UUID

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.ids import ExecutionRef, Scope
from everstep.agent_domain.loop.boundary import Boundary
from everstep.agent_domain.loop.facts import StateInfo
from everstep.agent_domain.loop.run_context import NO_RUN_CONTEXT, RunContext
from everstep.agent_domain.loop.status import ExecutionStatus, StopReason
from everstep.agent_domain.loop.step_error import StepError
from everstep.agent_domain.loop.step_facts import NOTHING_BESIDES, Besides, StepFacts
from everstep.agent_domain.storage.executions import Page
from everstep.agent_domain.values import FrozenDict, format_moment


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """A call with what decisions read of its result."""

    id: str
    name: str
    has_result: bool
    error: StepError | None = None
    seconds: float = 0.0
    besides: Besides = NOTHING_BESIDES
    digest: str | None = None
    """None without a result, and in rows of older releases."""
    starts_child: bool = False


@dataclass(frozen=True, slots=True)
class RecordedProcessing:
    """What processors and the hooks after a step did."""

    seconds: float
    besides: Besides = NOTHING_BESIDES
    error: StepError | None = None


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """A step with the decision after it."""

    number: int
    facts: StepFacts | None
    """The facts of the model's reply; None if there was none."""
    calls: tuple[RecordedCall, ...] = ()
    outcome: FrozenDict | None = None
    boundary: Boundary | None = None
    processing: RecordedProcessing | None = None
    started_at: datetime | None = None
    completed_at: datetime | None = None
    model: str | None = None
    """The model that answered, if the reader was asked for it."""


@dataclass(frozen=True, slots=True)
class RecordedExecution:
    """An execution with its steps."""

    ref: ExecutionRef
    agent: str
    status: ExecutionStatus
    stop_reason: StopReason | None
    plan: FrozenDict
    """`ExecutionPlan` as data."""
    steps: tuple[RecordedStep, ...]
    created_at: datetime
    started_at: datetime | None = None
    completed_at: datetime | None = None
    step_count: int = 0
    clocks: StateInfo = StateInfo()
    """The times with which it began: those of its session."""
    preset: str | None = None
    run: RunContext = NO_RUN_CONTEXT
    parent_execution_id: UUID | None = None


@dataclass(frozen=True, slots=True)
class RecordFilter:
    """Which executions to read; a field that is None matches all."""

    agent: str | None = None
    status: ExecutionStatus | None = None
    since: datetime | None = None
    """Only executions that were accepted at this time or later."""
    until: datetime | None = None
    """Only executions that were accepted before this time."""
    execution_id: UUID | None = None
    """Only this execution."""

    def __post_init__(self) -> None:
        for at in (self.since, self.until):
            if at is not None:
                # Raises without a time zone.
                format_moment(at, 0)
        if self.since and self.until and self.since >= self.until:
            raise InvalidInput("since must be earlier than until")


class RecordedExecutions(Protocol):
    """Reads recorded executions."""

    async def count_records(self, scope: Scope, wanted: RecordFilter) -> int:
        """How many executions of a scope the filter matches."""
        ...

    async def load_records(
        self,
        scope: Scope,
        wanted: RecordFilter,
        *,
        cursor: str | None = None,
        limit: int = 200,
        with_models: bool = False,
    ) -> Page[RecordedExecution]:
        """A page of executions of a scope, newest first, with all of their steps.

        Args:
            scope: Whose executions.
            wanted: Which of them.
            cursor: The cursor of the previous page.
            limit: The size of the page.
            with_models: Whether the steps name the models that answered.
        """
        ...
