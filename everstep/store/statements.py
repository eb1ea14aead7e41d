"""SQL statements of the hot paths.

Each does in one round trip what has to happen under one lock. A statement decides from its snapshot, which is
taken *before* it waits for a lock. So a decision that depends on the previous lock holder's writes is made in
a later statement, or from the locked row itself.

Locks are taken in one order everywhere: session, execution, call, request, stream.

No statement selects `*` from a table: if it was prepared before an upgrade adds a column, it fails
afterwards.
"""

from sqlalchemy import text

ACCEPT = text("""
    WITH execution AS (
        INSERT INTO agent_executions
               (id, tenant_id, session_id, user_id, agent_type, agent_config, input, token_breakdown,
                metadata, agent_id, parent_agent_id, parent_execution_id, continues_execution_id,
                continues_until, plan, agent_metadata, task_queue, queue_rank, released_at,
                session_seconds, session_began_at)
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
                                      FROM agent_executions WHERE id = :continues)) END)
            ON CONFLICT (id) DO NOTHING
     RETURNING id, tenant_id, session_id, agent_type, status, step_count, token_breakdown, stop_reason,
               output, error_message, error_told, metadata, agent_metadata, created_at, started_at,
               completed_at, parent_execution_id, user_id, last_snapshot_id, session_seconds, session_began_at
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
    )
    SELECT * FROM execution
""")
"""Returns no row, and writes nothing, if the id is taken."""

OWNS_STREAM = text("""
    SELECT 1
      FROM agent_streams
     WHERE stream_id = :stream_id AND tenant_id = :tenant_id
       AND NOT EXISTS (SELECT 1 FROM agent_sessions WHERE id = :stream_id AND tenant_id <> :tenant_id)
""")

_ALLOWED = """(SELECT json_agg(resolution -> 'remember' ORDER BY resolved_at)
                  FROM agent_requests
                 WHERE execution_id = :execution_id AND kind = 'approval'
                   AND resolution -> 'remember' IS NOT NULL) AS allowed"""

_EXECUTION = f"""
    SELECT id, status, coalesce(session_id, id) AS stream_id, session_id, agent_type, agent_id,
           parent_agent_id, agent_config, metadata, token_breakdown, last_snapshot_id,
           parent_execution_id, started_at, plan, listed, session_seconds, session_began_at, {_ALLOWED}
      FROM agent_executions
     WHERE id = :execution_id AND tenant_id = :tenant_id
"""  # noqa: S608 -- our own words

EXECUTION = text(_EXECUTION)

LOCK_EXECUTION = text(f"{_EXECUTION} FOR NO KEY UPDATE")

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


def _news(stream: str, condition: str = "true") -> str:
    """Append envelopes to a stream, and the session messages that they announce."""
    return f"""
    news AS (
        SELECT e.id, e.type, e.payload, e.speaker, e.content, e.metadata, e.related_type, e.related_id, e.url,
               e.place AS given, row_number() OVER (ORDER BY e.place) AS place
          FROM unnest(CAST(:ids AS uuid[]), CAST(:types AS text[]), CAST(:payloads AS text[]),
                      CAST(:speakers AS text[]), CAST(:spoken AS text[]), CAST(:spoken_metadatas AS text[]),
                      CAST(:related_types AS text[]), CAST(:related_ids AS text[]), CAST(:urls AS text[]))
               WITH ORDINALITY
               AS e(id, type, payload, speaker, content, metadata, related_type, related_id, url, place)
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
                                            related_type, related_id, context_url, metadata, created_at,
                                            sequence)
        SELECT id, :tenant_id, stream_id, speaker, content,
               CASE WHEN speaker <> 'user' THEN CAST(:execution_id AS uuid) END,
               related_type, related_id, url, CAST(metadata AS json), created_at, seq
          FROM placed
         WHERE speaker IS NOT NULL
    ), told AS (
        INSERT INTO agent_envelopes (stream_id, seq, tenant_id, id, type, execution_id, payload, created_at)
        SELECT stream_id, seq, :tenant_id, id, type, :execution_id, CAST(payload AS json), created_at
          FROM placed
    )"""  # noqa: S608 -- our own words


