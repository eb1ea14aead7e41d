"""Requests to people, which are questions and approvals, their resolutions, and who sees them."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, TypeAlias
from uuid import UUID

from everstep.agent_domain.capabilities.approvals import ApprovalRule, Verdict
from everstep.agent_domain.capabilities.rights import Decider, DecisionPolicy
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
    by: Decider | None = None
    """Who decided; None for a default answer, for an approval that expired, and for what an older release
    stored.
    """
    is_expired: bool = False
    """Whether the call was denied because no one decided in time."""

    @property
    def is_denied(self) -> bool:
        """Whether the request was denied."""
        return self.kind == Verdict.DENY

    @property
    def outcome(self) -> str:
        """What was decided: `approve`, `deny`, `edit`, `answer`, `default` or `expired`."""
        return "expired" if self.is_expired else self.kind

    def to_dict(self) -> dict[str, Any]:
        """What was decided, and by whom, as JSON data; without the value."""
        return {"decision": self.outcome, "decided_by": self.by and self.by.to_dict()}

    @property
    def edited_args(self) -> FrozenDict | None:
        """The arguments that replace the requested ones."""
        return frozen_map(self.value, "args") if self.kind == Verdict.EDIT else None


class RequestKind(StrEnum):
    """The kinds of requests that belong to no call; those of others are the need of their call."""

    BUDGET = "budget"
    """A person has to raise a budget."""


AnyRequestKind: TypeAlias = CallNeed | RequestKind


def parse_request_kind(text: str) -> AnyRequestKind:
    """Read the kind of a request."""
    return RequestKind.BUDGET if text == RequestKind.BUDGET else CallNeed(text)


class RequestState(StrEnum):
    """The state of a request."""

    OPEN = "open"
    RESOLVED = "resolved"


@dataclass(frozen=True, slots=True)
class RequestRow:
    """A question, an approval or an exhausted budget, open or resolved."""

    id: UUID
    ref: ExecutionRef
    call_id: str
    kind: AnyRequestKind
    state: RequestState
    tool: str
    args: FrozenDict
    args_digest: str
    request: FrozenDict
    resolution: Resolution | None
    created_at: datetime
    step_number: int
    """The step of the call."""
    agent: str = ""
    """The agent that made the call."""
    user_id: str | None = None
    """The user of the execution, for whom the call was made."""
    policy: DecisionPolicy | None = None
    """Who may decide; None for a question."""

    @property
    def expires_at(self) -> datetime | None:
        """When an approval without a decision is denied; None for never."""
        seconds = self.policy.expires_after if self.policy else None
        return None if seconds is None else self.created_at + timedelta(seconds=seconds)


@dataclass(frozen=True, slots=True)
class RequestAccess:
    """The requests of other users that a caller sees."""

    kinds: tuple[AnyRequestKind, ...] = ()
    """All requests of these kinds."""
    approvers: tuple[str, ...] = ()
    """Approvals that name one of these approvers."""

    def covers(self, row: RequestRow) -> bool:
        """Whether the caller sees a request of another user."""
        is_approver = row.policy is not None and not set(self.approvers).isdisjoint(row.policy.approver)
        return row.kind in self.kinds or is_approver


NO_ACCESS = RequestAccess()
