"""Executions as the store keeps them: what one begins with, its row, and its end."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, TypeVar
from uuid import UUID

from pydantic import BaseModel, ConfigDict

from everstep.agent_domain.errors import EverstepError
from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.loop.facts import StateInfo
from everstep.agent_domain.loop.status import ExecutionStatus, StopReason
from everstep.agent_domain.loop.step_error import StepError
from everstep.agent_domain.loop.step_facts import StepFacts
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.messages.messages import Messages
from everstep.agent_domain.stream.records import EventRecord
from everstep.agent_domain.values import EMPTY, FrozenDict

Row = TypeVar("Row")


class ExecutionEnded(EverstepError):
    """What was to be written belongs to an execution that has ended; nothing was written."""

    def __init__(self, execution_id: UUID, status: ExecutionStatus) -> None:
        self.status = status
        super().__init__(f"The execution {execution_id} has ended as {status}")


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
class Page(Generic[Row]):
    """Some rows in the order of their list, and where the next page begins."""

    rows: tuple[Row, ...]
    cursor: str | None = field(default=None)
