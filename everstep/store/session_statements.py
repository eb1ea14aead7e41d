"""SQL statements of sessions.

A statement that changes a session's queue runs under the session's lock, which is taken before all others.
"""

from sqlalchemy import text

from everstep.store.attachment_statements import EXPIRE_OF_SESSION
from everstep.store.columns import HAS_ENDED, IS_UNDER_WAY
from everstep.store.ledger_statements import KEEP_HEADS, OPEN_CHAIN
from everstep.store.place_statements import IS_LIMITED, IS_WAITING, QUEUE_FOR_PLACE

SESSION_COLUMNS = """
    id, tenant_id, user_id, related_type, related_id, initial_context_url, title, status, metadata,
    last_execution_id, last_snapshot_id, created_at, updated_at
"""

_HAS_COMMANDS = """EXISTS (SELECT 1 FROM agent_commands command
                    WHERE command.execution_id = launched.id AND command.delivered_at IS NULL)
           AS has_commands"""

CREATE_SESSION = text("""
    INSERT INTO agent_sessions (id, tenant_id, user_id, related_type, related_id, initial_context_url, title,
                                metadata)
    VALUES (:session_id, :tenant_id, :user_id, :related_type, :related_id, :url, :title,
            CAST(:metadata AS json))
        ON CONFLICT (id) DO NOTHING
 RETURNING NOT EXISTS (SELECT 1 FROM agent_executions WHERE session_id = :session_id) AS is_empty
""")
"""Waits for a concurrent insert of the same id. Returns no row if the session exists, else whether it is
empty."""

LOCK_SESSION = text(f"""
    SELECT {SESSION_COLUMNS}
      FROM agent_sessions
     WHERE id = :session_id AND tenant_id = :tenant_id
       AND (CAST(:user_id AS text) IS NULL OR user_id = :user_id)
       FOR NO KEY UPDATE
""")  # noqa: S608 -- constants only

MESSAGE = text("""
    SELECT id, session_id, role, content, agent_execution_id, related_type, related_id, context_url, metadata,
           created_at, attachments
      FROM agent_session_messages
     WHERE id = :message_id
""")

CHANGE_SESSION = text(f"""
    UPDATE agent_sessions
       SET title = coalesce(CAST(:title AS text), title),
           status = coalesce(CAST(:status AS text), status),
           metadata = coalesce(CAST(:metadata AS json), metadata),
           updated_at = clock_timestamp()
     WHERE id = :session_id
 RETURNING {SESSION_COLUMNS}
""")  # noqa: S608 -- constants only

KEEP_HEADS_OF_SESSION = text(
    KEEP_HEADS.format(
        pruned="SELECT id FROM agent_executions WHERE session_id = :session_id AND tenant_id = :tenant_id"
    )
)

DELETE_SESSION = (
    # First, so that `ON DELETE SET NULL` does not update messages that are deleted anyway.
    text(f"""
        WITH {EXPIRE_OF_SESSION}
        DELETE FROM agent_session_messages WHERE session_id = :session_id AND tenant_id = :tenant_id
    """),  # noqa: S608 -- constants only
    text("DELETE FROM agent_executions WHERE session_id = :session_id AND tenant_id = :tenant_id"),
    text("DELETE FROM agent_streams WHERE stream_id = :session_id AND tenant_id = :tenant_id"),
    text("DELETE FROM agent_sessions WHERE id = :session_id AND tenant_id = :tenant_id"),
)

UNDER_WAY = text(f"""
    SELECT id, status, released_at IS NOT NULL AS is_released
      FROM agent_executions
     WHERE session_id = :session_id AND parent_execution_id IS NULL
       AND status {IS_UNDER_WAY}
     ORDER BY released_at NULLS LAST, queue_rank, created_at, id
""")  # noqa: S608 -- constants only
"""The released execution first, then the queue in order."""

