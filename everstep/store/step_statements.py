"""SQL statements of steps."""

from functools import cache

from sqlalchemy import TextClause, text

from everstep.store.columns import IS_UNDER_WAY
from everstep.store.ledger_statements import append_ledger_sql
from everstep.store.stream_statements import ITS_STREAM, POSITIONS, append_sql
from everstep.store.transcript_statements import APPEND_FRESH_LINES

_KNOWN_STEP = """
    WITH known AS (
        SELECT attempt, facts, wait, attempt = ANY (failed_attempts) AND partial_text = '' AS was_silent
          FROM agent_steps
         WHERE execution_id = :execution_id AND number = :number
    )"""

_INNER_USAGE = """(
                SELECT json_agg(usage)
                  FROM (SELECT call.besides -> 'usage'
                          FROM agent_tool_calls call
                         WHERE call.execution_id = step.execution_id AND call.step = step.number
                           AND call.besides IS NOT NULL
                         UNION ALL
                        SELECT step.processed -> 'facts' -> 'besides' -> 'usage') AS inner_calls (usage)
                 WHERE usage IS NOT NULL) AS inner_usage"""

_STEP_AND_BEFORE = f"""
    SELECT known.attempt, known.facts, known.wait, known.was_silent, before.facts AS facts_before,
           before.errors, before.call_errors, before.milliseconds, before.inner_usage
      FROM (VALUES (1)) AS one
      LEFT JOIN known ON true
      LEFT JOIN (SELECT facts,
                        extract(epoch FROM coalesce(completed_at, clock_timestamp()) - started_at) * 1000
                        AS milliseconds,
                        errors,
                        (SELECT json_agg(error ORDER BY idx)
                           FROM agent_tool_calls
                          WHERE execution_id = :execution_id AND step = :number - 1 AND error IS NOT NULL)
                        AS call_errors,
                        {_INNER_USAGE}
                   FROM agent_steps step
                  WHERE execution_id = :execution_id AND number = :number - 1) AS before ON true
"""  # noqa: S608 -- constants only

PREVIEW_STEP = text(_KNOWN_STEP + _STEP_AND_BEFORE)

_STARTED_AT = "clock_timestamp() - CAST(:seconds_ago AS double precision) * interval '1 second'"

_COMPLETE_PREVIOUS = """UPDATE agent_steps
           SET outcome = coalesce(outcome, CAST(:outcome AS json)),
               boundary = CASE WHEN outcome IS NULL THEN CAST(:boundary AS json) ELSE boundary END,
               completed_at = coalesce(completed_at, clock_timestamp())
          FROM fresh
         WHERE execution_id = :execution_id AND number = :number - 1"""


def _runs_sql(known: str) -> str:
    """Mark the execution as running: an earlier status write may be lost. A repeated step may be paused."""
    return f"""status = CASE WHEN status = 'pending' OR NOT EXISTS (SELECT 1 FROM {known}) THEN 'running'
                             ELSE status END,
               started_at = coalesce(started_at, clock_timestamp())"""  # noqa: S608 -- constants only


_BEGIN = f"""{_KNOWN_STEP}, fresh AS (
        SELECT 1
          FROM agent_executions
         WHERE id = :execution_id AND tenant_id = :tenant_id AND status {IS_UNDER_WAY}
           AND NOT EXISTS (SELECT 1 FROM known WHERE facts IS NOT NULL)
    ), begun AS (
        INSERT INTO agent_steps AS step (execution_id, tenant_id, number, attempt, started_at)
        SELECT :execution_id, :tenant_id, :number, :attempt,
               {_STARTED_AT}
          FROM fresh
            ON CONFLICT (execution_id, number) DO UPDATE
           SET attempt = greatest(step.attempt, excluded.attempt),
               partial_text = CASE WHEN excluded.attempt > step.attempt THEN '' ELSE step.partial_text END,
               next_index = CASE WHEN excluded.attempt <= step.attempt THEN step.next_index END,
               after_seq = CASE WHEN excluded.attempt <= step.attempt THEN step.after_seq END
    ), previous AS (
        {_COMPLETE_PREVIOUS}
    ), execution AS (
        UPDATE agent_executions
           SET {_runs_sql("known")},
               step_count = greatest(step_count, :number - 1),
               updated_at = clock_timestamp()
          FROM fresh
         WHERE id = :execution_id
    )"""  # noqa: S608 -- constants only

