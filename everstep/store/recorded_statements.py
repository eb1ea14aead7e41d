"""SQL statements that read recorded executions in bulk, without their bodies."""

from sqlalchemy import text

_WANTED = """
     WHERE tenant_id = :tenant_id
       AND (CAST(:user_id AS text) IS NULL OR user_id = :user_id)
       AND (CAST(:agent AS text) IS NULL OR agent_type = :agent)
       AND (CAST(:execution_id AS uuid) IS NULL OR id = :execution_id)
       AND (CAST(:status AS text) IS NULL OR status = :status)
       AND (CAST(:since AS timestamptz) IS NULL OR created_at >= :since)
       AND (CAST(:until AS timestamptz) IS NULL OR created_at < :until)"""

COUNT_RECORDS = text(f"SELECT count(*) AS many FROM agent_executions {_WANTED}")  # noqa: S608 -- constants only

RECORDED = text(f"""
    SELECT id, session_id, user_id, agent_type, status, stop_reason, plan, created_at, started_at,
           completed_at, step_count, session_seconds, session_began_at, parent_execution_id,
           agent_config ->> 'llm_preset' AS preset,
           CASE WHEN json_array_length(plan -> 'criteria') > 0 THEN input -> 'request' END AS request
      FROM agent_executions {_WANTED}
       AND (created_at, id) < (CAST(:before_at AS timestamptz), CAST(:before_id AS uuid))
     ORDER BY created_at DESC, id DESC
     LIMIT CAST(:limit AS bigint)
""")  # noqa: S608 -- constants only

RECORDED_STEPS = text("""
    SELECT execution_id, number, CAST(facts AS text) AS facts, outcome, boundary,
           processed -> 'facts' AS processed, processed -> 'raised' AS raised, started_at, completed_at,
           CASE WHEN :with_models THEN response ->> 'model' END AS model
      FROM agent_steps
     WHERE execution_id = ANY (CAST(:ids AS uuid[])) AND tenant_id = :tenant_id
     ORDER BY execution_id, number
""")

RECORDED_CALLS = text("""
    SELECT execution_id, step, call_id, name, need, state, error, seconds, besides, digest
      FROM agent_tool_calls
     WHERE execution_id = ANY (CAST(:ids AS uuid[])) AND tenant_id = :tenant_id
     ORDER BY execution_id, step, idx
""")
