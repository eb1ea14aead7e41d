"""What waits in an installation, for metrics: open requests to people, and executions that have not begun."""

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from everstep.agent_domain.storage.overview import Backlog
from everstep.store.columns import IS_UNDER_WAY
from everstep.store.errors import error_translation

# Constants, not parameters: only then the planner knows that the partial indexes apply.
_ASKED = text("""
    SELECT kind, count(*) AS requests, extract(epoch FROM now() - min(created_at)) AS seconds
      FROM agent_requests WHERE state = 'open' GROUP BY kind
""")
_PENDING = text(f"""
    SELECT tenant_id, count(*) AS executions
      FROM agent_executions WHERE status {IS_UNDER_WAY} AND status = 'pending' GROUP BY tenant_id
""")  # noqa: S608 -- constants only


class PostgresBacklog:
    """Reads the backlog of all tenants from partial indexes of what is open and what has not ended."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.engine = engine

    async def read(self) -> Backlog:
        """Return what waits now.

        Raises:
            StoreUnavailable: The database cannot be read now.
        """
        with error_translation(self.engine.url):
            async with self.engine.connect() as connection:
                asked = (await connection.execute(_ASKED)).all()
                pending = (await connection.execute(_PENDING)).all()
        return Backlog(
            {row.kind: (row.requests, float(row.seconds)) for row in asked},
            {row.tenant_id: row.executions for row in pending},
        )
