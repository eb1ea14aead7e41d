"""Requests to people: questions and approvals, and how they were resolved."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from everstep.agent_domain.capabilities.approvals import ApprovalRule
from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.loop.step_facts import CallNeed
from everstep.agent_domain.values import FrozenDict, frozen_map


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
