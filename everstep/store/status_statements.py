"""SQL statements of status changes and snapshots."""

from sqlalchemy import text

from everstep.store.columns import IS_UNDER_WAY
from everstep.store.ledger_statements import END_DIGEST
from everstep.store.place_statements import CHANGE_PLACE, LEAVE_PLACE

SETTLE_ONCE = text(f"""
    INSERT INTO agent_settlements (execution_id, key, tenant_id, status)
    SELECT id, :key, tenant_id, :status
      FROM agent_executions
     WHERE id = :execution_id AND tenant_id = :tenant_id AND status {IS_UNDER_WAY}
       AND (status = 'pending' OR NOT :only_pending)
       AND NOT (:yields_to_cancel
                AND EXISTS (SELECT 1 FROM agent_commands
                             WHERE execution_id = :execution_id AND kind = 'cancel'))
        ON CONFLICT (execution_id, key) DO NOTHING
 RETURNING key
""")  # noqa: S608 -- constants only
"""Under the execution's lock. Returns no row if the key was used before, the execution has ended, or a stored
cancel comes first."""

CANCEL_COMES_FIRST = text(f"""
    SELECT 1
      FROM agent_executions execution
     WHERE id = :execution_id AND tenant_id = :tenant_id AND status {IS_UNDER_WAY}
       AND NOT EXISTS (SELECT 1 FROM agent_settlements WHERE execution_id = :execution_id AND key = :key)
""")  # noqa: S608 -- constants only
"""For a settlement that yields to cancels and was not stored: whether that was because of a cancel."""

CLOSE_CALLS = text("""
    WITH closed AS (
        UPDATE agent_tool_calls call
           SET state = 'done', result = 'null', text = coalesce(told.text, :cancelled), note = '',
               success = false,
               started_at = coalesce(call.started_at, clock_timestamp()),
               completed_at = clock_timestamp(), seconds = 0
          FROM agent_tool_calls open
          LEFT JOIN unnest(CAST(:call_ids AS text[]), CAST(:texts AS text[])) AS told(call_id, text)
            ON told.call_id = open.call_id
         WHERE open.execution_id = :execution_id AND open.state <> 'done'
           AND (:every OR open.step = :step OR told.call_id IS NOT NULL)
           AND call.execution_id = open.execution_id AND call.call_id = open.call_id
           AND call.state <> 'done'
     RETURNING call.step, call.idx, call.call_id, call.name, call.text
    ), requests AS (
        UPDATE agent_requests
           SET state = 'resolved', resolved_at = clock_timestamp()
          FROM closed
         WHERE execution_id = :execution_id AND agent_requests.call_id = closed.call_id AND state = 'open'
    )
    SELECT * FROM closed ORDER BY step, idx
""")
"""Closes calls without a result. A call that is completed concurrently keeps its result."""

RECORD_STEP = text("""
    INSERT INTO agent_steps (execution_id, tenant_id, number, attempt, facts, errors)
    VALUES (:execution_id, :tenant_id, :number, 1, CAST(:facts AS json), CAST(:errors AS json))
        ON CONFLICT (execution_id, number) DO UPDATE
       SET facts = excluded.facts, errors = excluded.errors, partial_text = '', next_index = NULL,
           after_seq = NULL
""")
"""A step that no activity recorded: its earlier record is out of date."""

COMPLETE_STEPS = text("""
    UPDATE agent_steps
       SET completed_at = coalesce(completed_at, clock_timestamp()),
           outcome = CASE WHEN number <> judged.step THEN outcome
                          WHEN :replaces THEN CAST(:outcome AS json)
                          ELSE coalesce(outcome, CAST(:outcome AS json)) END,
           boundary = CASE WHEN number = judged.step AND (outcome IS NULL OR :replaces)
                           THEN CAST(:boundary AS json) ELSE boundary END
      FROM (SELECT coalesce(CAST(:judged AS int), max(number)) AS step
              FROM agent_steps
             WHERE execution_id = :execution_id AND facts IS NOT NULL) AS judged
     WHERE execution_id = :execution_id AND facts IS NOT NULL
       AND (completed_at IS NULL OR number = judged.step)
 RETURNING judged.step AS judged
""")
"""The outcome of an evaluation is stored with the evaluated step: the last one, unless it is named."""

_SNAPSHOT = """
    INSERT INTO agent_state_snapshots (id, tenant_id, agent_execution_id, parent_snapshot_id,
                                       previous_snapshot_id, agent_id, agent_name, step_number, is_final,
                                       debug_mode, state_json)
    VALUES (:snapshot_id, :tenant_id, :execution_id,
            (SELECT snapshot.id
               FROM agent_executions child
               JOIN agent_executions parent ON parent.id = child.parent_execution_id
               JOIN agent_state_snapshots snapshot
                 ON snapshot.id = coalesce(CAST(child.metadata ->> 'parent_snapshot_id' AS uuid),
                                           parent.last_snapshot_id)
              WHERE child.id = :execution_id),
            :previous_snapshot_id, :agent_id, :agent_name, :step_number, :is_final, :debug_mode,
            CAST(:state AS json))
"""