_ITS_STREAM = "(SELECT coalesce(session_id, id) FROM agent_executions WHERE id = :execution_id)"

_PLACED = "placed.given, placed.stream_id, placed.seq, placed.created_at"
"""The stored position of each given envelope, by its index among the given ones."""

APPEND = text(f"WITH {_news(':stream_id')} SELECT {_PLACED} FROM placed ORDER BY seq")  # noqa: S608 -- our own words
"""An envelope that is stored already gets no number. If the stream is gone, there is no position and the call
is refused. Session messages are inserted along with their envelopes."""

HEAD = text("SELECT head FROM agent_streams WHERE stream_id = :stream_id AND tenant_id = :tenant_id")


def _transcript(condition: str) -> str:
    """Select the transcript of the execution and of those it continues, each with its metadata first."""
    return f"""
    WITH RECURSIVE chain AS (
        SELECT id, continues_execution_id, continues_until, CAST(NULL AS int) AS until, 0 AS depth,
               agent_metadata
          FROM agent_executions
         WHERE id = :execution_id AND tenant_id = :tenant_id
     UNION ALL
        SELECT earlier.id, earlier.continues_execution_id, earlier.continues_until, chain.continues_until,
               chain.depth + 1, earlier.agent_metadata
          FROM chain
          JOIN agent_executions earlier ON earlier.id = chain.continues_execution_id
         WHERE earlier.tenant_id = :tenant_id
    )
    SELECT role, content, metadata, step, idx
      FROM (SELECT said.role, said.content, said.metadata, chain.depth, said.step, said.idx
              FROM chain
              JOIN agent_transcript said ON said.execution_id = chain.id AND said.tenant_id = :tenant_id
             WHERE (chain.until IS NULL OR said.step <= chain.until)
               -- Messages that hooks of later steps put before the conversation are further to the front.
               AND (chain.until IS NULL OR said.step > 0 OR said.idx >= -1000 * (2 * chain.until + 1))
               AND {condition}
         UNION ALL
            SELECT 'note', json_build_object('begins', agent_metadata), CAST('{{}}' AS json), depth, -1, 0
              FROM chain) AS told
     ORDER BY depth DESC, step, idx
"""  # noqa: S608 -- our own words


TRANSCRIPT = text(_transcript("true"))

NOTES_BEFORE_CALL = text(
    _transcript("""said.role = 'note'
               AND (chain.depth > 0
                    OR (said.step, said.idx) < (
                        SELECT step, 0 FROM agent_tool_calls
                         WHERE execution_id = :execution_id AND call_id = :call_id))""")
)
"""The metadata when the step of a call began, including the notes of its hooks."""

SAY = text("""
    INSERT INTO agent_transcript (execution_id, step, idx, tenant_id, role, content, metadata)
    SELECT :execution_id, said.step, said.idx, :tenant_id, said.role,
           CAST(said.content AS json), CAST(said.metadata AS json)
      FROM unnest(CAST(:steps AS int[]), CAST(:places AS int[]), CAST(:roles AS text[]),
                  CAST(:contents AS text[]), CAST(:metadatas AS text[]))
           AS said(step, idx, role, content, metadata)
""")

_KNOWN_STEP = """
    WITH known AS (
        SELECT attempt, facts, wait, attempt = ANY (failed_attempts) AND partial_text = '' AS was_silent
          FROM agent_steps
         WHERE execution_id = :execution_id AND number = :number
    )"""

_STEP_AND_BEFORE = """
    SELECT known.attempt, known.facts, known.wait, known.was_silent, before.facts AS facts_before,
           before.failed_calls, before.milliseconds
      FROM (VALUES (1)) AS one
      LEFT JOIN known ON true
      LEFT JOIN (SELECT facts,
                        extract(epoch FROM coalesce(completed_at, clock_timestamp()) - started_at) * 1000
                        AS milliseconds,
                        (SELECT count(*)
                           FROM agent_tool_calls
                          WHERE execution_id = :execution_id AND step = :number - 1 AND error IS NOT NULL)
                        AS failed_calls
                   FROM agent_steps
                  WHERE execution_id = :execution_id AND number = :number - 1) AS before ON true
"""

PREVIEW_STEP = text(_KNOWN_STEP + _STEP_AND_BEFORE)

