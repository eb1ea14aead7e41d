"""The tables of ledgers."""

from sqlalchemy import (
    Boolean,
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    Integer,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    text,
)

from everstep.agent_domain.storage.ledger import BEFORE_FIRST
from everstep.store.columns import execution_column, metadata, tenant_column, time_column

# The last entry of each chain. Whoever appends locks this row, after all others.
ledger_heads = Table(
    "agent_ledger_heads",
    metadata,
    Column("execution_id", Uuid, ForeignKey("agent_executions.id", ondelete="CASCADE"), nullable=False),
    tenant_column(),
    Column("position", Integer, nullable=False, server_default=text("0")),
    Column("hash", Text, nullable=False, server_default=BEFORE_FIRST),
    Column("is_closed", Boolean, nullable=False, server_default=text("false")),
    PrimaryKeyConstraint("execution_id"),
    # Each step changes it a few times; space in the page keeps the versions of a row together.
    postgresql_with={"fillfactor": 50},
)

ledger = Table(
    "agent_ledger",
    metadata,
    execution_column(),
    Column("position", Integer, nullable=False),
    tenant_column(),
    Column("key", Text, nullable=False),
    # What the hash covers: JSON, whose text must not change.
    Column("entry", Text, nullable=False),
    Column("hash", Text, nullable=False),
    time_column("recorded_at"),
    PrimaryKeyConstraint("execution_id", "position"),
    UniqueConstraint("execution_id", "key"),
    CheckConstraint("position > 0", name="position"),
    Index("agent_ledger_by_time", "tenant_id", "recorded_at", "execution_id", "position"),
)

# The heads of chains whose executions were pruned. They name no one, and refer to no row.
pruned_ledgers = Table(
    "agent_pruned_ledgers",
    metadata,
    Column("execution_id", Uuid, nullable=False),
    tenant_column(),
    Column("entries", Integer, nullable=False),
    Column("hash", Text, nullable=False),
    time_column("pruned_at"),
    PrimaryKeyConstraint("execution_id"),
)
