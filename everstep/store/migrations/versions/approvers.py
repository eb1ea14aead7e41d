"""Who may decide about a call that waits for approval, and who sent a command; null in older rows."""

from alembic import op

revision = "0011_approvers"
down_revision = "0010_call_texts"


def upgrade() -> None:
    """Apply the revision."""
    op.execute("ALTER TABLE agent_requests ADD COLUMN policy JSON")
    op.execute("ALTER TABLE agent_commands ADD COLUMN sent_by JSON")