BEGIN_STEP = text(f"""{_KNOWN_STEP}, fresh AS (
        SELECT 1
          FROM agent_executions
         WHERE id = :execution_id AND tenant_id = :tenant_id AND status IN ('pending', 'running', 'paused')
           AND NOT EXISTS (SELECT 1 FROM known WHERE facts IS NOT NULL)
    ), begun AS (
        INSERT INTO agent_steps AS step (execution_id, tenant_id, number, attempt, started_at)
        SELECT :execution_id, :tenant_id, :number, :attempt,
               clock_timestamp() - CAST(:seconds_ago AS double precision) * interval '1 second'
          FROM fresh
            ON CONFLICT (execution_id, number) DO UPDATE
           SET attempt = greatest(step.attempt, excluded.attempt),
               partial_text = CASE WHEN excluded.attempt > step.attempt THEN '' ELSE step.partial_text END,
               next_index = CASE WHEN excluded.attempt <= step.attempt THEN step.next_index END,
               after_seq = CASE WHEN excluded.attempt <= step.attempt THEN step.after_seq END
    ), previous AS (
        UPDATE agent_steps
           SET outcome = coalesce(outcome, CAST(:outcome AS json)),
               completed_at = coalesce(completed_at, clock_timestamp())
          FROM fresh
         WHERE execution_id = :execution_id AND number = :number - 1
    ), execution AS (
        UPDATE agent_executions
           -- A new step runs: an earlier status write may be lost. A repeated step may be paused.
           SET status = CASE WHEN status = 'pending' OR NOT EXISTS (SELECT 1 FROM known) THEN 'running'
                             ELSE status END,
               started_at = coalesce(started_at, clock_timestamp()),
               step_count = greatest(step_count, :number - 1),
               updated_at = clock_timestamp()
          FROM fresh
         WHERE id = :execution_id
    ), heard AS (
        SELECT count(*) AS count FROM agent_steered WHERE execution_id = :execution_id AND heard_at = :number
    ), waiting AS (
        SELECT key, row_number() OVER (ORDER BY position) AS place
          FROM agent_steered
         WHERE execution_id = :execution_id AND heard_at IS NULL
    ), hears AS (
        UPDATE agent_steered
           SET heard_at = :number
          FROM fresh, heard, waiting
         WHERE agent_steered.execution_id = :execution_id AND agent_steered.key = waiting.key
           AND heard.count + waiting.place <= :hears
     RETURNING role, content, agent_steered.metadata,
               heard.count + waiting.place - :hears - 1 - 1000 AS idx
    ), said AS (
        INSERT INTO agent_transcript (execution_id, step, idx, tenant_id, role, content, metadata)
        SELECT :execution_id, :number, idx, :tenant_id, role, content, metadata FROM hears
    )
    {_STEP_AND_BEFORE}""")  # noqa: S608 -- our own words
"""Under the execution's lock. Returns the step as an earlier attempt left it, and the step before. Writes
nothing if the execution has ended."""

STEP_BEFORE = text("""
    SELECT facts AS facts_before,
           extract(epoch FROM coalesce(completed_at, clock_timestamp()) - started_at) * 1000 AS milliseconds,
           (SELECT count(*)
              FROM agent_tool_calls call
             WHERE call.execution_id = :execution_id AND call.step = step.number
               AND call.error IS NOT NULL) AS failed_calls
      FROM agent_steps step
     WHERE execution_id = :execution_id AND tenant_id = :tenant_id AND facts IS NOT NULL
     ORDER BY number DESC
     LIMIT 1
""")

_SAYS = """INSERT INTO agent_transcript (execution_id, step, idx, tenant_id, role, content, metadata)
        SELECT :execution_id, said.step, said.idx, :tenant_id, said.role,
               CAST(said.content AS json), CAST(said.metadata AS json)
          FROM fresh,
               unnest(CAST(:steps AS int[]), CAST(:places AS int[]), CAST(:roles AS text[]),
                      CAST(:contents AS text[]), CAST(:metadatas AS text[]))
               AS said(step, idx, role, content, metadata)"""

