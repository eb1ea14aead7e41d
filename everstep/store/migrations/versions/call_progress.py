"""The progress of a running call; null for calls that reported none."""

from alembic import op

revision = "0016_call_progress"
down_revision = "0015_costs"


def upgrade() -> None:
    """Apply the revision."""
    op.execute("ALTER TABLE agent_tool_calls ADD COLUMN progress JSON")
