"""What decisions have read, and digests of calls, so that decisions can be repeated; null in earlier rows."""

from alembic import op

revision = "0018_boundaries"
down_revision = "0017_ends"

CHANGES = (
    "ALTER TABLE agent_steps ADD COLUMN boundary JSON",
    "ALTER TABLE agent_tool_calls ADD COLUMN digest TEXT",
)


def upgrade() -> None:
    """Apply the revision."""
    for statement in CHANGES:
        op.execute(statement)
