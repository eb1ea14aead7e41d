"""What anyone may read of why an execution failed."""

from alembic import op

revision = "0009_disclosure"
down_revision = "0008_references"


def upgrade() -> None:
    """Change everything."""
    op.execute("ALTER TABLE agent_executions ADD COLUMN error_told TEXT")
