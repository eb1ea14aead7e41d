"""The database tables. Only the modules of statements and of PostgreSQL stores write to them.

Four are public, for joins and reports; they are marked below. The others are the store's own.

- Every row with tenant data has a `tenant_id`, and every statement that serves a tenant filters by it.
- JSON columns are `json`, not `jsonb`: the order of keys, and whether a number was sent as 1e22 or
  10000000000, are part of the text shown to a model. `jsonb` keeps neither.
- Rows of an execution are deleted with it (`ON DELETE CASCADE`). An execution that another one continues can
  only be deleted after it, or in the same statement. Other references become null (`ON DELETE SET NULL`).
- A foreign key takes a `FOR KEY SHARE` lock on the referenced row, which is compatible with `FOR NO KEY
  UPDATE`. So only deletion takes `FOR UPDATE` on a session or an execution.
- A change here needs a revision in `migrations/versions`; a test compares the two.
"""

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Identity,
    Index,
    Integer,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY

from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.storage.commands import CommandKind
from everstep.agent_domain.storage.requests import RequestState
from everstep.store import (
    attachment_tables,
    budget_tables,
    cost_tables,
    feedback_tables,
    key_tables,
    ledger_tables,
    schedule_tables,
    tenant_tables,
    webhook_tables,
)
from everstep.store.columns import (
    IS_UNDER_WAY,
    cost_columns,
    execution_column,
    id_column,
    json_column,
    later_reference,
    metadata,
    one_of,
    optional_json_column,
    optional_time_column,
    reference_index,
    search_index,
    seconds_column,
    tenant_column,
    time_column,
)

OTHERS = (
    *(attachment_tables, budget_tables, cost_tables, feedback_tables, key_tables, ledger_tables),
    *(schedule_tables, tenant_tables, webhook_tables),
)
"""Modules with more tables: importing them adds these to the metadata."""

_NEWEST_FIRST = (text("created_at DESC"), text("id DESC"))
_UNDER_WAY = f"status {IS_UNDER_WAY}"

# The four public tables.

sessions = Table(
    "agent_sessions",
    metadata,
    id_column(),
    tenant_column(),
    Column("user_id", Text, nullable=False),
    Column("related_type", Text),
    Column("related_id", Text),
    Column("initial_context_url", Text),
    Column("title", Text),
    Column("status", Text, nullable=False, server_default="active"),
    json_column("metadata", "{}"),
    later_reference("last_execution_id", "agent_executions"),
    later_reference("last_snapshot_id", "agent_state_snapshots"),
    time_column(),
    time_column("updated_at"),
    # Not public: the working time of its ended executions.
    seconds_column("worked_seconds"),
    PrimaryKeyConstraint("id"),
    one_of("status", "active", "archived", "closed"),
    reference_index("agent_sessions_by_last_execution", "last_execution_id"),
    reference_index("agent_sessions_by_last_snapshot", "last_snapshot_id"),
    Index("agent_sessions_newest", "tenant_id", *_NEWEST_FIRST),
    Index("agent_sessions_by_user", "tenant_id", "user_id", *_NEWEST_FIRST),
    Index("agent_sessions_by_status", "tenant_id", "status", *_NEWEST_FIRST),
    Index("agent_sessions_by_user_and_status", "tenant_id", "user_id", "status", *_NEWEST_FIRST),
    Index(
        "agent_sessions_by_related",
        "tenant_id",
        "related_type",
        "related_id",
        *_NEWEST_FIRST,
        postgresql_where=text("related_type IS NOT NULL"),
    ),
    Index(
        "agent_sessions_by_title",
        text("to_tsvector('simple', coalesce(title, ''))"),
        postgresql_using="gin",
    ),
)

session_messages = Table(
    "agent_session_messages",
    metadata,
    id_column(),
    tenant_column(),
    Column("session_id", Uuid, ForeignKey("agent_sessions.id", ondelete="CASCADE"), nullable=False),
    Column("role", Text, nullable=False),
    Column("content", Text, nullable=False),
    Column("agent_execution_id", Uuid, ForeignKey("agent_executions.id", ondelete="SET NULL")),
    Column("related_type", Text),
    Column("related_id", Text),
    Column("context_url", Text),
    json_column("metadata", "{}"),
    json_column("attachments", "[]"),
    time_column(),
    Column("sequence", BigInteger),
    PrimaryKeyConstraint("id"),
    one_of("role", "user", "assistant", "info", "notification"),
    reference_index("agent_session_messages_by_execution", "agent_execution_id"),
    Index("agent_session_messages_in_order", "session_id", "created_at", "id"),
)

