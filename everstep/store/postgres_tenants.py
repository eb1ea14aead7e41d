"""The limits of tenants, and the admission of their executions, in PostgreSQL."""

from collections.abc import Collection, Sequence
from dataclasses import asdict
from uuid import UUID

from everstep.agent_domain.fairness.limit_waits import LimitUse, RateLevel
from everstep.agent_domain.fairness.tenant_limits import TenantLimits
from everstep.agent_domain.storage.sessions import ExecutionLaunch
from everstep.agent_domain.storage.tenant_store import ADMITTED_AT_ONCE
from everstep.store import place_statements, rate_statements
from everstep.store.postgres_writing import PostgresWriter
from everstep.store.session_rows import launch_row


class PostgresTenants(PostgresWriter):
    """The limits of tenants, and the admission of their executions; see `TenantStore`."""

    async def tenant_limits(self) -> Sequence[TenantLimits]:
        """Return the limits of all tenants and users."""
        found = await self._fetch_all(place_statements.LIMITS)
        return tuple(TenantLimits(*row) for row in found)

    async def set_limits(self, limits: TenantLimits) -> None:
        """Store limits in place of earlier ones."""
        values = asdict(limits) | {"user_id": limits.user_id or ""}
        async with self._transaction() as connection:
            await connection.execute(place_statements.SET_LIMITS, values)
            if limits.max_running is not None:
                await connection.execute(place_statements.TAKE_PLACES_OF_RUNNING, values)

    async def remove_limits(self, tenant_id: str, user_id: str | None = None) -> bool:
        """Remove limits; return whether there were any."""
        values = {"tenant_id": tenant_id, "user_id": user_id or ""}
        async with self._transaction() as connection:
            return (await connection.execute(place_statements.REMOVE_LIMITS, values)).first() is not None

    async def limit_use(self, tenants: Collection[str], rates: Collection[str]) -> LimitUse:
        """Return the model calls that are made for tenants, and what is left of rates."""
        async with self._transaction() as connection:
            calls, levels = await connection.together(
                (place_statements.MODEL_CALLS, {"tenants": [*tenants]}),
                (rate_statements.LEVELS, {"names": [*rates]}),
                last=True,
            )
        return LimitUse(
            {(row.tenant_id, row.user_id): row.calls for row in calls.all()},
            {row.name: RateLevel(row.level, float(row.seconds)) for row in levels.all()},
        )

    async def has_executions(self, tenant_id: str) -> bool:
        """Return whether a tenant has stored executions."""
        return bool(await self._fetch_all(place_statements.HAS_EXECUTIONS, {"tenant_id": tenant_id}))

    async def admit(self, tenant_id: str, *, is_repair: bool = False) -> Sequence[ExecutionLaunch]:
        """Give the free places of a tenant to executions that wait; see `TenantStore`."""
        values = {"tenant_id": tenant_id, "most": ADMITTED_AT_ONCE}
        repair = [(place_statements.REMOVE_ENDED, values)] if is_repair else []
        async with self._transaction() as connection:
            *_, admitted = await connection.together(
                (place_statements.LOCK_TENANT, values), *repair, (place_statements.ADMIT, values), last=True
            )
            return tuple(map(launch_row, admitted.all()))

    async def find_pending(self, execution_ids: Collection[UUID]) -> Collection[UUID]:
        """Return those of these executions that have not begun; see `TenantStore`."""
        found = await self._fetch_all(place_statements.PENDING, {"ids": [*execution_ids]})
        return [row.id for row in found]

    async def waiting_tenants(self) -> Sequence[str]:
        """Return the tenants with executions that wait for a place."""
        return tuple(row.tenant_id for row in await self._fetch_all(place_statements.WAITING_TENANTS))
