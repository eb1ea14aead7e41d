"""The table of what executions used of each model."""

from sqlalchemy import BigInteger, Column, PrimaryKeyConstraint, Table, Text, text

from everstep.store.columns import cost_columns, execution_column, metadata, tenant_column

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
