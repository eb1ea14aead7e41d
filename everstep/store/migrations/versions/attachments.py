"""Attached files, the executions that use them, and their references in messages and results of calls."""

from alembic import op

revision = "0013_attachments"
down_revision = "0012_budgets"

CHANGES = (
    """
    CREATE TABLE agent_attachments (
        id UUID NOT NULL,
        tenant_id TEXT NOT NULL,
        user_id TEXT,
        name TEXT NOT NULL,
        media_type TEXT NOT NULL,
        size BIGINT NOT NULL,
        sha256 TEXT NOT NULL,
        created_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
        expires_at TIMESTAMP WITH TIME ZONE,
        CONSTRAINT agent_attachments_pkey PRIMARY KEY (id)
    )
    """,
    """
    CREATE INDEX agent_attachments_expiring ON agent_attachments (expires_at)
     WHERE expires_at IS NOT NULL
    """,
    """
    CREATE TABLE agent_attachment_uses (
        execution_id UUID NOT NULL,
        tenant_id TEXT NOT NULL,
        attachment_id UUID NOT NULL,
        call_id TEXT,
        created_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
        CONSTRAINT agent_attachment_uses_pkey PRIMARY KEY (execution_id, attachment_id),
        CONSTRAINT agent_attachment_uses_execution_id_fkey
            FOREIGN KEY (execution_id) REFERENCES agent_executions (id) ON DELETE CASCADE,
        CONSTRAINT agent_attachment_uses_attachment_id_fkey
            FOREIGN KEY (attachment_id) REFERENCES agent_attachments (id) ON DELETE CASCADE
    )
    """,
    "CREATE INDEX agent_attachment_uses_by_attachment ON agent_attachment_uses (attachment_id)",
    """
    CREATE TABLE agent_attachment_contents (
        id UUID NOT NULL,
        tenant_id TEXT NOT NULL,
        data BYTEA NOT NULL,
        CONSTRAINT agent_attachment_contents_pkey PRIMARY KEY (id),
        CONSTRAINT agent_attachment_contents_id_fkey
            FOREIGN KEY (id) REFERENCES agent_attachments (id) ON DELETE CASCADE
    )
    """,
    # Images and PDF are compressed already.
    "ALTER TABLE agent_attachment_contents ALTER COLUMN data SET STORAGE EXTERNAL",
    "ALTER TABLE agent_session_messages ADD COLUMN attachments JSON DEFAULT '[]' NOT NULL",
    "ALTER TABLE agent_tool_calls ADD COLUMN attachments JSON",
    # The response to an upload, which is deleted with the file.
    """
    ALTER TABLE agent_answers ADD COLUMN attachment_id UUID
        CONSTRAINT agent_answers_attachment_id_fkey REFERENCES agent_attachments (id) ON DELETE CASCADE
    """,
    """
    CREATE INDEX agent_answers_by_attachment ON agent_answers (attachment_id)
     WHERE attachment_id IS NOT NULL
    """,
)


def upgrade() -> None:
    """Apply the revision."""
    for statement in CHANGES:
        op.execute(statement)
