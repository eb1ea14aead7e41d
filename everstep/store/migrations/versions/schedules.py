"""Schedules: messages that are sent at times."""

from alembic import op

revision = "0025_schedules"
down_revision = "0024_search_words"

_CHANGES = (
    """
    CREATE TABLE agent_schedules (
        id UUID NOT NULL,
        tenant_id TEXT NOT NULL,
        user_id TEXT NOT NULL,
        agent TEXT NOT NULL,
        content TEXT NOT NULL,
        session_id UUID,
        cadence JSON NOT NULL,
        overlap TEXT NOT NULL,
        is_paused BOOLEAN DEFAULT false NOT NULL,
        is_deleted BOOLEAN DEFAULT false NOT NULL,
        revision INTEGER DEFAULT 1 NOT NULL,
        applied_revision INTEGER DEFAULT 0 NOT NULL,
        last_error TEXT,
        task_queue TEXT,
        created_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
        updated_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
        CONSTRAINT agent_schedules_pkey PRIMARY KEY (id)
    )
    """,
    "CREATE INDEX agent_schedules_of_user ON agent_schedules (tenant_id, user_id, created_at, id)",
    """
    CREATE INDEX agent_schedules_unapplied ON agent_schedules (task_queue, updated_at)
     WHERE applied_revision < revision
    """,
)


def upgrade() -> None:
    """Apply the revision."""
    for statement in _CHANGES:
        op.execute(statement)
