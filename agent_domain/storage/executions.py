"""Executions in the store: new ones, their rows, and changes of their status."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from functools import cached_property
from typing import Any, Generic, TypeVar
from uuid import UUID

from pydantic import BaseModel, ConfigDict

from everstep.agent_domain.capabilities.rights import Decider
from everstep.agent_domain.errors import EverstepError
from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.loop.boundary import Boundary
from everstep.agent_domain.loop.facts import StateInfo
from everstep.agent_domain.loop.status import ExecutionStatus, StopReason
from everstep.agent_domain.loop.step_error import StepError
from everstep.agent_domain.loop.step_facts import StepFacts
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.messages.cached_context import CachedContext
from everstep.agent_domain.messages.messages import Messages
from everstep.agent_domain.storage.budget_ledger import BudgetRequest
from everstep.agent_domain.stream.records import EventRecord
from everstep.agent_domain.values import EMPTY, FrozenDict, frozen_map

Row = TypeVar("Row")


class ExecutionEnded(EverstepError):
    """The execution has ended, so nothing was stored."""

    def __init__(self, execution_id: UUID, status: ExecutionStatus) -> None:
        self.status = status
        super().__init__(f"The execution {execution_id} has ended as {status}")


class CancelComesFirst(EverstepError):
    """A cancel was stored before this end of the execution, so nothing was stored."""

    def __init__(self, execution_id: UUID) -> None:
        super().__init__(f"The execution {execution_id} was cancelled before it ended")


def execution_output(response: str | None, reason: StopReason, result: object) -> FrozenDict:
    """The output of an execution whose agent has a structured result: `data` is null if it has none."""
    return frozen_map({"response": response, "stop_reason": reason, "data": result}, "the output")


class ExecutionSpec(BaseModel):
    """The agent's part of an execution's row: settings that must not travel through Temporal."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    agent: str
    llm_preset: str | None = None
    cached_context: Mapping[str, Any] = EMPTY
    """`CachedContext.to_dict()`: system prompt, tool schemas, response format."""
    approvals: Mapping[str, Any] = EMPTY
    definition_hash: str = ""
    listed: Mapping[str, Any] | None = None
    """Tools by toolset, as `ListedTool.to_dict()`; None before the toolsets were queried."""

    @cached_property
    def context(self) -> CachedContext:
        """The messages and settings that precede every request."""
        return CachedContext.from_dict(self.cached_context)


@dataclass(frozen=True, slots=True)
class NewExecution:
    """An execution to store; it begins later."""

    ref: ExecutionRef
    spec: ExecutionSpec
    messages: Messages
    """The first messages; they follow the conversation of `continues`, if that is set."""
    user_id: str | None = None
    continues: UUID | None = None
    parent_agent_id: UUID | None = None
    parent_execution_id: UUID | None = None
    metadata: FrozenDict = EMPTY
    plan: FrozenDict = EMPTY
    continues_until: int | None = None
    """The last step of `continues` that belongs to the conversation; None for all of it."""
    is_queued: bool = False
    """Whether it waits in its session's queue."""
    queue_rank: int = 1
    """Executions with a lower rank run first."""
    notes: FrozenDict = EMPTY
    """Everstep's own record of its origin."""
    task_queue: str | None = None
    """The task queue of the workers that run its agent; children use their parent's."""
    session_seconds: float | None = None
    """Working time of its session so far; None: the stored value. Only a parent has a newer one."""
    request: FrozenDict = EMPTY
    """`request_data` of the request that starts it; a child without any has its parent's."""


@dataclass(frozen=True, slots=True)
class Settlement:
    """A change of an execution's status that does not belong to a model or tool call."""

    ref: ExecutionRef
    key: str
    """The idempotency key: a second settlement with the same key changes nothing."""
    status: ExecutionStatus
    step: StepFacts | None = None
    """A failure step or an abandoned one to record."""
    errors: Sequence[StepError] = ()
    outcome: FrozenDict | None = None
    stop_reason: StopReason | None = None
    step_count: int | None = None
    usage: Usage | None = None
    error_message: str | None = None
    error_told: str | None = None
    """The error message for users, without details for operators."""
    output: FrozenDict | None = None
    snapshot: FrozenDict | None = None
    is_final: bool = False
    is_debug: bool = False
    """Whether the snapshot is the full state."""
    worked_seconds: float | None = None
    """The working time of the execution; None: the store adds up the recorded times."""
    cancelled_calls: Sequence[tuple[str, int, Messages]] = ()
    """Calls that end without a result: id, position, and their messages in the conversation."""
    events: Sequence[EventRecord] = ()
    only_pending: bool = False
    """Whether the change applies only if the execution has not begun."""
    budget_request: BudgetRequest | None = None
    """A request to raise a budget, which this opens."""
    boundary: Boundary | None = None
    """What the evaluation has read of which there is no other record."""
    replaces_outcome: bool = False
    """Whether the outcome replaces that of the last step: the step that it requested was not taken."""
    yields_to_cancel: bool = False
    """Whether nothing is changed, and `CancelComesFirst` raised, if a cancel is stored already."""


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
    """The digest of its agent definition; lists leave it out."""
    last_snapshot_id: UUID | None = None
    clocks: StateInfo = StateInfo()
    """The times with which it begins: those of its session."""
    error_told: str | None = None
    """The error message for users; None in rows of older releases."""
    cancelled_by: Decider | None = None
    """Who cancelled it; None if no caller did, and in lists."""
    cost_usd: Decimal | None = None
    """What its model calls cost so far, in US dollars; None if the cost of one is unknown."""
    tree_cost_usd: Decimal | None = field(default=None, compare=False)
    """The same, with its child executions; None also in lists."""
    continues: UUID | None = None
    """The execution whose conversation it continues."""
    continues_until: int | None = None
    """The last step of that one which belongs to its conversation, as for a fork; None for all of them."""
    outcome: FrozenDict | None = field(default=None, compare=False)
    """The outcome with which it ended; None before, in lists and in rows of older releases."""
    ahead: int | None = field(default=None, compare=False)
    """How many executions of its session come before it, while it waits for its turn; None in lists."""
    paused_by: Decider | None = field(default=None, compare=False)
    """Who paused it, while it is paused; None if no caller did, and in lists."""
    is_waiting: bool = field(default=False, compare=False)
    """Whether it waits for a place of its tenant."""
    queue_position: int | None = field(default=None, compare=False)
    """Its position in the queue of its tenant, from 1, while it waits for a place."""


@dataclass(frozen=True, slots=True)
class Page(Generic[Row]):
    """A page of rows, and the cursor of the next page."""

    rows: tuple[Row, ...]
    cursor: str | None = field(default=None)
