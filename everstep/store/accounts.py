"""Usage totals of executions, computed by PostgreSQL."""

from collections.abc import Sequence

from sqlalchemy import BigInteger, ColumnElement, Integer, cast, func, select
from sqlalchemy.ext.asyncio import AsyncEngine

from everstep.agent_domain.ids import Scope
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.storage.usage_report import TimeRange, UsageAccount
from everstep.store.errors import error_translation
from everstep.store.tables import executions


def _tokens(counter: str) -> ColumnElement[int]:
    counted = cast(executions.c.token_breakdown[counter].as_string(), BigInteger)
    return cast(func.coalesce(func.sum(counted), 0), BigInteger)


_COUNTED = (
    executions.c.agent_type,
    func.count(),
    func.count().filter(executions.c.status == str(ExecutionStatus.FAILED)),
    cast(func.sum(executions.c.step_count), Integer),
    *map(_tokens, ("input", "output", "cached", "reasoning", "total")),
)


class PostgresAccounts:
    """Computes usage reports from the execution table."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.engine = engine

    async def accounts(self, scope: Scope, time_range: TimeRange) -> Sequence[UsageAccount]:
        """Return the usage of each agent within a time time_range."""
        created = executions.c.created_at
        wanted = select(*_COUNTED).where(executions.c.tenant_id == scope.tenant_id)
        if scope.user_id is not None:
            wanted = wanted.where(executions.c.user_id == scope.user_id)
        within = wanted.where(created >= time_range.since, created < time_range.until)
        by_agent = within.group_by(executions.c.agent_type).order_by(executions.c.agent_type)
        with error_translation(self.engine.url):
            async with self.engine.connect() as connection:
                return [UsageAccount(*row) for row in await connection.execute(by_agent)]
