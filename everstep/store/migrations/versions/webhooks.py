"""Webhooks: URLs that receive events, and the triggers that queue their deliveries.

The triggers queue a delivery in the transaction that stores the end of an execution or a request, whichever
process or release stores it. Their conditions name only these: a step fires none.
"""

from alembic import op

revision = "0028_webhooks"
down_revision = "0027_tenants"

_EVENT_ID = "'evt_' || replace(NEW.id::text, '-', '')"

_CHANGES = (
    """
    CREATE TABLE agent_webhooks (
        id UUID NOT NULL,
        tenant_id TEXT NOT NULL,
        url TEXT NOT NULL,
        events TEXT[] NOT NULL,
        include_content BOOLEAN DEFAULT false NOT NULL,
        is_enabled BOOLEAN DEFAULT true NOT NULL,
        disabled_reason TEXT,
        secret TEXT NOT NULL,
        previous_secret TEXT,
        previous_until TIMESTAMP WITH TIME ZONE,
        failing_since TIMESTAMP WITH TIME ZONE,
        created_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
        updated_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
        CONSTRAINT agent_webhooks_pkey PRIMARY KEY (id)
    )
    """,
    "CREATE UNIQUE INDEX agent_webhooks_by_url ON agent_webhooks (tenant_id, url)",
    """
    CREATE TABLE agent_webhook_deliveries (
        id UUID NOT NULL,
        tenant_id TEXT NOT NULL,
        webhook_id UUID NOT NULL,
        event_id TEXT NOT NULL,
        type TEXT NOT NULL,
        data JSON NOT NULL,
        state TEXT DEFAULT 'pending' NOT NULL,
        attempts INTEGER DEFAULT 0 NOT NULL,
        next_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
        created_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
        completed_at TIMESTAMP WITH TIME ZONE,
        response_status INTEGER,
        last_error TEXT,
        CONSTRAINT agent_webhook_deliveries_pkey PRIMARY KEY (id),
        CONSTRAINT agent_webhook_deliveries_state_check CHECK (state IN ('pending', 'delivered', 'dead'))
    )
    """,
    """
    CREATE UNIQUE INDEX agent_webhook_deliveries_once ON agent_webhook_deliveries (webhook_id, event_id)
    """,
    """
    CREATE INDEX agent_webhook_deliveries_due ON agent_webhook_deliveries (webhook_id, next_at)
     WHERE state = 'pending'
    """,
    """
    CREATE INDEX agent_webhook_deliveries_newest ON agent_webhook_deliveries (webhook_id, created_at, id)
    """,
    """
    CREATE INDEX agent_webhook_deliveries_completed ON agent_webhook_deliveries (completed_at)
     WHERE completed_at IS NOT NULL
    """,
    f"""
    CREATE FUNCTION agent_queue_end() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO agent_webhook_deliveries (id, tenant_id, webhook_id, event_id, type, data)
        SELECT gen_random_uuid(), NEW.tenant_id, hook.id, {_EVENT_ID}, 'execution.' || NEW.status,
               json_build_object('execution_id', NEW.id, 'session_id', NEW.session_id,
                                 'user_id', NEW.user_id, 'agent', NEW.agent_type, 'status', NEW.status,
                                 'stop_reason', NEW.stop_reason)
          FROM agent_webhooks hook
         WHERE hook.tenant_id = NEW.tenant_id AND hook.is_enabled
           AND 'execution.' || NEW.status = ANY (hook.events)
            ON CONFLICT DO NOTHING;
        RETURN NULL;
    END
    $$
    """,  # noqa: S608 -- constants only
    """
    CREATE TRIGGER agent_executions_queue_end
     AFTER UPDATE OF status ON agent_executions
       FOR EACH ROW
      WHEN (NEW.parent_execution_id IS NULL AND OLD.status <> NEW.status
            AND NEW.status IN ('completed', 'failed', 'cancelled'))
   EXECUTE FUNCTION agent_queue_end()
    """,
    f"""
    CREATE FUNCTION agent_queue_request() RETURNS trigger LANGUAGE plpgsql AS $$
    DECLARE
        event text := CASE NEW.kind WHEN 'approval' THEN 'approval.requested'
                                    WHEN 'input' THEN 'input.requested'
                                    WHEN 'budget' THEN 'budget.exhausted' END;
    BEGIN
        INSERT INTO agent_webhook_deliveries (id, tenant_id, webhook_id, event_id, type, data)
        SELECT gen_random_uuid(), NEW.tenant_id, hook.id, {_EVENT_ID}, event,
               json_build_object('execution_id', NEW.execution_id, 'session_id', execution.session_id,
                                 'user_id', execution.user_id, 'agent', execution.agent_type,
                                 'request_id', NEW.id, 'kind', NEW.kind)
          FROM agent_webhooks hook
          JOIN agent_executions execution ON execution.id = NEW.execution_id
         WHERE hook.tenant_id = NEW.tenant_id AND hook.is_enabled AND event = ANY (hook.events)
            ON CONFLICT DO NOTHING;
        RETURN NULL;
    END
    $$
    """,  # noqa: S608 -- constants only
    """
    CREATE TRIGGER agent_requests_queue
     AFTER INSERT ON agent_requests
       FOR EACH ROW
      WHEN (NEW.state = 'open')
   EXECUTE FUNCTION agent_queue_request()
    """,
)


def upgrade() -> None:
    """Apply the revision."""
    for statement in _CHANGES:
        op.execute(statement)
