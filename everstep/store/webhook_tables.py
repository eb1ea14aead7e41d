"""The tables of webhooks and their deliveries.

Triggers of the database queue deliveries, in the transaction that stores the event; see the revision
`webhooks`. There are no foreign keys: a trigger that waited for the deletion of a webhook would fail with it,
and with the trigger the end of an execution.
"""

from sqlalchemy import Boolean, Column, Index, Integer, PrimaryKeyConstraint, Table, Text, Uuid, text
from sqlalchemy.dialects.postgresql import ARRAY

from everstep.agent_domain.storage.webhooks import DeliveryState
from everstep.store.columns import (
    id_column,
    json_column,
    metadata,
    one_of,
    optional_time_column,
    tenant_column,
    time_column,
)

webhooks = Table(
    "agent_webhooks",
    metadata,
    id_column(),
    tenant_column(),
    Column("url", Text, nullable=False),
    Column("events", ARRAY(Text), nullable=False),
    Column("include_content", Boolean, nullable=False, server_default=text("false")),
    Column("is_enabled", Boolean, nullable=False, server_default=text("true")),
    Column("disabled_reason", Text),
    # Encrypted if the installation has a payload key.
    Column("secret", Text, nullable=False),
    Column("previous_secret", Text),
    optional_time_column("previous_until"),
    optional_time_column("failing_since"),
    time_column("created_at"),
    time_column("updated_at"),
    PrimaryKeyConstraint("id"),
    Index("agent_webhooks_by_url", "tenant_id", "url", unique=True),
)

deliveries = Table(
    "agent_webhook_deliveries",
    metadata,
    id_column(),
    tenant_column(),
    Column("webhook_id", Uuid, nullable=False),
    Column("event_id", Text, nullable=False),
    Column("type", Text, nullable=False),
    json_column("data"),
    Column("state", Text, nullable=False, server_default="pending"),
    Column("attempts", Integer, nullable=False, server_default=text("0")),
    time_column("next_at"),
    time_column("created_at"),
    optional_time_column("completed_at"),
    Column("response_status", Integer),
    Column("last_error", Text),
    PrimaryKeyConstraint("id"),
    one_of("state", *DeliveryState),
    Index("agent_webhook_deliveries_once", "webhook_id", "event_id", unique=True),
    Index(
        "agent_webhook_deliveries_due",
        "webhook_id",
        "next_at",
        postgresql_where=text("state = 'pending'"),
    ),
    Index("agent_webhook_deliveries_newest", "webhook_id", "created_at", "id"),
    Index(
        "agent_webhook_deliveries_completed",
        "completed_at",
        postgresql_where=text("completed_at IS NOT NULL"),
    ),
)