_SPENT = """token_usage = token_usage + :tokens,
               token_breakdown = (
                   SELECT json_object_agg(
                              more.kind,
                              coalesce(CAST(token_breakdown ->> more.kind AS bigint), 0)
                              + CAST(more.count AS bigint))
                     FROM json_each_text(CAST(:breakdown AS json)) AS more(kind, count))"""

RECORD_REPLY = text(f"""
    WITH known AS (
        SELECT facts
          FROM agent_steps
         WHERE execution_id = :execution_id AND number = :number AND facts IS NOT NULL
    ), fresh AS (
        SELECT 1
          FROM agent_executions
         WHERE id = :execution_id AND tenant_id = :tenant_id AND status IN ('pending', 'running', 'paused')
           AND NOT EXISTS (SELECT 1 FROM known)
    ), step AS (
        INSERT INTO agent_steps (execution_id, tenant_id, number, attempt, facts, response, errors)
        SELECT :execution_id, :tenant_id, :number, :attempt, CAST(:facts AS json), CAST(:response AS json),
               CAST(:errors AS json)
          FROM fresh
            ON CONFLICT (execution_id, number) DO UPDATE
           SET attempt = excluded.attempt, facts = excluded.facts, response = excluded.response,
               errors = excluded.errors, partial_text = '', next_index = NULL, after_seq = NULL
    ), said AS (
        {_SAYS}
    ), called AS (
        INSERT INTO agent_tool_calls (execution_id, call_id, tenant_id, step, idx, name, args, malformed,
                                      need, args_digest)
        SELECT :execution_id, call.id, :tenant_id, :number, call.place - 1, call.name,
               CAST(call.args AS json), call.malformed, call.need, call.digest
          FROM fresh,
               unnest(CAST(:call_ids AS text[]), CAST(:names AS text[]), CAST(:args AS text[]),
                      CAST(:malformed AS text[]), CAST(:needs AS text[]), CAST(:digests AS text[]))
               WITH ORDINALITY AS call(id, name, args, malformed, need, digest, place)
         WHERE call.id <> ALL (CAST(:settled AS text[]))
    ), asked AS (
        INSERT INTO agent_requests (id, tenant_id, execution_id, user_id, call_id, kind, request)
        SELECT asked.id, :tenant_id, :execution_id,
               (SELECT user_id FROM agent_executions WHERE id = :execution_id),
               asked.call_id, asked.kind, CAST(asked.request AS json)
          FROM fresh,
               unnest(CAST(:request_ids AS uuid[]), CAST(:asking AS text[]), CAST(:kinds AS text[]),
                      CAST(:requests AS text[])) AS asked(id, call_id, kind, request)
    ), execution AS (
        UPDATE agent_executions
           SET {_SPENT},
               step_count = greatest(step_count, :step_count), updated_at = clock_timestamp()
          FROM fresh
         WHERE id = :execution_id
    ), {_news(_ITS_STREAM, "EXISTS (SELECT 1 FROM fresh)")}
    SELECT known.facts, {_PLACED}
      FROM (VALUES (1)) AS one
      LEFT JOIN known ON true
      LEFT JOIN placed ON true
     ORDER BY seq
""")  # noqa: S608 -- our own words
"""Under the execution's lock. Returns the facts that an earlier attempt recorded and writes nothing, also if
the execution has ended. Otherwise returns the position of each envelope."""

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
               call.seconds, call.besides, execution.status,
               execution.plan -> 'broadcast' AS broadcast,
               coalesce(execution.session_id, execution.id) AS stream_id,
               {_ALLOWED},
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
"""  # noqa: S608 -- our own words

PREVIEW_CALL = text(_KNOWN_CALL)

RESERVE_CALL = text(f"""
    WITH known AS ({_KNOWN_CALL} FOR NO KEY UPDATE OF call
    ), reserved AS (
        UPDATE agent_tool_calls call
           SET state = 'reserved', attempts = greatest(call.attempts + 1, :attempt),
               started_at = coalesce(call.started_at, clock_timestamp())
          FROM known
         WHERE call.execution_id = :execution_id AND call.call_id = known.call_id
           AND known.state <> 'done' AND known.status IN ('pending', 'running', 'paused')
    )
    SELECT * FROM known
