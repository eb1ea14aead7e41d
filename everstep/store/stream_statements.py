"""SQL statements that append to streams."""

from sqlalchemy import text


def append_sql(stream: str, condition: str = "true") -> str:
    """Append envelopes to a stream, and the session messages that they announce."""
    return f"""
    news AS (
        SELECT e.id, e.type, e.payload, e.speaker, e.content, e.metadata, e.attachments,
               e.related_type, e.related_id, e.url, e.place AS given,
               row_number() OVER (ORDER BY e.place) AS place
          FROM unnest(CAST(:ids AS uuid[]), CAST(:types AS text[]), CAST(:payloads AS text[]),
                      CAST(:speakers AS text[]), CAST(:spoken AS text[]), CAST(:spoken_metadatas AS text[]),
                      CAST(:spoken_attachments AS text[]), CAST(:related_types AS text[]),
                      CAST(:related_ids AS text[]), CAST(:urls AS text[]))
               WITH ORDINALITY
               AS e(id, type, payload, speaker, content, metadata, attachments, related_type, related_id,
                    url, place)
         WHERE {condition}
           AND NOT EXISTS (SELECT 1 FROM agent_envelopes known WHERE known.id = e.id)
           -- A subagent publishes in its parent's session only if it needs a person.
           AND (e.speaker IS NULL OR EXISTS (
                   SELECT 1
                     FROM agent_sessions session
                     JOIN agent_executions execution ON execution.id = :execution_id
                    WHERE session.id = {stream}
                      AND (execution.parent_execution_id IS NULL
                           OR e.type IN ('execution.paused', 'input.received'))))
    ), stream AS (
        -- After waiting for another writer, the values are computed from the row that it committed.
        UPDATE agent_streams
           SET head = head + told.count,
               last_at = greatest(clock_timestamp(), last_at + interval '1 microsecond')
                         + (told.count - 1) * interval '1 microsecond'
          FROM (SELECT count(*) AS count FROM news) AS told
         WHERE stream_id = {stream} AND tenant_id = :tenant_id AND told.count > 0
     RETURNING stream_id, head - told.count AS head,
               last_at - (told.count - 1) * interval '1 microsecond' AS first_at
    ), placed AS (
        SELECT news.*, stream.stream_id, stream.head + news.place AS seq,
               stream.first_at + (news.place - 1) * interval '1 microsecond' AS created_at
          FROM news LEFT JOIN stream ON true
    ), spoken AS (
        INSERT INTO agent_session_messages (id, tenant_id, session_id, role, content, agent_execution_id,
                                            related_type, related_id, context_url, metadata, attachments,
                                            created_at, sequence)
        SELECT id, :tenant_id, stream_id, speaker, content,
               CASE WHEN speaker <> 'user' THEN CAST(:execution_id AS uuid) END,
               related_type, related_id, url, CAST(metadata AS json),
               coalesce(CAST(attachments AS json), '[]'), created_at, seq
          FROM placed
         WHERE speaker IS NOT NULL
    ), told AS (
        INSERT INTO agent_envelopes (stream_id, seq, tenant_id, id, type, execution_id, payload, created_at)
        SELECT stream_id, seq, :tenant_id, id, type, :execution_id, CAST(payload AS json), created_at
          FROM placed
    )"""  # noqa: S608 -- constants only


ITS_STREAM = "(SELECT coalesce(session_id, id) FROM agent_executions WHERE id = :execution_id)"

POSITIONS = "placed.given, placed.stream_id, placed.seq, placed.created_at"
"""The stored position of each given envelope, by its index among the given ones."""

APPEND = text(f"WITH {append_sql(':stream_id')} SELECT {POSITIONS} FROM placed ORDER BY seq")  # noqa: S608 -- constants only
"""An envelope that is stored already gets no number. If the stream is gone, there is no position and the call
is refused. Session messages are inserted along with their envelopes."""

HEAD = text("SELECT head FROM agent_streams WHERE stream_id = :stream_id AND tenant_id = :tenant_id")
