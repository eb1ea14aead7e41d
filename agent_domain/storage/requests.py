"""Requests to people, which are questions and approvals, and their resolutions."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from everstep.agent_domain.capabilities.approvals import ApprovalRule, Verdict
from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.loop.step_facts import CallNeed
from everstep.agent_domain.values import FrozenDict, frozen_map


@dataclass(frozen=True, slots=True)
class Resolution:
    """A person's decision or answer."""

    kind: str
    """`answer`, `default`, `approve`, `deny` or `edit`."""
    value: Any = None
    reason: str | None = None
    key: str | None = None
    """The idempotency key: repeating the resolution with the same key succeeds."""
    remember: ApprovalRule | None = None
    """The rule for later calls of the execution that this approval allows as well."""

    @property
    def is_denied(self) -> bool:
        """Whether the request was denied."""
        return self.kind == Verdict.DENY

    @property
    def edited_args(self) -> FrozenDict | None:
        """The arguments that replace the requested ones."""
        return frozen_map(self.value, "args") if self.kind == Verdict.EDIT else None


class RequestState(StrEnum):
    """The state of a request."""

    OPEN = "open"
    RESOLVED = "resolved"


@dataclass(frozen=True, slots=True)
class RequestRow:
    """A question or an approval, open or resolved."""

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
