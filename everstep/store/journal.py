"""The gateway's queries: envelopes after a seq, the end of streams, and partial texts.

The caller checks access to the stream; these queries do not.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from everstep.agent_domain.stream.reader import Place
from everstep.agent_domain.stream.records import StoredEnvelope
from everstep.store import rows
from everstep.store.columns import IS_UNDER_WAY
from everstep.store.epochs import EpochQuery, EpochReader

PAGE = EpochQuery.of("""
    SELECT {epoch} AS epoch, stream.stream_id, stream.head,
           coalesce(oldest.seq, stream.head + 1) AS oldest,
           told.seq, told.id, told.type, told.execution_id, told.payload, told.created_at
      FROM agent_streams stream
      LEFT JOIN LATERAL (
               SELECT seq FROM agent_envelopes WHERE stream_id = stream.stream_id ORDER BY seq LIMIT 1
           ) AS oldest ON true
      LEFT JOIN LATERAL (
               SELECT seq, id, type, execution_id, CAST(payload AS text) AS payload, created_at
                 FROM agent_envelopes
                WHERE stream_id = stream.stream_id AND seq > CAST(:after AS bigint)
                ORDER BY seq
                LIMIT CAST(:limit AS bigint)
           ) AS told ON true
     WHERE stream.stream_id = :stream_id
     ORDER BY told.seq
""")

HEADS = EpochQuery.of("""
    SELECT {epoch} AS epoch, stream.stream_id, stream.head
      FROM (VALUES (1)) AS one
      LEFT JOIN agent_streams stream ON stream.stream_id = ANY (CAST(:stream_ids AS uuid[]))
""")

TEXTS = EpochQuery.of(f"""
    SELECT execution.id, step.number, step.attempt, step.next_index, step.partial_text, step.after_seq,
           step.noted_at
      FROM (SELECT id
              FROM agent_executions
             WHERE session_id = :stream_id AND status {IS_UNDER_WAY}
         UNION ALL
            SELECT id
              FROM agent_executions
             WHERE id = :stream_id AND session_id IS NULL AND status {IS_UNDER_WAY}
           ) AS execution
      LEFT JOIN LATERAL (
               SELECT number, attempt, facts IS NULL AS is_under_way, next_index, partial_text, after_seq,
                      noted_at
                 FROM agent_steps
                WHERE execution_id = execution.id
                ORDER BY number DESC
                LIMIT 1
           ) AS step ON step.is_under_way AND step.next_index IS NOT NULL
""").without_server  # noqa: S608 -- constants only
"""An attempt whose text is not published stores no index."""


@dataclass(frozen=True, slots=True)
class StoredPage:
    """The stored envelopes of a stream after a seq."""

    epoch: str
    head: int
    oldest: int
    """The seq of the oldest stored envelope, or the next seq if none is stored."""
    envelopes: tuple[StoredEnvelope, ...]


@dataclass(frozen=True, slots=True)
class StoredText:
    """The text of a running attempt when it was last stored."""

    at: Place
    content: str
    after_seq: int
    """The stored envelope that its chunks follow, or 0."""
    noted_at: datetime


class JournalTables(EpochReader):
    """The gateway's read access to the tables; every method is one query."""

    async def page(self, stream_id: UUID, after: int | None, limit: int) -> StoredPage | None:
        """Return the next envelopes after a seq, in order, or None if there is no such stream.

        Args:
            stream_id: The stream.
            after: The last seq that the caller has; None returns no envelopes.
            limit: The largest number of envelopes.
        """
        found = await self._query_with_epoch(PAGE, {"stream_id": stream_id, "after": after, "limit": limit})
        if not found:
            return None
        stream = found[0]
        told = tuple(rows.stored_envelope(row) for row in found if row.seq is not None)
        return StoredPage(stream.epoch, stream.head, stream.oldest, told)

    async def heads(self, stream_ids: Collection[UUID]) -> tuple[str, Mapping[UUID, int]]:
        """Return the epoch, and the last seq of each of these streams that exists."""
        found = await self._query_with_epoch(HEADS, {"stream_ids": list(stream_ids)})
        heads = {row.stream_id: row.head for row in found if row.stream_id is not None}
        return found[0].epoch, heads

    async def texts(self, stream_id: UUID) -> Mapping[UUID, StoredText | None]:
        """Return the running executions of a stream, each with the text of its current step if it has one."""
        found = await self._all(TEXTS, {"stream_id": stream_id})
        return {
            row.id: None
            if row.number is None
            else StoredText(
                Place(row.number, row.attempt, row.next_index),
                row.partial_text,
                row.after_seq or 0,
                row.noted_at,
            )
            for row in found
        }
