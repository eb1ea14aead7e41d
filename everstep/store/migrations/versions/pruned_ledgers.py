"""What stays of the ledgers of executions that were pruned."""

from alembic import op

revision = "0022_pruned_ledgers"
down_revision = "0021_session_usage"

_TABLE = """
    CREATE TABLE agent_pruned_ledgers (
        execution_id UUID NOT NULL,
        tenant_id TEXT NOT NULL,
        entries INTEGER NOT NULL,
        hash TEXT NOT NULL,
        pruned_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
        CONSTRAINT agent_pruned_ledgers_pkey PRIMARY KEY (execution_id)
    )
"""


def upgrade() -> None:
    """Apply the revision."""
    op.execute(_TABLE)
