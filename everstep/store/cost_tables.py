"""The tables of what executions and sessions used of each model."""

from sqlalchemy import (
    BigInteger,
    Column,
    ForeignKey,
    Index,
    PrimaryKeyConstraint,
    Table,
    Text,
    Uuid,
    text,
)

from everstep.store.columns import cost_columns, execution_column, metadata, tenant_column, time_column

COUNTERS = ("input", "output", "cache_write", "cache_read", "reasoning")

model_usage = Table(
    "agent_model_usage",
    metadata,
    execution_column(),
    tenant_column(),
    # Empty for a model without a name.
    Column("model", Text, nullable=False),
    *(Column(counter, BigInteger, nullable=False, server_default=text("0")) for counter in COUNTERS),
    *cost_columns(),
    PrimaryKeyConstraint("execution_id", "model"),
)

# Model calls of a session that belong to no execution: those that write its title.
session_usage = Table(
    "agent_session_usage",
    metadata,
    Column("session_id", Uuid, ForeignKey("agent_sessions.id", ondelete="CASCADE"), nullable=False),
    tenant_column(),
    # The agent whose execution began the session.
    Column("agent", Text, nullable=False),
    Column("model", Text, nullable=False),
    *(Column(counter, BigInteger, nullable=False, server_default=text("0")) for counter in COUNTERS),
    *cost_columns(),
    time_column(),
    PrimaryKeyConstraint("session_id", "agent", "model"),
    Index("agent_session_usage_by_time", "tenant_id", "created_at"),
)
