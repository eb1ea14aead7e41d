"""How long models take to begin their answers; null in earlier rows."""

from alembic import op

revision = "0026_first_texts"
down_revision = "0025_schedules"


def upgrade() -> None:
    """Apply the revision."""
    op.execute("ALTER TABLE agent_steps ADD COLUMN first_text_seconds DOUBLE PRECISION")
