"""Sign-ins of people in browsers, in PostgreSQL: valid in every process of the API and the gateway."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, Executable, Row, Select, and_, delete, func, or_, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncEngine

from everstep.agent_domain.storage.sign_ins import (
    MAX_LISTED,
    MAX_SESSIONS,
    BrowserSession,
    SignIn,
    SignInKind,
)
from everstep.store.errors import error_translation
from everstep.store.key_tables import api_keys, sign_ins


class PostgresSignIns:
    """Stores sign-ins."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.engine = engine

    async def add_sign_in(self, kind: SignInKind, digest: str, sign_in: SignIn) -> None:
        """Store a sign-in, and remove those that have expired.

        Of a user's sessions, the oldest ones over the limit are removed.
        """
        values = {
            "kind": str(kind),
            "digest": digest,
            "tenant_id": sign_in.tenant_id,
            "user_id": sign_in.user_id,
            "scopes": list(sign_in.scopes),
            "roles": list(sign_in.roles),
            "key_id": sign_in.key_id,
            "expires_at": sign_in.expires_at,
            "authority": sign_in.authority,
            "signing_key": sign_in.signing_key,
            "user_agent": sign_in.user_agent,
        }
        is_expired = sign_ins.c.expires_at <= func.clock_timestamp()
        if kind is SignInKind.SESSION:
            is_expired = or_(is_expired, sign_ins.c.digest.in_(_oldest_over_limit(sign_in)))
        expired = delete(sign_ins).where(is_expired)
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

    async def sessions(self, tenant_id: str, user_id: str | None = None) -> Sequence[BrowserSession]:
        """Return the newest sessions of a tenant, or of one of its users."""
        live = sign_ins.c.expires_at > func.clock_timestamp()
        newest = select(sign_ins).where(_is_session(tenant_id, user_id), live)
        rows = await self._all(newest.order_by(sign_ins.c.created_at.desc()).limit(MAX_LISTED))
        return [BrowserSession.stored(row.digest, row.created_at, _sign_in(row)) for row in rows]

    async def end_session(self, tenant_id: str, user_id: str | None, session_id: UUID) -> bool:
        """End a session of a tenant, or of one of its users; return False if there is none."""
        has_id = func.left(sign_ins.c.digest, len(session_id.hex)) == session_id.hex
        mine = delete(sign_ins).where(_is_session(tenant_id, user_id), has_id)
        return bool(await self._all(mine.returning(sign_ins.c.digest)))

    async def end_sessions(self, tenant_id: str, user_id: str | None = None) -> Sequence[UUID]:
        """End all sessions of a tenant or of one of its users, with tickets and links; return their ids."""
        mine = delete(sign_ins).where(_is_of(tenant_id, user_id))
        ended = await self._all(mine.returning(sign_ins.c.kind, sign_ins.c.digest))
        return [UUID(row.digest[:32]) for row in ended if row.kind == SignInKind.SESSION]

    async def _first(self, statement: Executable) -> Row[Any] | None:
        rows = await self._all(statement)
        return rows[0] if rows else None

    async def _all(self, statement: Executable) -> Sequence[Row[Any]]:
        with error_translation(self.engine.url):
            async with self.engine.connect() as connection:
                return (await connection.execute(statement)).all()


def _is_of(tenant_id: str, user_id: str | None) -> ColumnElement[bool]:
    is_of_tenant = sign_ins.c.tenant_id == tenant_id
    return is_of_tenant if user_id is None else and_(is_of_tenant, sign_ins.c.user_id == user_id)


def _is_session(tenant_id: str, user_id: str | None) -> ColumnElement[bool]:
    return and_(_is_of(tenant_id, user_id), sign_ins.c.kind == str(SignInKind.SESSION))


def _oldest_over_limit(sign_in: SignIn) -> Select[tuple[str]]:
    mine = select(sign_ins.c.digest).where(_is_session(sign_in.tenant_id, sign_in.user_id))
    # One less than the limit, as the new one is not among them yet.
    return mine.order_by(sign_ins.c.created_at.desc()).offset(MAX_SESSIONS - 1)


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
    origin = row.authority, row.signing_key, row.user_agent
    return SignIn(row.tenant_id, row.user_id, row.expires_at, *names, row.key_id, *origin)
