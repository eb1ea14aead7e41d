"""The table of schedules."""

from sqlalchemy import JSON, Boolean, Column, Index, Integer, PrimaryKeyConstraint, Table, Text, Uuid, text

from everstep.store.columns import metadata, tenant_column, time_column

schedules = Table(
    "agent_schedules",
    metadata,
    Column("id", Uuid, nullable=False),
    tenant_column(),
    Column("user_id", Text, nullable=False),
    Column("agent", Text, nullable=False),
    Column("content", Text, nullable=False),
    # No foreign key: a deleted session is an error of the next run, which people see.
    Column("session_id", Uuid),
    Column("cadence", JSON, nullable=False),
    Column("overlap", Text, nullable=False),
    Column("is_paused", Boolean, nullable=False, server_default=text("false")),
    Column("is_deleted", Boolean, nullable=False, server_default=text("false")),
    Column("revision", Integer, nullable=False, server_default=text("1")),
    Column("applied_revision", Integer, nullable=False, server_default=text("0")),
    Column("last_error", Text),
    Column("task_queue", Text),
    time_column("created_at"),
    time_column("updated_at"),
    PrimaryKeyConstraint("id"),
    Index("agent_schedules_of_user", "tenant_id", "user_id", "created_at", "id"),
    Index(
        "agent_schedules_unapplied",
        "task_queue",
        "updated_at",
        postgresql_where=text("applied_revision < revision"),
    ),
)