executions = Table(
    "agent_executions",
    metadata,
    id_column(),
    tenant_column(),
    Column("session_id", Uuid, ForeignKey("agent_sessions.id", ondelete="CASCADE")),
    Column("user_id", Text),
    Column("agent_type", Text, nullable=False),
    json_column("agent_config"),
    Column("status", Text, nullable=False, server_default="pending"),
    json_column("input", "{}"),
    json_column("output", "{}"),
    later_reference("last_snapshot_id", "agent_state_snapshots"),
    Column("step_count", Integer, nullable=False, server_default=text("0")),
    Column("token_usage", BigInteger, nullable=False, server_default=text("0")),
    json_column("token_breakdown", "{}"),
    *cost_columns(),
    # Everstep's own metadata of the execution, such as its stop reason and its parent.
    json_column("metadata", "{}"),
    Column("error_message", Text),
    # The error message that any caller may see.
    Column("error_told", Text),
    optional_time_column("started_at"),
    optional_time_column("completed_at"),
    time_column(),
    time_column("updated_at"),
    # Not public, from here on.
    id_column("agent_id"),
    Column("parent_agent_id", Uuid),
    Column("parent_execution_id", Uuid, ForeignKey("agent_executions.id", ondelete="SET NULL")),
    Column("continues_execution_id", Uuid, ForeignKey("agent_executions.id")),
    # The last step of the continued execution that belongs to the conversation; null for all of it.
    Column("continues_until", Integer),
    # The place in its session's queue, lower ranks first, and the time it left the queue.
    Column("queue_rank", Integer, nullable=False, server_default=text("1")),
    optional_time_column("released_at"),
    Column("task_queue", Text),
    Column("stop_reason", Text),
    json_column("plan", "{}"),
    # The agent's metadata, apart from Everstep's, so that neither overwrites the other.
    json_column("agent_metadata", "{}"),
    # The tools that its toolsets listed.
    optional_json_column("listed"),
    # Its working time; that of the session before it, and the session's start.
    seconds_column("worked_seconds"),
    seconds_column("session_seconds"),
    optional_time_column("session_began_at"),
    # The outcome with which it ended, which no step has if none was made.
    optional_json_column("outcome"),
    Column("is_sealed", Boolean, nullable=False, server_default=text("false")),
    PrimaryKeyConstraint("id"),
    one_of("status", *ExecutionStatus),
    reference_index("agent_executions_by_last_snapshot", "last_snapshot_id"),
    Index("agent_executions_newest", "tenant_id", *_NEWEST_FIRST),
    Index("agent_executions_by_status", "tenant_id", "status", *_NEWEST_FIRST),
    Index("agent_executions_by_session", "session_id", *_NEWEST_FIRST),
    Index("agent_executions_by_user", "tenant_id", "user_id", *_NEWEST_FIRST),
    Index(
        "agent_executions_under_way",
        "session_id",
        postgresql_where=text("session_id IS NOT NULL AND " + _UNDER_WAY),
    ),
    Index("agent_executions_unchanged", "updated_at", "id", postgresql_where=text(_UNDER_WAY)),
    Index(
        "agent_executions_ended",
        "completed_at",
        "id",
        postgresql_where=text("completed_at IS NOT NULL AND parent_execution_id IS NULL"),
    ),
    Index(
        "agent_executions_by_parent",
        "parent_execution_id",
        postgresql_where=text("parent_execution_id IS NOT NULL"),
    ),
    Index(
        "agent_executions_by_continued",
        "continues_execution_id",
        postgresql_where=text("continues_execution_id IS NOT NULL"),
    ),
)

snapshots = Table(
    "agent_state_snapshots",
    metadata,
    id_column(),
    tenant_column(),
    execution_column("agent_execution_id"),
    Column("parent_snapshot_id", Uuid, ForeignKey("agent_state_snapshots.id", ondelete="SET NULL")),
    Column("agent_id", Uuid),
    Column("agent_name", Text),
    Column("step_number", Integer),
    Column("is_final", Boolean, nullable=False, server_default=text("false")),
    Column("debug_mode", Boolean, nullable=False, server_default=text("false")),
    json_column("state_json"),
    time_column(),
    # Not public: the preceding snapshot of the same execution, which is deleted with it.
    Column("previous_snapshot_id", Uuid),
    PrimaryKeyConstraint("id"),
    reference_index("agent_state_snapshots_by_parent", "parent_snapshot_id"),
    Index("agent_state_snapshots_in_order", "agent_execution_id", "created_at", "id"),
)

# The parts of an execution.

