"""SQL statements of ledgers.

The head of a chain is locked last, after the stream and the budgets, and nothing is locked after it. Two
writers of the same key have locked another row before: a step, a call, a request or the execution. So each
sees the other's entry, although a statement's snapshot is older than the lock of the head.
"""

from sqlalchemy import text

_NEXT_ENTRY = """'{"at":"' || to_char(chain.at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')
                      || '","digests":' || fresh.digests || ',"execution_id":"' || CAST(:execution_id AS uuid)
                      || '","facts":' || fresh.facts || ',"kind":"' || fresh.kind
                      || '","position":' || chain.position + 1
                      || ',"previous":"' || chain.hash || '","version"\\:1}'"""
"""The canonical JSON of an entry, as `seal` of `everstep.agent_domain.storage.ledger` writes it."""

APPEND_ENTRIES = text(f"""
    WITH RECURSIVE head AS (
        SELECT position, hash
          FROM agent_ledger_heads
         WHERE execution_id = :execution_id AND tenant_id = :tenant_id AND NOT is_closed
           -- A repeated request to accept an execution does not lock its chain.
           AND (NOT :opens OR position = 0)
           FOR NO KEY UPDATE
    ), keyed AS (
        SELECT e.kind, e.facts, e.digests, e.ends, e.place,
               CASE WHEN NOT EXISTS (SELECT 1 FROM agent_ledger known
                                      WHERE known.execution_id = :execution_id AND known.key = e.key)
                    THEN e.key ELSE e.fallback END AS key
          FROM head,
               unnest(CAST(:kinds AS text[]), CAST(:keys AS text[]), CAST(:fallbacks AS text[]),
                      CAST(:facts AS text[]), CAST(:digests AS text[]), CAST(:ending AS boolean[]))
               WITH ORDINALITY AS e(kind, key, fallback, facts, digests, ends, place)
         WHERE (CAST(:guard_call AS text) IS NULL
                OR EXISTS (SELECT 1 FROM agent_tool_calls
                            WHERE execution_id = :execution_id AND call_id = :guard_call AND state = 'done'))
           AND (CAST(:guard_step AS int) IS NULL
                OR EXISTS (SELECT 1 FROM agent_steps
                            WHERE execution_id = :execution_id AND number = :guard_step
                              AND facts IS NOT NULL))
           AND (CAST(:guard_begun AS int) IS NULL
                OR EXISTS (SELECT 1 FROM agent_steps
                            WHERE execution_id = :execution_id AND number = :guard_begun))
           AND (CAST(:guard_request AS uuid) IS NULL
                OR EXISTS (SELECT 1 FROM agent_requests
                            WHERE execution_id = :execution_id AND id = :guard_request))
    ), fresh AS (
        SELECT keyed.*, row_number() OVER (ORDER BY place) AS number
          FROM keyed
         WHERE key IS NOT NULL
           AND NOT EXISTS (SELECT 1 FROM agent_ledger known
                            WHERE known.execution_id = :execution_id AND known.key = keyed.key)
    ), chain AS (
        -- The time is taken once the head is locked.
        SELECT CAST(0 AS bigint) AS number, head.position, head.hash, CAST(NULL AS text) AS entry,
               clock_timestamp() AS at
          FROM head
     UNION ALL
        SELECT fresh.number, chain.position + 1, encode(sha256(convert_to(line.entry, 'UTF8')), 'hex'),
               line.entry, chain.at
          FROM chain
          JOIN fresh ON fresh.number = chain.number + 1,
               LATERAL (SELECT {_NEXT_ENTRY} AS entry) AS line
    ), added AS (
        INSERT INTO agent_ledger (execution_id, position, tenant_id, key, entry, hash, recorded_at)
        SELECT :execution_id, chain.position, :tenant_id, fresh.key, chain.entry, chain.hash, chain.at
          FROM chain
          JOIN fresh ON fresh.number = chain.number
    )
    UPDATE agent_ledger_heads
       SET position = last.position, hash = last.hash, is_closed = (SELECT bool_or(ends) FROM fresh)
      FROM (SELECT position, hash FROM chain WHERE number > 0 ORDER BY number DESC LIMIT 1) AS last
     WHERE execution_id = :execution_id
""")  # noqa: S608 -- constants only
"""Appends the entries whose keys are new, in order. Writes nothing if the chain is closed, or if there is
none, as for executions of older releases."""

OPEN_CHAIN = """
        INSERT INTO agent_ledger_heads (execution_id, tenant_id)
        SELECT id, tenant_id FROM {accepted}"""
"""The head of a new chain, in the statement that accepts its execution."""


def digest_sql(*parts: str) -> str:
    """Compute the digest of a body from its columns, as `digest_of` does."""

    def digest(part: str) -> str:
        return f"encode(sha256(convert_to({part}, 'UTF8')), 'hex')"

    if len(parts) == 1:
        return digest(f"CAST({parts[0]} AS text)")
    each = (f"coalesce({digest(f'CAST({part} AS text)')}, '-')" for part in parts)
    return digest(" || ".join(each))


_CALL = digest_sql("name", "args", "malformed", "need")
_RESULT = digest_sql("result", "text", "error", "success", "besides", "note", "own_text", "attachments")
END_DIGEST = digest_sql(
    "status",
    "stop_reason",
    "step_count",
    "token_usage",
    "cost_usd",
    "output",
    "error_message",
    "error_told",
    "outcome",
)