_HEAR = """, heard AS (
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
    )"""

BEGIN_STEP = text(f"{_BEGIN}{_HEAR}{_STEP_AND_BEFORE}")
"""Under the execution's lock. Returns the step as an earlier attempt left it, and the step before. Writes
nothing if the execution has ended."""

BEGIN_KNOWN_STEP = text(f"""{_BEGIN}
    SELECT known.attempt, known.facts, known.wait, known.was_silent
      FROM (VALUES (1)) AS one
      LEFT JOIN known ON true
""")  # noqa: S608 -- constants only
"""As `BEGIN_STEP`, for a step that reads no steering messages, without the step before."""

STEP_BEFORE = text(f"""
    SELECT facts AS facts_before,
           extract(epoch FROM coalesce(completed_at, clock_timestamp()) - started_at) * 1000 AS milliseconds,
           errors,
           (SELECT json_agg(call.error ORDER BY idx)
              FROM agent_tool_calls call
             WHERE call.execution_id = :execution_id AND call.step = step.number
               AND call.error IS NOT NULL) AS call_errors,
           {_INNER_USAGE}
      FROM agent_steps step
     WHERE execution_id = :execution_id AND tenant_id = :tenant_id AND facts IS NOT NULL
     ORDER BY number DESC
     LIMIT 1
""")  # noqa: S608 -- constants only

ADD_USAGE = """token_usage = token_usage + :tokens,
               token_breakdown = (
                   SELECT json_object_agg(
                              more.kind,
                              coalesce(CAST(token_breakdown ->> more.kind AS bigint), 0)
                              + CAST(more.count AS bigint))
                     FROM json_each_text(CAST(:breakdown AS json)) AS more(kind, count)),
               -- Null plus a known cost is null: one call of unknown cost makes the sum unknown.
               cost_usd = cost_usd + CAST(:cost_usd AS numeric),
               known_cost_usd = known_cost_usd + CAST(:known_cost_usd AS numeric)"""

ADD_MODEL_USAGE = """
        INSERT INTO agent_model_usage AS used (execution_id, tenant_id, model, input, output, cache_write,
                                               cache_read, reasoning, cost_usd, known_cost_usd)
        SELECT :execution_id, :tenant_id, :model, :input_tokens, :output_tokens, :cache_write_tokens,
               :cache_read_tokens, :reasoning_tokens, CAST(:cost_usd AS numeric),
               CAST(:known_cost_usd AS numeric)
          FROM fresh
         WHERE CAST(:model AS text) IS NOT NULL
            ON CONFLICT (execution_id, model) DO UPDATE
           SET input = used.input + excluded.input, output = used.output + excluded.output,
               cache_write = used.cache_write + excluded.cache_write,
               cache_read = used.cache_read + excluded.cache_read,
               reasoning = used.reasoning + excluded.reasoning,
               cost_usd = used.cost_usd + excluded.cost_usd,
               known_cost_usd = used.known_cost_usd + excluded.known_cost_usd"""

_FRESH_AND_PLACED = "EXISTS (SELECT 1 FROM fresh) AND (SELECT count(*) FROM placed) >= 0"
"""Counting the places forces PostgreSQL to lock the stream before the head of the ledger."""


@cache
def record_reply(entries: int, *, begins: bool = False) -> TextClause:
    """Return the statement that records a reply, under the execution's lock.

    It returns the facts that an earlier attempt recorded and writes nothing, also if the execution has ended.
    Otherwise it returns the position of each envelope.

    Args:
        entries: How many entries of the ledger it appends. With budgets, which are locked before the ledger,
            a later statement appends them.
        begins: Whether it also begins the step, like `BEGIN_KNOWN_STEP`, with one write of each row.
    """
    ledger = f", {append_ledger_sql([False] * entries, _FRESH_AND_PLACED)}" if entries else ""
    return text(f"""{_record_reply_sql(begins=begins)}{ledger}
    SELECT known.facts, {POSITIONS}
      FROM (VALUES (1)) AS one
      LEFT JOIN known ON true
      LEFT JOIN placed ON true
     ORDER BY seq
""")  # noqa: S608 -- constants only


