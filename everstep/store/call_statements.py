"""SQL statements of tool calls and of model calls within a step."""

from sqlalchemy import text

from everstep.store.columns import IS_UNDER_WAY
from everstep.store.execution_statements import ALLOWED
from everstep.store.ledger_statements import append_ledger_sql
from everstep.store.step_statements import ADD_MODEL_USAGE, ADD_USAGE
from everstep.store.stream_statements import ITS_STREAM, POSITIONS, append_sql
from everstep.store.transcript_statements import IN_LAST_STEPS

ASK = text("""
    INSERT INTO agent_requests (id, tenant_id, execution_id, user_id, call_id, kind, request)
    SELECT :request_id, call.tenant_id, call.execution_id, execution.user_id, call.call_id, 'input',
           CAST(:request AS json)
      FROM agent_tool_calls call
      JOIN agent_executions execution ON execution.id = call.execution_id
     WHERE call.execution_id = :execution_id AND call.call_id = :call_id AND call.tenant_id = :tenant_id
       AND call.state <> 'done'
        ON CONFLICT DO NOTHING
 RETURNING id
""")

_KNOWN_CALL = f"""
        SELECT call.call_id, call.step, call.idx, call.name, call.args, call.malformed, call.state,
               call.result, call.text, call.error, call.success, call.started_at, call.completed_at,
               call.seconds, call.besides, call.note, call.own_text, call.attachments, execution.status,
               execution.plan -> 'broadcast' AS broadcast,
               coalesce(execution.session_id, execution.id) AS stream_id,
               execution.user_id, execution.input -> 'request' AS request,
               {ALLOWED},
               (SELECT json_agg(json_build_array(call_id, name, args, malformed) ORDER BY idx)
                  FROM agent_tool_calls made
                 WHERE made.execution_id = call.execution_id AND made.step = call.step
                   AND made.idx < call.idx) AS earlier,
               CASE WHEN allowed.id IS NULL THEN asked.resolution ELSE allowed.resolution END AS resolution,
               CASE WHEN allowed.id IS NOT NULL THEN asked.resolution END AS answer
          FROM agent_tool_calls call
          JOIN agent_executions execution ON execution.id = call.execution_id
          LEFT JOIN agent_requests allowed
            ON allowed.execution_id = call.execution_id AND allowed.call_id = call.call_id
               AND allowed.kind = 'approval'
          LEFT JOIN agent_requests asked
            ON asked.execution_id = call.execution_id AND asked.call_id = call.call_id
               AND asked.kind = 'input'
         WHERE call.execution_id = :execution_id AND call.call_id = :call_id AND call.tenant_id = :tenant_id
"""  # noqa: S608 -- constants only

PREVIEW_CALL = text(_KNOWN_CALL)

RESERVE_CALL = text(f"""
    WITH known AS ({_KNOWN_CALL} FOR NO KEY UPDATE OF call
    ), reserved AS (
        UPDATE agent_tool_calls call
           SET state = 'reserved', attempts = greatest(call.attempts + 1, :attempt),
               started_at = coalesce(call.started_at, clock_timestamp())
          FROM known
         WHERE call.execution_id = :execution_id AND call.call_id = known.call_id
           AND known.state <> 'done' AND known.status {IS_UNDER_WAY}
    )
    SELECT * FROM known
""")  # noqa: S608 -- constants only
"""Returns the call as it was before the reservation."""

NOTE_PROGRESS = text(f"""
    UPDATE agent_tool_calls AS call
       SET progress = CAST(:progress AS json)
      FROM agent_executions execution
     WHERE call.execution_id = :execution_id AND call.tenant_id = :tenant_id AND call.call_id = :call_id
       AND call.state <> 'done'
       AND execution.id = call.execution_id AND execution.status {IS_UNDER_WAY}
 RETURNING coalesce(execution.session_id, execution.id) AS stream_id
""")  # noqa: S608 -- constants only

_DONE_AND_CLOSED = "EXISTS (SELECT 1 FROM done) AND (SELECT count(*) FROM closed) >= 0"
"""Counting the closed requests forces PostgreSQL to lock them before the stream."""

_DONE_AND_PLACED = "EXISTS (SELECT 1 FROM done) AND (SELECT count(*) FROM placed) >= 0"
"""Counting the places forces PostgreSQL to lock the stream before the head of the ledger."""

