"""Owners of streams in PostgreSQL, looked up by primary key for each subscription.

After a gateway restart, many subscriptions arrive at once. Lookups that arrive during a query are batched
into the next one.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, Final
from uuid import UUID

from sqlalchemy import Row, TextClause, text
from sqlalchemy.ext.asyncio import AsyncEngine

from everstep.agent_domain.ids import Scope
from everstep.agent_domain.stream.channels import Channel
from everstep.store.batches import Batches
from everstep.store.errors import error_translation

MOST_LOOKUPS: Final = 10_000
"""The most ids of one query."""

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


PLACE = text("""
    SELECT coalesce((SELECT head FROM agent_streams WHERE stream_id = :stream_id), 0) AS head,
           (SELECT seq FROM agent_envelopes WHERE id = :envelope_id AND stream_id = :stream_id) AS seq
""")


class PostgresStreams:
    """Looks up the owners of streams, and envelopes in them."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.engine = engine
        self._sessions = Batches(partial(self._rows, SESSIONS), MOST_LOOKUPS)
        self._executions = Batches(partial(self._rows, EXECUTIONS), MOST_LOOKUPS)

    async def stream(self, channel: Channel, scope: Scope | None) -> UUID | None:
        """Return the stream of a channel, or None if it does not exist or the scope does not cover it."""
        asked = self._sessions if channel.is_session else self._executions
        found = await asked.request(channel.stream_id)
        if found is None or (scope is not None and not _covers(scope, found)):
            return None
        return found.stream_id

    async def _rows(self, statement: TextClause, ids: Sequence[UUID]) -> list[Row[Any] | None]:
        with error_translation(self.engine.url):
            async with self.engine.connect() as connection:
                found = {row.id: row for row in await connection.execute(statement, {"ids": [*ids]})}
        return [found.get(identity) for identity in ids]

    async def place(self, stream_id: UUID, envelope_id: UUID) -> tuple[int, int | None]:
        """Return the last seq of a stream, or 0, and that of an envelope in it, if it is stored."""
        with error_translation(self.engine.url):
            async with self.engine.connect() as connection:
                row = (
                    await connection.execute(PLACE, {"stream_id": stream_id, "envelope_id": envelope_id})
                ).one()
                return row.head, row.seq


def _covers(scope: Scope, found: Row[Any]) -> bool:
    return found.tenant_id == scope.tenant_id and scope.covers(found.user_id)
