"""Foreign keys to executions, sessions and snapshots; the working time of executions."""

from alembic import op

revision = "0008_references"
down_revision = "0007_commands"

WORKED = """
    UPDATE agent_executions
       SET worked_seconds = (
               SELECT coalesce(sum(CAST(step.facts ->> 'seconds' AS double precision)), 0)
                 FROM agent_steps step
                WHERE step.execution_id = agent_executions.id AND step.facts IS NOT NULL
           ) + (
               SELECT coalesce(sum(extract(epoch FROM upper(worked) - lower(worked))), 0)
                 FROM (SELECT unnest(range_agg(tstzrange(call.started_at,
                                                         call.started_at
                                                         + call.seconds * interval '1 second'))) AS worked
                         FROM agent_tool_calls call
                        WHERE call.execution_id = agent_executions.id AND call.seconds > 0) AS ranges
           )
     WHERE status IN ('completed', 'failed', 'cancelled')
"""
"""The recorded time only; concurrent calls count once."""

CHANGES = (
    "ALTER TABLE agent_sessions ADD COLUMN worked_seconds DOUBLE PRECISION DEFAULT 0 NOT NULL",
    """
    ALTER TABLE agent_executions
        ADD COLUMN worked_seconds DOUBLE PRECISION DEFAULT 0 NOT NULL,
        ADD COLUMN session_seconds DOUBLE PRECISION DEFAULT 0 NOT NULL,
        ADD COLUMN session_began_at TIMESTAMP WITH TIME ZONE
    """,
    "ALTER TABLE agent_state_snapshots ADD COLUMN previous_snapshot_id UUID",
    # Executions could name a session that was never created.
    """
    INSERT INTO agent_sessions (id, tenant_id, user_id, created_at, updated_at)
    SELECT DISTINCT ON (session_id) session_id, tenant_id, coalesce(user_id, ''), created_at, updated_at
      FROM agent_executions execution
     WHERE session_id IS NOT NULL
       AND NOT EXISTS (SELECT 1 FROM agent_sessions WHERE id = execution.session_id)
     ORDER BY session_id, created_at, id
    """,
    # The column's former content moves to its own column; the parent's snapshot is in the execution's
    # metadata.
    "UPDATE agent_state_snapshots SET previous_snapshot_id = parent_snapshot_id, parent_snapshot_id = NULL",
    """
    UPDATE agent_state_snapshots snapshot
       SET parent_snapshot_id = parent.id
      FROM agent_executions execution, agent_state_snapshots parent
     WHERE execution.id = snapshot.agent_execution_id AND execution.parent_execution_id IS NOT NULL
       AND parent.id = CAST(execution.metadata ->> 'parent_snapshot_id' AS uuid)
    """,
    # Clear dangling references.
    """
    UPDATE agent_executions SET last_snapshot_id = NULL
     WHERE last_snapshot_id IS NOT NULL
       AND NOT EXISTS (SELECT 1 FROM agent_state_snapshots WHERE id = last_snapshot_id)
    """,
    """
    UPDATE agent_sessions SET last_snapshot_id = NULL
     WHERE last_snapshot_id IS NOT NULL
       AND NOT EXISTS (SELECT 1 FROM agent_state_snapshots WHERE id = last_snapshot_id)
    """,
    """
    UPDATE agent_session_messages SET agent_execution_id = NULL
     WHERE agent_execution_id IS NOT NULL
       AND NOT EXISTS (SELECT 1 FROM agent_executions WHERE id = agent_execution_id)
    """,
    WORKED,
    """
    UPDATE agent_sessions session
       SET worked_seconds = (SELECT coalesce(sum(worked_seconds), 0)
                               FROM agent_executions
                              WHERE session_id = session.id AND parent_execution_id IS NULL),
           last_execution_id = (SELECT id
                                  FROM agent_executions
                                 WHERE session_id = session.id AND parent_execution_id IS NULL
                                 ORDER BY created_at DESC, id DESC
                                 LIMIT 1)
    """,
    """
    CREATE INDEX agent_sessions_by_last_execution ON agent_sessions (last_execution_id)
     WHERE last_execution_id IS NOT NULL
    """,
    """
    CREATE INDEX agent_sessions_by_last_snapshot ON agent_sessions (last_snapshot_id)
     WHERE last_snapshot_id IS NOT NULL
    """,
    """
    CREATE INDEX agent_session_messages_by_execution ON agent_session_messages (agent_execution_id)
     WHERE agent_execution_id IS NOT NULL
    """,
    """
    CREATE INDEX agent_executions_by_last_snapshot ON agent_executions (last_snapshot_id)
     WHERE last_snapshot_id IS NOT NULL
    """,
    """
    CREATE INDEX agent_state_snapshots_by_parent ON agent_state_snapshots (parent_snapshot_id)
     WHERE parent_snapshot_id IS NOT NULL
    """,
    # Referenced rows may be inserted later in the same transaction, so the check is deferred to its end.
    """
    ALTER TABLE agent_sessions
        ADD CONSTRAINT agent_sessions_last_execution_id_fkey
            FOREIGN KEY (last_execution_id) REFERENCES agent_executions (id) ON DELETE SET NULL
            DEFERRABLE INITIALLY DEFERRED,
        ADD CONSTRAINT agent_sessions_last_snapshot_id_fkey
            FOREIGN KEY (last_snapshot_id) REFERENCES agent_state_snapshots (id) ON DELETE SET NULL
            DEFERRABLE INITIALLY DEFERRED
    """,
    """
    ALTER TABLE agent_executions
        ADD CONSTRAINT agent_executions_session_id_fkey
            FOREIGN KEY (session_id) REFERENCES agent_sessions (id) ON DELETE CASCADE,
        ADD CONSTRAINT agent_executions_last_snapshot_id_fkey
            FOREIGN KEY (last_snapshot_id) REFERENCES agent_state_snapshots (id) ON DELETE SET NULL
            DEFERRABLE INITIALLY DEFERRED
    """,
    """
    ALTER TABLE agent_session_messages
        ADD CONSTRAINT agent_session_messages_agent_execution_id_fkey
            FOREIGN KEY (agent_execution_id) REFERENCES agent_executions (id) ON DELETE SET NULL
    """,
    """
    ALTER TABLE agent_state_snapshots
        ADD CONSTRAINT agent_state_snapshots_parent_snapshot_id_fkey
            FOREIGN KEY (parent_snapshot_id) REFERENCES agent_state_snapshots (id) ON DELETE SET NULL
    """,
)


def upgrade() -> None:
    """Apply the revision."""
    for statement in CHANGES:
        op.execute(statement)
