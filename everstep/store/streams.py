"""Owners of streams in PostgreSQL, looked up by primary key for each subscription.

After a gateway restart, many subscriptions arrive at once. Lookups that arrive during a query are batched
into the next one.
"""

import asyncio
from collections.abc import Collection, Mapping
from typing import Any
from uuid import UUID

from sqlalchemy import Row, TextClause, text
from sqlalchemy.ext.asyncio import AsyncEngine

from everstep.agent_domain.ids import Scope
from everstep.agent_domain.stream.channels import Channel
from everstep.store.errors import error_translation

SESSIONS = text("""
    SELECT id, tenant_id, id AS stream_id, user_id
      FROM agent_sessions
     WHERE id = ANY (CAST(:ids AS uuid[]))
""")

EXECUTIONS = text("""
    SELECT execution.id, execution.tenant_id, coalesce(execution.session_id, execution.id) AS stream_id,
           CASE WHEN execution.session_id IS NULL THEN execution.user_id ELSE session.user_id END AS user_id
      FROM agent_executions execution
      LEFT JOIN agent_sessions session
        ON session.id = execution.session_id AND session.tenant_id = execution.tenant_id
     WHERE execution.id = ANY (CAST(:ids AS uuid[]))
""")
"""The owner of the session, not the user who started the execution in it."""


class PostgresStreams:
    """Looks up the owners of streams."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.engine = engine
        self._sessions = _BatchedLookup(engine, SESSIONS)
        self._executions = _BatchedLookup(engine, EXECUTIONS)

    async def stream(self, channel: Channel, scope: Scope | None) -> UUID | None:
        """Return the stream of a channel, or None if it does not exist or the scope does not cover it."""
        asked = self._sessions if channel.is_session else self._executions
        found = await asked.row(channel.stream_id)
        if found is None or (scope is not None and not _covers(scope, found)):
            return None
        return found.stream_id


def _covers(scope: Scope, found: Row[Any]) -> bool:
    return found.tenant_id == scope.tenant_id and scope.covers(found.user_id)


class _BatchedLookup:
    """Batches lookups by id: one query runs at a time, for all ids that arrived since the previous one."""

    def __init__(self, engine: AsyncEngine, statement: TextClause) -> None:
        self._engine = engine
        self._statement = statement
        self._waiting: dict[UUID, asyncio.Future[Row[Any] | None]] = {}
        self._asking: asyncio.Task[None] | None = None

    async def row(self, asked: UUID) -> Row[Any] | None:
        """Return the row with this id, or None."""
        answer = self._waiting.get(asked)
        if answer is None:
            answer = self._waiting[asked] = asyncio.get_running_loop().create_future()
        if self._asking is None:
            self._asking = asyncio.create_task(self._ask())
        # A caller may be cancelled before the query ends; the other callers still wait for the same future.
        return await asyncio.shield(answer)

    async def _ask(self) -> None:
        try:
            while self._waiting:
                waiting, self._waiting = self._waiting, {}
                try:
                    found = await self._rows(waiting)
                except Exception as error:  # noqa: BLE001 -- passed on to all waiting callers
                    for answer in waiting.values():
                        answer.set_exception(error)
                        # Mark the exception as retrieved: every caller may have been cancelled.
                        answer.exception()
                else:
                    for asked, answer in waiting.items():
                        answer.set_result(found.get(asked))
        finally:
            self._asking = None

    async def _rows(self, ids: Collection[UUID]) -> Mapping[UUID, Row[Any]]:
        with error_translation(self._engine.url):
            async with self._engine.connect() as connection:
                found = await connection.execute(self._statement, {"ids": [*ids]})
                return {row.id: row for row in found}
