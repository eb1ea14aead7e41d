"""Metadata as notes in the transcript, results of processors, inner replies, listed tools."""

from alembic import op

revision = "0005_notes"
down_revision = "0004_journal"

CHANGES = (
    "ALTER TABLE agent_executions ADD COLUMN listed JSON",
    "ALTER TABLE agent_steps ADD COLUMN processed JSON",
    "ALTER TABLE agent_tool_calls ADD COLUMN besides JSON",
    "CREATE INDEX agent_transcript_notes ON agent_transcript (execution_id, step, idx) WHERE role = 'note'",
    """
    CREATE TABLE agent_inner_replies (
        execution_id UUID NOT NULL,
        key TEXT NOT NULL,
        tenant_id TEXT NOT NULL,
        digest TEXT NOT NULL,
        response JSON NOT NULL,
        created_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
        CONSTRAINT agent_inner_replies_pkey PRIMARY KEY (execution_id, key),
        CONSTRAINT agent_inner_replies_execution_id_fkey
            FOREIGN KEY (execution_id) REFERENCES agent_executions (id) ON DELETE CASCADE
    )
    """,
)


def upgrade() -> None:
    """Apply the revision."""
    for statement in CHANGES:
        op.execute(statement)
