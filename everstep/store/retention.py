"""Retention: removes old rows of all tenants from PostgreSQL, in small batches.

Each batch is its own transaction: it holds few locks, an interrupted run keeps its progress, and several
processes can prune at once. Running executions are never touched: conditions that may have changed since the
scan are checked again under the lock.

Each method yields the number of removed rows per batch, or on a dry run the number it would remove. Rows that
are removed by cascade are not counted.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from datetime import datetime
from functools import partial
from time import monotonic
from typing import Any
from uuid import UUID

from sqlalchemy import Row, TextClause, text

from everstep.agent_domain.ids import Scope
from everstep.agent_domain.storage.sessions import SessionBusy
from everstep.store.columns import IS_UNDER_WAY
from everstep.store.cursors import Cursor
from everstep.store.errors import DatabaseBusy
from everstep.store.ledger_statements import KEEP_HEADS
from everstep.store.sessions import FIRST_CURSOR, PostgresSessions

LOOK = 100
"""Rows per scan; each may own many other rows."""
REPEATS = 3
"""How often a removal is repeated that PostgreSQL rolled back."""
BATCH = 1000
"""Small rows removed per statement."""
LONGEST_PAUSE = 5.0
"""The most seconds between two statements that remove envelopes."""

COUNT_OLD_ANSWERS = text("SELECT count(*) AS many FROM agent_answers WHERE created_at < :before")

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
"""Rows are addressed by ctid, which is stable under their locks. By key, all other rows would be read."""

_STRANDED = """
    state = 'pending' AND created_at < :before
    AND NOT EXISTS (SELECT 1 FROM agent_webhooks hook WHERE hook.id = webhook_id AND hook.is_enabled)
"""
"""Deliveries that wait for a webhook that is disabled or deleted."""

COUNT_OLD_DELIVERIES = text(f"""
    SELECT count(*) AS many FROM agent_webhook_deliveries WHERE completed_at < :before OR ({_STRANDED})
""")  # noqa: S608 -- constants only

REMOVE_STRANDED = text(f"""
    WITH gone AS (
        DELETE FROM agent_webhook_deliveries
         WHERE ctid = ANY (ARRAY(
                   SELECT ctid
                     FROM agent_webhook_deliveries
                    WHERE {_STRANDED}
                    LIMIT :limit
                      FOR UPDATE SKIP LOCKED))
     RETURNING 1
    )
    SELECT count(*) AS many FROM gone
""")  # noqa: S608 -- constants only

REMOVE_DELIVERIES = text("""
    WITH gone AS (
        DELETE FROM agent_webhook_deliveries
         WHERE ctid = ANY (ARRAY(
                   SELECT ctid
                     FROM agent_webhook_deliveries
                    WHERE completed_at < :before
                    ORDER BY completed_at
                    LIMIT :limit
                      FOR UPDATE SKIP LOCKED))
     RETURNING 1
    )
    SELECT count(*) AS many FROM gone
""")

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
"""Claims whose process was lost and whose request was not repeated."""

SCAN_SESSIONS = text(f"""
    SELECT id, tenant_id, updated_at AS at,
           updated_at < :before
           AND NOT EXISTS (SELECT 1
                             FROM agent_executions
                            WHERE session_id = look.id AND status {IS_UNDER_WAY})
           AS is_old
      FROM (SELECT id, tenant_id, updated_at
              FROM agent_sessions
             WHERE id > :after_id
             ORDER BY id
             LIMIT :limit) AS look
     ORDER BY id
""")  # noqa: S608 -- constants only
"""A scan in id order: an index on `updated_at` would cost more on each message than it saves here."""

SCAN_EXECUTIONS = text("""
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
"""Executions of a session belong to its conversation and live as long as the session."""

_FAMILY = """
    WITH RECURSIVE family AS (
        SELECT id FROM agent_executions WHERE id = :root
     UNION ALL
        SELECT child.id FROM family JOIN agent_executions child ON child.parent_execution_id = family.id
    )"""
"""An execution with all of its descendants."""

_OLD = f""", old AS (
        SELECT id
          FROM family
         WHERE NOT EXISTS (
                   SELECT 1
                     FROM family
                     JOIN agent_executions member ON member.id = family.id
                    WHERE member.status {IS_UNDER_WAY}
                       OR EXISTS (SELECT 1
                                    FROM agent_executions later
                                   WHERE later.continues_execution_id = member.id))
    )"""  # noqa: S608 -- constants only
"""The whole family, or no row if a member is running or is continued by another execution."""

OLD_FAMILY = text(f"{_FAMILY}{_OLD} SELECT count(*) AS many FROM old")  # noqa: S608 -- constants only

LOCK_FAMILY = text(f"""{_FAMILY}
    SELECT id FROM agent_executions WHERE id IN (SELECT id FROM family) ORDER BY id FOR UPDATE
""")  # noqa: S608 -- constants only

_KEEP_HEADS = KEEP_HEADS.format(pruned="SELECT id FROM old")

REMOVE_FAMILY = text(f"""{_FAMILY}{_OLD}, kept AS ({_KEEP_HEADS}
    ), gone AS (
        DELETE FROM agent_executions WHERE id IN (SELECT id FROM old) RETURNING id
    ), streams AS (
        DELETE FROM agent_streams WHERE stream_id IN (SELECT id FROM gone)
    )
    SELECT count(*) AS many FROM gone
""")  # noqa: S608 -- constants only

SCAN_STREAMS = text(f"""
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
                                     AND status {IS_UNDER_WAY}))
                ORDER BY seq
                LIMIT 1
           ) AS kept ON true
     ORDER BY look.stream_id
""")  # noqa: S608 -- constants only
"""Only the prefix before the first envelope that is kept: a stream has no gaps, so that the first `seq` shows
where it starts. Envelopes of running executions stay, because their writers detect duplicates by them."""

