"""A step says until when its next attempt waits, and why."""

from alembic import op

revision = "0006_waits"
down_revision = "0005_notes"


def upgrade() -> None:
    """Change everything."""
    op.execute("ALTER TABLE agent_steps ADD COLUMN wait JSON")
