"""Budgets, their reservations, and the requests to raise them, which belong to no call."""

from alembic import op

revision = "0012_budgets"
down_revision = "0011_approvers"

CHANGES = (
    """
    CREATE TABLE agent_budgets (
        id UUID NOT NULL,
        tenant_id TEXT NOT NULL,
        scope TEXT NOT NULL,
        subject TEXT NOT NULL,
        agent TEXT NOT NULL,
        unit TEXT NOT NULL,
        limit_amount NUMERIC NOT NULL,
        raised_to NUMERIC,
        raised_by JSON,
        spent NUMERIC DEFAULT 0 NOT NULL,
        reserved NUMERIC DEFAULT 0 NOT NULL,
        on_exhausted TEXT NOT NULL,
        degrade_to TEXT,
        execution_id UUID,
        session_id UUID,
        created_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
        updated_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
        CONSTRAINT agent_budgets_pkey PRIMARY KEY (id),
        CONSTRAINT agent_budgets_scope_check CHECK (scope IN ('execution', 'session', 'user', 'tenant')),
        CONSTRAINT agent_budgets_unit_check CHECK (unit IN ('usd', 'tokens', 'steps')),
        CONSTRAINT agent_budgets_on_exhausted_check CHECK (on_exhausted IN ('stop', 'ask', 'degrade')),
        CONSTRAINT agent_budgets_execution_id_fkey
            FOREIGN KEY (execution_id) REFERENCES agent_executions (id) ON DELETE CASCADE,
        CONSTRAINT agent_budgets_session_id_fkey
            FOREIGN KEY (session_id) REFERENCES agent_sessions (id) ON DELETE CASCADE
    ) WITH (fillfactor = 50)
    """,
    "CREATE INDEX agent_budgets_of_operators ON agent_budgets (tenant_id, subject) WHERE agent = ''",
    "CREATE INDEX agent_budgets_by_execution ON agent_budgets (execution_id) WHERE execution_id IS NOT NULL",
    "CREATE INDEX agent_budgets_by_session ON agent_budgets (session_id) WHERE session_id IS NOT NULL",
    """
    CREATE TABLE agent_budget_reservations (
        execution_id UUID NOT NULL,
        key TEXT NOT NULL,
        budget_id UUID NOT NULL,
        tenant_id TEXT NOT NULL,
        amount NUMERIC NOT NULL,
        created_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
        CONSTRAINT agent_budget_reservations_pkey PRIMARY KEY (execution_id, key, budget_id),
        CONSTRAINT agent_budget_reservations_execution_id_fkey
            FOREIGN KEY (execution_id) REFERENCES agent_executions (id) ON DELETE CASCADE
    )
    """,
    # A request to raise a budget has no call, so it is deleted with its execution.
    "ALTER TABLE agent_requests ALTER COLUMN call_id DROP NOT NULL",
    """
    ALTER TABLE agent_requests ADD CONSTRAINT agent_requests_execution_id_owner_fkey
        FOREIGN KEY (execution_id) REFERENCES agent_executions (id) ON DELETE CASCADE NOT VALID
    """,
    "ALTER TABLE agent_requests VALIDATE CONSTRAINT agent_requests_execution_id_owner_fkey",
    "ALTER TABLE agent_commands DROP CONSTRAINT agent_commands_kind_check",
    """
    ALTER TABLE agent_commands ADD CONSTRAINT agent_commands_kind_check
        CHECK (kind IN ('input', 'approval', 'budget', 'steer', 'pause', 'resume', 'cancel')) NOT VALID
    """,
    "ALTER TABLE agent_commands VALIDATE CONSTRAINT agent_commands_kind_check",
)


def upgrade() -> None:
    """Apply the revision."""
    for statement in CHANGES:
        op.execute(statement)