REMOVE_ENVELOPES = text("""
    WITH gone AS (
        DELETE FROM agent_envelopes envelope
         USING unnest(CAST(:stream_ids AS uuid[]), CAST(:firsts AS bigint[]), CAST(:untils AS bigint[]))
               AS old(stream_id, first, until)
         WHERE envelope.stream_id = old.stream_id AND seq >= old.first AND seq < old.until
     RETURNING 1
    )
    SELECT count(*) AS many FROM gone
""")
"""Ranges of many streams at once: most streams have few envelopes, and each commit waits for the disk."""


class PostgresRetention(PostgresSessions):
    """A store with retention."""

    async def prune_sessions(self, before: datetime, *, dry_run: bool = False) -> AsyncGenerator[int]:
        """Remove sessions that have not changed since `before`, with all of their rows."""
        async for session in self._scan_old(SCAN_SESSIONS, before):
            yield dry_run or await _repeat(partial(self._remove_session, session, before))

    async def prune_executions(self, before: datetime, *, dry_run: bool = False) -> AsyncGenerator[int]:
        """Remove executions without a session that ended before `before`, with their subagents."""
        async for root in self._scan_old(SCAN_EXECUTIONS, before):
            if dry_run:
                yield await self._count(OLD_FAMILY, root=root.id)
            else:
                yield await _repeat(partial(self.remove_execution, root.id))

    async def prune_envelopes(self, before: datetime, *, dry_run: bool = False) -> AsyncGenerator[int]:
        """Remove envelopes that were stored before `before`; the stream keeps its numbering."""
        ranges, many = list[tuple[UUID, int, int]](), 0
        async for stream in self._scan(SCAN_STREAMS, before):
            if stream.first is None:
                continue
            if dry_run:
                yield stream.until - stream.first
                continue
            first = stream.first
            while first < stream.until:
                until = min(first + BATCH - many, stream.until)
                ranges.append((stream.id, first, until))
                many, first = many + until - first, until
                if many == BATCH:
                    yield await self._remove_envelopes(ranges)
                    ranges, many = [], 0
        if ranges:
            yield await self._remove_envelopes(ranges)

    async def prune_answers(self, before: datetime, *, dry_run: bool = False) -> AsyncGenerator[int]:
        """Remove responses that were stored before `before`; their idempotency keys can be used again."""
        if dry_run:
            yield await self._count(COUNT_OLD_ANSWERS, before=before)
            return
        removed = BATCH
        while removed == BATCH:
            removed = await self._count(REMOVE_CLAIMS, before=before, limit=BATCH)
        removed = BATCH
        while removed == BATCH:
            removed = await self._count(REMOVE_ANSWERS, before=before, limit=BATCH)
            yield removed

    async def prune_deliveries(self, before: datetime, *, dry_run: bool = False) -> AsyncGenerator[int]:
        """Remove deliveries to webhooks that were delivered or given up before `before`.

        Older ones that wait for a webhook that is disabled or deleted are removed, too.
        """
        if dry_run:
            yield await self._count(COUNT_OLD_DELIVERIES, before=before)
            return
        for statement in (REMOVE_DELIVERIES, REMOVE_STRANDED):
            removed = BATCH
            while removed == BATCH:
                removed = await self._count(statement, before=before, limit=BATCH)
                yield removed

    async def _remove_envelopes(self, ranges: Sequence[tuple[UUID, int, int]]) -> int:
        """Remove ranges of streams in one transaction, and pause for as long as that took."""
        ids, firsts, untils = zip(*ranges, strict=True)
        began = monotonic()
        remove = partial(
            self._count, REMOVE_ENVELOPES, stream_ids=list(ids), firsts=list(firsts), untils=list(untils)
        )
        count = await _repeat(remove)
        await asyncio.sleep(min(monotonic() - began, LONGEST_PAUSE))
        return count

    async def _remove_session(self, session: Row[Any], before: datetime) -> bool:
        try:
            scope = Scope(session.tenant_id)
            return await self.delete_session(scope, session.id, unchanged_since=before)
        except SessionBusy:
            return False

    async def remove_execution(self, root: UUID) -> int:
        """Remove an execution with its subagents; return how many.

        It is 0 while one of them is running or is continued by another execution.
        """
        values = {"root": root}
        async with self._transaction() as connection:
            _, removed = await connection.together((LOCK_FAMILY, values), (REMOVE_FAMILY, values))
        return removed.one().many

    async def _scan_old(self, scan: TextClause, before: datetime) -> AsyncGenerator[Row[Any]]:
        async for row in self._scan(scan, before):
            if row.is_old:
                yield row

    async def _scan(self, scan: TextClause, before: datetime) -> AsyncGenerator[Row[Any]]:
        """Yield all rows, scanned in batches."""
        last = FIRST_CURSOR
        while True:
            values = {"before": before, "after_at": last.created_at, "after_id": last.id, "limit": LOOK}
            found = await self._fetch_all(scan, values)
            for row in found:
                yield row
            if len(found) < LOOK:
                return
            last = Cursor(found[-1].at, found[-1].id)

    async def _count(self, statement: TextClause, **values: Any) -> int:
        (row,) = await self._fetch_all(statement, values)
        return row.many


async def _repeat(remove: Callable[[], Awaitable[int]]) -> int:
    """Remove rows; again if another process removes some of them in another order, which PostgreSQL ends."""
    for _ in range(REPEATS):
        try:
            return await remove()
        except DatabaseBusy:
            continue
    return await remove()