OPEN_QUESTION = text(f"""
    SELECT request.id, request.execution_id
      FROM agent_requests request
      JOIN agent_executions execution ON execution.id = request.execution_id
      JOIN agent_tool_calls call
        ON call.execution_id = request.execution_id AND call.call_id = request.call_id
     WHERE execution.session_id = :session_id AND execution.status {IS_UNDER_WAY}
       AND request.state = 'open' AND request.kind = 'input'
       AND (CAST(:request_id AS uuid) IS NULL OR request.id = :request_id)
       AND NOT EXISTS (SELECT 1 FROM agent_commands
                        WHERE execution_id = execution.id AND kind = 'cancel')
     ORDER BY request.created_at, call.step, call.idx
     LIMIT 1
""")  # noqa: S608 -- constants only

IS_QUESTION = text("""
    SELECT 1
      FROM agent_requests request
      JOIN agent_executions execution ON execution.id = request.execution_id
     WHERE request.id = :request_id AND request.kind = 'input' AND execution.session_id = :session_id
""")

MISSED_MESSAGES = text(f"""
    SELECT steered.execution_id, steered.key, steered.role, steered.content, steered.metadata
      FROM agent_steered steered
      JOIN agent_executions execution ON execution.id = steered.execution_id
     WHERE execution.session_id = :session_id AND execution.parent_execution_id IS NULL
       AND execution.status {HAS_ENDED} AND steered.heard_at IS NULL
     ORDER BY steered.position
""")  # noqa: S608 -- constants only

QUEUE_MISSED_MESSAGE = text(f"""
    WITH moved AS (
        UPDATE agent_steered SET heard_at = 0
         WHERE execution_id = :steered_id AND key = :key
    ), queued AS (
        INSERT INTO agent_executions (id, tenant_id, session_id, user_id, agent_type, agent_config, input,
                                      token_breakdown, agent_id, plan, task_queue, is_sealed)
        SELECT :execution_id, tenant_id, session_id, user_id, agent_type, agent_config,
               json_build_object('messages', CAST(:messages AS json), 'request', input -> 'request'),
               CAST(:breakdown AS json), agent_id, plan, task_queue, true
          FROM agent_executions
         WHERE id = :steered_id
            ON CONFLICT (id) DO NOTHING
     RETURNING id, tenant_id, session_id
    ), ledger AS ({OPEN_CHAIN.format(accepted="queued")}
    )
    UPDATE agent_sessions
       SET last_execution_id = queued.id, updated_at = clock_timestamp()
      FROM queued
     WHERE agent_sessions.id = queued.session_id
""")  # noqa: S608 -- constants only
"""Steering messages that an ended execution did not receive are moved to a new execution."""

POSTED_EXECUTION = text("""
    SELECT id, released_at, queue_rank FROM agent_executions WHERE id = :execution_id
""")
"""The execution of a posted message; rank 0 marks a message that interrupts."""

RELEASE = text(f"""
    WITH begun AS (
        SELECT id, agent_id
          FROM agent_executions
         WHERE session_id = :session_id AND parent_execution_id IS NULL
           AND started_at IS NOT NULL AND released_at IS NOT NULL
         ORDER BY released_at DESC
         LIMIT 1
    ), released AS (
        UPDATE agent_executions
           SET released_at = clock_timestamp(),
               continues_execution_id = coalesce(continues_execution_id, (SELECT id FROM begun)),
               agent_id = coalesce((SELECT agent_id FROM begun), agent_id),
               -- The executions before it have ended.
               session_seconds = coalesce((SELECT worked_seconds FROM agent_sessions WHERE id = :session_id),
                                          session_seconds),
               session_began_at = coalesce((SELECT created_at FROM agent_sessions WHERE id = :session_id),
                                           session_began_at),
               updated_at = clock_timestamp()
         WHERE id = :execution_id AND released_at IS NULL
     RETURNING id, tenant_id, user_id, session_seconds, session_began_at
    ), placed AS ({QUEUE_FOR_PLACE.format(released="released", condition="true", is_limited=IS_LIMITED)}
    )
    SELECT session_seconds, session_began_at, EXISTS (SELECT 1 FROM placed) AS is_waiting FROM released
""")  # noqa: S608 -- constants only