RECORD_CALL = text(f"""
    WITH done AS (
        UPDATE agent_tool_calls
           SET state = 'done', attempts = greatest(attempts, :attempt), result = CAST(:result AS json),
               text = :text, error = CAST(:error AS json), success = :success, started_at = :started_at,
               completed_at = :completed_at, seconds = :seconds, besides = CAST(:besides AS json),
               note = :note, own_text = :own_text, attachments = CAST(:attachments AS json),
               digest = :digest
         WHERE execution_id = :execution_id AND call_id = :call_id AND tenant_id = :tenant_id
           AND state <> 'done'
     RETURNING step, need
    ), said AS (
        INSERT INTO agent_transcript (execution_id, step, idx, tenant_id, role, content, metadata)
        SELECT :execution_id, done.step, said.idx, :tenant_id, said.role,
               CAST(said.content AS json), CAST(said.metadata AS json)
          FROM done,
               unnest(CAST(:places AS int[]), CAST(:roles AS text[]), CAST(:contents AS text[]),
                      CAST(:metadatas AS text[])) AS said(idx, role, content, metadata)
    ), closed AS (
        UPDATE agent_requests
           SET state = 'resolved', resolved_at = clock_timestamp()
          FROM done
         WHERE execution_id = :execution_id AND call_id = :call_id AND state = 'open'
           AND done.need IN ('approval', 'input')
     RETURNING id
    ), {append_sql(ITS_STREAM, _DONE_AND_CLOSED)}, {append_ledger_sql([False], _DONE_AND_PLACED)}
    SELECT done.step, {POSITIONS} FROM done LEFT JOIN placed ON true ORDER BY seq
""")  # noqa: S608 -- constants only
"""Returns no row, and writes nothing, if the call does not exist or has its result; otherwise the position of
each envelope."""

INNER_REPLY = text("""
    SELECT key, digest, response FROM agent_inner_replies
     WHERE execution_id = :execution_id AND key = :key AND tenant_id = :tenant_id
""")

RECORD_INNER_REPLY = text(f"""
    WITH known AS (
        SELECT key, digest, response
          FROM agent_inner_replies
         WHERE execution_id = :execution_id AND key = :key AND tenant_id = :tenant_id
    ), fresh AS (
        SELECT 1
          FROM agent_executions
         WHERE id = :execution_id AND tenant_id = :tenant_id AND status {IS_UNDER_WAY}
           AND NOT EXISTS (SELECT 1 FROM known WHERE digest = :digest)
    ), kept AS (
        INSERT INTO agent_inner_replies (execution_id, key, tenant_id, digest, response)
        SELECT :execution_id, :key, :tenant_id, :digest, CAST(:response AS json)
          FROM fresh
            ON CONFLICT (execution_id, key) DO UPDATE
           SET digest = excluded.digest, response = excluded.response
    ), used AS ({ADD_MODEL_USAGE}
    ), execution AS (
        UPDATE agent_executions
           SET {ADD_USAGE}, updated_at = clock_timestamp()
          FROM fresh
         WHERE id = :execution_id
    )
    SELECT * FROM known
""")  # noqa: S608 -- constants only
"""Under the execution's lock. Returns the earlier record under this key."""

_CALLED = """
    SELECT call_id, step, idx, name, args, malformed, state, attempts, result, text, error, success,
           started_at, completed_at, seconds, besides, note, own_text, attachments, progress,
           (SELECT resolution
              FROM agent_requests request
             WHERE request.execution_id = call.execution_id AND request.call_id = call.call_id
               AND request.kind = 'approval') AS decision,
           (SELECT json_build_object('id', id, 'resolution', resolution)
              FROM agent_requests request
             WHERE request.execution_id = call.execution_id AND request.call_id = call.call_id
               AND request.kind = 'input' AND request.resolution IS NOT NULL) AS answered
      FROM agent_tool_calls call
     WHERE execution_id = :execution_id AND tenant_id = :tenant_id
"""

CALLS_WITHIN = text(
    f"{_CALLED} AND step BETWEEN CAST(:first AS int) AND CAST(:last AS int) ORDER BY step, idx"
)

CALLED_LAST = text(f"{_CALLED} {IN_LAST_STEPS} ORDER BY step, idx")
