"""The table of feedback on answers."""

from sqlalchemy import Column, ForeignKey, Index, PrimaryKeyConstraint, Table, Text, Uuid

from everstep.agent_domain.storage.feedback import Rating
from everstep.store.columns import metadata, one_of, tenant_column, time_column

feedback = Table(
    "agent_feedback",
    metadata,
    # Deleted with the message, and so with its session.
    Column("message_id", Uuid, ForeignKey("agent_session_messages.id", ondelete="CASCADE"), nullable=False),
    tenant_column(),
    Column("rating", Text),
    Column("text", Text),
    Column("given_by", Text, nullable=False),
    time_column("given_at"),
    PrimaryKeyConstraint("message_id"),
    one_of("rating", *Rating),
    Index("agent_feedback_by_tenant", "tenant_id", "given_at", "message_id"),
)
