"""Feedback of people on answers."""

from alembic import op

revision = "0014_feedback"
down_revision = "0013_attachments"

CHANGES = (
    """
    CREATE TABLE agent_feedback (
        message_id UUID NOT NULL,
        tenant_id TEXT NOT NULL,
        rating TEXT,
        text TEXT,
        given_by TEXT NOT NULL,
        given_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
        CONSTRAINT agent_feedback_pkey PRIMARY KEY (message_id),
        CONSTRAINT agent_feedback_message_id_fkey
            FOREIGN KEY (message_id) REFERENCES agent_session_messages (id) ON DELETE CASCADE,
        CONSTRAINT agent_feedback_rating_check CHECK (rating IN ('up', 'down'))
    )
    """,
    "CREATE INDEX agent_feedback_by_tenant ON agent_feedback (tenant_id, given_at, message_id)",
)


def upgrade() -> None:
    """Apply the revision."""
    for statement in CHANGES:
        op.execute(statement)