INTERRUPTED_EXECUTION = text("""
    SELECT command.execution_id
      FROM agent_commands command
      JOIN agent_executions execution ON execution.id = command.execution_id
     WHERE execution.session_id = :session_id AND command.key = :key AND command.delivered_at IS NULL
""")
"""The execution that an interrupting message has yet to cancel."""

_MISSED_MESSAGES_OF = f"""
    SELECT steered.key, steered.role, steered.content, steered.metadata,
           CAST(steered.content AS text) AS content_text, CAST(steered.metadata AS text) AS metadata_text,
           execution.session_id,
           execution.parent_execution_id
      FROM agent_steered steered
      JOIN agent_executions execution ON execution.id = steered.execution_id
     WHERE steered.execution_id = :execution_id AND steered.tenant_id = :tenant_id
       AND execution.status {HAS_ENDED} AND steered.heard_at IS NULL
       AND (execution.parent_execution_id IS NOT NULL
            OR NOT EXISTS (SELECT 1 FROM agent_sessions WHERE id = execution.session_id))
     ORDER BY steered.position
"""  # noqa: S608 -- constants only

MISSED_MESSAGES_OF = text(_MISSED_MESSAGES_OF)

LOCK_MISSED_MESSAGES_OF = text(f"{_MISSED_MESSAGES_OF} FOR NO KEY UPDATE OF steered")

MOVE_MISSED_MESSAGES = text("""
    UPDATE agent_steered SET heard_at = 0
     WHERE execution_id = :execution_id AND tenant_id = :tenant_id AND heard_at IS NULL
""")

STEER_PARENT = text("""
    WITH said AS (
        INSERT INTO agent_steered (execution_id, key, tenant_id, role, content, metadata)
        SELECT :parent_id, :execution_id || '/' || key, tenant_id, role, content, metadata
          FROM agent_steered
         WHERE execution_id = :execution_id AND tenant_id = :tenant_id AND heard_at IS NULL
         ORDER BY position
            ON CONFLICT DO NOTHING
     RETURNING key
    )
    INSERT INTO agent_commands (execution_id, key, tenant_id, kind)
    SELECT :parent_id, 'steer/' || key, :tenant_id, 'steer' FROM said
        ON CONFLICT DO NOTHING
""")
"""Messages that a subagent did not receive are passed to its parent."""

ENDED_WITH_MISSED_MESSAGES = text(f"""
    SELECT DISTINCT execution.id, execution.tenant_id, execution.session_id
      FROM agent_steered steered
      JOIN agent_executions execution ON execution.id = steered.execution_id
     WHERE steered.heard_at IS NULL AND execution.status {HAS_ENDED}
       AND execution.task_queue = :task_queue
       AND execution.updated_at
           < clock_timestamp() - CAST(:older_than AS double precision) * interval '1 second'
     LIMIT :limit
""")  # noqa: S608 -- constants only

LAUNCH = text(f"""
    SELECT id, tenant_id, session_id, plan, task_queue, session_seconds, session_began_at, user_id,
           input -> 'request' AS request, {IS_WAITING}, {_HAS_COMMANDS}
      FROM agent_executions launched
     WHERE id = :execution_id AND tenant_id = :tenant_id AND status = 'pending' AND released_at IS NOT NULL
""")  # noqa: S608 -- constants only