def _record_reply_sql(*, begins: bool) -> str:
    started_at, seconds_ago = (", started_at", f", {_STARTED_AT}") if begins else ("", "")
    runs = f"{_runs_sql('begun')}," if begins else ""
    start = f""", begun AS (
        SELECT 1 FROM agent_steps WHERE execution_id = :execution_id AND number = :number
    ), previous AS (
        {_COMPLETE_PREVIOUS}
    )"""  # noqa: S608 -- constants only
    return f"""
    WITH known AS (
        SELECT facts
          FROM agent_steps
         WHERE execution_id = :execution_id AND number = :number AND facts IS NOT NULL
    ), fresh AS (
        SELECT 1
          FROM agent_executions
         WHERE id = :execution_id AND tenant_id = :tenant_id AND status {IS_UNDER_WAY}
           AND NOT EXISTS (SELECT 1 FROM known)
    ){start if begins else ""}, step AS (
        INSERT INTO agent_steps (execution_id, tenant_id, number, attempt, facts, response, errors,
                                 first_text_seconds{started_at})
        SELECT :execution_id, :tenant_id, :number, :attempt, CAST(:facts AS json), CAST(:response AS json),
               CAST(:errors AS json), CAST(:first_text_seconds AS double precision){seconds_ago}
          FROM fresh
            ON CONFLICT (execution_id, number) DO UPDATE
           SET attempt = excluded.attempt, facts = excluded.facts, response = excluded.response,
               errors = excluded.errors, first_text_seconds = excluded.first_text_seconds,
               partial_text = '', next_index = NULL, after_seq = NULL
    ), said AS (
        {APPEND_FRESH_LINES}
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
        INSERT INTO agent_requests (id, tenant_id, execution_id, user_id, call_id, kind, request, policy)
        SELECT asked.id, :tenant_id, :execution_id,
               (SELECT user_id FROM agent_executions WHERE id = :execution_id),
               asked.call_id, asked.kind, CAST(asked.request AS json), CAST(asked.policy AS json)
          FROM fresh,
               unnest(CAST(:request_ids AS uuid[]), CAST(:asking AS text[]), CAST(:kinds AS text[]),
                      CAST(:requests AS text[]), CAST(:policies AS text[]))
                   AS asked(id, call_id, kind, request, policy)
    ), used AS ({ADD_MODEL_USAGE}
    ), execution AS (
        UPDATE agent_executions
           SET {ADD_USAGE}, {runs}
               step_count = greatest(step_count, :step_count), updated_at = clock_timestamp()
          FROM fresh
         WHERE id = :execution_id
    ), {append_sql(ITS_STREAM, "EXISTS (SELECT 1 FROM fresh)")}"""  # noqa: S608 -- constants only


NOTE_PARTIAL = text("""
    UPDATE agent_steps
       SET partial_text = left(partial_text, :offset) || CAST(:text AS text),
           next_index = :next_index, after_seq = :after_seq, noted_at = clock_timestamp()
     WHERE execution_id = :execution_id AND number = :number AND tenant_id = :tenant_id
       AND attempt = :attempt AND facts IS NULL AND char_length(partial_text) >= :offset
 RETURNING number
""")
"""An attempt that was superseded, or that reports after the reply, changes nothing. Only what is new of a
text is sent: the buffer of a connection keeps the size of the largest statement.
"""

