"""What tenants and their users may use, for the HTTP API and the command line."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from everstep.agent_domain.errors import EverstepError, InvalidInput
from everstep.agent_domain.fairness.tenant_limits import EVERYONE, MAX_NAME, TenantLimits
from everstep.agent_domain.nearest import did_you_mean
from everstep.client.client import Client


class UnknownTenant(InvalidInput):
    """There is no tenant with this name."""

    def __init__(self, name: str, known: Sequence[str]) -> None:
        hint = did_you_mean(name, known)
        super().__init__(f"there is no tenant '{name}': it has no limits and no executions{hint}")


class NoLimits(EverstepError):
    """A tenant or a user has no limits of its own."""


@dataclass(frozen=True, slots=True)
class Tenants:
    """The limits of all tenants."""

    client: Client

    async def list(self) -> Sequence[TenantLimits]:
        """Return the limits of all tenants and users."""
        return await self.client.store.tenant_limits()

    async def show(self, name: str) -> Sequence[TenantLimits]:
        """Return the limits of a tenant, and those of its users.

        Raises:
            UnknownTenant: It has no limits and no executions.
        """
        every = await self.list()
        own = [each for each in every if each.tenant_id == name]
        if not own and not await self.client.store.has_executions(name):
            raise UnknownTenant(name, sorted({each.tenant_id for each in every}))
        if not any(each.user_id is None for each in own):
            shared = (each for each in every if (each.tenant_id, each.user_id) == (EVERYONE, None))
            own.insert(0, next(shared, TenantLimits(name)))
        return own

    async def find(self, name: str, user: str | None) -> TenantLimits | None:
        """Return the own limits of a tenant or of a user, if there are any."""
        names = name, user
        return next((each for each in await self.list() if (each.tenant_id, each.user_id) == names), None)

    async def is_known(self, name: str) -> bool:
        """Return whether a tenant has limits or executions; so has every tenant together."""
        has_limits = any(each.tenant_id == name for each in await self.list())
        return name == EVERYONE or has_limits or await self.client.store.has_executions(name)

    async def set(self, limits: TenantLimits) -> dict[str, int]:
        """Store limits in place of earlier ones.

        Returns:
            How many executions that waited have started, by tenant.

        Raises:
            InvalidInput: A name is longer than those of any tenant or user.
        """
        if max(len(limits.tenant_id), len(limits.user_id or "")) > MAX_NAME:
            raise InvalidInput(f"the names of tenants and users have at most {MAX_NAME} characters")
        await self.client.store.set_limits(limits)
        return await self._admit(limits.tenant_id)

    async def remove(self, name: str, user: str | None) -> TenantLimits:
        """Remove the limits of a tenant or of a user; return them.

        Raises:
            NoLimits: There are none.
        """
        limits = await self.find(name, user)
        if limits is None or not await self.client.store.remove_limits(name, user):
            owner = TenantLimits(name, user).owner_text
            raise NoLimits(f"{owner} has no limits; `everstep tenants list` lists them")
        await self._admit(name)
        return limits

    async def _admit(self, name: str) -> dict[str, int]:
        waiting = await self.client.store.waiting_tenants()
        tenants = [each for each in waiting if name in {each, EVERYONE}]
        started = {each: await replace(self.client, tenant_id=each).admit(each) for each in tenants}
        return {tenant: count for tenant, count in started.items() if count}
