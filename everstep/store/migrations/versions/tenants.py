"""The limits of tenants and users, and the places of their executions."""

from alembic import op

revision = "0027_tenants"
down_revision = "0026_first_texts"

_CHANGES = (
    """
    CREATE TABLE agent_tenant_limits (
        tenant_id TEXT NOT NULL,
        user_id TEXT DEFAULT '' NOT NULL,
        weight DOUBLE PRECISION,
        max_running INTEGER,
        max_model_calls INTEGER,
        requests_per_second DOUBLE PRECISION,
        tokens_per_minute BIGINT,
        updated_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
        CONSTRAINT agent_tenant_limits_pkey PRIMARY KEY (tenant_id, user_id)
    )
    """,
    """
    CREATE TABLE agent_places (
        execution_id UUID NOT NULL,
        tenant_id TEXT NOT NULL,
        user_id TEXT NOT NULL,
        queued_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
        admitted_at TIMESTAMP WITH TIME ZONE,
        is_paused BOOLEAN DEFAULT false NOT NULL,
        CONSTRAINT agent_places_pkey PRIMARY KEY (execution_id),
        CONSTRAINT agent_places_execution_id_fkey
            FOREIGN KEY (execution_id) REFERENCES agent_executions (id) ON DELETE CASCADE
    )
    """,
    """
    CREATE INDEX agent_places_waiting ON agent_places (tenant_id, user_id, queued_at, execution_id)
        WHERE admitted_at IS NULL
    """,
    """
    CREATE INDEX agent_places_held ON agent_places (tenant_id, user_id)
        WHERE admitted_at IS NOT NULL AND NOT is_paused
    """,
)


def upgrade() -> None:
    """Apply the revision."""
    for statement in _CHANGES:
        op.execute(statement)
