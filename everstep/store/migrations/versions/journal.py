"""Partial texts for late subscribers, the journal's epoch, and the addresses of gateways."""

from alembic import op

revision = "0004_journal"
down_revision = "0003_retention"

CHANGES = (
    # Texts stored so far have no position, and are not published.
    """
    ALTER TABLE agent_steps
        ADD COLUMN next_index INTEGER,
        ADD COLUMN after_seq BIGINT,
        ADD COLUMN noted_at TIMESTAMP WITH TIME ZONE
    """,
    # One epoch for all streams: an outside change to one stream is a change to the whole database.
    "ALTER TABLE agent_streams DROP COLUMN epoch",
    """
    CREATE TABLE agent_journal (
        is_only BOOLEAN DEFAULT true NOT NULL,
        epoch UUID DEFAULT gen_random_uuid() NOT NULL,
        CONSTRAINT agent_journal_pkey PRIMARY KEY (is_only),
        CONSTRAINT agent_journal_is_only_check CHECK (is_only)
    )
    """,
    "INSERT INTO agent_journal DEFAULT VALUES",
    """
    CREATE TABLE agent_gateways (
        id UUID NOT NULL,
        url TEXT NOT NULL,
        seen_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
        CONSTRAINT agent_gateways_pkey PRIMARY KEY (id)
    )
    """,
    # Subagents write text to their session's stream too.
    "DROP INDEX agent_executions_under_way",
    """
    CREATE INDEX agent_executions_under_way ON agent_executions (session_id)
     WHERE session_id IS NOT NULL AND status IN ('pending', 'running', 'paused')
    """,
)


def upgrade() -> None:
    """Apply the revision."""
    for statement in CHANGES:
        op.execute(statement)
