"""The port that stores the limits of tenants, and the queue of executions that wait for a place."""

from collections.abc import Collection, Sequence
from typing import Protocol
from uuid import UUID

from everstep.agent_domain.fairness.limit_waits import LimitUse
from everstep.agent_domain.fairness.tenant_limits import TenantLimits
from everstep.agent_domain.storage.sessions import ExecutionLaunch

ADMITTED_AT_ONCE = 32
"""The most executions that one transaction admits."""


class TenantStore(Protocol):
    """Stores what tenants may use. Every method is one transaction.

    An execution of a tenant with `max_running` has a *place* from its admission until it ends or pauses.
    Without one it is pending, and waits in the tenant's queue. Subagents need none: their parents have one.
    """

    async def tenant_limits(self) -> Sequence[TenantLimits]:
        """The limits of all tenants and users, by name."""
        ...

    async def set_limits(self, limits: TenantLimits) -> None:
        """Store limits in place of earlier ones; executions that run already take their places."""
        ...

    async def remove_limits(self, tenant_id: str, user_id: str | None = None) -> bool:
        """Remove limits; return whether there were any."""
        ...

    async def limit_use(self, tenants: Collection[str], rates: Collection[str]) -> LimitUse:
        """The model calls that are made for these tenants, and what is left of these rates."""
        ...

    async def has_executions(self, tenant_id: str) -> bool:
        """Whether a tenant ever started an execution that is still stored."""
        ...

    async def admit(self, tenant_id: str, *, is_repair: bool = False) -> Sequence[ExecutionLaunch]:
        """Give the free places of a tenant to executions that wait, and return these to be started.

        The user with the fewest places is next, and of one user the execution that waits the longest. At most
        `ADMITTED_AT_ONCE` are admitted; call again if it returns as many. With `is_repair`, the places of
        ended executions are freed first, which a worker of an older release did not free.
        """
        ...

    async def find_pending(self, execution_ids: Collection[UUID]) -> Collection[UUID]:
        """Those of these executions that have not begun."""
        ...

    async def waiting_tenants(self) -> Sequence[str]:
        """The tenants with executions that wait for a place."""
        ...
