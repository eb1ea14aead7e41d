"""The outcome with which an execution ended."""

from alembic import op

revision = "0017_ends"
down_revision = "0016_call_progress"


def upgrade() -> None:
    """Apply the revision."""
    op.execute("ALTER TABLE agent_executions ADD COLUMN outcome JSON")
