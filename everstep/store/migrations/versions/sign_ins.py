"""Sign-ins of people in browsers."""

from alembic import op

revision = "0020_sign_ins"
down_revision = "0019_ledger"

_CHANGES = (
    """
    CREATE TABLE agent_sign_ins (
        digest TEXT NOT NULL,
        kind TEXT NOT NULL,
        tenant_id TEXT NOT NULL,
        user_id TEXT NOT NULL,
        scopes TEXT[] DEFAULT '{}' NOT NULL,
        roles TEXT[] DEFAULT '{}' NOT NULL,
        key_id UUID,
        created_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
        expires_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
        CONSTRAINT agent_sign_ins_pkey PRIMARY KEY (digest),
        CONSTRAINT agent_sign_ins_kind_check CHECK (kind IN ('code', 'session', 'ticket')),
        CONSTRAINT agent_sign_ins_key_id_fkey FOREIGN KEY (key_id)
            REFERENCES agent_api_keys (id) ON DELETE CASCADE
    )
    """,
    "CREATE INDEX agent_sign_ins_by_key ON agent_sign_ins (key_id) WHERE key_id IS NOT NULL",
    "CREATE INDEX agent_sign_ins_expiring ON agent_sign_ins (expires_at)",
)


def upgrade() -> None:
    """Apply the revision."""
    for statement in _CHANGES:
        op.execute(statement)
