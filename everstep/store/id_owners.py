"""The tenants of ids, over all tenants: only for the operator's own commands, which have the database."""

from uuid import UUID

from sqlalchemy import Select, func, select, union_all
from sqlalchemy.ext.asyncio import AsyncEngine

from everstep.agent_domain.storage.sign_ins import SignInKind
from everstep.store.errors import error_translation
from everstep.store.key_tables import api_keys, sign_ins
from everstep.store.ledger_tables import pruned_ledgers
from everstep.store.tables import executions


class PostgresIdOwners:
    """Finds the tenants of ids. Callers of the HTTP API never reach it: their token names their tenant."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.engine = engine

    async def tenant_of_execution(self, execution_id: UUID) -> str | None:
        """Find the tenant of an execution, also if it was pruned."""
        stored = select(executions.c.tenant_id).where(executions.c.id == execution_id)
        pruned = select(pruned_ledgers.c.tenant_id).where(pruned_ledgers.c.execution_id == execution_id)
        return await self._find(select(union_all(stored, pruned).subquery().c.tenant_id))

    async def tenant_of_key(self, key_id: UUID) -> str | None:
        """Find the tenant of an API key."""
        return await self._find(select(api_keys.c.tenant_id).where(api_keys.c.id == key_id))

    async def tenant_of_sign_in(self, sign_in_id: UUID) -> str | None:
        """Find the tenant of a person's session in a browser."""
        has_id = func.left(sign_ins.c.digest, len(sign_in_id.hex)) == sign_in_id.hex
        is_session = sign_ins.c.kind == str(SignInKind.SESSION)
        return await self._find(select(sign_ins.c.tenant_id).where(is_session, has_id))

    async def _find(self, statement: Select[tuple[str]]) -> str | None:
        with error_translation(self.engine.url):
            async with self.engine.connect() as connection:
                row = (await connection.execute(statement.limit(1))).first()
        return None if row is None else str(row.tenant_id)
