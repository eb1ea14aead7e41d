"""The registry of gateways in PostgreSQL. Times come from its clock, so gateway clocks need not agree."""

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import text

from everstep.store.epochs import EpochQuery, EpochReader

ANNOUNCE = text("""
    WITH forgotten AS (
        DELETE FROM agent_gateways WHERE seen_at < clock_timestamp() - interval '1 day' AND id <> :id
    )
    INSERT INTO agent_gateways (id, url)
    VALUES (:id, :url)
        ON CONFLICT (id) DO UPDATE SET url = excluded.url, seen_at = excluded.seen_at
""")

WITHDRAW = text("DELETE FROM agent_gateways WHERE id = :id")

PRESENT = EpochQuery.of("""
    SELECT {epoch} AS epoch, gateway.id, gateway.url
      FROM (VALUES (1)) AS one
      LEFT JOIN agent_gateways gateway
        ON gateway.seen_at > clock_timestamp() - CAST(:within AS double precision) * interval '1 second'
     ORDER BY gateway.id
""")


class PostgresGateways(EpochReader):
    """Registers gateways. Each announcement removes gateways that were not announced for a day."""

    async def announce(self, gateway_id: UUID, url: str) -> None:
        """Register a gateway that accepts links at this URL."""
        await self._run(ANNOUNCE, {"id": gateway_id, "url": url})

    async def withdraw(self, gateway_id: UUID) -> None:
        """Remove a gateway that shuts down."""
        await self._run(WITHDRAW, {"id": gateway_id})

    async def active_gateways(self, within_seconds: float) -> tuple[str, Sequence[tuple[UUID, str]]]:
        """Return the journal's epoch, and the id and URL of every gateway announced within these seconds."""
        found = await self._query_with_epoch(PRESENT, {"within": within_seconds})
        return found[0].epoch, [(row.id, row.url) for row in found if row.id is not None]
