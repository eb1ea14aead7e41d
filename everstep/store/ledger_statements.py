"""SQL statements of ledgers.

The head of a chain is locked last, after the stream and the budgets, and nothing is locked after it. Two
writers of the same key have locked another row before: a step, a call, a request or the execution. So each
sees the other's entry, although a statement's snapshot is older than the lock of the head.
"""

from collections.abc import Sequence
from functools import cache

from sqlalchemy import TextClause, text

_CONDITIONS = {
    None: "true",
    "step": """EXISTS (SELECT 1 FROM agent_steps
                        WHERE execution_id = :execution_id AND number = :guard AND facts IS NOT NULL)""",
    "begun": "EXISTS (SELECT 1 FROM agent_steps WHERE execution_id = :execution_id AND number = :guard)",
    "request": "EXISTS (SELECT 1 FROM agent_requests WHERE execution_id = :execution_id AND id = :guard)",
    # A repeated request to accept an execution does not lock its chain.
    "opens": "position = 0",
}
"""The conditions without which nothing is appended, by their names."""


@cache
def append_entries(fallbacks: tuple[bool, ...], condition: str | None = None) -> TextClause:
    """Return the statement that appends entries, as the last one of a transaction.

    Args:
        fallbacks: Whether each entry has another key to use if its first one is used.
        condition: The name of a condition, whose value is `:guard`.
    """
    return text(f"WITH {append_ledger_sql(fallbacks, _CONDITIONS[condition])} SELECT 1")


def append_ledger_sql(fallbacks: Sequence[bool], condition: str) -> str:
    """Append the entries whose keys are new, in order, to a chain that is open.

    Executions of older releases have no chain. Every step appends, so each entry has a part of its own: one
    that joins lists takes three times as long, and reads the whole chain if the planner decides so.
    """
    last = len(fallbacks)
    lines = ", ".join(f"(position_{n}, key_{n}, entry_{n}, hash_{n})" for n in range(1, last + 1))
    return f"""
    ledger_head AS (
        SELECT position, hash
          FROM agent_ledger_heads
         WHERE execution_id = :execution_id AND tenant_id = :tenant_id AND NOT is_closed AND {condition}
           FOR NO KEY UPDATE
    ), chained AS ({_chain_sql(fallbacks)}
    ), ledger AS (
        INSERT INTO agent_ledger (execution_id, position, tenant_id, key, entry, hash, recorded_at)
        SELECT :execution_id, line.position, :tenant_id, line.key, line.entry, line.hash, chained.at
          FROM chained, LATERAL (VALUES {lines}) AS line (position, key, entry, hash)
         WHERE line.key IS NOT NULL
    ), moved AS (
        UPDATE agent_ledger_heads AS head
           SET position = chained.position_{last}, hash = chained.hash_{last}, is_closed = :ends
          FROM chained
         WHERE head.execution_id = :execution_id AND chained.position_{last} > chained.position_0
    )"""  # noqa: S608 -- constants only


def _chain_sql(fallbacks: Sequence[bool]) -> str:
    """Compute the entries from the locked head, in one row. `OFFSET 0` has each value computed once."""
    chain = "SELECT position AS position_0, hash AS hash_0, clock_timestamp() AS at FROM ledger_head"
    moment = """to_char(at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') AS moment"""
    chain = _with_columns(chain, moment)
    for number, has_fallback in enumerate(fallbacks, 1):
        before = number - 1
        key = _new_key_sql(f"key_{number}", f"fallback_{number}" if has_fallback else None)
        # As `seal` of `everstep.agent_domain.storage.ledger` writes it; null if there is none.
        entry = f"""'{{"at":"' || moment || CAST(:body_{number} AS text) || position_{before} + 1
                    || ',"previous":"' || hash_{before} || '","version"\\:1}}'"""
        chain = _with_columns(chain, f"{key} AS key_{number}")
        chain = _with_columns(chain, f"CASE WHEN key_{number} IS NOT NULL THEN {entry} END AS entry_{number}")
        chain = _with_columns(
            chain,
            f"position_{before} + CAST(key_{number} IS NOT NULL AS int) AS position_{number}",
            f"coalesce(encode(sha256(convert_to(entry_{number}, 'UTF8')), 'hex'), hash_{before})"
            f" AS hash_{number}",
        )
    return chain


def _with_columns(rows: str, *columns: str) -> str:
    return f"""
        SELECT *, {", ".join(columns)} FROM ({rows} OFFSET 0) AS before"""  # noqa: S608 -- constants only


def _new_key_sql(name: str, fallback: str | None) -> str:
    """Return the first of the keys that no entry has, or null."""
    otherwise = _new_key_sql(fallback, None) if fallback else "NULL"
    return f"""CASE WHEN NOT EXISTS (SELECT 1 FROM agent_ledger
                                      WHERE execution_id = :execution_id AND key = CAST(:{name} AS text))
                    THEN CAST(:{name} AS text) ELSE {otherwise} END"""  # noqa: S608 -- constants only


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

KEEP_HEADS = """
        INSERT INTO agent_pruned_ledgers (execution_id, tenant_id, entries, hash)
        SELECT execution_id, tenant_id, position, hash
          FROM agent_ledger_heads
         WHERE execution_id IN ({pruned})
            ON CONFLICT DO NOTHING"""
"""Keeps the heads of chains whose executions are pruned, before these are deleted."""

PRUNED = text("""
    SELECT entries, hash, pruned_at
      FROM agent_pruned_ledgers
     WHERE execution_id = :execution_id AND tenant_id = :tenant_id
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