""")  # noqa: S608 -- our own words
"""Returns the call as it was before the reservation."""

_DONE_AND_CLOSED = "EXISTS (SELECT 1 FROM done) AND (SELECT count(*) FROM closed) >= 0"
"""Counting the closed requests forces PostgreSQL to lock them before the stream."""

RECORD_CALL = text(f"""
    WITH done AS (
        UPDATE agent_tool_calls
           SET state = 'done', attempts = greatest(attempts, :attempt), result = CAST(:result AS json),
               text = :text, error = CAST(:error AS json), success = :success, started_at = :started_at,
               completed_at = :completed_at, seconds = :seconds, besides = CAST(:besides AS json)
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
    ), {_news(_ITS_STREAM, _DONE_AND_CLOSED)}
    SELECT done.step, {_PLACED} FROM done LEFT JOIN placed ON true ORDER BY seq
""")  # noqa: S608 -- our own words
"""Returns no row, and writes nothing, if the call does not exist or has its result; otherwise the position of
each envelope."""

CLOSE_CALLS = text("""
    WITH closed AS (
        UPDATE agent_tool_calls call
           SET state = 'done', result = 'null', text = coalesce(told.text, :cancelled), success = false,
               started_at = coalesce(call.started_at, clock_timestamp()),
               completed_at = clock_timestamp(), seconds = 0
          FROM agent_tool_calls open
          LEFT JOIN unnest(CAST(:call_ids AS text[]), CAST(:texts AS text[])) AS told(call_id, text)
            ON told.call_id = open.call_id
         WHERE open.execution_id = :execution_id AND open.state <> 'done'
           AND (:every OR open.step = :step OR told.call_id IS NOT NULL)
           AND call.execution_id = open.execution_id AND call.call_id = open.call_id
           AND call.state <> 'done'
     RETURNING call.step, call.idx, call.call_id, call.name
    ), requests AS (
        UPDATE agent_requests
           SET state = 'resolved', resolved_at = clock_timestamp()
          FROM closed
         WHERE execution_id = :execution_id AND agent_requests.call_id = closed.call_id AND state = 'open'
    )
    SELECT * FROM closed ORDER BY step, idx
""")
"""Closes calls without a result. A call that is completed concurrently keeps its result."""

NOTE_PARTIAL = text("""
    UPDATE agent_steps
       SET partial_text = :text, next_index = :next_index, after_seq = :after_seq,
           noted_at = clock_timestamp()
     WHERE execution_id = :execution_id AND number = :number AND tenant_id = :tenant_id
       AND attempt = :attempt AND facts IS NULL
 RETURNING number
""")
"""An attempt that was superseded, or that reports after the reply, changes nothing."""

NOTE_FAILURE = text("""
    UPDATE agent_steps
       SET failed_attempts = CASE WHEN :attempt = ANY (failed_attempts) THEN failed_attempts
                                  ELSE array_append(failed_attempts, CAST(:attempt AS int)) END
     WHERE execution_id = :execution_id AND number = :number AND tenant_id = :tenant_id
 RETURNING cardinality(failed_attempts) AS failures
""")

NOTE_WAIT = text("""
    UPDATE agent_steps AS step
       SET wait = CAST(:wait AS json)
      FROM agent_executions execution
     WHERE step.execution_id = :execution_id AND step.tenant_id = :tenant_id AND step.number = :number
       AND step.attempt = :attempt AND step.facts IS NULL
       AND execution.id = step.execution_id AND execution.status = 'running'
 RETURNING coalesce(execution.session_id, execution.id) AS stream_id
