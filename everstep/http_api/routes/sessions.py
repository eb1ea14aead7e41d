"""Routes about sessions and their messages."""

from typing import Annotated
from uuid import UUID

from fastapi import Query, Response

from everstep.agent_domain.capabilities.questions import Question, UserAnswer
from everstep.agent_domain.capabilities.rights import Actor
from everstep.agent_domain.errors import UnknownName
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.loop.step_facts import CallNeed
from everstep.agent_domain.storage.contexts import ContextCaller
from everstep.agent_domain.storage.requests import RequestRow
from everstep.agent_domain.storage.sessions import (
    AGENT_KEY,
    ExecutionFilter,
    NewSession,
    OnBusy,
    SessionChanges,
    SessionFilter,
    SessionStatus,
)
from everstep.agent_domain.storage.text_query import TextQuery
from everstep.agent_domain.stream.broadcast_config import BroadcastConfig
from everstep.agent_domain.values import EMPTY, FrozenDict
from everstep.client.sessions import SendResult as Accepted, UserMessage
from everstep.http_api.auth import CallerDep, acting_scope, acting_user, usable_model
from everstep.http_api.callers import Caller
from everstep.http_api.dependencies import Api
from everstep.http_api.idempotency import KeyDep, RequestKey, key_conflict
from everstep.http_api.problems import not_found
from everstep.http_api.routes.router import ApiDep, SessionId, load_session, router
from everstep.http_api.schemas.request_bodies import (
    FirstMessageSent,
    MessageSent,
    NewSessionSent,
    SessionChangesSent,
    require_text,
)
from everstep.http_api.schemas.responses import (
    MessageAccepted,
    MessageResponse,
    PageResponse,
    Session,
    page_response,
)
from everstep.http_api.schemas.text import Cursor, Instant, Limit, SearchWords, Text
from everstep.steps import json_schema

routes = router("sessions")

MAX_PAUSED = 200
"""The limit of executions that are searched for the question that a blank message would answer."""


@routes.post("/agent/sessions", status_code=201)
async def create_session(body: NewSessionSent, api: ApiDep, caller: CallerDep, key: KeyDep) -> Session:
    """Create a session without messages."""
    new = NewSession(
        key.id("session"),
        caller.tenant_id,
        acting_user(caller, body.user_id),
        body.context,
        body.title,
        _with_agent(api, body.metadata, body.agent),
    )
    sessions, asks = api.sessions_for(caller), caller.in_context(new.user_id)
    scope = acting_scope(caller, body.user_id)
    return Session.of(await sessions.create(scope, new, body.initial_context_url, asks))


