"""Whose streams are, in PostgreSQL: asked for everybody who wants to watch, by primary key."""

from typing import Any
from uuid import UUID

from sqlalchemy import Select, case, func, select
from sqlalchemy.ext.asyncio import AsyncEngine

from agent_domain.channels import Channel
from agent_domain.sessions import Scope
from everstep.store.errors import translated
from everstep.store.tables import executions, sessions


class PostgresStreams:
    """Knows whose they are."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.engine = engine

    async def stream(self, channel: Channel, scope: Scope | None) -> UUID | None:
        """The stream that a channel means; None if there is none, or none that this scope covers."""
        table = sessions if channel.is_session else executions
        named = (_SESSIONS if channel.is_session else _EXECUTIONS).where(table.c.id == channel.stream_id)
        if scope is not None:
            named = named.where(table.c.tenant_id == scope.tenant_id)
        with translated(self.engine.url):
            async with self.engine.connect() as connection:
                found = (await connection.execute(named)).first()
        if found is None or (scope is not None and not scope.covers(found.user_id)):
            return None
        return found.stream_id


_SESSIONS: Select[Any, Any] = select(sessions.c.id.label("stream_id"), sessions.c.user_id)
_EXECUTIONS: Select[Any, Any] = select(
    func.coalesce(executions.c.session_id, executions.c.id).label("stream_id"),
    # Whose the session is, and not who began the execution in it.
    case((executions.c.session_id.is_(None), executions.c.user_id), else_=sessions.c.user_id).label(
        "user_id"
    ),
).outerjoin_from(
    executions,
    sessions,
    (sessions.c.id == executions.c.session_id) & (sessions.c.tenant_id == executions.c.tenant_id),
)
