"""Chat completions with agents, as OpenAI's API has them."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated

from fastapi import APIRouter, Header
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from everstep.http_api.admissions import admission_of
from everstep.http_api.auth import CallerDep
from everstep.http_api.chat_threads import ChatRequestKey, ChatThreads
from everstep.http_api.event_stream import EventStream, LateResponse
from everstep.http_api.late_answers import late_answer
from everstep.http_api.openai_errors import render_error, unusable
from everstep.http_api.openai_input import ConversationInput, read_messages, require_supported
from everstep.http_api.routes.openai_models import require_model
from everstep.http_api.routes.router import ApiDep
from everstep.http_api.run_streams import RunReader
from everstep.http_api.schemas.openai_requests import ChatCompletionRequest
from everstep.http_api.threads import RunToFollow, Threads
from everstep.http_api.wire_routes import GivenKey, wire_route
from everstep.wires.chat_chunks import ChatChunks
from everstep.wires.run_log import FromAnswers

routes = APIRouter(route_class=wire_route(render_error), tags=["openai"])

SessionHeader = Annotated[
    str | None,
    Header(max_length=500, description="The session, for clients that can only set headers."),
]


@routes.post(
    "/v1/chat/completions",
    response_class=JSONResponse,
    responses={
        200: {
            "content": {"text/event-stream": {}, "application/json": {}},
            "description": "The completion, or its chunks.",
        }
    },
)
async def create_chat_completion(
    body: ChatCompletionRequest,
    api: ApiDep,
    caller: CallerDep,
    request: Request,
    given_key: GivenKey = None,
    x_everstep_session: SessionHeader = None,
    x_openwebui_chat_id: SessionHeader = None,
    x_stainless_retry_count: Annotated[
        str | None, Header(max_length=20, description="How often an SDK has repeated the request.")
    ] = None,
) -> Response:
    """Chat with an agent, as with a model of OpenAI.

    `model` is the name of the agent. With `everstep.session`, or the header `X-Everstep-Session`, the
    messages of the user at the end are added to that session. Otherwise the earlier messages of the request
    are its conversation.
    """
    threads = Threads(api, caller, body.model)
    require_model(api, body.model)
    require_supported(body)
    found = read_messages(threads, body.messages)
    if not found.texts or not (found.text.strip() or found.files):
        raise unusable("messages", "messages has to end with a message of the user that is not empty")
    chats = ChatThreads(threads)
    session = body.everstep.session or x_everstep_session or x_openwebui_chat_id
    key = ChatRequestKey(given_key, x_stainless_retry_count not in {None, "0"})
    run = await chats.send(body, found, session, key)
    created = await threads.created_at(run.execution_id)
    chunks = ChatChunks(
        str(run.execution_id),
        body.model,
        int(created),
        str(run.session_id),
        is_whole=body.everstep.text == "complete",
        is_structured=body.format["type"] != "text",
        includes_usage=bool(body.stream_options and body.stream_options.include_usage),
    )
    reader = RunReader(
        api.sessions_for(caller), caller, threads.logs, run.session_id, admission_of(api, caller, request)
    )
    start, answered = run.start, run.answered
    if run.question_id is not None:
        # A repeated answer has the same reply.
        answered = frozenset({run.question_id})
        start = FromAnswers(answered)
    frames = await reader.open(run.execution_id, start, chunks, answered=answered)
    remembered = _remembering(frames, chunks, chats, found, run)
    if body.stream:
        return EventStream(remembered)
    is_repeatable = given_key is not None
    return LateResponse(lambda: late_answer(remembered, chunks, is_repeatable=is_repeatable))


async def _remembering(
    frames: AsyncGenerator[bytes],
    chunks: ChatChunks,
    chats: ChatThreads,
    found: ConversationInput,
    run: RunToFollow,
) -> AsyncGenerator[bytes]:
    """The frames; the conversation is remembered before the client knows that it is complete."""
    is_remembered = False
    async with aclosing(frames):
        async for data in frames:
            if chunks.finish_reason is not None and not is_remembered:
                is_remembered = True
                await chats.remember(found, run, chunks.text)
            yield data
