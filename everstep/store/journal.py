"""What the gateway reads: streams from after a seq, where they end, and texts under way.

Whose stream it is, is not asked here: whoever reads has decided before that it may be watched.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from everstep.agent_domain.stream.reader import Place
from everstep.agent_domain.stream.records import StoredEnvelope
from everstep.store import rows
from everstep.store.epochs import Dated, DatedReader

PAGE = Dated.of("""
    SELECT {epoch} AS epoch, stream.stream_id, stream.head,
           coalesce(oldest.seq, stream.head + 1) AS oldest,
           told.seq, told.id, told.type, told.execution_id, told.payload, told.created_at
      FROM agent_streams stream
      LEFT JOIN LATERAL (
               SELECT seq FROM agent_envelopes WHERE stream_id = stream.stream_id ORDER BY seq LIMIT 1
           ) AS oldest ON true
      LEFT JOIN LATERAL (
               SELECT seq, id, type, execution_id, payload, created_at
                 FROM agent_envelopes
                WHERE stream_id = stream.stream_id AND seq > CAST(:after AS bigint)
                ORDER BY seq
                LIMIT CAST(:limit AS bigint)
           ) AS told ON true
     WHERE stream.stream_id = :stream_id
     ORDER BY told.seq
""")

HEADS = Dated.of("""
    SELECT {epoch} AS epoch, stream.stream_id, stream.head
      FROM (VALUES (1)) AS one
      LEFT JOIN agent_streams stream ON stream.stream_id = ANY (CAST(:stream_ids AS uuid[]))
""")

TEXTS = Dated.of("""
    SELECT execution.id, step.number, step.attempt, step.next_index, step.partial_text, step.after_seq,
           step.noted_at
      FROM (SELECT id
              FROM agent_executions
             WHERE session_id = :stream_id AND status IN ('pending', 'running', 'paused')
         UNION ALL
            SELECT id
              FROM agent_executions
             WHERE id = :stream_id AND session_id IS NULL AND status IN ('pending', 'running', 'paused')
           ) AS execution
      LEFT JOIN LATERAL (
               SELECT number, attempt, facts IS NULL AS is_under_way, next_index, partial_text, after_seq,
                      noted_at
                 FROM agent_steps
                WHERE execution_id = execution.id
                ORDER BY number DESC
                LIMIT 1
           ) AS step ON step.is_under_way AND step.next_index IS NOT NULL
""").alone
"""An attempt whose text viewers are not told notes no index."""


@dataclass(frozen=True, slots=True)
class StoredPage:
    """What the table has of a stream after a seq."""

    epoch: str
    head: int
    oldest: int
    """The first envelope that the table still has; the one to come, if it has none."""
    envelopes: tuple[StoredEnvelope, ...]


@dataclass(frozen=True, slots=True)
class NotedText:
    """What an attempt that is under way had written when it was last noted."""

    at: Place
    content: str
    after_seq: int
    """The stored envelope that its chunks follow; 0 for none."""
    noted_at: datetime


class JournalTables(DatedReader):
    """Reads them; every method is one query."""

    async def page(self, stream_id: UUID, after: int | None, limit: int) -> StoredPage | None:
        """The next envelopes after a seq, in order; after None, none. None if there is no such stream."""
        found = await self._dated(PAGE, {"stream_id": stream_id, "after": after, "limit": limit})
        if not found:
            return None
        stream = found[0]
        told = tuple(rows.stored_envelope(row) for row in found if row.seq is not None)
        return StoredPage(stream.epoch, stream.head, stream.oldest, told)

    async def heads(self, stream_ids: Collection[UUID]) -> tuple[str, Mapping[UUID, int]]:
        """The epoch, and the last seq of each of these streams that exists."""
        found = await self._dated(HEADS, {"stream_ids": list(stream_ids)})
        heads = {row.stream_id: row.head for row in found if row.stream_id is not None}
        return found[0].epoch, heads

    async def texts(self, stream_id: UUID) -> Mapping[UUID, NotedText | None]:
        """Every execution of a stream that has not ended; with the text of its step, if one is under way."""
        found = await self._all(TEXTS, {"stream_id": stream_id})
        return {
            row.id: None
            if row.number is None
            else NotedText(
                Place(row.number, row.attempt, row.next_index),
                row.partial_text,
                row.after_seq or 0,
                row.noted_at,
            )
            for row in found
        }
