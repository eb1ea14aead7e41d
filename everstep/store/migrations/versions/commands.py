"""Commands for workflows, requests in progress, and steering messages that no execution received."""

from alembic import op

revision = "0007_commands"
down_revision = "0006_waits"

CHANGES = (
    """
    CREATE TABLE agent_commands (
        execution_id UUID NOT NULL,
        key TEXT NOT NULL,
        tenant_id TEXT NOT NULL,
        position BIGINT GENERATED ALWAYS AS IDENTITY NOT NULL,
        kind TEXT NOT NULL,
        call_id TEXT,
        is_denied BOOLEAN DEFAULT false NOT NULL,
        created_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
        delivered_at TIMESTAMP WITH TIME ZONE,
        CONSTRAINT agent_commands_pkey PRIMARY KEY (execution_id, key),
        CONSTRAINT agent_commands_kind_check
            CHECK (kind IN ('input', 'approval', 'steer', 'pause', 'resume', 'cancel')),
        CONSTRAINT agent_commands_execution_id_fkey
            FOREIGN KEY (execution_id) REFERENCES agent_executions (id) ON DELETE CASCADE
    )
    """,
    "CREATE INDEX agent_commands_undelivered ON agent_commands (position) WHERE delivered_at IS NULL",
    "CREATE INDEX agent_steered_unheard ON agent_steered (position) WHERE heard_at IS NULL",
    """
    CREATE TABLE agent_claims (
        tenant_id TEXT NOT NULL,
        user_id TEXT NOT NULL,
        key TEXT NOT NULL,
        digest TEXT NOT NULL,
        owner UUID NOT NULL,
        created_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
        expires_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
        CONSTRAINT agent_claims_pkey PRIMARY KEY (tenant_id, user_id, key)
    )
    """,
    "CREATE INDEX agent_claims_oldest ON agent_claims (created_at)",
)


def upgrade() -> None:
    """Apply the revision."""
    for statement in CHANGES:
        op.execute(statement)
