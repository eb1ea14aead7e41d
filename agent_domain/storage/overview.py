"""What runs now: the executions that have not ended, over all tenants. Only operators read it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Protocol, Self

from everstep.agent_domain.fairness.limit_waits import NO_LIMIT, LimitedUser, LimitWaits
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.storage.executions import ExecutionRow
from everstep.agent_domain.storage.requests import RequestRow
from everstep.agent_domain.storage.steps import RetryWait


@dataclass(frozen=True, slots=True)
class CurrentStep:
    """The latest step of an execution, without its texts."""

    number: int
    attempt: int
    started_at: datetime
    has_reply: bool
    wait: RetryWait | None = None
    """The wait for the next attempt, if the last one failed."""


@dataclass(frozen=True, slots=True)
class OpenExecution:
    """An execution that has not ended, with what it does or waits for."""

    row: ExecutionRow
    is_queued: bool = False
    """Whether it waits until an earlier execution of its session has ended."""
    step: CurrentStep | None = None
    """None before the first one."""
    calls: tuple[str, ...] = ()
    """The tools of the calls that have no result yet."""
    requests: tuple[RequestRow, ...] = ()
    """The open requests to people."""
    needs_place: bool = False
    """Whether it waits in the queue of its tenant."""
    limits: LimitWaits = NO_LIMIT
    """What it waits for if a limit holds it."""

    @property
    def user(self) -> LimitedUser:
        """The user whose limits apply to it."""
        return self.row.ref.tenant_id, self.row.user_id


@dataclass(frozen=True, slots=True)
class AgentLoad:
    """How many executions of an agent have not ended, by status."""

    tenant_id: str
    agent: str
    counts: Mapping[ExecutionStatus, int]


@dataclass(frozen=True, slots=True)
class Overview:
    """What runs now."""

    loads: tuple[AgentLoad, ...]
    """All agents with such executions, by tenant and name."""
    executions: tuple[OpenExecution, ...]
    """The oldest of these executions; `loads` counts all of them."""

    @property
    def users(self) -> frozenset[LimitedUser]:
        """The users of these executions."""
        return frozenset(each.user for each in self.executions)

    def with_limits(self, waits: Mapping[LimitedUser, LimitWaits]) -> Self:
        """Return it with what the executions of each user wait for because of limits."""
        found = (replace(each, limits=waits[each.user]) for each in self.executions)
        return replace(self, executions=tuple(found))


class OverviewReader(Protocol):
    """Reads what runs now."""

    async def overview(
        self,
        *,
        tenant_id: str | None = None,
        agent: str | None = None,
        status: ExecutionStatus | None = None,
        limit: int = 100,
    ) -> Overview:
        """Read the counts of all tenants, or of one, and the oldest executions."""
        ...

    async def newest(self, status: ExecutionStatus, limit: int) -> Sequence[ExecutionRow]:
        """Read the newest executions with a status, of all tenants."""
        ...


@dataclass(frozen=True, slots=True)
class Backlog:
    """What waits in an installation, over all tenants."""

    open_requests: Mapping[str, tuple[int, float]]
    """The number of open requests to people and the age of the oldest in seconds, by kind."""
    pending: Mapping[str, int]
    """The number of accepted executions that have not begun, by tenant."""


class BacklogReader(Protocol):
    """Reads what waits in an installation."""

    async def read(self) -> Backlog:
        """Read it.

        Raises:
            StoreUnavailable: The store cannot be read now.
        """
        ...
