"""Sign-ins of people in browsers, in PostgreSQL: valid in every process of the API and the gateway."""

from typing import Any

from sqlalchemy import ColumnElement, Executable, Row, delete, func, or_, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncEngine

from everstep.agent_domain.storage.sign_ins import SignIn, SignInKind
from everstep.store.errors import error_translation
from everstep.store.key_tables import api_keys, sign_ins


class PostgresSignIns:
    """Stores sign-ins."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.engine = engine

    async def add_sign_in(self, kind: SignInKind, digest: str, sign_in: SignIn) -> None:
        """Store a sign-in, and remove those that have expired."""
        values = {
            "kind": str(kind),
            "digest": digest,
            "tenant_id": sign_in.tenant_id,
            "user_id": sign_in.user_id,
            "scopes": list(sign_in.scopes),
            "roles": list(sign_in.roles),
            "key_id": sign_in.key_id,
            "expires_at": sign_in.expires_at,
        }
        expired = delete(sign_ins).where(sign_ins.c.expires_at <= func.clock_timestamp())
        gone = expired.returning(sign_ins.c.digest).cte("gone")
        await self._first(insert(sign_ins).values(**values).returning(sign_ins.c.digest).add_cte(gone))

    async def find_sign_in(self, kind: SignInKind, digest: str) -> SignIn | None:
        """Return the sign-in of this kind, unless it has expired or its key is revoked."""
        row = await self._first(select(sign_ins).where(*_is_good(kind, digest)))
        return None if row is None else _sign_in(row)

    async def take_sign_in(self, kind: SignInKind, digest: str) -> SignIn | None:
        """Remove a sign-in and return it, unless it has expired or its key is revoked."""
        row = await self._first(delete(sign_ins).where(*_is_good(kind, digest)).returning(sign_ins))
        return None if row is None else _sign_in(row)

    async def remove_sign_in(self, kind: SignInKind, digest: str) -> None:
        """Remove a sign-in, if there is one."""
        mine = (sign_ins.c.kind == str(kind), sign_ins.c.digest == digest)
        await self._first(delete(sign_ins).where(*mine).returning(sign_ins.c.digest))

    async def _first(self, statement: Executable) -> Row[Any] | None:
        with error_translation(self.engine.url):
            async with self.engine.connect() as connection:
                return (await connection.execute(statement)).first()


def _is_good(kind: SignInKind, digest: str) -> tuple[ColumnElement[bool], ...]:
    good_key = select(api_keys.c.id).where(
        api_keys.c.id == sign_ins.c.key_id, api_keys.c.revoked_at.is_(None)
    )
    return (
        sign_ins.c.kind == str(kind),
        sign_ins.c.digest == digest,
        sign_ins.c.expires_at > func.clock_timestamp(),
        or_(sign_ins.c.key_id.is_(None), good_key.exists()),
    )


def _sign_in(row: Row[Any]) -> SignIn:
    names = tuple(row.scopes), tuple(row.roles)
    return SignIn(row.tenant_id, row.user_id, row.expires_at, *names, row.key_id)
