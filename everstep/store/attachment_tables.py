"""The tables of attached files.

A file is *used* by the executions whose messages or results refer to it. It is kept as long as one of them; a
file that none uses expires. Its content is in a table of its own, or in another store under the same id.
"""

from sqlalchemy import (
    BigInteger,
    Column,
    ForeignKey,
    Index,
    LargeBinary,
    PrimaryKeyConstraint,
    Table,
    Text,
    Uuid,
    text,
)

from everstep.store.columns import (
    execution_column,
    id_column,
    metadata,
    optional_time_column,
    tenant_column,
    time_column,
)

attachments = Table(
    "agent_attachments",
    metadata,
    id_column(),
    tenant_column(),
    # The sender, or the user of the execution whose tool returned it.
    Column("user_id", Text),
    Column("name", Text, nullable=False),
    Column("media_type", Text, nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("sha256", Text, nullable=False),
    time_column(),
    # When it can no longer be used or read; null while an execution uses it.
    optional_time_column("expires_at"),
    PrimaryKeyConstraint("id"),
    Index("agent_attachments_expiring", "expires_at", postgresql_where=text("expires_at IS NOT NULL")),
)

attachment_uses = Table(
    "agent_attachment_uses",
    metadata,
    execution_column(),
    tenant_column(),
    Column("attachment_id", Uuid, ForeignKey("agent_attachments.id", ondelete="CASCADE"), nullable=False),
    # The tool call that returned it; null for a file of a message.
    Column("call_id", Text),
    time_column(),
    PrimaryKeyConstraint("execution_id", "attachment_id"),
    Index("agent_attachment_uses_by_attachment", "attachment_id"),
)

attachment_contents = Table(
    "agent_attachment_contents",
    metadata,
    Column("id", Uuid, ForeignKey("agent_attachments.id", ondelete="CASCADE"), nullable=False),
    tenant_column(),
    Column("data", LargeBinary, nullable=False),
    PrimaryKeyConstraint("id"),
)
