"""Routes for feedback on answers."""

from typing import Annotated
from uuid import UUID

from fastapi import Path

from everstep.agent_domain.storage.feedback import Feedback
from everstep.client.execution import now
from everstep.http_api.auth import CallerDep
from everstep.http_api.idempotency import KeyDep
from everstep.http_api.routes.router import ApiDep, router
from everstep.http_api.schemas.request_bodies import FeedbackSent
from everstep.http_api.schemas.responses import (
    AnswerFeedbackResponse,
    MessageResponse,
    PageResponse,
    page_response,
)
from everstep.http_api.schemas.text import Cursor, Limit

routes = router("feedback")

MessageId = Annotated[UUID, Path(description="The id of a message with the role `assistant`.")]


@routes.post("/agent/messages/{message_id}/feedback")
async def give_feedback(
    message_id: MessageId, body: FeedbackSent, api: ApiDep, caller: CallerDep, key: KeyDep
) -> MessageResponse:
    """Say whether an answer was good, in place of what was said before."""
    del key
    has_words = body.text is not None and body.text.strip()
    given = (
        Feedback(body.rating, body.text, caller.actor.subject, now()) if body.rating or has_words else None
    )
    return MessageResponse.of(await api.sessions.store.give_feedback(caller.scope, message_id, given))


@routes.get("/agent/feedback")
async def list_feedback(
    api: ApiDep, caller: CallerDep, cursor: Cursor = None, limit: Limit = 50
) -> PageResponse[AnswerFeedbackResponse]:
    """List feedback with its answers, of the newest answers first; with `sessions:all`, of all users."""
    page = await api.sessions.store.feedback(caller.scope, cursor=cursor, limit=limit)
    return page_response(page, AnswerFeedbackResponse.from_row)