steps = Table(
    "agent_steps",
    metadata,
    execution_column(),
    Column("number", Integer, nullable=False),
    tenant_column(),
    Column("attempt", Integer, nullable=False),
    Column("failed_attempts", ARRAY(Integer), nullable=False, server_default=text("'{}'")),
    optional_json_column("facts"),
    optional_json_column("response"),
    json_column("errors", "[]"),
    optional_json_column("outcome"),
    # The result of its processors.
    optional_json_column("processed"),
    Column("first_text_seconds", Double),  # from the request to the model until its first text
    Column("partial_text", Text, nullable=False, server_default=""),
    # The chunk that continues the text so far, the envelope that chunks follow, and when that was stored.
    Column("next_index", Integer),
    Column("after_seq", BigInteger),
    optional_time_column("noted_at"),
    optional_json_column("boundary"),  # what the evaluation after it has read
    # The end and the reason of the wait for the next attempt: see `RetryWait`.
    optional_json_column("wait"),
    time_column("started_at"),
    optional_time_column("completed_at"),
    PrimaryKeyConstraint("execution_id", "number"),
)

transcript = Table(
    "agent_transcript",
    metadata,
    execution_column(),
    # 0 for the messages with which the execution began.
    Column("step", Integer, nullable=False),
    # Below 0: steering messages before the reply. From 0: reply, results, later notes; see `transcripts`.
    Column("idx", Integer, nullable=False),
    tenant_column(),
    Column("role", Text, nullable=False),
    json_column("content"),
    json_column("metadata", "{}"),
    time_column(),
    PrimaryKeyConstraint("execution_id", "step", "idx"),
    # Few rows are notes, and reserving a call reads nothing else.
    Index("agent_transcript_notes", "execution_id", "step", "idx", postgresql_where=text("role = 'note'")),
    search_index(),
)

inner_replies = Table(
    "agent_inner_replies",
    metadata,
    execution_column(),
    Column("key", Text, nullable=False),
    tenant_column(),
    Column("digest", Text, nullable=False),
    json_column("response"),
    time_column(),
    PrimaryKeyConstraint("execution_id", "key"),
)

tool_calls = Table(
    "agent_tool_calls",
    metadata,
    execution_column(),
    Column("call_id", Text, nullable=False),
    tenant_column(),
    Column("step", Integer, nullable=False),
    Column("idx", Integer, nullable=False),
    Column("name", Text, nullable=False),
    json_column("args"),
    Column("malformed", Text),
    Column("need", Text, nullable=False),
    Column("args_digest", Text, nullable=False),
    Column("state", Text, nullable=False, server_default="told"),
    Column("attempts", Integer, nullable=False, server_default=text("0")),
    optional_json_column("result"),
    Column("text", Text),
    optional_json_column("error"),
    Column("success", Boolean),
    optional_time_column("started_at"),
    optional_time_column("completed_at"),
    Column("seconds", Double),
    # Its results for the loop, apart from the result for the model.
    optional_json_column("besides"),
    # The parts of the text: see `CallRecord`; null in rows of release 0.1.
    Column("note", Text),
    Column("own_text", Text),
    optional_json_column("attachments"),
    optional_json_column("progress"),
    Column("digest", Text),  # `call_digest`
    PrimaryKeyConstraint("execution_id", "call_id"),
    UniqueConstraint("execution_id", "step", "idx"),
    one_of("state", "told", "reserved", "done"),
)

_OPEN = text("state = 'open'")

requests = Table(
    "agent_requests",
    metadata,
    id_column(),
    tenant_column(),
    execution_column(constraint="agent_requests_execution_id_owner_fkey"),
    # The execution's user, so that the open requests of one person are found by index.
    Column("user_id", Text),
    # Null for a request to raise a budget.
    Column("call_id", Text),
    Column("kind", Text, nullable=False),
    Column("state", Text, nullable=False, server_default="open"),
    json_column("request", "{}"),
    optional_json_column("policy"),
    optional_json_column("resolution"),
    time_column(),
    optional_time_column("resolved_at"),
    PrimaryKeyConstraint("id"),
    UniqueConstraint("execution_id", "call_id", "kind"),
    ForeignKeyConstraint(
        ["execution_id", "call_id"],
        ["agent_tool_calls.execution_id", "agent_tool_calls.call_id"],
        ondelete="CASCADE",
    ),
    one_of("state", *RequestState),
    Index("agent_requests_open", "tenant_id", "created_at", "id", postgresql_where=_OPEN),
    Index("agent_requests_open_by_user", "tenant_id", "user_id", "created_at", "id", postgresql_where=_OPEN),
)

