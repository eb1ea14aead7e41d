"""The tables of tenants: their limits, and the places of their executions."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    Index,
    Integer,
    PrimaryKeyConstraint,
    Table,
    Text,
    text,
)

from everstep.store.columns import (
    execution_column,
    metadata,
    optional_time_column,
    tenant_column,
    time_column,
)

tenant_limits = Table(
    "agent_tenant_limits",
    metadata,
    tenant_column(),
    # Empty for the tenant as a whole.
    Column("user_id", Text, nullable=False, server_default=""),
    Column("weight", Double),
    Column("max_running", Integer),
    Column("max_model_calls", Integer),
    Column("requests_per_second", Double),
    Column("tokens_per_minute", BigInteger),
    time_column("updated_at"),
    PrimaryKeyConstraint("tenant_id", "user_id"),
)

# Executions of tenants with `max_running`, until they end. Others have no row, so they cost and lock nothing.
places = Table(
    "agent_places",
    metadata,
    execution_column(),
    tenant_column(),
    Column("user_id", Text, nullable=False),
    time_column("queued_at"),
    # Null while it waits.
    optional_time_column("admitted_at"),
    Column("is_paused", Boolean, nullable=False, server_default=text("false")),
    PrimaryKeyConstraint("execution_id"),
    Index(
        "agent_places_waiting",
        "tenant_id",
        "user_id",
        "queued_at",
        "execution_id",
        postgresql_where=text("admitted_at IS NULL"),
    ),
    Index(
        "agent_places_held",
        "tenant_id",
        "user_id",
        postgresql_where=text("admitted_at IS NOT NULL AND NOT is_paused"),
    ),
)

rates = Table(
    "agent_rates",
    metadata,
    Column("name", Text, nullable=False),
    Column("level", Double, nullable=False),
    # By the last draw.
    Column("granted", Double, nullable=False),
    time_column("filled_at"),
    optional_time_column("paused_until"),
    PrimaryKeyConstraint("name"),
)
