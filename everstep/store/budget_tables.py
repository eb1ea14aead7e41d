"""The tables of budgets."""

from sqlalchemy import Column, ForeignKey, Index, Numeric, PrimaryKeyConstraint, Table, Text, Uuid, text

from everstep.agent_domain.loop.budget import BudgetScope, BudgetUnit, OnExhausted
from everstep.store.columns import (
    execution_column,
    id_column,
    metadata,
    one_of,
    optional_json_column,
    reference_index,
    tenant_column,
    time_column,
)

budgets = Table(
    "agent_budgets",
    metadata,
    id_column(),
    tenant_column(),
    Column("scope", Text, nullable=False),
    # The execution, the session or the user; empty for the tenant.
    Column("subject", Text, nullable=False),
    # Empty for a budget that the operator has set.
    Column("agent", Text, nullable=False),
    Column("unit", Text, nullable=False),
    # Of the agent's plan when the budget was first used; plans that differ have their own limit.
    Column("limit_amount", Numeric, nullable=False),
    # A larger limit that a person has set.
    Column("raised_to", Numeric),
    optional_json_column("raised_by"),
    Column("spent", Numeric, nullable=False, server_default=text("0")),
    # The sum of its reservations.
    Column("reserved", Numeric, nullable=False, server_default=text("0")),
    Column("on_exhausted", Text, nullable=False),
    Column("degrade_to", Text),
    # With these it is deleted.
    Column("execution_id", Uuid, ForeignKey("agent_executions.id", ondelete="CASCADE")),
    Column("session_id", Uuid, ForeignKey("agent_sessions.id", ondelete="CASCADE")),
    time_column(),
    time_column("updated_at"),
    PrimaryKeyConstraint("id"),
    one_of("scope", *BudgetScope),
    one_of("unit", *BudgetUnit),
    one_of("on_exhausted", *OnExhausted),
    Index("agent_budgets_of_operators", "tenant_id", "subject", postgresql_where=text("agent = ''")),
    reference_index("agent_budgets_by_execution", "execution_id"),
    reference_index("agent_budgets_by_session", "session_id"),
    # Each model call changes its budgets twice; space in the page keeps the versions of a row together.
    postgresql_with={"fillfactor": 50},
)

# What model calls under way may use. No reference to the budget: a removed one leaves nothing to settle.
budget_reservations = Table(
    "agent_budget_reservations",
    metadata,
    execution_column(),
    Column("key", Text, nullable=False),
    Column("budget_id", Uuid, nullable=False),
    tenant_column(),
    Column("amount", Numeric, nullable=False),
    time_column(),
    PrimaryKeyConstraint("execution_id", "key", "budget_id"),
)

# What model calls of sessions may use, which belong to no execution. They are settled by the process that
# made them, or once they are older than any call takes.
budget_holds = Table(
    "agent_budget_holds",
    metadata,
    id_column(),
    Column("budget_id", Uuid, nullable=False),
    tenant_column(),
    Column("amount", Numeric, nullable=False),
    time_column(),
    PrimaryKeyConstraint("id", "budget_id"),
    Index("agent_budget_holds_by_time", "created_at"),
)
