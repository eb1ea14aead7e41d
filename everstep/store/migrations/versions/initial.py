"""The first tables."""

from alembic import op

revision = "0001_initial"
down_revision = None

TABLES = (
    """
    CREATE TABLE agent_sessions (
        id UUID NOT NULL,
        tenant_id TEXT NOT NULL,
        user_id TEXT NOT NULL,
        related_type TEXT,
        related_id TEXT,
        initial_context_url TEXT,
        title TEXT,
        status TEXT DEFAULT 'active' NOT NULL,
        metadata JSON DEFAULT '{}' NOT NULL,
        last_execution_id UUID,
        last_snapshot_id UUID,
        created_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
        updated_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
        CONSTRAINT agent_sessions_pkey PRIMARY KEY (id),
        CONSTRAINT agent_sessions_status_check CHECK (status IN ('active', 'archived', 'closed'))
    )
    """,
    """
    CREATE INDEX agent_sessions_by_user ON agent_sessions (tenant_id, user_id, created_at DESC, id DESC)
    """,
    """
    CREATE TABLE agent_session_messages (
        id UUID NOT NULL,
        tenant_id TEXT NOT NULL,
        session_id UUID NOT NULL,
        role TEXT NOT NULL,
        content TEXT NOT NULL,
        agent_execution_id UUID,
        related_type TEXT,
        related_id TEXT,
        context_url TEXT,
        metadata JSON DEFAULT '{}' NOT NULL,
        created_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
        sequence BIGINT,
        CONSTRAINT agent_session_messages_pkey PRIMARY KEY (id),
        CONSTRAINT agent_session_messages_role_check
            CHECK (role IN ('user', 'assistant', 'info', 'notification')),
        CONSTRAINT agent_session_messages_session_id_fkey
            FOREIGN KEY (session_id) REFERENCES agent_sessions (id) ON DELETE CASCADE
    )
    """,
    """
    CREATE INDEX agent_session_messages_in_order ON agent_session_messages (session_id, created_at, id)
    """,
    """
    CREATE TABLE agent_executions (
        id UUID NOT NULL,
        tenant_id TEXT NOT NULL,
        session_id UUID,
        user_id TEXT,
        agent_type TEXT NOT NULL,
        agent_config JSON NOT NULL,
        status TEXT DEFAULT 'pending' NOT NULL,
        input JSON DEFAULT '{}' NOT NULL,
        output JSON DEFAULT '{}' NOT NULL,
        last_snapshot_id UUID,
        step_count INTEGER DEFAULT 0 NOT NULL,
        token_usage BIGINT DEFAULT 0 NOT NULL,
        token_breakdown JSON DEFAULT '{}' NOT NULL,
        metadata JSON DEFAULT '{}' NOT NULL,
        error_message TEXT,
        started_at TIMESTAMP WITH TIME ZONE,
        completed_at TIMESTAMP WITH TIME ZONE,
        created_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
        updated_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
        agent_id UUID NOT NULL,
        parent_agent_id UUID,
        parent_execution_id UUID,
        continues_execution_id UUID,
        stop_reason TEXT,
        plan JSON DEFAULT '{}' NOT NULL,
        agent_metadata JSON DEFAULT '{}' NOT NULL,
        CONSTRAINT agent_executions_pkey PRIMARY KEY (id),
        CONSTRAINT agent_executions_status_check
            CHECK (status IN ('pending', 'running', 'paused', 'completed', 'failed', 'cancelled')),
        CONSTRAINT agent_executions_parent_execution_id_fkey
            FOREIGN KEY (parent_execution_id) REFERENCES agent_executions (id) ON DELETE SET NULL,
        CONSTRAINT agent_executions_continues_execution_id_fkey
            FOREIGN KEY (continues_execution_id) REFERENCES agent_executions (id)
    )
    """,
    """
    CREATE INDEX agent_executions_by_continued
        ON agent_executions (continues_execution_id)
        WHERE continues_execution_id IS NOT NULL
    """,
    """
    CREATE INDEX agent_executions_by_parent
        ON agent_executions (parent_execution_id)
        WHERE parent_execution_id IS NOT NULL
    """,
    """
    CREATE INDEX agent_executions_by_session ON agent_executions (session_id, created_at DESC, id DESC)
    """,
    """
    CREATE INDEX agent_executions_by_status ON agent_executions (tenant_id, status, created_at DESC, id DESC)
    """,
    """
    CREATE INDEX agent_executions_newest ON agent_executions (tenant_id, created_at DESC, id DESC)
    """,
    """
    CREATE TABLE agent_state_snapshots (
        id UUID NOT NULL,
        tenant_id TEXT NOT NULL,
        agent_execution_id UUID NOT NULL,
        parent_snapshot_id UUID,
        agent_id UUID,
        agent_name TEXT,
        step_number INTEGER,
        is_final BOOLEAN DEFAULT false NOT NULL,
        debug_mode BOOLEAN DEFAULT false NOT NULL,
        state_json JSON NOT NULL,
        created_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
        CONSTRAINT agent_state_snapshots_pkey PRIMARY KEY (id),
        CONSTRAINT agent_state_snapshots_agent_execution_id_fkey
            FOREIGN KEY (agent_execution_id) REFERENCES agent_executions (id) ON DELETE CASCADE
    )
    """,
    """
    CREATE INDEX agent_state_snapshots_in_order ON agent_state_snapshots (agent_execution_id, created_at, id)
    """,
    """
    CREATE TABLE agent_steps (
        execution_id UUID NOT NULL,
        number INTEGER NOT NULL,
        tenant_id TEXT NOT NULL,
        attempt INTEGER NOT NULL,
        failed_attempts INTEGER[] DEFAULT '{}' NOT NULL,
        facts JSON,
        response JSON,
        errors JSON DEFAULT '[]' NOT NULL,
        outcome JSON,
        partial_text TEXT DEFAULT '' NOT NULL,
        started_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
        completed_at TIMESTAMP WITH TIME ZONE,
        CONSTRAINT agent_steps_pkey PRIMARY KEY (execution_id, number),
        CONSTRAINT agent_steps_execution_id_fkey
            FOREIGN KEY (execution_id) REFERENCES agent_executions (id) ON DELETE CASCADE
    )
    """,
    """
    CREATE TABLE agent_transcript (
        execution_id UUID NOT NULL,
        step INTEGER NOT NULL,
        idx INTEGER NOT NULL,
        tenant_id TEXT NOT NULL,
        role TEXT NOT NULL,
        content JSON NOT NULL,
        metadata JSON DEFAULT '{}' NOT NULL,
        created_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
        CONSTRAINT agent_transcript_pkey PRIMARY KEY (execution_id, step, idx),
        CONSTRAINT agent_transcript_execution_id_fkey
            FOREIGN KEY (execution_id) REFERENCES agent_executions (id) ON DELETE CASCADE
    )
    """,
    """
    CREATE TABLE agent_tool_calls (
        execution_id UUID NOT NULL,
        call_id TEXT NOT NULL,
        tenant_id TEXT NOT NULL,
        step INTEGER NOT NULL,
        idx INTEGER NOT NULL,
        name TEXT NOT NULL,
        args JSON NOT NULL,
        malformed TEXT,
        need TEXT NOT NULL,
        args_digest TEXT NOT NULL,
        state TEXT DEFAULT 'told' NOT NULL,
        attempts INTEGER DEFAULT 0 NOT NULL,
        result JSON,
        text TEXT,
        error JSON,
        success BOOLEAN,
        started_at TIMESTAMP WITH TIME ZONE,
        completed_at TIMESTAMP WITH TIME ZONE,
        seconds DOUBLE PRECISION,
        CONSTRAINT agent_tool_calls_pkey PRIMARY KEY (execution_id, call_id),
        CONSTRAINT agent_tool_calls_execution_id_step_idx_key UNIQUE (execution_id, step, idx),
        CONSTRAINT agent_tool_calls_state_check CHECK (state IN ('told', 'reserved', 'done')),
        CONSTRAINT agent_tool_calls_execution_id_fkey
            FOREIGN KEY (execution_id) REFERENCES agent_executions (id) ON DELETE CASCADE
    )
    """,
    """
    CREATE TABLE agent_requests (
        id UUID NOT NULL,
        tenant_id TEXT NOT NULL,
        execution_id UUID NOT NULL,
        call_id TEXT NOT NULL,
        kind TEXT NOT NULL,
        state TEXT DEFAULT 'open' NOT NULL,
        request JSON DEFAULT '{}' NOT NULL,
        resolution JSON,
        created_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
        resolved_at TIMESTAMP WITH TIME ZONE,
        CONSTRAINT agent_requests_pkey PRIMARY KEY (id),
        CONSTRAINT agent_requests_execution_id_call_id_key UNIQUE (execution_id, call_id),
        CONSTRAINT agent_requests_execution_id_fkey
            FOREIGN KEY (execution_id, call_id) REFERENCES agent_tool_calls (execution_id, call_id)
                ON DELETE CASCADE,
        CONSTRAINT agent_requests_state_check CHECK (state IN ('open', 'resolved'))
    )
    """,
    """
    CREATE INDEX agent_requests_open ON agent_requests (tenant_id, created_at, id) WHERE state = 'open'
    """,
    """
    CREATE TABLE agent_steered (
        execution_id UUID NOT NULL,
        key TEXT NOT NULL,
        tenant_id TEXT NOT NULL,
        position BIGINT GENERATED ALWAYS AS IDENTITY,
        role TEXT NOT NULL,
        content JSON NOT NULL,
        metadata JSON DEFAULT '{}' NOT NULL,
        heard_at INTEGER,
        created_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
        CONSTRAINT agent_steered_pkey PRIMARY KEY (execution_id, key),
        CONSTRAINT agent_steered_execution_id_fkey
            FOREIGN KEY (execution_id) REFERENCES agent_executions (id) ON DELETE CASCADE
    )
    """,
    """
    CREATE TABLE agent_settlements (
        execution_id UUID NOT NULL,
        key TEXT NOT NULL,
        tenant_id TEXT NOT NULL,
        status TEXT NOT NULL,
        created_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
        CONSTRAINT agent_settlements_pkey PRIMARY KEY (execution_id, key),
        CONSTRAINT agent_settlements_execution_id_fkey
            FOREIGN KEY (execution_id) REFERENCES agent_executions (id) ON DELETE CASCADE
    )
    """,
    """
    CREATE TABLE agent_streams (
        stream_id UUID NOT NULL,
        tenant_id TEXT NOT NULL,
        head BIGINT DEFAULT 0 NOT NULL,
        last_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
        epoch UUID DEFAULT gen_random_uuid() NOT NULL,
        CONSTRAINT agent_streams_pkey PRIMARY KEY (stream_id)
    )
    """,
    """
    CREATE TABLE agent_envelopes (
        stream_id UUID NOT NULL,
        seq BIGINT NOT NULL,
        tenant_id TEXT NOT NULL,
        id UUID NOT NULL,
        type TEXT NOT NULL,
        execution_id UUID NOT NULL,
        payload JSON NOT NULL,
        created_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
        CONSTRAINT agent_envelopes_pkey PRIMARY KEY (stream_id, seq),
        CONSTRAINT agent_envelopes_id_key UNIQUE (id),
        CONSTRAINT agent_envelopes_stream_id_fkey
            FOREIGN KEY (stream_id) REFERENCES agent_streams (stream_id) ON DELETE CASCADE
    )
    """,
)


def upgrade() -> None:
    """Create all tables."""
    for statement in TABLES:
        op.execute(statement)