steered = Table(
    "agent_steered",
    metadata,
    execution_column(),
    Column("key", Text, nullable=False),
    tenant_column(),
    Column("position", BigInteger, Identity(always=True), nullable=False),
    Column("role", Text, nullable=False),
    json_column("content"),
    json_column("metadata", "{}"),
    # The step that received it, or 0 if another execution does; the row stays, so that its key is known.
    Column("heard_at", Integer),
    time_column(),
    PrimaryKeyConstraint("execution_id", "key"),
    Index("agent_steered_unheard", "position", postgresql_where=text("heard_at IS NULL")),
)

# Commands for workflows; a row stays after delivery, so that its key is known.
commands = Table(
    "agent_commands",
    metadata,
    execution_column(),
    Column("key", Text, nullable=False),
    tenant_column(),
    Column("position", BigInteger, Identity(always=True), nullable=False),
    Column("kind", Text, nullable=False),
    Column("call_id", Text),
    Column("is_denied", Boolean, nullable=False, server_default=text("false")),
    optional_json_column("sent_by"),
    time_column(),
    optional_time_column("delivered_at"),
    PrimaryKeyConstraint("execution_id", "key"),
    one_of("kind", *CommandKind),
    Index("agent_commands_undelivered", "position", postgresql_where=text("delivered_at IS NULL")),
)

settlements = Table(
    "agent_settlements",
    metadata,
    execution_column(),
    Column("key", Text, nullable=False),
    tenant_column(),
    Column("status", Text, nullable=False),
    time_column(),
    PrimaryKeyConstraint("execution_id", "key"),
)

# The journal of envelopes.

streams = Table(
    "agent_streams",
    metadata,
    id_column("stream_id"),
    tenant_column(),
    Column("head", BigInteger, nullable=False, server_default=text("0")),
    time_column("last_at"),
    PrimaryKeyConstraint("stream_id"),
)

envelopes = Table(
    "agent_envelopes",
    metadata,
    Column("stream_id", Uuid, ForeignKey("agent_streams.stream_id", ondelete="CASCADE"), nullable=False),
    Column("seq", BigInteger, nullable=False),
    tenant_column(),
    id_column(),
    Column("type", Text, nullable=False),
    Column("execution_id", Uuid, nullable=False),
    json_column("payload"),
    time_column(),
    PrimaryKeyConstraint("stream_id", "seq"),
    UniqueConstraint("id"),
    # A prune removes millions of rows, whose space is used again once the table was vacuumed.
    postgresql_with={"autovacuum_vacuum_scale_factor": 0.01},
)

# One row: the part of the epoch that the database stores itself.
journal = Table(
    "agent_journal",
    metadata,
    Column("is_only", Boolean, nullable=False, server_default=text("true")),
    Column("epoch", Uuid, nullable=False, server_default=text("gen_random_uuid()")),
    PrimaryKeyConstraint("is_only"),
    CheckConstraint("is_only", name="is_only"),
)

# Running gateways, so that writers find them.
gateways = Table(
    "agent_gateways",
    metadata,
    id_column(),
    Column("url", Text, nullable=False),
    time_column("seen_at"),
    PrimaryKeyConstraint("id"),
)

answers = Table(
    "agent_answers",
    metadata,
    tenant_column(),
    Column("user_id", Text, nullable=False),
    Column("key", Text, nullable=False),
    # Of the answered request: another request must not use its key.
    Column("digest", Text, nullable=False),
    Column("status", Integer, nullable=False),
    json_column("body"),
    time_column(),
    Column("session_id", Uuid, ForeignKey("agent_sessions.id", ondelete="CASCADE")),  # of its object
    Column("execution_id", Uuid, ForeignKey("agent_executions.id", ondelete="CASCADE")),
    Column("attachment_id", Uuid, ForeignKey("agent_attachments.id", ondelete="CASCADE")),
    PrimaryKeyConstraint("tenant_id", "user_id", "key"),
    Index("agent_answers_oldest", "created_at"),
    Index("agent_answers_by_session", "session_id", postgresql_where=text("session_id IS NOT NULL")),
    Index("agent_answers_by_execution", "execution_id", postgresql_where=text("execution_id IS NOT NULL")),
    reference_index("agent_answers_by_attachment", "attachment_id"),
)

# Requests in progress: a concurrent repetition waits, or takes over.
claims = Table(
    "agent_claims",
    metadata,
    tenant_column(),
    Column("user_id", Text, nullable=False),
    Column("key", Text, nullable=False),
    Column("digest", Text, nullable=False),
    Column("owner", Uuid, nullable=False),
    time_column(),
    time_column("expires_at"),
    PrimaryKeyConstraint("tenant_id", "user_id", "key"),
    Index("agent_claims_oldest", "created_at"),
)
