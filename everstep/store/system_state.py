"""The state of an installation in its database, over all tenants."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from everstep.store.columns import IS_UNDER_WAY
from everstep.store.errors import error_translation

_OPEN = text(f"""
    SELECT status, count(*) AS executions, min(created_at) AS oldest_at
      FROM agent_executions WHERE status {IS_UNDER_WAY}
     GROUP BY status ORDER BY status
""")  # noqa: S608 -- constants only

_GATEWAYS = text("""
    SELECT id, url, seen_at, extract(epoch FROM clock_timestamp() - seen_at) AS silent_seconds
      FROM agent_gateways ORDER BY seen_at DESC, id LIMIT 200
""")

_UNDELIVERED = text("SELECT count(*) AS commands FROM agent_commands WHERE delivered_at IS NULL")


@dataclass(frozen=True, slots=True)
class OpenCount:
    """How many executions have a status, and since when the oldest of them exists."""

    status: str
    count: int
    oldest_at: datetime


@dataclass(frozen=True, slots=True)
class AnnouncedGateway:
    """A gateway that was announced within the last day."""

    id: UUID
    url: str
    seen_at: datetime
    silent_seconds: float
    """By the clock of the database, so that those of other machines need not agree."""


@dataclass(frozen=True, slots=True)
class SystemState:
    """What the database says about an installation."""

    executions: Sequence[OpenCount]
    gateways: Sequence[AnnouncedGateway]
    undelivered: int
    """Commands of people that have not reached their executions."""


class PostgresSystemState:
    """Reads the state of an installation, from indexes of what has not ended."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.engine = engine

    async def read(self) -> SystemState:
        """Read it.

        Raises:
            StoreUnavailable: The database cannot be read now.
        """
        with error_translation(self.engine.url):
            async with self.engine.connect() as connection:
                counts = (await connection.execute(_OPEN)).all()
                gateways = (await connection.execute(_GATEWAYS)).all()
                undelivered = (await connection.execute(_UNDELIVERED)).scalar_one()
        return SystemState(
            [OpenCount(row.status, row.executions, row.oldest_at) for row in counts],
            [AnnouncedGateway(row.id, row.url, row.seen_at, float(row.silent_seconds)) for row in gateways],
            undelivered,
        )
