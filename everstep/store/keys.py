"""What the HTTP API keeps in PostgreSQL beside sessions: first answers, and the keys of services."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from psycopg.errors import ForeignKeyViolation
from sqlalchemy import Executable, Row, func, or_, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncEngine

from agent_domain.sessions import Answered, ApiKey
from everstep.store.errors import translated
from everstep.store.tables import answers, api_keys


class PostgresKeys:
    """Keeps them."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.engine = engine

    async def answered(self, tenant_id: str, user_id: str, key: str) -> Answered | None:
        """The answer to a request with this key."""
        mine = (answers.c.tenant_id == tenant_id, answers.c.user_id == user_id, answers.c.key == key)
        found = await self._all(select(answers).where(*mine))
        return _answered(found[0]) if found else None

    async def remember(self, tenant_id: str, user_id: str, key: str, answer: Answered) -> Answered:
        """Keep an answer; the first one wins and is returned. None is kept of what was deleted meanwhile."""
        values = {
            "tenant_id": tenant_id,
            "user_id": user_id,
            "key": key,
            "digest": answer.digest,
            "status": answer.status,
            "body": answer.body,
            "session_id": answer.session_id,
            "execution_id": answer.execution_id,
        }
        kept = insert(answers).values(**values).on_conflict_do_nothing().returning(answers.c.key)
        with translated(self.engine.url):
            async with self.engine.connect() as connection:
                try:
                    if (await connection.execute(kept)).first():
                        return answer
                except IntegrityError as error:
                    # What it tells of was deleted meanwhile.
                    if isinstance(error.orig, ForeignKeyViolation):
                        return answer
                    raise
        return await self.answered(tenant_id, user_id, key) or answer

    async def create_key(self, key: ApiKey, digest: str) -> None:
        """Keep a service's key under the digest of its secret."""
        values = {
            "id": key.id,
            "tenant_id": key.tenant_id,
            "name": key.name,
            "digest": digest,
            "user_id": key.user_id,
            "scopes": list(key.scopes),
            "created_at": key.created_at,
        }
        await self._all(insert(api_keys).values(**values).returning(api_keys.c.id))

    async def key(self, digest: str) -> ApiKey | None:
        """The key with this digest, revoked ones too; notes, to the minute, that it was used."""
        found = await self._all(select(api_keys).where(api_keys.c.digest == digest))
        if not found:
            return None
        # To the minute: a busy key is not written to by every request.
        lately = func.clock_timestamp() - timedelta(minutes=1)
        unused = or_(api_keys.c.last_used_at.is_(None), api_keys.c.last_used_at < lately)
        used = update(api_keys).where(api_keys.c.id == found[0].id, unused)
        await self._all(used.values(last_used_at=func.clock_timestamp()).returning(api_keys.c.id))
        return _key(found[0])

    async def keys(self, tenant_id: str) -> Sequence[ApiKey]:
        """All keys of a tenant, newest first."""
        wanted = select(api_keys).where(api_keys.c.tenant_id == tenant_id)
        newest_first = wanted.order_by(api_keys.c.created_at.desc(), api_keys.c.id.desc())
        return tuple(map(_key, await self._all(newest_first)))

    async def revoke_key(self, tenant_id: str, key_id: UUID) -> bool:
        """Let a key open nothing any more; False if there is none."""
        mine = (api_keys.c.tenant_id == tenant_id, api_keys.c.id == key_id)
        revoked = func.coalesce(api_keys.c.revoked_at, func.clock_timestamp())
        change = update(api_keys).where(*mine).values(revoked_at=revoked).returning(api_keys.c.id)
        return bool(await self._all(change))

    async def _all(self, statement: Executable) -> Sequence[Row[Any]]:
        with translated(self.engine.url):
            async with self.engine.connect() as connection:
                return (await connection.execute(statement)).all()


def _answered(row: Row[Any]) -> Answered:
    return Answered(row.status, row.body, row.digest, row.session_id, row.execution_id)


def _key(row: Row[Any]) -> ApiKey:
    return ApiKey(
        row.id,
        row.tenant_id,
        row.name,
        row.user_id,
        tuple(row.scopes),
        row.created_at,
        row.last_used_at,
        row.revoked_at,
    )
