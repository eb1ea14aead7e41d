"""Removes from PostgreSQL what is older than it has to be, of all tenants and a little at a time.

Each removal is a transaction of its own: it locks little, whoever is interrupted has done what was done, and
several may prune at once. What is under way is never touched: what could have changed since it was looked at
is looked at again under its lock.

Each method says, batch by batch, how many rows it removed, or on a dry run would remove. What belongs to
them goes with them and is not counted.
"""

from collections.abc import AsyncGenerator
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Row, TextClause, text

from everstep.agent_domain.ids import Scope
from everstep.agent_domain.storage.sessions import SessionBusy
from everstep.store.cursors import Cursor
from everstep.store.sessions import FIRST, PostgresSessions

LOOK = 100
"""Rows that are looked at with one statement; each may stand for many."""
BATCH = 1000
"""Rows that are removed with one statement, where each is small."""

OLD_ANSWERS = text("SELECT count(*) AS many FROM agent_answers WHERE created_at < :before")

REMOVE_ANSWERS = text("""
    WITH gone AS (
        DELETE FROM agent_answers
         WHERE ctid = ANY (ARRAY(
                   SELECT ctid
                     FROM agent_answers
                    WHERE created_at < :before
                    ORDER BY created_at
                    LIMIT :limit
                      FOR UPDATE SKIP LOCKED))
     RETURNING 1
    )
    SELECT count(*) AS many FROM gone
""")
"""By their place, which does not change while they are locked: by key, all others would be read along."""

REMOVE_CLAIMS = text("""
    WITH gone AS (
        DELETE FROM agent_claims
         WHERE ctid = ANY (ARRAY(
                   SELECT ctid
                     FROM agent_claims
                    WHERE created_at < :before AND expires_at < clock_timestamp()
                    ORDER BY created_at
                    LIMIT :limit
                      FOR UPDATE SKIP LOCKED))
     RETURNING 1
    )
    SELECT count(*) AS many FROM gone
""")
"""Requests whose process was lost, and that nobody sent again."""

LOOK_AT_SESSIONS = text("""
    SELECT id, tenant_id, updated_at AS at,
           updated_at < :before
           AND NOT EXISTS (SELECT 1
                             FROM agent_executions
                            WHERE session_id = look.id AND status IN ('pending', 'running', 'paused'))
           AS is_old
      FROM (SELECT id, tenant_id, updated_at
              FROM agent_sessions
             WHERE id > :after_id
             ORDER BY id
             LIMIT :limit) AS look
     ORDER BY id
""")
"""One after the other: an index of their last changes would cost each message more than it saves here."""

LOOK_AT_EXECUTIONS = text("""
    SELECT id, completed_at AS at,
           NOT EXISTS (SELECT 1 FROM agent_sessions WHERE id = look.session_id) AS is_old
      FROM (SELECT id, session_id, completed_at
              FROM agent_executions
             WHERE parent_execution_id IS NULL AND completed_at < :before
               AND (completed_at, id) > (:after_at, :after_id)
             ORDER BY completed_at, id
             LIMIT :limit) AS look
     ORDER BY completed_at, id
""")
"""Those of a session are its conversation: they stay as long as it does."""

_FAMILY = """
    WITH RECURSIVE family AS (
        SELECT id FROM agent_executions WHERE id = :root
     UNION ALL
        SELECT child.id FROM family JOIN agent_executions child ON child.parent_execution_id = family.id
    )"""
"""An execution with its subagents, and theirs."""

_OLD = """, old AS (
        SELECT id
          FROM family
         WHERE NOT EXISTS (
                   SELECT 1
                     FROM family
                     JOIN agent_executions member ON member.id = family.id
                    WHERE member.status IN ('pending', 'running', 'paused')
                       OR EXISTS (SELECT 1
                                    FROM agent_executions later
                                   WHERE later.continues_execution_id = member.id))
    )"""
"""All of them, or none while one is under way or is continued by another execution."""

OLD_FAMILY = text(f"{_FAMILY}{_OLD} SELECT count(*) AS many FROM old")  # noqa: S608 -- our own words

LOCK_FAMILY = text(f"""{_FAMILY}
    SELECT id FROM agent_executions WHERE id IN (SELECT id FROM family) ORDER BY id FOR UPDATE
""")  # noqa: S608 -- our own words

REMOVE_FAMILY = text(f"""{_FAMILY}{_OLD}, gone AS (
        DELETE FROM agent_executions WHERE id IN (SELECT id FROM old) RETURNING id
    ), streams AS (
        DELETE FROM agent_streams WHERE stream_id IN (SELECT id FROM gone)
    )
    SELECT count(*) AS many FROM gone
""")  # noqa: S608 -- our own words

