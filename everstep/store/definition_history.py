"""Which definitions of an agent its newest executions began with, in PostgreSQL."""

from collections.abc import Sequence

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from everstep.agent_domain.ids import Scope
from everstep.agent_domain.storage.definition_uses import DefinitionUse
from everstep.store.errors import error_translation

NEWEST = 1000
"""So many executions are looked at: each has its definition in a large column."""

_USES = text("""
    WITH newest AS (
        SELECT agent_config ->> 'definition_hash' AS definition_hash, created_at
          FROM agent_executions
         WHERE tenant_id = :tenant_id AND agent_type = :agent
           AND (CAST(:user_id AS text) IS NULL OR user_id = :user_id)
         ORDER BY created_at DESC, id DESC
         LIMIT :newest
    )
    SELECT nullif(definition_hash, '') AS definition_hash, count(*) AS executions,
           min(created_at) AS first_at, max(created_at) AS last_at
      FROM newest GROUP BY 1 ORDER BY last_at DESC
""")


async def read_definition_uses(engine: AsyncEngine, scope: Scope, agent: str) -> Sequence[DefinitionUse]:
    """Return the definitions of an agent, the latest first.

    Raises:
        StoreUnavailable: The database cannot be read now.
    """
    values = {"tenant_id": scope.tenant_id, "user_id": scope.user_id, "agent": agent, "newest": NEWEST}
    with error_translation(engine.url):
        async with engine.connect() as connection:
            found = await connection.execute(_USES, values)
    return [DefinitionUse(row.definition_hash, row.executions, row.first_at, row.last_at) for row in found]
