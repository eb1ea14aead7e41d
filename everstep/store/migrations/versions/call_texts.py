"""The parts of the text that a model reads about a call."""

from alembic import op

revision = "0010_call_texts"
down_revision = "0009_disclosure"


def upgrade() -> None:
    """Apply the revision."""
    op.execute("ALTER TABLE agent_tool_calls ADD COLUMN note TEXT, ADD COLUMN own_text TEXT")
