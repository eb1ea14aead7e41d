"""Stored responses are deleted with their object; an index of ended executions."""

from alembic import op

revision = "0003_retention"
down_revision = "0002_sessions"

CHANGES = (
    """
    ALTER TABLE agent_answers
        ADD COLUMN session_id UUID,
        ADD COLUMN execution_id UUID
    """,
    # A response names its object, or has the object's own id.
    """
    UPDATE agent_answers SET session_id = session.id
      FROM agent_sessions session
     WHERE session.id = CAST(coalesce(body ->> 'session_id', body ->> 'id') AS uuid)
    """,
    """
    UPDATE agent_answers SET execution_id = execution.id
      FROM agent_executions execution
     WHERE execution.id = CAST(coalesce(body ->> 'execution_id', body ->> 'id') AS uuid)
    """,
    # The objects of all other responses have been deleted.
    "DELETE FROM agent_answers WHERE session_id IS NULL AND execution_id IS NULL",
    """
    ALTER TABLE agent_answers
        ADD CONSTRAINT agent_answers_session_id_fkey
            FOREIGN KEY (session_id) REFERENCES agent_sessions (id) ON DELETE CASCADE,
        ADD CONSTRAINT agent_answers_execution_id_fkey
            FOREIGN KEY (execution_id) REFERENCES agent_executions (id) ON DELETE CASCADE
    """,
    "CREATE INDEX agent_answers_by_session ON agent_answers (session_id) WHERE session_id IS NOT NULL",
    "CREATE INDEX agent_answers_by_execution ON agent_answers (execution_id) WHERE execution_id IS NOT NULL",
    """
    CREATE INDEX agent_executions_ended ON agent_executions (completed_at, id)
     WHERE completed_at IS NOT NULL AND parent_execution_id IS NULL
    """,
)


def upgrade() -> None:
    """Apply the revision."""
    for statement in CHANGES:
        op.execute(statement)
