"""The end and the reason of a step's wait for its next attempt."""

from alembic import op

revision = "0006_waits"
down_revision = "0005_notes"


def upgrade() -> None:
    """Apply the revision."""
    op.execute("ALTER TABLE agent_steps ADD COLUMN wait JSON")
