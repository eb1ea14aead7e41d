"""Sessions: queues, searches, and the tables of the HTTP API."""

from alembic import op

revision = "0002_sessions"
down_revision = "0001_initial"

CHANGES = (
    """
    ALTER TABLE agent_executions
        ADD COLUMN continues_until INTEGER,
        ADD COLUMN queue_rank INTEGER DEFAULT 1 NOT NULL,
        ADD COLUMN released_at TIMESTAMP WITH TIME ZONE,
        ADD COLUMN task_queue TEXT
    """,
    # Until this revision, executions did not queue.
    "UPDATE agent_executions SET released_at = created_at",
    """
    CREATE INDEX agent_executions_by_user ON agent_executions (tenant_id, user_id, created_at DESC, id DESC)
    """,
    """
    CREATE INDEX agent_executions_under_way ON agent_executions (session_id)
     WHERE session_id IS NOT NULL AND parent_execution_id IS NULL
       AND status IN ('pending', 'running', 'paused')
    """,
    """
    CREATE INDEX agent_executions_unchanged ON agent_executions (updated_at, id)
     WHERE status IN ('pending', 'running', 'paused')
    """,
    "CREATE INDEX agent_sessions_newest ON agent_sessions (tenant_id, created_at DESC, id DESC)",
    "CREATE INDEX agent_sessions_by_status ON agent_sessions (tenant_id, status, created_at DESC, id DESC)",
    """
    CREATE INDEX agent_sessions_by_user_and_status
        ON agent_sessions (tenant_id, user_id, status, created_at DESC, id DESC)
    """,
    """
    CREATE INDEX agent_sessions_by_related
        ON agent_sessions (tenant_id, related_type, related_id, created_at DESC, id DESC)
     WHERE related_type IS NOT NULL
    """,
    """
    CREATE INDEX agent_sessions_by_title ON agent_sessions
     USING gin (to_tsvector('simple', coalesce(title, '')))
    """,
    "ALTER TABLE agent_requests ADD COLUMN user_id TEXT",
    """
    UPDATE agent_requests SET user_id = execution.user_id
      FROM agent_executions execution WHERE execution.id = agent_requests.execution_id
    """,
    """
    CREATE INDEX agent_requests_open_by_user ON agent_requests (tenant_id, user_id, created_at, id)
     WHERE state = 'open'
    """,
    """
    CREATE TABLE agent_answers (
        tenant_id TEXT NOT NULL,
        user_id TEXT NOT NULL,
        key TEXT NOT NULL,
        digest TEXT NOT NULL,
        status INTEGER NOT NULL,
        body JSON NOT NULL,
        created_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
        CONSTRAINT agent_answers_pkey PRIMARY KEY (tenant_id, user_id, key)
    )
    """,
    "CREATE INDEX agent_answers_oldest ON agent_answers (created_at)",
    """
    CREATE TABLE agent_api_keys (
        id UUID NOT NULL,
        tenant_id TEXT NOT NULL,
        name TEXT NOT NULL,
        digest TEXT NOT NULL,
        user_id TEXT,
        scopes TEXT[] DEFAULT '{}' NOT NULL,
        created_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
        last_used_at TIMESTAMP WITH TIME ZONE,
        revoked_at TIMESTAMP WITH TIME ZONE,
        CONSTRAINT agent_api_keys_pkey PRIMARY KEY (id),
        CONSTRAINT agent_api_keys_digest_key UNIQUE (digest)
    )
    """,
    "CREATE INDEX agent_api_keys_newest ON agent_api_keys (tenant_id, created_at DESC, id DESC)",
    # An approved call may also ask a question.
    """
    ALTER TABLE agent_requests
        DROP CONSTRAINT agent_requests_execution_id_call_id_key,
        ADD CONSTRAINT agent_requests_execution_id_call_id_kind_key UNIQUE (execution_id, call_id, kind)
    """,
)


def upgrade() -> None:
    """Apply the revision."""
    for statement in CHANGES:
        op.execute(statement)
