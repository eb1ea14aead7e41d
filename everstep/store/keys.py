"""Records of the HTTP API in PostgreSQL: idempotency keys with their first responses, and API keys."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from psycopg.errors import ForeignKeyViolation
from sqlalchemy import ColumnElement, Executable, Row, delete, func, or_, select, text, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncEngine

from everstep.agent_domain.storage.keys import ApiKey, Claim, StoredResponse
from everstep.store.errors import error_translation
from everstep.store.key_tables import api_keys
from everstep.store.tables import answers, claims

CLAIM = text("""
    WITH answered AS (
        SELECT 1 FROM agent_answers WHERE tenant_id = :tenant_id AND user_id = :user_id AND key = :key
    ), claimed AS (
        INSERT INTO agent_claims AS claim (tenant_id, user_id, key, digest, owner, expires_at)
        SELECT :tenant_id, :user_id, :key, :digest, :owner,
               clock_timestamp() + CAST(:seconds AS double precision) * interval '1 second'
         WHERE NOT EXISTS (SELECT 1 FROM answered)
            ON CONFLICT (tenant_id, user_id, key) DO UPDATE
           SET owner = excluded.owner, expires_at = excluded.expires_at
         WHERE claim.expires_at <= clock_timestamp() AND claim.digest = excluded.digest
     RETURNING 1
    )
    SELECT EXISTS (SELECT 1 FROM answered) AS is_answered, EXISTS (SELECT 1 FROM claimed) AS is_mine
""")

HELD = text("""
    SELECT digest FROM agent_claims WHERE tenant_id = :tenant_id AND user_id = :user_id AND key = :key