@routes.get("/agent/sessions")
async def list_sessions(  # noqa: PLR0913 -- FastAPI calls it by keyword
    api: ApiDep,
    caller: CallerDep,
    status: SessionStatus | None = None,
    related_type: Text | None = None,
    related_id: Text | None = None,
    search: Annotated[
        Text | None, Query(max_length=200, description="Words of the title; the last one may be a prefix.")
    ] = None,
    agent: Annotated[Text | None, Query(description="The agent that the session names.")] = None,
    user_id: Text | None = None,
    since: Annotated[Instant | None, Query(description="Only sessions that began then or later.")] = None,
    q: SearchWords | None = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> PageResponse[Session]:
    """List sessions, newest first."""
    query = TextQuery.parse_optional(q)
    wanted = SessionFilter(status, related_type, related_id, search, agent, user_id, since, query)
    page = await api.sessions.store.sessions(caller.scope, wanted, cursor=cursor, limit=limit)
    return page_response(page, Session.of)


@routes.get("/agent/sessions/{session_id}")
async def read_session(session_id: SessionId, api: ApiDep, caller: CallerDep) -> Session:
    """Read a session."""
    return Session.of(await load_session(api, caller, session_id))


@routes.patch("/agent/sessions/{session_id}")
async def change_session(
    session_id: SessionId, body: SessionChangesSent, api: ApiDep, caller: CallerDep
) -> Session:
    """Change the title, status, agent or metadata of a session."""
    metadata = body.metadata
    if body.agent is not None:
        metadata = _with_agent(api, metadata or EMPTY, body.agent)
    changes = SessionChanges(body.title, body.status, metadata)
    return Session.of(await api.sessions.store.change_session(caller.scope, session_id, changes))


@routes.delete("/agent/sessions/{session_id}", status_code=204)
async def delete_session(session_id: SessionId, api: ApiDep, caller: CallerDep) -> Response:
    """Delete a session with all its messages and executions."""
    if not await api.sessions_for(caller).delete(caller.scope, session_id):
        raise not_found("session", session_id)
    return Response(status_code=204)


@routes.get("/agent/sessions/{session_id}/messages")
async def list_messages(
    session_id: SessionId, api: ApiDep, caller: CallerDep, cursor: Cursor = None, limit: Limit = 50
) -> PageResponse[MessageResponse]:
    """List the messages of a session, newest first."""
    page = await api.sessions.store.messages(caller.scope, session_id, cursor=cursor, limit=limit)
    return page_response(page, MessageResponse.of)


@routes.post("/agent/sessions/{session_id}/messages", status_code=201)
async def send_message(
    session_id: SessionId, body: MessageSent, api: ApiDep, caller: CallerDep, key: KeyDep
) -> MessageAccepted:
    """Send a message: start an execution, answer its open question, steer or interrupt it."""
    if body.data is None and not body.content.strip() and not body.attachments:
        await _refuse_blank(api, caller, session_id, body)
    scope = acting_scope(caller, body.user_id)
    # A service that names no user acts for the owner of the session.
    user_id = scope.user_id or (await load_session(api, caller, session_id)).user_id
    asks = caller.in_context(user_id)
    user_message = _user_message(
        body,
        user_id,
        key,
        asks,
        caller.actor,
        data=body.data,
        request_id=body.request_id,
        model=usable_model(caller, body.model),
    )
    return _message_response(
        api, user_message, await api.sessions_for(caller).send(scope, session_id, user_message)
    )


@routes.post("/agent/messages", status_code=201)
async def begin_session(
    body: FirstMessageSent, api: ApiDep, caller: CallerDep, key: KeyDep
) -> MessageAccepted:
    """Create a session and send its first message."""
    require_text(body.content, attachments=body.attachments)
    user_id = acting_user(caller, body.user_id)
    user_message = _user_message(
        body,
        user_id,
        key,
        caller.in_context(user_id),
        caller.actor,
        initial=body.initial_context_url,
        model=usable_model(caller, body.model),
    )
    sent = await api.sessions_for(caller).begin(acting_scope(caller, body.user_id), user_message, body.title)
    return _message_response(api, user_message, sent)


async def _refuse_blank(api: Api, caller: Caller, session_id: UUID, body: MessageSent) -> None:
    # If the blank text would answer a question, the error is that of the question.
    waiting = ExecutionFilter(session_id, status=ExecutionStatus.PAUSED)
    # Executions that wait for their subagents are paused as well.
    page = await api.sessions.store.executions_of(caller.scope, waiting, limit=MAX_PAUSED)
    asked: list[RequestRow] = []
    if body.on_busy is not OnBusy.INTERRUPT:
        for row in page.rows:
            asked += await api.sessions.client.store.open_requests(row.ref)
    questions = [each for each in asked if each.kind is CallNeed.INPUT and body.request_id in (None, each.id)]
    oldest = min(questions, key=lambda each: each.created_at, default=None)
    if oldest:
        Question.parse(oldest.request).result(UserAnswer(body.content), json_schema.check)
    require_text(body.content)


def _user_message(
    body: MessageSent | FirstMessageSent,
    user_id: str,
    key: RequestKey,
    asks: ContextCaller,
    by: Actor,
    *,
    data: object = None,
    request_id: UUID | None = None,
    initial: str | None = None,
    model: str | None = None,
) -> UserMessage:
    return UserMessage(
        body.content,
        user_id,
        data,
        request_id,
        body.on_busy,
        body.context,
        body.agent,
        body.metadata,
        body.debug,
        body.broadcast and BroadcastConfig.preset(body.broadcast),
        str(key.id("message")),
        initial,
        asks,
        model,
        body.output,
        by,
        body.budget.budgets if body.budget else (),
        body.attachments,
    )


def _message_response(api: Api, user_message: UserMessage, sent: Accepted) -> MessageAccepted:
    if user_message.content and sent.message.content != user_message.content:
        # The key was used for another message, whose process crashed before it stored the response.
        raise key_conflict()
    api.metrics.count_message(sent.route)
    return MessageAccepted.of(sent)


def _with_agent(api: Api, metadata: FrozenDict, agent: str | None) -> FrozenDict:
    # An unknown agent is refused here, before the first message.
    if agent is None:
        return metadata
    if agent not in api.sessions.client.agents:
        raise UnknownName("agent", agent, api.sessions.client.agents)
    return metadata.merged({AGENT_KEY: agent})
