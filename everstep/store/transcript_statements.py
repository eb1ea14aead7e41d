"""SQL statements of the transcript."""

from sqlalchemy import text


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
             WHERE (chain.until IS NULL OR said.step <= chain.until
                    -- A compaction before the next step shortened the same conversation.
                    OR (said.step = chain.until + 1 AND said.role = 'note'
                        AND said.content -> 'compacted' IS NOT NULL))
               -- Messages that hooks of later steps put before the conversation are further to the front.
               AND (chain.until IS NULL OR said.step > 0 OR said.idx >= -1000 * (2 * chain.until + 1))
               AND {condition}
         UNION ALL
            SELECT 'note', json_build_object('begins', agent_metadata), CAST('{{}}' AS json), depth, -1, 0
              FROM chain) AS told
     ORDER BY depth DESC, step, idx
"""  # noqa: S608 -- constants only


TRANSCRIPT = text(_transcript("true"))

NOTES = text(_transcript("said.role = 'note'"))
"""The metadata with which an execution began, and its changes since."""

NOTES_BEFORE_CALL = text(
    _transcript("""said.role = 'note'
               AND (chain.depth > 0
                    OR (said.step, said.idx) < (
                        SELECT step, 0 FROM agent_tool_calls
                         WHERE execution_id = :execution_id AND call_id = :call_id))""")
)
"""The metadata when the step of a call began, including the notes of its hooks."""

APPEND_LINES = text("""
    INSERT INTO agent_transcript (execution_id, step, idx, tenant_id, role, content, metadata)
    SELECT :execution_id, said.step, said.idx, :tenant_id, said.role,
           CAST(said.content AS json), CAST(said.metadata AS json)
      FROM unnest(CAST(:steps AS int[]), CAST(:places AS int[]), CAST(:roles AS text[]),
                  CAST(:contents AS text[]), CAST(:metadatas AS text[]))
           AS said(step, idx, role, content, metadata)
""")

APPEND_FRESH_LINES = """
    INSERT INTO agent_transcript (execution_id, step, idx, tenant_id, role, content, metadata)
        SELECT :execution_id, said.step, said.idx, :tenant_id, said.role,
               CAST(said.content AS json), CAST(said.metadata AS json)
          FROM fresh,
               unnest(CAST(:steps AS int[]), CAST(:places AS int[]), CAST(:roles AS text[]),
                      CAST(:contents AS text[]), CAST(:metadatas AS text[]))
               AS said(step, idx, role, content, metadata)"""

_SAID = """
    SELECT step, idx, role, content, metadata
      FROM agent_transcript
     WHERE execution_id = :execution_id AND tenant_id = :tenant_id
       AND (role <> 'note' OR content -> 'compacted' IS NOT NULL)
"""
IN_LAST_STEPS = """
       AND step > (SELECT max(number) FROM agent_steps WHERE execution_id = :execution_id)
                  - CAST(:limit AS bigint)
"""
"""Selects what belongs to the last steps, whose numbers are consecutive."""

MESSAGES_WITHIN = text(
    f"{_SAID} AND step BETWEEN CAST(:first AS int) AND CAST(:last AS int) ORDER BY step, idx"
)
