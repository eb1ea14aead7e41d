"""The UI message stream of Vercel's AI SDK: chat with an agent, and resume its stream."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Header, Path
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.values import parse_uuid
from everstep.http_api.admissions import admission_of
from everstep.http_api.auth import CallerDep
from everstep.http_api.event_stream import EventStream
from everstep.http_api.message_files import file_at_url
from everstep.http_api.problems import Refusal, invalid_request
from everstep.http_api.routes.router import ApiDep
from everstep.http_api.run_streams import RunReader
from everstep.http_api.schemas.ui_message_requests import ChatRequest, UiMessage
from everstep.http_api.threads import GivenAnswer, RunToFollow, ThreadMessageSent, Threads
from everstep.http_api.wire_routes import GivenKey, wire_route
from everstep.wires.event_bodies import json_map
from everstep.wires.run_cursors import MAX_CURSOR, RunCursor
from everstep.wires.run_log import FromSeq
from everstep.wires.ui_messages import UiMessages

MARKS = [(b"x-vercel-ai-ui-message-stream", b"v1")]
"""The header by which clients know the protocol and its version."""


def _render(refusal: Refusal) -> PlainTextResponse:
    # The client's error has the text of the response as its message.
    return PlainTextResponse(refusal.detail, refusal.status)


routes = APIRouter(route_class=wire_route(_render), tags=["ui-messages"])

AgentName = Annotated[str, Path(max_length=200, description="The name of an agent.")]
ChatId = Annotated[str, Path(max_length=500, description="The client's name of the conversation.")]

_STREAM: Mapping[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {}}, "description": "The parts of the message."}
}


@routes.post("/ai/{agent}/chat", response_class=EventStream, responses={**_STREAM})
async def chat(
    agent: AgentName,
    body: ChatRequest,
    api: ApiDep,
    caller: CallerDep,
    request: Request,
    given_key: GivenKey = None,
) -> Response:
    """Chat with an agent, with the UI message stream of Vercel's AI SDK (`useChat`).

    The chat is a session of the caller: the one with this id, or one that is created for this name. If the
    last message is one of the user, it is sent; if it is the assistant's, its decisions about calls and its
    answers to questions are. A repeated request follows the execution that the first one began.
    """
    threads = Threads(api, caller, agent)
    threads.require_agent()
    if body.trigger == "regenerate-message":
        named = body.messageId and body.messageId.partition(".")[0]
        execution_id = parse_uuid(named, "messageId") if named else None
        run = await threads.regenerate(body.id, execution_id, given_key or "regenerate")
    elif body.messages[-1].role == "user":
        run = await _send(threads, body, given_key)
    else:
        answers = _answers(body.messages[-1])
        key = given_key or f"ui/{body.id}/{body.messages[-1].id}"
        run = await threads.answer(body.id, answers, key, skips_resolved=True)
    reader = RunReader(
        api.sessions_for(caller), caller, threads.logs, run.session_id, admission_of(api, caller, request)
    )
    # The user's message is in the middle of an execution, and what follows is another message.
    later = f"{run.execution_id}.{body.messages[-1].id}" if isinstance(run.start, FromSeq) else None
    projection = UiMessages(body.id, str(run.execution_id), message_id=later)
    events = await reader.open(run.execution_id, run.start, projection, answered=run.answered)
    return EventStream(events, marks=MARKS)


@routes.get(
    "/ai/{agent}/chat/{chat_id}/stream",
    response_class=EventStream,
    responses={**_STREAM, 204: {"description": "Nothing runs in this chat."}},
)
async def resume_chat(
    agent: AgentName,
    chat_id: ChatId,
    api: ApiDep,
    caller: CallerDep,
    request: Request,
    last_event_id: Annotated[
        str | None,
        Header(max_length=MAX_CURSOR, description="The id of the last received event: later ones are sent."),
    ] = None,
) -> Response:
    """Resume the stream of a chat: the running execution from its begin, or after `Last-Event-ID`."""
    threads = Threads(api, caller, agent)
    threads.require_agent()
    session_id, row = await threads.find(chat_id)
    if row is None:
        return Response(status_code=204)
    reader = RunReader(
        api.sessions_for(caller), caller, threads.logs, session_id, admission_of(api, caller, request)
    )
    roots = await reader.roots()
    if last_event_id is not None:
        cursor = _cursor(last_event_id, [root.ref.execution_id for root in roots])
        projection = UiMessages(chat_id, cursor.execution_id, is_whole=True)
        return EventStream(await reader.open(UUID(cursor.execution_id), cursor, projection), marks=MARKS)
    if not roots or roots[0].status.is_terminal:
        return Response(status_code=204)
    execution_id = roots[0].ref.execution_id
    projection = UiMessages(chat_id, str(execution_id), is_whole=True)
    return EventStream(await reader.open(execution_id, None, projection), marks=MARKS)


def _cursor(last_event_id: str, roots: Sequence[UUID]) -> RunCursor:
    try:
        cursor = RunCursor.parse(last_event_id)
    except InvalidInput as error:
        raise invalid_request(f"Last-Event-ID cannot be used: {error}") from None
    if UUID(cursor.execution_id) not in roots:
        raise invalid_request("Last-Event-ID names no run of this chat; omit it to start over")
    return cursor


async def _send(threads: Threads, body: ChatRequest, given_key: str | None) -> RunToFollow:
    new = body.new_messages
    if len(new) > 1:
        # After an execution without an answer, the messages before it are at the end as well.
        unknown = await threads.filter_new_ids(body.id, [message.id for message in new])
        new = [message for message in new if message.id in unknown] or new[-1:]
    parts = [part for message in new for part in message.parts]
    texts = [part.get("text") for part in parts if part.get("type") == "text"]
    if not all(isinstance(each, str) for each in texts):
        raise invalid_request("a part of the type 'text' has no text; send it as `text`")
    text = "\n\n".join(map(str, texts))
    files = [
        file_at_url(threads, part.get("url"), part.get("mediaType"), _name_of(part))
        for part in parts
        if part.get("type") == "file"
    ]
    sent = ThreadMessageSent(
        new[-1].id, text, files, on_busy=body.everstep.on_busy, model=body.everstep.model
    )
    return await threads.send(body.id, sent, given_key)


def _name_of(part: Mapping[str, Any]) -> str | None:
    name = part.get("filename")
    return name if isinstance(name, str) and name else None


def _answers(message: UiMessage) -> Sequence[GivenAnswer]:
    """The decisions and answers in the last step of a message of the assistant."""
    questions = {
        json_map(part.get("data")).get("toolCallId"): part.get("id")
        for part in message.parts
        if part.get("type") == "data-question"
    }
    answers: list[GivenAnswer] = []
    for part in message.last_step:
        approval = json_map(part.get("approval"))
        call = part.get("toolCallId")
        if part.get("state") == "approval-responded":
            reason = approval.get("reason")
            answers.append(
                GivenAnswer(
                    parse_uuid(approval.get("id"), "the id of an approval"),
                    approved=approval.get("approved") is True,
                    reason=reason if isinstance(reason, str) else None,
                )
            )
        elif call in questions and part.get("state") == "output-available":
            request_id = parse_uuid(questions[call], "the id of a question")
            answers.append(GivenAnswer(request_id, part.get("output")))
    if not answers:
        raise invalid_request(
            "the last message is the assistant's and answers nothing; send a message of the user, a decision "
            "about a call, or the output of a question"
        )
    return answers
