"""Columns, references and indexes that the tables share."""

from collections.abc import Iterable
from typing import Any

from sqlalchemy import (
    JSON,
    CheckConstraint,
    Column,
    DateTime,
    Double,
    ForeignKey,
    Index,
    MetaData,
    Numeric,
    Text,
    Uuid,
    text,
)

from everstep.agent_domain.loop.status import ExecutionStatus

metadata = MetaData(
    naming_convention={
        "pk": "%(table_name)s_pkey",
        "fk": "%(table_name)s_%(column_0_name)s_fkey",
        "uq": "%(table_name)s_%(column_0_N_name)s_key",
        "ck": "%(table_name)s_%(constraint_name)s_check",
    }
)
"""All tables, once `everstep.store.tables` is imported."""

_NOW = text("clock_timestamp()")


def _is_in(words: Iterable[str]) -> str:
    """Return the SQL condition that a column has one of these words."""
    listed = ", ".join(f"'{word}'" for word in words)
    return f"IN ({listed})"


HAS_ENDED = _is_in(status for status in ExecutionStatus if status.is_terminal)
"""The condition on an execution's status that it has ended; no SQL text lists the statuses itself."""

IS_UNDER_WAY = _is_in(status for status in ExecutionStatus if not status.is_terminal)
"""The condition on an execution's status that it has not ended."""

SEARCH_INDEX = "agent_transcript_search"
"""The full-text index. It is built after the revisions, without a lock."""

SEARCH_VECTOR = "agent_search_vector(tenant_id, role, content, metadata)"
"""The words of a message, and the lexeme of its tenant: the MD5 hash of its id."""

IS_SEARCHED = "role IN ('user', 'assistant', 'tool') AND (step > 0 OR idx >= 0)"
"""The rows of the transcript that are searched: viewers do not see what hooks put before the conversation."""

PENDING_KB = 512
"""The limit of entries that the full-text index has not sorted in, in kB."""


def tenant_column() -> Column[Any]:
    """Return the column of a row's tenant."""
    return Column("tenant_id", Text, nullable=False)


def id_column(name: str = "id") -> Column[Any]:
    """Return a column for a UUID."""
    return Column(name, Uuid, nullable=False)


def json_column(name: str, default: str | None = None) -> Column[Any]:
    """Return a JSON column that is never null, optionally with a default."""
    return Column(name, JSON, nullable=False, server_default=default and text(f"'{default}'"))


def optional_json_column(name: str) -> Column[Any]:
    """Return a nullable JSON column."""
    return Column(name, JSON(none_as_null=True))


def time_column(name: str = "created_at") -> Column[Any]:
    """Return a timestamp column with the current time as default."""
    return Column(name, DateTime(timezone=True), nullable=False, server_default=_NOW)


def optional_time_column(name: str) -> Column[Any]:
    """Return a nullable timestamp column."""
    return Column(name, DateTime(timezone=True))


def execution_column(name: str = "execution_id", constraint: str | None = None) -> Column[Any]:
    """Return a reference to the owning execution, optionally with a name for its constraint."""
    owner = ForeignKey("agent_executions.id", ondelete="CASCADE", name=constraint)
    return Column(name, Uuid, owner, nullable=False)


def one_of(column: str, *words: str) -> CheckConstraint:
    """Return a constraint that allows only these words."""
    return CheckConstraint(f"{column} {_is_in(words)}", name=column)


def later_reference(name: str, table: str) -> Column[Any]:
    """Return a reference to a row that is inserted later in the same transaction and can be deleted alone."""
    later = ForeignKey(
        f"{table}.id", ondelete="SET NULL", deferrable=True, initially="DEFERRED", use_alter=True
    )
    return Column(name, Uuid, later)


def reference_index(name: str, column: str) -> Index:
    """Return an index for a foreign key, so that deleting the referenced row needs no full scan."""
    return Index(name, column, postgresql_where=text(f"{column} IS NOT NULL"))


def search_index() -> Index:
    """Return the full-text index, for the table of messages."""
    return Index(
        SEARCH_INDEX,
        text(SEARCH_VECTOR),
        postgresql_using="gin",
        # The insert that finds the list of pending entries full empties it, so the list is short.
        postgresql_with={"gin_pending_list_limit": PENDING_KB},
        postgresql_where=text(IS_SEARCHED),
    )


def seconds_column(name: str) -> Column[Any]:
    """Return a column for a duration, 0 by default."""
    return Column(name, Double, nullable=False, server_default=text("0"))


def cost_columns() -> tuple[Column[Any], Column[Any]]:
    """Return the columns of a cost in US dollars.

    The first is null if the cost of a model call is unknown; the second is the sum of the known costs.
    """
    return (
        Column("cost_usd", Numeric, server_default=text("0")),
        Column("known_cost_usd", Numeric, nullable=False, server_default=text("0")),
    )
