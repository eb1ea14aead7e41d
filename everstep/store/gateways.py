"""Where the gateways are, in PostgreSQL: by its clock, so that nobody else's has to be right."""

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import text

from everstep.store.epochs import Dated, DatedReader

ANNOUNCE = text("""
    WITH forgotten AS (
        DELETE FROM agent_gateways WHERE seen_at < clock_timestamp() - interval '1 day' AND id <> :id
    )
    INSERT INTO agent_gateways (id, url)
    VALUES (:id, :url)
        ON CONFLICT (id) DO UPDATE SET url = excluded.url, seen_at = excluded.seen_at
""")

WITHDRAW = text("DELETE FROM agent_gateways WHERE id = :id")

PRESENT = Dated.of("""
    SELECT {epoch} AS epoch, gateway.id, gateway.url
      FROM (VALUES (1)) AS one
      LEFT JOIN agent_gateways gateway
        ON gateway.seen_at > clock_timestamp() - CAST(:within AS double precision) * interval '1 second'
     ORDER BY gateway.id
""")


class PostgresGateways(DatedReader):
    """Keeps them; what nobody has announced for a day is removed by whoever announces something."""

    async def announce(self, gateway_id: UUID, url: str) -> None:
        """A gateway is there, and takes links at this URL."""
        await self._run(ANNOUNCE, {"id": gateway_id, "url": url})

    async def withdraw(self, gateway_id: UUID) -> None:
        """It leaves."""
        await self._run(WITHDRAW, {"id": gateway_id})

    async def present(self, within_seconds: float) -> tuple[str, Sequence[tuple[UUID, str]]]:
        """The journal's epoch, and the id and URL of every gateway that was announced within so long."""
        found = await self._dated(PRESENT, {"within": within_seconds})
        return found[0].epoch, [(row.id, row.url) for row in found if row.id is not None]
