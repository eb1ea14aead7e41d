"""What waits in an installation, for metrics: open requests to people, and executions that have not begun."""

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncEngine

from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.storage.overview import Backlog
from everstep.agent_domain.storage.requests import RequestState
from everstep.store.errors import error_translation
from everstep.store.tables import executions, requests


class PostgresBacklog:
    """Reads the backlog of all tenants from partial indexes of what is open and what has not ended."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.engine = engine

    async def read(self) -> Backlog:
        """Return what waits now.

        Raises:
            StoreUnavailable: The database cannot be read now.
        """
        age = func.extract("epoch", func.now() - func.min(requests.c.created_at))
        is_open = requests.c.state == str(RequestState.OPEN)
        asked = select(requests.c.kind, func.count(), age).where(is_open).group_by(requests.c.kind)
        is_pending = executions.c.status == str(ExecutionStatus.PENDING)
        queued = (
            select(executions.c.tenant_id, func.count()).where(is_pending).group_by(executions.c.tenant_id)
        )
        with error_translation(self.engine.url):
            async with self.engine.connect() as connection:
                open_requests = (await connection.execute(asked)).all()
                pending = (await connection.execute(queued)).all()
        return Backlog(
            {kind: (count, float(seconds)) for kind, count, seconds in open_requests},
            {row.tenant_id: row[1] for row in pending},
        )