STRANDED = text(f"""
    SELECT launched.id, true AS has_commands, false AS is_waiting, launched.tenant_id,
           launched.session_id, launched.status, launched.plan,
           launched.task_queue, launched.updated_at, launched.session_seconds,
           launched.session_began_at, launched.user_id, launched.input -> 'request' AS request,
           launched.released_at IS NOT NULL AS is_released,
           launched.parent_execution_id IS NOT NULL AS is_child
      FROM agent_executions launched
      LEFT JOIN agent_executions parent ON parent.id = launched.parent_execution_id
     WHERE launched.status {IS_UNDER_WAY}
       AND (NOT :pending_only OR launched.status = 'pending')
       -- Only its parent starts a child.
       AND (launched.status <> 'pending' OR launched.parent_execution_id IS NULL
            OR parent.status {HAS_ENDED})
       AND launched.task_queue = :task_queue
       -- The end of another execution admits it, or the reconciler does, tenant by tenant.
       AND NOT EXISTS (SELECT 1 FROM agent_places place
                        WHERE place.execution_id = launched.id AND place.admitted_at IS NULL)
       AND launched.updated_at
           < clock_timestamp() - CAST(:older_than AS double precision) * interval '1 second'
       AND (launched.updated_at, launched.id) > (CAST(:after_at AS timestamptz), CAST(:after_id AS uuid))
     ORDER BY launched.updated_at, launched.id
     LIMIT :limit
""")  # noqa: S608 -- constants only

ORIGIN = text("""
    SELECT user_id, agent_config, listed, agent_metadata, plan, task_queue, continues_execution_id,
           continues_until, parent_execution_id, input -> 'request' AS request
      FROM agent_executions
     WHERE id = :execution_id AND tenant_id = :tenant_id
""")

RETRIED = text("""
    SELECT failed.status, failed.parent_execution_id,
           EXISTS (SELECT 1
                     FROM agent_executions later
                    WHERE later.session_id = failed.session_id AND later.parent_execution_id IS NULL
                      AND later.released_at > failed.released_at) AS has_successor
      FROM agent_executions failed
     WHERE failed.id = :execution_id AND failed.tenant_id = :tenant_id
""")
"""An execution to retry, and whether another one of its session began after it."""

LAST_COMPLETE_STEP = text("""
    SELECT coalesce(max(step.number), 0) AS last
      FROM agent_steps step
     WHERE step.execution_id = :execution_id AND step.tenant_id = :tenant_id AND step.facts IS NOT NULL
       AND NOT EXISTS (SELECT 1
                         FROM agent_tool_calls call
                        WHERE call.execution_id = step.execution_id AND call.step <= step.number
                          AND call.state <> 'done')
""")

FIRST_MESSAGES = text("""
    SELECT role, content, metadata
      FROM agent_transcript
     WHERE execution_id = :execution_id AND tenant_id = :tenant_id AND step = 0
     ORDER BY idx
""")

TOUCH_SESSION = text("""
    UPDATE agent_sessions
       SET title = coalesce(title, :title), updated_at = clock_timestamp()
     WHERE id = :session_id
""")

ADD_SESSION_USAGE = text("""
    INSERT INTO agent_session_usage AS used (session_id, tenant_id, agent, model, input, output, cache_write,
                                             cache_read, reasoning, cost_usd, known_cost_usd)
    SELECT execution.session_id, execution.tenant_id, execution.agent_type, :model, :input_tokens,
           :output_tokens, :cache_write_tokens, :cache_read_tokens, :reasoning_tokens,
           CAST(:cost_usd AS numeric), CAST(:known_cost_usd AS numeric)
      FROM agent_executions execution
     WHERE execution.id = :execution_id AND execution.tenant_id = :tenant_id
       AND execution.session_id IS NOT NULL
        ON CONFLICT (session_id, agent, model) DO UPDATE
       SET input = used.input + excluded.input, output = used.output + excluded.output,
           cache_write = used.cache_write + excluded.cache_write,
           cache_read = used.cache_read + excluded.cache_read,
           reasoning = used.reasoning + excluded.reasoning, cost_usd = used.cost_usd + excluded.cost_usd,
           known_cost_usd = used.known_cost_usd + excluded.known_cost_usd
""")
"""Adds nothing if the session is gone."""
