"""The part of an execution's error message that any caller may see."""

from alembic import op

revision = "0009_disclosure"
down_revision = "0008_references"


def upgrade() -> None:
    """Apply the revision."""
    op.execute("ALTER TABLE agent_executions ADD COLUMN error_told TEXT")