""")

STEER = text("""
    WITH execution AS (
        SELECT id, status, coalesce(session_id, id) AS stream_id FROM agent_executions
         WHERE id = :execution_id AND tenant_id = :tenant_id
           FOR SHARE
    ), kept AS (
        INSERT INTO agent_steered (execution_id, key, tenant_id, role, content, metadata)
        SELECT id, :key, :tenant_id, :role, CAST(:content AS json), CAST(:metadata AS json)
          FROM execution
         WHERE status IN ('pending', 'running', 'paused')
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
           EXISTS (SELECT 1 FROM answered) AS is_answered
      FROM agent_requests request
      JOIN agent_executions execution ON execution.id = request.execution_id
     WHERE request.id = :request_id AND request.execution_id = :execution_id
       AND request.tenant_id = :tenant_id
""")

STEERING = text("""
    SELECT execution.id, execution.session_id, execution.parent_execution_id, execution.status,
           steered.heard_at,
           EXISTS (SELECT 1 FROM agent_sessions WHERE id = execution.session_id) AS is_in_session
      FROM agent_steered steered
      JOIN agent_executions execution ON execution.id = steered.execution_id
     WHERE steered.execution_id = :execution_id AND steered.key = :key AND steered.tenant_id = :tenant_id
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

KEEP_COMMAND = text("""
    INSERT INTO agent_commands (execution_id, key, tenant_id, kind)
    SELECT id, :key, tenant_id, :kind
      FROM agent_executions
     WHERE id = :execution_id AND tenant_id = :tenant_id AND status IN ('pending', 'running', 'paused')
        ON CONFLICT DO NOTHING
 RETURNING key
""")
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

MARK_DELIVERED = text("""
    UPDATE agent_commands
       SET delivered_at = clock_timestamp()
     WHERE execution_id = :execution_id AND key = :key AND tenant_id = :tenant_id AND delivered_at IS NULL
 RETURNING key
""")

WITHDRAW = text("""
    DELETE FROM agent_commands
     WHERE execution_id = :execution_id AND key = :key AND tenant_id = :tenant_id AND delivered_at IS NULL
 RETURNING key
""")

SETTLE_ONCE = text("""
    INSERT INTO agent_settlements (execution_id, key, tenant_id, status)
    SELECT id, :key, tenant_id, :status
      FROM agent_executions
     WHERE id = :execution_id AND tenant_id = :tenant_id AND status IN ('pending', 'running', 'paused')
       AND (status = 'pending' OR NOT :only_pending)
        ON CONFLICT (execution_id, key) DO NOTHING
 RETURNING key
""")
"""Under the execution's lock. Returns no row if the key was used before or the execution has ended."""

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
           outcome = CASE WHEN number = judged.step THEN coalesce(outcome, CAST(:outcome AS json))
                          ELSE outcome END
      FROM (SELECT coalesce(CAST(:judged AS int), max(number)) AS step
              FROM agent_steps
             WHERE execution_id = :execution_id AND facts IS NOT NULL) AS judged
     WHERE execution_id = :execution_id AND facts IS NOT NULL
       AND (completed_at IS NULL OR number = judged.step)
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
""")  # noqa: S608 -- our own words
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
    UPDATE agent_executions
       SET status = :status,
           started_at = CASE WHEN :starts THEN coalesce(started_at, clock_timestamp()) ELSE started_at END,
           completed_at = CASE WHEN :ends THEN clock_timestamp() END,
           step_count = coalesce(CAST(:step_count AS int), step_count),
           -- Usage never decreases, even if its step is incomplete or was abandoned.
           token_usage = greatest(CAST(:tokens AS bigint), token_usage),
           token_breakdown = CASE WHEN CAST(:tokens AS bigint) >= token_usage THEN CAST(:breakdown AS json)
                                  ELSE token_breakdown END,
           stop_reason = coalesce(CAST(:stop_reason AS text), stop_reason),
           metadata = CAST(:metadata AS json),
           output = coalesce(CAST(:output AS json), output),
           error_message = coalesce(CAST(:error_message AS text), error_message),
           error_told = coalesce(CAST(:error_told AS text), error_told),
           last_snapshot_id = coalesce(CAST(:snapshot_id AS uuid), last_snapshot_id),
           worked_seconds = coalesce(CAST(:worked_seconds AS double precision),
                                     CASE WHEN :ends THEN {RECORDED_SECONDS} END,
                                     worked_seconds),
           updated_at = clock_timestamp()
     WHERE id = :execution_id
 RETURNING step_count, worked_seconds
""")  # noqa: S608 -- our own words

SETTLE_SESSION = text("""
    UPDATE agent_sessions
       SET last_snapshot_id = coalesce(CAST(:snapshot_id AS uuid), last_snapshot_id),
           worked_seconds = worked_seconds + CAST(:worked_seconds AS double precision),
           updated_at = clock_timestamp()
     WHERE id = :session_id AND tenant_id = :tenant_id
""")

