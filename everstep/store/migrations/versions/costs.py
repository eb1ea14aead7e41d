"""What executions cost, and what they used of each model; null for executions that began before."""

from alembic import op

revision = "0015_costs"
down_revision = "0014_feedback"


def upgrade() -> None:
    """Apply the revision."""
    op.execute("ALTER TABLE agent_executions ADD COLUMN cost_usd NUMERIC")
    op.execute("ALTER TABLE agent_executions ALTER COLUMN cost_usd SET DEFAULT 0")
    op.execute("ALTER TABLE agent_executions ADD COLUMN known_cost_usd NUMERIC DEFAULT 0 NOT NULL")
    op.execute("""
        CREATE TABLE agent_model_usage (
            execution_id UUID NOT NULL,
            tenant_id TEXT NOT NULL,
            model TEXT NOT NULL,
            input BIGINT DEFAULT 0 NOT NULL,
            output BIGINT DEFAULT 0 NOT NULL,
            cache_write BIGINT DEFAULT 0 NOT NULL,
            cache_read BIGINT DEFAULT 0 NOT NULL,
            reasoning BIGINT DEFAULT 0 NOT NULL,
            cost_usd NUMERIC DEFAULT 0,
            known_cost_usd NUMERIC DEFAULT 0 NOT NULL,
            CONSTRAINT agent_model_usage_pkey PRIMARY KEY (execution_id, model),
            CONSTRAINT agent_model_usage_execution_id_fkey FOREIGN KEY (execution_id)
                REFERENCES agent_executions (id) ON DELETE CASCADE
        )
    """)
