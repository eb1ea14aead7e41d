"""Conversion of rows into the values of sessions."""

from typing import Any

from sqlalchemy import Row

from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.storage.feedback import Feedback, Rating
from everstep.agent_domain.storage.sessions import (
    ExecutionLaunch,
    SessionMessageRow,
    SessionRow,
    SessionStatus,
    SnapshotRow,
)
from everstep.agent_domain.stream.session_messages import Context, MessageRole
from everstep.store import bodies, rows


def session_row(row: Row[Any]) -> SessionRow:
    """Return a session."""
    return SessionRow(
        row.id,
        row.tenant_id,
        row.user_id,
        Context(row.related_type, row.related_id, row.initial_context_url),
        row.title,
        SessionStatus(row.status),
        bodies.document(row.metadata, "the session's metadata"),
        row.last_execution_id,
        row.last_snapshot_id,
        row.created_at,
        row.updated_at,
    )


def message_row(row: Row[Any]) -> SessionMessageRow:
    """Return a message of a session."""
    return SessionMessageRow(
        row.id,
        row.session_id,
        MessageRole(row.role),
        row.content,
        row.agent_execution_id,
        Context(row.related_type, row.related_id, row.context_url),
        bodies.document(row.metadata, "the message's metadata"),
        row.created_at,
        bodies.parse_attachments(row.attachments),
        _feedback(row),
    )


def _feedback(row: Row[Any]) -> Feedback | None:
    """Return the feedback of a message; only lists of messages read it."""
    given_by = getattr(row, "given_by", None)
    if given_by is None:
        return None
    return Feedback(row.rating and Rating(row.rating), row.words, given_by, row.given_at)


def snapshot_row(row: Row[Any]) -> SnapshotRow:
    """Return a snapshot."""
    return SnapshotRow(
        row.id,
        row.agent_execution_id,
        row.parent_snapshot_id,
        row.agent_name,
        row.step_number,
        row.is_final,
        row.debug_mode,
        bodies.document(row.state_json, "the snapshot"),
        row.created_at,
        row.previous_snapshot_id,
    )


def execution_ref(row: Row[Any]) -> ExecutionRef:
    """Return the reference of an execution."""
    return ExecutionRef(row.id, row.tenant_id, row.session_id)


def launch_row(row: Row[Any]) -> ExecutionLaunch:
    """Return the launch of an execution."""
    ref = execution_ref(row)
    return ExecutionLaunch(
        ref,
        bodies.document(row.plan, "the plan"),
        row.task_queue,
        row.has_commands,
        rows.clocks(row),
        rows.run_context(ref, row),
        is_waiting=row.is_waiting,
    )
