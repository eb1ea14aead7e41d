"""What vouches for the session of a browser, and which browser it is."""

from alembic import op

revision = "0023_sign_in_authorities"
down_revision = "0022_pruned_ledgers"

_CHANGES = (
    "ALTER TABLE agent_sign_ins ADD COLUMN authority TEXT",
    "ALTER TABLE agent_sign_ins ADD COLUMN signing_key TEXT",
    "ALTER TABLE agent_sign_ins ADD COLUMN user_agent TEXT",
    "CREATE INDEX agent_sign_ins_of_user ON agent_sign_ins (tenant_id, user_id, created_at DESC)",
)


def upgrade() -> None:
    """Apply the revision."""
    for statement in _CHANGES:
        op.execute(statement)