SNAPSHOT = text(_SNAPSHOT)

KEEP_SNAPSHOT = text(f"""
    WITH kept AS ({_SNAPSHOT}
        ON CONFLICT (id) DO NOTHING
     RETURNING id
    ), session AS (
        UPDATE agent_sessions
           SET last_snapshot_id = kept.id, updated_at = clock_timestamp()
          FROM kept, agent_executions execution
         WHERE execution.id = :execution_id AND execution.parent_execution_id IS NULL
           AND agent_sessions.id = execution.session_id
    )
    UPDATE agent_executions
       SET last_snapshot_id = kept.id, updated_at = clock_timestamp()
      FROM kept
     WHERE agent_executions.id = :execution_id
 RETURNING kept.id
""")  # noqa: S608 -- constants only
"""Under the locks of session and execution. Returns no row, and writes nothing, if the snapshot exists."""

RECORDED_SECONDS = """(
               SELECT coalesce(sum(CAST(step.facts ->> 'seconds' AS double precision)
                                   + CASE WHEN step.processed IS NULL
                                               OR step.processed -> 'raised' IS NOT NULL THEN 0
                                          ELSE CAST(step.processed -> 'facts' ->> 'seconds'
                                                    AS double precision) END), 0)
                 FROM agent_steps step
                WHERE step.execution_id = agent_executions.id AND step.facts IS NOT NULL
           ) + (
               SELECT coalesce(sum(extract(epoch FROM upper(worked) - lower(worked))), 0)
                 FROM (SELECT unnest(range_agg(tstzrange(call.started_at,
                                                         call.started_at
                                                         + call.seconds * interval '1 second'))) AS worked
                         FROM agent_tool_calls call
                        WHERE call.execution_id = agent_executions.id AND call.seconds > 0) AS ranges
           )"""
"""The recorded working time of an execution: steps, processors, calls. Concurrent calls count once."""

SETTLE_EXECUTION = text(f"""
    WITH changed_place AS ({CHANGE_PLACE}
    ), left_place AS ({LEAVE_PLACE}
    )
    UPDATE agent_executions
       SET status = :status,
           started_at = CASE WHEN :starts THEN coalesce(started_at, clock_timestamp()) ELSE started_at END,
           completed_at = CASE WHEN :ends THEN clock_timestamp() END,
           step_count = coalesce(CAST(:step_count AS int), step_count),
           -- Usage never decreases, even if its step is incomplete or was abandoned.
           token_usage = greatest(CAST(:tokens AS bigint), token_usage),
           token_breakdown = CASE WHEN CAST(:tokens AS bigint) >= token_usage THEN CAST(:breakdown AS json)
                                  ELSE token_breakdown END,
           -- What is recorded is exact, except for calls that failed outside of a recorded reply.
           cost_usd = CASE WHEN CAST(:tokens AS bigint) > token_usage THEN CAST(:cost_usd AS numeric)
                           ELSE cost_usd END,
           known_cost_usd = CASE WHEN CAST(:tokens AS bigint) > token_usage
                                 THEN CAST(:known_cost_usd AS numeric) ELSE known_cost_usd END,
           stop_reason = coalesce(CAST(:stop_reason AS text), stop_reason),
           metadata = CAST(:metadata AS json),
           output = coalesce(CAST(:output AS json), output),
           error_message = coalesce(CAST(:error_message AS text), error_message),
           error_told = coalesce(CAST(:error_told AS text), error_told),
           outcome = CASE WHEN :ends THEN CAST(:outcome AS json) END,
           last_snapshot_id = coalesce(CAST(:snapshot_id AS uuid), last_snapshot_id),
           worked_seconds = coalesce(CAST(:worked_seconds AS double precision),
                                     CASE WHEN :ends THEN {RECORDED_SECONDS} END,
                                     worked_seconds),
           updated_at = clock_timestamp()
     WHERE id = :execution_id
 RETURNING step_count, worked_seconds, token_usage, cost_usd, stop_reason, {END_DIGEST} AS end_digest,
           coalesce((SELECT is_free FROM changed_place), (SELECT is_free FROM left_place), false)
           AS frees_place
""")  # noqa: S608 -- constants only

SETTLE_SESSION = text("""
    UPDATE agent_sessions
       SET last_snapshot_id = coalesce(CAST(:snapshot_id AS uuid), last_snapshot_id),
           worked_seconds = worked_seconds + CAST(:worked_seconds AS double precision),
           updated_at = clock_timestamp()
     WHERE id = :session_id AND tenant_id = :tenant_id
""")