""")


class PostgresKeys:
    """Stores idempotency keys and API keys."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.engine = engine

    async def find_response(self, tenant_id: str, user_id: str, key: str) -> StoredResponse | None:
        """Return the stored response to a request with this idempotency key."""
        mine = (answers.c.tenant_id == tenant_id, answers.c.user_id == user_id, answers.c.key == key)
        found = await self._all(select(answers).where(*mine))
        return _answer_from(found[0]) if found else None

    async def claim(
        self, tenant_id: str, user_id: str, key: str, owner: UUID, *, digest: str, seconds: float
    ) -> Claim | StoredResponse:
        """Claim a request for processing; see `KeyStore.claim`."""
        name = {"tenant_id": tenant_id, "user_id": user_id, "key": key}
        values = {**name, "digest": digest, "owner": owner, "seconds": seconds}
        while True:
            (claimed,) = await self._all(CLAIM, values)
            if claimed.is_answered:
                if answer := await self.find_response(tenant_id, user_id, key):
                    return answer
            elif claimed.is_mine:
                return Claim(digest, is_mine=True)
            elif held := await self._all(HELD, name):
                return Claim(held[0].digest, is_mine=False)
            # The conflicting row was removed in between: try again.

    async def renew(self, tenant_id: str, user_id: str, key: str, owner: UUID, *, seconds: float) -> None:
        """Extend the claim on a request."""
        lasts = func.clock_timestamp() + timedelta(seconds=seconds)
        renewed = (
            update(claims).where(*_claim_filter(tenant_id, user_id, key, owner)).values(expires_at=lasts)
        )
        await self._all(renewed.returning(claims.c.key))

    async def release_claim(
        self, tenant_id: str, user_id: str, key: str, owner: UUID, *, forget: bool
    ) -> None:
        """Release the claim on a request.

        Args:
            tenant_id: The tenant of the caller.
            user_id: The caller.
            key: The idempotency key.
            owner: The claim's owner.
            forget: Whether to delete the claim; otherwise only the same request can take it over.
        """
        mine = _claim_filter(tenant_id, user_id, key, owner)
        left = delete(claims) if forget else update(claims).values(expires_at=func.clock_timestamp())
        await self._all(left.where(*mine).returning(claims.c.key))

    async def remember(
        self, tenant_id: str, user_id: str, key: str, answer: StoredResponse
    ) -> StoredResponse:
        """Store a response and return the stored one; the first response wins.

        A response about an object that was deleted in the meantime is not stored.
        """
        values = {
            "tenant_id": tenant_id,
            "user_id": user_id,
            "key": key,
            "digest": answer.digest,
            "status": answer.status,
            "body": answer.body,
            "session_id": answer.session_id,
            "execution_id": answer.execution_id,
            "attachment_id": answer.attachment_id,
        }
        mine = (claims.c.tenant_id == tenant_id, claims.c.user_id == user_id, claims.c.key == key)
        done = delete(claims).where(*mine).returning(claims.c.key).cte("done")
        new = insert(answers).values(**values).on_conflict_do_nothing()
        kept = new.returning(answers.c.key).add_cte(done)
        with error_translation(self.engine.url):
            async with self.engine.connect() as connection:
                try:
                    if (await connection.execute(kept)).first():
                        return answer
                except IntegrityError as error:
                    # The object of the response was deleted in the meantime.
                    if isinstance(error.orig, ForeignKeyViolation):
                        await connection.execute(delete(claims).where(*mine))
                        return answer
                    raise
        return await self.find_response(tenant_id, user_id, key) or answer

    async def create_key(self, key: ApiKey, digest: str) -> None:
        """Store an API key under the digest of its secret."""
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
        """Return the API key with this digest, revoked or not, and record its use."""
        found = await self._all(select(api_keys).where(api_keys.c.digest == digest))
        if not found:
            return None
        # Recorded once per minute, so that a busy key is not written by every request.
        lately = func.clock_timestamp() - timedelta(minutes=1)
        unused = or_(api_keys.c.last_used_at.is_(None), api_keys.c.last_used_at < lately)
        used = update(api_keys).where(api_keys.c.id == found[0].id, unused)
        await self._all(used.values(last_used_at=func.clock_timestamp()).returning(api_keys.c.id))
        return _key(found[0])

    async def is_good_key(self, key_id: UUID) -> bool:
        """Return whether the API key exists and is not revoked."""
        good = select(api_keys.c.id).where(api_keys.c.id == key_id, api_keys.c.revoked_at.is_(None))
        return bool(await self._all(good))

    async def keys(self, tenant_id: str) -> Sequence[ApiKey]:
        """Return all API keys of a tenant, newest first."""
        wanted = select(api_keys).where(api_keys.c.tenant_id == tenant_id)
        newest_first = wanted.order_by(api_keys.c.created_at.desc(), api_keys.c.id.desc())
        return tuple(map(_key, await self._all(newest_first)))

    async def revoke_key(self, tenant_id: str, key_id: UUID) -> bool:
        """Revoke an API key; return False if there is none."""
        mine = (api_keys.c.tenant_id == tenant_id, api_keys.c.id == key_id)
        revoked = func.coalesce(api_keys.c.revoked_at, func.clock_timestamp())
        change = update(api_keys).where(*mine).values(revoked_at=revoked).returning(api_keys.c.id)
        return bool(await self._all(change))

    async def _all(
        self, statement: Executable, values: Mapping[str, Any] | None = None
    ) -> Sequence[Row[Any]]:
        with error_translation(self.engine.url):
            async with self.engine.connect() as connection:
                return (await connection.execute(statement, values)).all()


def _claim_filter(tenant_id: str, user_id: str, key: str, owner: UUID) -> tuple[ColumnElement[bool], ...]:
    mine = (claims.c.tenant_id == tenant_id, claims.c.user_id == user_id, claims.c.key == key)
    return (*mine, claims.c.owner == owner)


def _answer_from(row: Row[Any]) -> StoredResponse:
    owners = row.session_id, row.execution_id, row.attachment_id
    return StoredResponse(row.status, row.body, row.digest, *owners)


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
