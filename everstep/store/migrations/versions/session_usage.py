"""What model calls used that belong to a session and to no execution, such as those that write titles."""

from alembic import op

revision = "0021_session_usage"
down_revision = "0020_sign_ins"


def upgrade() -> None:
    """Apply the revision."""
    op.execute("""
        CREATE TABLE agent_session_usage (
            session_id UUID NOT NULL,
            tenant_id TEXT NOT NULL,
            agent TEXT NOT NULL,
            model TEXT NOT NULL,
            input BIGINT DEFAULT 0 NOT NULL,
            output BIGINT DEFAULT 0 NOT NULL,
            cache_write BIGINT DEFAULT 0 NOT NULL,
            cache_read BIGINT DEFAULT 0 NOT NULL,
            reasoning BIGINT DEFAULT 0 NOT NULL,
            cost_usd NUMERIC DEFAULT 0,
            known_cost_usd NUMERIC DEFAULT 0 NOT NULL,
            created_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
            CONSTRAINT agent_session_usage_pkey PRIMARY KEY (session_id, agent, model),
            CONSTRAINT agent_session_usage_session_id_fkey FOREIGN KEY (session_id)
                REFERENCES agent_sessions (id) ON DELETE CASCADE
        )
    """)
    op.execute("CREATE INDEX agent_session_usage_by_time ON agent_session_usage (tenant_id, created_at)")
    op.execute("""
        CREATE TABLE agent_budget_holds (
            id UUID NOT NULL,
            budget_id UUID NOT NULL,
            tenant_id TEXT NOT NULL,
            amount NUMERIC NOT NULL,
            created_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
            CONSTRAINT agent_budget_holds_pkey PRIMARY KEY (id, budget_id)
        )
    """)
    op.execute("CREATE INDEX agent_budget_holds_by_time ON agent_budget_holds (created_at)")
