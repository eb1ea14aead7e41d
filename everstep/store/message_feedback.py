"""Feedback on answers in PostgreSQL."""

from typing import Any
from uuid import UUID

from sqlalchemy import Row, Select, delete, select
from sqlalchemy.dialects.postgresql import insert

from everstep.agent_domain.errors import InvalidInput, NotFound
from everstep.agent_domain.ids import Scope
from everstep.agent_domain.storage.executions import Page
from everstep.agent_domain.storage.feedback import AnswerFeedback, Feedback
from everstep.agent_domain.storage.sessions import SessionMessageRow
from everstep.agent_domain.stream.session_messages import MessageRole
from everstep.store.feedback_tables import feedback
from everstep.store.session_charges import SessionCharges
from everstep.store.session_rows import message_row
from everstep.store.tables import executions, session_messages, sessions


def select_messages() -> Select[Any]:
    """Select messages with their feedback."""
    given = (feedback.c.rating, feedback.c.text.label("words"), feedback.c.given_by, feedback.c.given_at)
    joined = session_messages.outerjoin(feedback, feedback.c.message_id == session_messages.c.id)
    return select(session_messages, *given).select_from(joined)


class MessageFeedback(SessionCharges):
    """Feedback of people on the answers of sessions."""

    async def give_feedback(
        self, scope: Scope, message_id: UUID, given: Feedback | None
    ) -> SessionMessageRow:
        """Store feedback on an answer; see `SessionStore.give_feedback`."""
        query = select_messages().join(sessions, sessions.c.id == session_messages.c.session_id)
        query = query.where(session_messages.c.id == message_id, sessions.c.tenant_id == scope.tenant_id)
        if scope.user_id is not None:
            query = query.where(sessions.c.user_id == scope.user_id)
        async with self._transaction() as connection:
            found = (await connection.execute(query)).first()
            if found is None:
                raise NotFound("message", message_id)
            if found.role != MessageRole.ASSISTANT:
                raise InvalidInput(f"Only answers take feedback; this message has the role {found.role}")
            if given is None:
                await connection.execute(delete(feedback).where(feedback.c.message_id == message_id))
            else:
                values = {
                    "rating": given.rating and given.rating.value,
                    "text": given.text,
                    "given_by": given.by,
                    "given_at": given.at,
                }
                key = {"message_id": message_id, "tenant_id": scope.tenant_id}
                stored = insert(feedback).values(**key, **values)
                await connection.execute(
                    stored.on_conflict_do_update(index_elements=[feedback.c.message_id], set_=values)
                )
            return message_row((await connection.execute(query)).one())

    async def feedback(
        self, scope: Scope, *, cursor: str | None = None, limit: int = 50
    ) -> Page[AnswerFeedback]:
        """Return a page of feedback, of the newest answers first."""
        query = (
            select_messages()
            .add_columns(executions.c.agent_type)
            .join(sessions, sessions.c.id == session_messages.c.session_id)
            .outerjoin(executions, executions.c.id == session_messages.c.agent_execution_id)
            .where(feedback.c.tenant_id == scope.tenant_id, feedback.c.message_id.is_not(None))
        )
        if scope.user_id is not None:
            query = query.where(sessions.c.user_id == scope.user_id)
        return await self._load_page(query, session_messages, _answer_feedback, cursor, limit)


def _answer_feedback(row: Row[Any]) -> AnswerFeedback:
    message = message_row(row)
    given = message.feedback
    assert given is not None  # noqa: S101 -- the query selects messages with feedback only
    return AnswerFeedback(
        message.id,
        message.session_id,
        message.execution_id,
        row.agent_type,
        message.content,
        given,
        message.created_at,
    )
