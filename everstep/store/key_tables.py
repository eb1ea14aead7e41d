"""The tables of API keys, and of sign-ins in browsers."""

from sqlalchemy import (
    Column,
    ForeignKey,
    Index,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY

from everstep.agent_domain.storage.sign_ins import SignInKind
from everstep.store.columns import (
    id_column,
    metadata,
    one_of,
    optional_time_column,
    tenant_column,
    time_column,
)

_NO_WORDS = text("'{}'")

api_keys = Table(
    "agent_api_keys",
    metadata,
    id_column(),
    tenant_column(),
    Column("name", Text, nullable=False),
    Column("digest", Text, nullable=False),
    Column("user_id", Text),
    Column("scopes", ARRAY(Text), nullable=False, server_default=_NO_WORDS),
    time_column(),
    optional_time_column("last_used_at"),
    optional_time_column("revoked_at"),
    PrimaryKeyConstraint("id"),
    UniqueConstraint("digest"),
    Index("agent_api_keys_newest", "tenant_id", text("created_at DESC"), text("id DESC")),
)

sign_ins = Table(
    "agent_sign_ins",
    metadata,
    Column("digest", Text, nullable=False),
    Column("kind", Text, nullable=False),
    tenant_column(),
    Column("user_id", Text, nullable=False),
    Column("scopes", ARRAY(Text), nullable=False, server_default=_NO_WORDS),
    Column("roles", ARRAY(Text), nullable=False, server_default=_NO_WORDS),
    Column("key_id", Uuid, ForeignKey("agent_api_keys.id", ondelete="CASCADE")),
    time_column(),
    time_column("expires_at"),
    Column("authority", Text),
    Column("signing_key", Text),
    Column("user_agent", Text),
    PrimaryKeyConstraint("digest"),
    one_of("kind", *SignInKind),
    Index("agent_sign_ins_by_key", "key_id", postgresql_where=text("key_id IS NOT NULL")),
    Index("agent_sign_ins_expiring", "expires_at"),
    Index("agent_sign_ins_of_user", "tenant_id", "user_id", text("created_at DESC")),
)