LOOK_AT_STREAMS = text("""
    SELECT look.stream_id AS id, look.last_at AS at, oldest.seq AS first,
           coalesce(kept.seq, look.head + 1) AS until
      FROM (SELECT stream_id, last_at, head
              FROM agent_streams
             WHERE stream_id > :after_id
             ORDER BY stream_id
             LIMIT :limit) AS look
      LEFT JOIN LATERAL (
               SELECT seq FROM agent_envelopes WHERE stream_id = look.stream_id ORDER BY seq LIMIT 1
           ) AS oldest ON true
      LEFT JOIN LATERAL (
               SELECT seq
                 FROM agent_envelopes envelope
                WHERE stream_id = look.stream_id
                  AND (created_at >= :before
                       OR EXISTS (SELECT 1
                                    FROM agent_executions
                                   WHERE id = envelope.execution_id
                                     AND status IN ('pending', 'running', 'paused')))
                ORDER BY seq
                LIMIT 1
           ) AS kept ON true
     ORDER BY look.stream_id
""")
"""Only what stands before everything that is kept: what a stream holds has no gaps, so that its first `seq`
says what is no longer held. An execution under way finds its envelopes, and writes none of them again."""

REMOVE_ENVELOPES = text("""
    WITH gone AS (
        DELETE FROM agent_envelopes
         WHERE stream_id = :stream_id AND seq >= :first AND seq < :until
     RETURNING 1
    )
    SELECT count(*) AS many FROM gone
""")


class PostgresRetention(PostgresSessions):
    """A store that prunes, too."""

    async def prune_sessions(self, before: datetime, *, dry_run: bool = False) -> AsyncGenerator[int]:
        """Sessions in which nothing has changed since, with everything in them."""
        async for session in self._old(LOOK_AT_SESSIONS, before):
            yield dry_run or await self._remove_session(session, before)

    async def prune_executions(self, before: datetime, *, dry_run: bool = False) -> AsyncGenerator[int]:
        """Executions without a session that ended before then, with their subagents."""
        async for root in self._old(LOOK_AT_EXECUTIONS, before):
            yield await (self._count(OLD_FAMILY, root=root.id) if dry_run else self._remove_family(root.id))

    async def prune_envelopes(self, before: datetime, *, dry_run: bool = False) -> AsyncGenerator[int]:
        """Envelopes that were stored before then; their stream goes on where it is."""
        async for stream in self._looks(LOOK_AT_STREAMS, before):
            if stream.first is None:
                continue
            if dry_run:
                yield stream.until - stream.first
                continue
            for first in range(stream.first, stream.until, BATCH):
                until = min(first + BATCH, stream.until)
                yield await self._count(REMOVE_ENVELOPES, stream_id=stream.id, first=first, until=until)

    async def prune_answers(self, before: datetime, *, dry_run: bool = False) -> AsyncGenerator[int]:
        """Answers that were stored before then: their keys are as good as new."""
        if dry_run:
            yield await self._count(OLD_ANSWERS, before=before)
            return
        removed = BATCH
        while removed == BATCH:
            removed = await self._count(REMOVE_CLAIMS, before=before, limit=BATCH)
        removed = BATCH
        while removed == BATCH:
            removed = await self._count(REMOVE_ANSWERS, before=before, limit=BATCH)
            yield removed

    async def _remove_session(self, session: Row[Any], before: datetime) -> bool:
        try:
            scope = Scope(session.tenant_id)
            return await self.delete_session(scope, session.id, unchanged_since=before)
        except SessionBusy:
            return False

    async def _remove_family(self, root: UUID) -> int:
        values = {"root": root}
        async with self._transaction() as connection:
            _, removed = await connection.together((LOCK_FAMILY, values), (REMOVE_FAMILY, values))
        return removed.one().many

    async def _old(self, look: TextClause, before: datetime) -> AsyncGenerator[Row[Any]]:
        async for row in self._looks(look, before):
            if row.is_old:
                yield row

    async def _looks(self, look: TextClause, before: datetime) -> AsyncGenerator[Row[Any]]:
        """All rows, some with each statement."""
        last = FIRST
        while True:
            values = {"before": before, "after_at": last.created_at, "after_id": last.id, "limit": LOOK}
            found = await self._all(look, values)
            for row in found:
                yield row
            if len(found) < LOOK:
                return
            last = Cursor(found[-1].at, found[-1].id)

    async def _count(self, statement: TextClause, **values: Any) -> int:
        (row,) = await self._all(statement, values)
        return row.many
