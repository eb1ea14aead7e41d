"""SQL statements of commands, steering messages and resolutions of requests."""

from sqlalchemy import text

from everstep.store.columns import IS_UNDER_WAY

STEER = text(f"""
    WITH execution AS (
        SELECT id, status, coalesce(session_id, id) AS stream_id FROM agent_executions
         WHERE id = :execution_id AND tenant_id = :tenant_id
           FOR SHARE
    ), kept AS (
        INSERT INTO agent_steered (execution_id, key, tenant_id, role, content, metadata)
        SELECT id, :key, :tenant_id, :role, CAST(:content AS json), CAST(:metadata AS json)
          FROM execution
         WHERE status {IS_UNDER_WAY}
            ON CONFLICT (execution_id, key) DO NOTHING
     RETURNING key
    ), command AS (
        INSERT INTO agent_commands (execution_id, key, tenant_id, kind)
        SELECT :execution_id, 'steer/' || key, :tenant_id, 'steer' FROM kept
            ON CONFLICT DO NOTHING
    )
    SELECT execution.status, execution.stream_id, EXISTS (SELECT 1 FROM kept) AS is_kept,
           EXISTS (SELECT 1 FROM agent_steered WHERE execution_id = :execution_id AND key = :key) AS is_known
      FROM execution
""")  # noqa: S608 -- constants only

STEERING = text("""
    SELECT execution.id, execution.session_id, execution.parent_execution_id, execution.status,
           steered.heard_at,
           EXISTS (SELECT 1 FROM agent_sessions WHERE id = execution.session_id) AS is_in_session
      FROM agent_steered steered
      JOIN agent_executions execution ON execution.id = steered.execution_id
     WHERE steered.execution_id = :execution_id AND steered.key = :key AND steered.tenant_id = :tenant_id
""")

RESOLVE = text("""
    WITH answered AS (
        UPDATE agent_requests
           SET state = 'resolved', resolution = CAST(:resolution AS json), resolved_at = clock_timestamp()
         WHERE id = :request_id AND execution_id = :execution_id AND tenant_id = :tenant_id
           AND state = 'open'
           -- An execution that is being cancelled takes no more answers.
           AND NOT EXISTS (SELECT 1 FROM agent_commands
                            WHERE execution_id = :execution_id AND kind = 'cancel')
     RETURNING id, execution_id, tenant_id, call_id, kind
    ), command AS (
        INSERT INTO agent_commands (execution_id, key, tenant_id, kind, call_id, is_denied)
        SELECT execution_id, kind || '/' || id, tenant_id, kind, call_id, :is_denied FROM answered
            ON CONFLICT DO NOTHING
    )
    SELECT coalesce(execution.session_id, execution.id) AS stream_id,
           EXISTS (SELECT 1 FROM answered) AS is_answered, request.kind, request.call_id, call.args_digest
      FROM agent_requests request
      JOIN agent_executions execution ON execution.id = request.execution_id
      LEFT JOIN agent_tool_calls call
        ON call.execution_id = request.execution_id AND call.call_id = request.call_id
     WHERE request.id = :request_id AND request.execution_id = :execution_id
       AND request.tenant_id = :tenant_id
""")

_COMMAND = """
    SELECT command.position, command.execution_id, command.tenant_id, command.key, command.kind,
           command.call_id, command.is_denied, command.delivered_at IS NOT NULL AS is_delivered,
           execution.session_id
      FROM agent_commands command
      JOIN agent_executions execution ON execution.id = command.execution_id
"""

KNOWN_COMMAND = text(f"""{_COMMAND}
     WHERE command.execution_id = :execution_id AND command.key = :key AND command.tenant_id = :tenant_id
""")

KEEP_COMMAND = text(f"""
    INSERT INTO agent_commands (execution_id, key, tenant_id, kind, sent_by)
    SELECT id, :key, tenant_id, :kind, CAST(:sent_by AS json)
      FROM agent_executions
     WHERE id = :execution_id AND tenant_id = :tenant_id AND status {IS_UNDER_WAY}
        ON CONFLICT DO NOTHING
 RETURNING key
""")  # noqa: S608 -- constants only
"""Under the execution's lock. Returns no row if the key is known or the execution has ended."""

UNDELIVERED_OF = text(f"""{_COMMAND}
     WHERE command.execution_id = :execution_id AND command.tenant_id = :tenant_id
       AND command.delivered_at IS NULL
     ORDER BY command.position
""")

UNDELIVERED = text(f"""{_COMMAND}
     WHERE command.delivered_at IS NULL AND execution.task_queue = :task_queue
       AND command.position > :after
       AND command.created_at
           < clock_timestamp() - CAST(:older_than AS double precision) * interval '1 second'
       -- A command for a queued execution is delivered once the execution is released.
       AND (execution.status <> 'pending' OR execution.released_at IS NOT NULL)
     ORDER BY command.position
     LIMIT :limit
""")

MARK_ALL_DELIVERED = text("""
    UPDATE agent_commands SET delivered_at = clock_timestamp()
     WHERE execution_id = :execution_id AND delivered_at IS NULL
""")
"""At the end of an execution: no workflow is left to receive them."""

MARK_DELIVERED = text("""
    UPDATE agent_commands
       SET delivered_at = clock_timestamp()
     WHERE execution_id = :execution_id AND key = :key AND tenant_id = :tenant_id AND delivered_at IS NULL
 RETURNING key
""")

DELIVER_LATER_AGAIN = text(f"""
    UPDATE agent_commands command
       SET delivered_at = NULL
     WHERE execution_id = :execution_id AND tenant_id = :tenant_id AND delivered_at IS NOT NULL
       AND created_at > CAST(:since AS timestamptz)
       AND (kind <> 'steer'
            OR EXISTS (SELECT 1
                         FROM agent_steered
                        WHERE execution_id = :execution_id AND 'steer/' || agent_steered.key = command.key
                          AND heard_at IS NULL))
       AND EXISTS (SELECT 1 FROM agent_executions WHERE id = :execution_id AND status {IS_UNDER_WAY})
 RETURNING key
""")  # noqa: S608 -- constants only
"""Without the messages that a recorded step has received."""

DELIVER_AGAIN = text(f"""
    UPDATE agent_commands command
       SET delivered_at = NULL
     WHERE execution_id = :execution_id AND tenant_id = :tenant_id AND delivered_at IS NOT NULL
       AND EXISTS (SELECT 1 FROM agent_executions WHERE id = :execution_id AND status {IS_UNDER_WAY})
       AND (kind IN ('input', 'approval', 'budget')
            OR (kind = 'resume'
                AND NOT EXISTS (SELECT 1
                                  FROM agent_commands later
                                 WHERE later.execution_id = :execution_id
                                   AND later.kind IN ('pause', 'resume')
                                   AND later.position > command.position)))
""")  # noqa: S608 -- constants only
"""What ends a pause. A workflow that knows a command ignores it: its key is the id of the update."""

WITHDRAW = text("""
    DELETE FROM agent_commands
     WHERE execution_id = :execution_id AND key = :key AND tenant_id = :tenant_id AND delivered_at IS NULL
 RETURNING key
""")

HEARD_WITHIN = text("""
    SELECT heard_at AS step, position, key
      FROM agent_steered
     WHERE execution_id = :execution_id AND tenant_id = :tenant_id
       AND heard_at BETWEEN CAST(:first AS int) AND CAST(:last AS int)
""")
"""The keys of the messages that steps received, in no order: they are few."""
