"""What runs now: the executions that have not ended, over all tenants. Only operators read it."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

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


class OverviewReader(Protocol):
    """Reads what runs now."""

    async def overview(
        self, *, tenant_id: str | None = None, agent: str | None = None, limit: int = 100
    ) -> Overview:
        """Read the counts of all tenants, or of one, and the oldest executions."""
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
