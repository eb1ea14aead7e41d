"""The ledger of executions: entries, and the head of each chain."""

from alembic import op

revision = "0019_ledger"
down_revision = "0018_boundaries"

_TABLES = (
    "ALTER TABLE agent_executions ADD COLUMN is_sealed BOOLEAN DEFAULT false NOT NULL",
    """
    CREATE TABLE agent_ledger_heads (
        execution_id UUID NOT NULL,
        tenant_id TEXT NOT NULL,
        position INTEGER DEFAULT 0 NOT NULL,
        hash TEXT DEFAULT '0000000000000000000000000000000000000000000000000000000000000000' NOT NULL,
        is_closed BOOLEAN DEFAULT false NOT NULL,
        CONSTRAINT agent_ledger_heads_pkey PRIMARY KEY (execution_id),
        CONSTRAINT agent_ledger_heads_execution_id_fkey FOREIGN KEY (execution_id)
            REFERENCES agent_executions (id) ON DELETE CASCADE
    ) WITH (fillfactor = 50)
    """,
    """
    CREATE TABLE agent_ledger (
        execution_id UUID NOT NULL,
        position INTEGER NOT NULL,
        tenant_id TEXT NOT NULL,
        key TEXT NOT NULL,
        entry TEXT NOT NULL,
        hash TEXT NOT NULL,
        recorded_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
        CONSTRAINT agent_ledger_pkey PRIMARY KEY (execution_id, position),
        CONSTRAINT agent_ledger_execution_id_key_key UNIQUE (execution_id, key),
        CONSTRAINT agent_ledger_position_check CHECK (position > 0),
        CONSTRAINT agent_ledger_execution_id_fkey FOREIGN KEY (execution_id)
            REFERENCES agent_executions (id) ON DELETE CASCADE
    )
    """,
    """
    CREATE INDEX agent_ledger_by_time ON agent_ledger (tenant_id, recorded_at, execution_id, position)
    """,
)


def upgrade() -> None:
    """Apply the revision."""
    for statement in _TABLES:
        op.execute(statement)