BODIES = text(f"""
    SELECT 'execution/config' AS name, {digest_sql("agent_config")} AS digest
      FROM agent_executions WHERE id = :execution_id
 UNION ALL
    SELECT 'execution/plan', {digest_sql("plan")} FROM agent_executions WHERE id = :execution_id
 UNION ALL
    SELECT 'execution/input', {digest_sql("input")} FROM agent_executions WHERE id = :execution_id
 UNION ALL
    SELECT 'execution/metadata', {digest_sql("agent_metadata")} FROM agent_executions WHERE id = :execution_id
 UNION ALL
    SELECT 'execution/owner', {
    digest_sql("tenant_id", "user_id", "session_id", "agent_type", "parent_execution_id")
}
      FROM agent_executions WHERE id = :execution_id
 UNION ALL
    SELECT 'execution/tools', {digest_sql("listed")}
      FROM agent_executions WHERE id = :execution_id AND listed IS NOT NULL
 UNION ALL
    SELECT 'execution/end', {END_DIGEST}
      FROM agent_executions WHERE id = :execution_id AND completed_at IS NOT NULL
 UNION ALL
    SELECT 'facts/' || number, {digest_sql("facts", "errors")}
      FROM agent_steps WHERE execution_id = :execution_id AND facts IS NOT NULL
 UNION ALL
    SELECT 'response/' || number, {digest_sql("response")}
      FROM agent_steps WHERE execution_id = :execution_id AND response IS NOT NULL
 UNION ALL
    SELECT 'outcome/' || number, {digest_sql("outcome", "boundary")}
      FROM agent_steps WHERE execution_id = :execution_id AND outcome IS NOT NULL
 UNION ALL
    SELECT 'processed/' || number, {digest_sql("processed")}
      FROM agent_steps WHERE execution_id = :execution_id AND processed IS NOT NULL
 UNION ALL
    SELECT 'wait/' || number, {digest_sql("wait")}
      FROM agent_steps WHERE execution_id = :execution_id AND wait IS NOT NULL
 UNION ALL
    SELECT 'message/' || step || '/' || idx, {digest_sql("role", "content", "metadata")}
      FROM agent_transcript WHERE execution_id = :execution_id
 UNION ALL
    SELECT 'call/' || call_id, {_CALL} FROM agent_tool_calls WHERE execution_id = :execution_id
 UNION ALL
    SELECT 'result/' || call_id, {_RESULT}
      FROM agent_tool_calls WHERE execution_id = :execution_id AND state = 'done'
 UNION ALL
    SELECT 'request/' || id, {digest_sql("kind", "request", "policy")}
      FROM agent_requests WHERE execution_id = :execution_id
 UNION ALL
    SELECT 'resolution/' || id, {digest_sql("resolution")}
      FROM agent_requests WHERE execution_id = :execution_id AND resolution IS NOT NULL
 UNION ALL
    SELECT 'inner/' || key, {digest_sql("digest", "response")}
      FROM agent_inner_replies WHERE execution_id = :execution_id
 UNION ALL
    SELECT 'steering/' || key, {digest_sql("role", "content", "metadata")}
      FROM agent_steered WHERE execution_id = :execution_id
 UNION ALL
    SELECT 'command/' || key, {digest_sql("kind", "sent_by")}
      FROM agent_commands WHERE execution_id = :execution_id AND kind IN ('pause', 'resume', 'cancel')
""")  # noqa: S608 -- constants only
"""The digests of all bodies of an execution that its ledger covers."""

ACCEPTED = text("""
    SELECT agent_type, agent_config ->> 'definition_hash' AS definition_hash, user_id, session_id,
           parent_execution_id, continues_execution_id, continues_until,
           (SELECT count(*) FROM agent_transcript WHERE execution_id = :execution_id) AS messages
      FROM agent_executions
     WHERE id = :execution_id AND tenant_id = :tenant_id
""")

AUDITED = text("""
    SELECT execution.status, execution.is_sealed, head.position, head.hash, head.is_closed
      FROM agent_executions execution
      LEFT JOIN agent_ledger_heads head ON head.execution_id = execution.id
     WHERE execution.id = :execution_id AND execution.tenant_id = :tenant_id
""")

ENTRIES = text("""
    SELECT execution_id, position, entry, hash, recorded_at
      FROM agent_ledger
     WHERE execution_id = :execution_id AND tenant_id = :tenant_id AND position > CAST(:after AS int)
     ORDER BY position
     LIMIT CAST(:limit AS bigint)
""")

HORIZON = text("""
    SELECT least(clock_timestamp(), min(xact_start)) AS at
      FROM pg_stat_activity
     WHERE datname = current_database() AND backend_xid IS NOT NULL
""")
"""The time before which every entry is committed: the begin of the oldest transaction that writes."""

ENTRIES_OF_PERIOD = text("""
    SELECT entry.execution_id, entry.position, entry.entry, entry.hash, entry.recorded_at
      FROM agent_ledger entry
      JOIN agent_executions execution ON execution.id = entry.execution_id
     WHERE entry.tenant_id = :tenant_id AND entry.recorded_at >= :since AND entry.recorded_at < :until
       AND (entry.recorded_at, entry.execution_id, entry.position)
           > (CAST(:after_at AS timestamptz), CAST(:after_id AS uuid), CAST(:after_position AS int))
       AND (CAST(:user_id AS text) IS NULL OR execution.user_id = :user_id)
     ORDER BY entry.recorded_at, entry.execution_id, entry.position
     LIMIT CAST(:limit AS bigint)
""")