NOTE_PARTIALS = text("""
    WITH given AS (
        SELECT *
          FROM unnest(CAST(:executions AS uuid[]), CAST(:tenants AS text[]), CAST(:numbers AS int[]),
                      CAST(:attempts AS int[]), CAST(:texts AS text[]), CAST(:next_indexes AS int[]),
                      CAST(:after_seqs AS bigint[]), CAST(:offsets AS int[]))
               WITH ORDINALITY AS given(execution_id, tenant_id, number, attempt, text, next_index, after_seq,
                                        start, place)
    ), free AS (
        SELECT step.execution_id, step.number
          FROM given
          JOIN agent_steps step USING (execution_id, number, tenant_id, attempt)
         WHERE step.facts IS NULL AND char_length(step.partial_text) >= given.start
           FOR NO KEY UPDATE OF step SKIP LOCKED
    ), stored AS (
        UPDATE agent_steps AS step
           SET partial_text = left(step.partial_text, given.start) || given.text,
               next_index = given.next_index, after_seq = given.after_seq, noted_at = clock_timestamp()
          FROM given
          JOIN free USING (execution_id, number)
         WHERE step.execution_id = given.execution_id AND step.number = given.number
     RETURNING given.place
    )
    SELECT stored.place IS NOT NULL AS is_stored,
           stored.place IS NOT NULL
           OR EXISTS (SELECT 1 FROM agent_steps step
                       WHERE step.execution_id = given.execution_id AND step.number = given.number
                         AND step.tenant_id = given.tenant_id AND step.attempt = given.attempt
                         AND step.facts IS NULL
                         AND char_length(step.partial_text) >= given.start) AS is_current,
           EXISTS (SELECT 1 FROM agent_commands command
                    WHERE command.execution_id = given.execution_id
                      AND command.kind = 'cancel') AS is_cancelled
      FROM given
      LEFT JOIN stored USING (place)
     ORDER BY place
""")
"""As `NOTE_PARTIAL` for many steps. A step that another transaction holds is left out: a process that stands
still in the middle of one would hold up the texts of all the others.
"""

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
         WHERE id = :execution_id AND tenant_id = :tenant_id AND status {IS_UNDER_WAY}
           AND known.processed IS NULL
    ), step AS (
        UPDATE agent_steps
           SET processed = CAST(:processed AS json)
          FROM fresh
         WHERE execution_id = :execution_id AND number = :number
    ), said AS (
        {APPEND_FRESH_LINES}
    ), execution AS (
        UPDATE agent_executions
           SET updated_at = clock_timestamp()
          FROM fresh
         WHERE id = :execution_id
    )
    SELECT processed FROM known
""")  # noqa: S608 -- constants only
"""Under the execution's lock. Returns the earlier record, or no row if the step has no reply."""

RECORD_COMPACTION = text(f"""
    WITH known AS (
        SELECT content
          FROM agent_transcript
         WHERE execution_id = :execution_id AND tenant_id = :tenant_id AND step = :number AND idx = :idx
    ), fresh AS (
        SELECT 1
          FROM agent_executions
         WHERE id = :execution_id AND tenant_id = :tenant_id AND status {IS_UNDER_WAY}
           AND NOT EXISTS (SELECT 1 FROM known)
    ), said AS (
        {APPEND_FRESH_LINES}
    ), execution AS (
        UPDATE agent_executions
           SET updated_at = clock_timestamp()
          FROM fresh
         WHERE id = :execution_id
    )
    SELECT content FROM known
""")  # noqa: S608 -- constants only
"""Under the execution's lock. Returns the compaction that an earlier attempt recorded, and then writes
nothing."""

CONTINUED_INPUT = text("""
    SELECT step.facts,
           (SELECT count(*)
              FROM agent_transcript said
             WHERE said.execution_id = step.execution_id AND said.role <> 'note'
               AND (said.step, said.idx) >= (step.number, 0)
               AND (own.continues_until IS NULL OR said.step <= own.continues_until)) AS later_messages
      FROM agent_executions own
      JOIN agent_steps step ON step.execution_id = own.continues_execution_id
     WHERE own.id = :execution_id AND own.tenant_id = :tenant_id AND step.tenant_id = :tenant_id
       AND step.facts IS NOT NULL
       AND (own.continues_until IS NULL OR step.number <= own.continues_until)
     ORDER BY step.number DESC
     LIMIT 1
""")

_STEPS = """
    SELECT number, attempt, failed_attempts, facts, errors, outcome, partial_text, next_index, after_seq,
           wait, started_at, completed_at, first_text_seconds,
           -- The time of a processor that raised is counted in the failure step.
           CASE WHEN processed -> 'raised' IS NULL
                THEN CAST(processed -> 'facts' ->> 'seconds' AS double precision) END AS processing_seconds,
           processed -> 'facts' -> 'besides' -> 'usage' AS processing_usage,
           CASE WHEN :with_responses THEN response END AS response
      FROM agent_steps
     WHERE execution_id = :execution_id AND tenant_id = :tenant_id"""

_LAST = "ORDER BY number DESC LIMIT CAST(:limit AS bigint)"

LAST_STEPS = text(f"{_STEPS} {_LAST}")

LAST_STEPS_WITHOUT_OUTCOMES = text(f"{_STEPS.replace(' outcome,', ' NULL AS outcome,')} {_LAST}")

STEPS_AFTER = text(f"{_STEPS} AND number > CAST(:after AS int) ORDER BY number LIMIT CAST(:limit AS bigint)")
