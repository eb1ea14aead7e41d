"""SQL statements of executions: accepting, reading and locking.

The following holds for the statements of all modules.

Each does in one round trip what has to happen under one lock. A statement decides from its snapshot, which is
taken *before* it waits for a lock. So a decision that depends on the previous lock holder's writes is made in
a later statement, or from the locked row itself.

Locks are taken in one order everywhere: session, execution, call, request, stream, budgets, ledger.

No statement selects `*` from a table: if it was prepared before an upgrade adds a column, it fails
afterwards.
"""

from sqlalchemy import text

from everstep.store.budget_statements import OPERATOR_UNITS
from everstep.store.ledger_statements import OPEN_CHAIN
from everstep.store.place_statements import EXPECTED_POSITION, IS_LIMITED, QUEUE_FOR_PLACE

ACCEPT = text(f"""
    WITH execution AS (
        INSERT INTO agent_executions
               (id, tenant_id, session_id, user_id, agent_type, agent_config, input, token_breakdown,
                metadata, agent_id, parent_agent_id, parent_execution_id, continues_execution_id,
                continues_until, plan, agent_metadata, task_queue, queue_rank, released_at,
                session_seconds, session_began_at, is_sealed)
        VALUES (:execution_id, :tenant_id, :session_id, :user_id, :agent, CAST(:spec AS json),
                CAST(:input AS json), CAST(:breakdown AS json), CAST(:metadata AS json), :agent_id,
                :parent_agent_id, :parent_execution_id, :continues, :continues_until, CAST(:plan AS json),
                CAST(:agent_metadata AS json), :task_queue, :queue_rank,
                CASE WHEN NOT :is_queued THEN clock_timestamp() END,
                coalesce(CAST(:session_seconds AS double precision),
                         (SELECT worked_seconds FROM agent_sessions WHERE id = :session_id),
                         (SELECT session_seconds + worked_seconds
                            FROM agent_executions WHERE id = :continues),
                         0),
                CASE WHEN CAST(:parent_execution_id AS uuid) IS NULL
                     THEN coalesce((SELECT created_at FROM agent_sessions WHERE id = :session_id),
                                   (SELECT coalesce(session_began_at, started_at)
                                      FROM agent_executions WHERE id = :continues)) END,
                true)
            ON CONFLICT (id) DO NOTHING
     RETURNING id, tenant_id, session_id, agent_type, status, step_count, token_breakdown, cost_usd,
               stop_reason,
               output, error_message, error_told, metadata, agent_metadata, created_at, started_at,
               completed_at, parent_execution_id, user_id, last_snapshot_id, session_seconds,
               session_began_at, continues_execution_id, continues_until
    ), made AS (
        -- The session may not exist yet: executions can be accepted with any session id.
        INSERT INTO agent_sessions (id, tenant_id, user_id, last_execution_id)
        SELECT session_id, tenant_id, coalesce(user_id, ''), id
          FROM execution
         WHERE session_id IS NOT NULL
            ON CONFLICT (id) DO NOTHING
    ), session AS (
        UPDATE agent_sessions
           SET last_execution_id = execution.id
          FROM execution
         WHERE agent_sessions.id = execution.session_id AND execution.parent_execution_id IS NULL
    ), said AS (
        INSERT INTO agent_transcript (execution_id, step, idx, tenant_id, role, content, metadata)
        SELECT execution.id, 0, said.idx, execution.tenant_id, said.role,
               CAST(said.content AS json), CAST(said.metadata AS json)
          FROM execution,
               unnest(CAST(:places AS int[]), CAST(:roles AS text[]), CAST(:contents AS text[]),
                      CAST(:metadatas AS text[])) AS said(idx, role, content, metadata)
    ), stream AS (
        INSERT INTO agent_streams (stream_id, tenant_id)
        SELECT :stream_id, tenant_id FROM execution
            ON CONFLICT (stream_id) DO NOTHING
    ), ledger AS ({OPEN_CHAIN.format(accepted="execution")}
    ), placed AS ({
    QUEUE_FOR_PLACE.format(
        released="execution",
        condition="NOT :is_queued AND execution.parent_execution_id IS NULL",
        is_limited=IS_LIMITED,
    )
}
    )
    SELECT *, EXISTS (SELECT 1 FROM placed) AS is_waiting, {EXPECTED_POSITION} AS expected_position
      FROM execution
""")  # noqa: S608 -- constants only
"""Returns no row, and writes nothing, if the id is taken."""

OWNS_STREAM = text("""
    SELECT 1
      FROM agent_streams
     WHERE stream_id = :stream_id AND tenant_id = :tenant_id
       AND NOT EXISTS (SELECT 1 FROM agent_sessions WHERE id = :stream_id AND tenant_id <> :tenant_id)
""")

ALLOWED = """(SELECT json_agg(resolution -> 'remember' ORDER BY resolved_at)
                  FROM agent_requests
                 WHERE execution_id = :execution_id AND kind = 'approval'
                   AND resolution -> 'remember' IS NOT NULL) AS allowed"""

_EXECUTION = f"""
    SELECT id, status, coalesce(session_id, id) AS stream_id, session_id, agent_type, agent_id,
           parent_agent_id, agent_config, metadata, token_breakdown, last_snapshot_id,
           parent_execution_id, started_at, plan, listed, session_seconds, session_began_at, user_id,
           input -> 'request' AS request, {ALLOWED}, {OPERATOR_UNITS}
      FROM agent_executions
     WHERE id = :execution_id AND tenant_id = :tenant_id
"""  # noqa: S608 -- constants only

EXECUTION = text(_EXECUTION)

LOCK_EXECUTION = text(f"{_EXECUTION} FOR NO KEY UPDATE")

LOCK_STATUS = text("""
    SELECT id, status, coalesce(session_id, id) AS stream_id
      FROM agent_executions
     WHERE id = :execution_id AND tenant_id = :tenant_id
       FOR NO KEY UPDATE
""")
"""As `LOCK_EXECUTION`, for what needs none of its documents."""

LOCK_NAMED_SESSION = text("""
    SELECT id FROM agent_sessions WHERE id = :session_id AND tenant_id = :tenant_id FOR NO KEY UPDATE
""")

LOCK_ITS_SESSION = text("""
    SELECT session.id
      FROM agent_sessions session
      JOIN agent_executions execution ON execution.session_id = session.id
     WHERE execution.id = :execution_id AND execution.tenant_id = :tenant_id
       FOR NO KEY UPDATE OF session
""")

TOOLSET_TOOLS = text(
    "SELECT listed FROM agent_executions WHERE id = :execution_id AND tenant_id = :tenant_id"
)

RECORD_TOOLSET_TOOLS = text("""
    UPDATE agent_executions
       SET listed = coalesce(listed, CAST(:listed AS json)), updated_at = clock_timestamp()
     WHERE id = :execution_id AND tenant_id = :tenant_id
 RETURNING listed
""")