PROCESSING = text("""
    SELECT processed FROM agent_steps
     WHERE execution_id = :execution_id AND number = :number AND tenant_id = :tenant_id
""")

RECORD_PROCESSING = text(f"""
    WITH known AS (
        SELECT processed
          FROM agent_steps
         WHERE execution_id = :execution_id AND number = :number AND tenant_id = :tenant_id
           AND facts IS NOT NULL
    ), fresh AS (
        SELECT 1
          FROM agent_executions, known
         WHERE id = :execution_id AND tenant_id = :tenant_id AND status IN ('pending', 'running', 'paused')
           AND known.processed IS NULL
    ), step AS (
        UPDATE agent_steps
           SET processed = CAST(:processed AS json)
          FROM fresh
         WHERE execution_id = :execution_id AND number = :number
    ), said AS (
        {_SAYS}
    ), execution AS (
        UPDATE agent_executions
           SET updated_at = clock_timestamp()
          FROM fresh
         WHERE id = :execution_id
    )
    SELECT processed FROM known
""")  # noqa: S608 -- our own words
"""Under the execution's lock. Returns the earlier record, or no row if the step has no reply."""

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
         WHERE id = :execution_id AND tenant_id = :tenant_id AND status IN ('pending', 'running', 'paused')
           AND NOT EXISTS (SELECT 1 FROM known WHERE digest = :digest)
    ), kept AS (
        INSERT INTO agent_inner_replies (execution_id, key, tenant_id, digest, response)
        SELECT :execution_id, :key, :tenant_id, :digest, CAST(:response AS json)
          FROM fresh
            ON CONFLICT (execution_id, key) DO UPDATE
           SET digest = excluded.digest, response = excluded.response
    ), execution AS (
        UPDATE agent_executions
           SET {_SPENT}, updated_at = clock_timestamp()
          FROM fresh
         WHERE id = :execution_id
    )
    SELECT * FROM known
""")  # noqa: S608 -- our own words
"""Under the execution's lock. Returns the earlier record under this key."""

LISTED = text("SELECT listed FROM agent_executions WHERE id = :execution_id AND tenant_id = :tenant_id")

RECORD_LISTED = text("""
    UPDATE agent_executions
       SET listed = coalesce(listed, CAST(:listed AS json)), updated_at = clock_timestamp()
     WHERE id = :execution_id AND tenant_id = :tenant_id
 RETURNING listed
""")

_STEPS = """
    SELECT number, attempt, facts, errors, outcome, partial_text, next_index, after_seq, wait, started_at,
           completed_at,
           -- The time of a processor that raised is counted in the failure step.
           CASE WHEN processed -> 'raised' IS NULL
                THEN CAST(processed -> 'facts' ->> 'seconds' AS double precision) END AS processing_seconds,
           CASE WHEN :with_responses THEN response END AS response
      FROM agent_steps
     WHERE execution_id = :execution_id AND tenant_id = :tenant_id"""

LAST_STEPS = text(f"{_STEPS} ORDER BY number DESC LIMIT CAST(:limit AS bigint)")

STEPS_AFTER = text(f"{_STEPS} AND number > CAST(:after AS int) ORDER BY number LIMIT CAST(:limit AS bigint)")

SAID_WITHIN = text("""
    SELECT step, idx, role, content, metadata
      FROM agent_transcript
     WHERE execution_id = :execution_id AND tenant_id = :tenant_id AND role <> 'note'
       AND step BETWEEN CAST(:first AS int) AND CAST(:last AS int)
     ORDER BY step, idx
""")

CALLED_WITHIN = text("""
    SELECT call_id, step, idx, name, args, malformed, state, attempts, result, text, error, success,
           started_at, completed_at, seconds, besides,
           (SELECT resolution -> 'value'
              FROM agent_requests request
             WHERE request.execution_id = call.execution_id AND request.call_id = call.call_id
               AND request.kind = 'approval' AND request.resolution ->> 'kind' = 'edit') AS edited_args
      FROM agent_tool_calls call
     WHERE execution_id = :execution_id AND tenant_id = :tenant_id
       AND step BETWEEN CAST(:first AS int) AND CAST(:last AS int)
     ORDER BY step, idx
""")
