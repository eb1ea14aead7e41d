"""AG-UI 1.0: run an agent, and follow a thread."""

from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, cast
from uuid import UUID

from fastapi import APIRouter, Header, Path, Query
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.values import parse_uuid
from everstep.http_api.admissions import admission_of
from everstep.http_api.auth import CallerDep
from everstep.http_api.callers import Caller
from everstep.http_api.dependencies import Api
from everstep.http_api.event_stream import EventStream
from everstep.http_api.message_files import MEDIA_PARTS, file_of_part
from everstep.http_api.problems import Refusal, invalid_request
from everstep.http_api.routes.router import ApiDep
from everstep.http_api.run_streams import RunReader
from everstep.http_api.schemas.ag_ui_requests import AgUiMessage, ResumeEntry, RunAgentInput
from everstep.http_api.threads import GivenAnswer, RunToFollow, ThreadMessageSent, Threads
from everstep.http_api.wire_routes import GivenKey, wire_route
from everstep.wires.ag_ui import PROTOCOL_VERSION, AgUi, run_error
from everstep.wires.event_bodies import json_map
from everstep.wires.run_cursors import MAX_CURSOR, RunCursor


def _render(refusal: Refusal) -> JSONResponse:
    return JSONResponse(run_error(refusal.detail, refusal.slug), refusal.status)


routes = APIRouter(route_class=wire_route(_render), tags=["ag-ui"])

AgentName = Annotated[str, Path(max_length=200, description="The name of an agent.")]
ThreadId = Annotated[str, Path(max_length=500, description="The client's name of the conversation.")]


@routes.post(
    "/agui/{agent}",
    response_class=EventStream,
    responses={200: {"content": {"text/event-stream": {}}, "description": "The events of the run."}},
)
async def run_agent(
    agent: AgentName,
    body: RunAgentInput,
    api: ApiDep,
    caller: CallerDep,
    request: Request,
    given_key: GivenKey = None,
) -> Response:
    """Run an agent, with the protocol AG-UI: send a message of the user, or answer interrupts.

    The thread is a session of the caller: the one with the id `threadId`, or one that is created for this
    name. Of `messages`, those of the user at the end are read; the session has all others. A repeated request
    follows the run that the first one began.
    """
    threads = Threads(api, caller, agent)
    threads.require_agent()
    _require_version(body.protocolVersion)
    run = await (_resume(threads, body, given_key) if body.resume else _send(threads, body, given_key))
    projection = AgUi(body.threadId, body.runId, str(run.execution_id))
    reader = _reader(api, caller, run.session_id, request)
    return EventStream(await reader.open(run.execution_id, run.start, projection, answered=run.answered))


@routes.get(
    "/agui/{agent}/{thread_id}/stream",
    response_class=EventStream,
    responses={
        200: {
            "content": {"text/event-stream": {}},
            "description": "Events, until the thread has no running execution or waits for people.",
        }
    },
)
async def follow_thread(
    agent: AgentName,
    thread_id: ThreadId,
    api: ApiDep,
    caller: CallerDep,
    request: Request,
    last_event_id: Annotated[
        str | None,
        Header(max_length=MAX_CURSOR, description="The id of the last received event: later ones are sent."),
    ] = None,
    run_id: Annotated[
        str | None, Query(alias="runId", max_length=500, description="The run that is resumed.")
    ] = None,
) -> Response:
    """Follow a thread with the protocol AG-UI, for `connect` and after a disconnect.

    Without `Last-Event-ID`, the last execution is sent from its begin, after the conversation before it.
    """
    threads = Threads(api, caller, agent)
    threads.require_agent()
    session_id, row = await threads.find(thread_id)
    if row is None:
        return Response(b"", media_type="text/event-stream")
    reader = _reader(api, caller, session_id, request)
    roots = [each.ref.execution_id for each in await reader.roots()]
    if not roots:
        return Response(b"", media_type="text/event-stream")

    def following(execution_id: UUID) -> AgUi:
        return AgUi(thread_id, None, str(execution_id), restates=True)

    if last_event_id is None:
        return EventStream(await reader.open(roots[0], None, following(roots[0]), follow_on=following))
    try:
        cursor = RunCursor.parse(last_event_id)
    except InvalidInput as error:
        raise invalid_request(f"Last-Event-ID cannot be used: {error}") from None
    execution_id = UUID(cursor.execution_id)
    if execution_id not in roots:
        raise invalid_request("Last-Event-ID names no run of this thread; omit it to start over")
    projection = AgUi(thread_id, run_id, cursor.execution_id)
    return EventStream(await reader.open(execution_id, cursor, projection, follow_on=following))


def _reader(api: Api, caller: Caller, session_id: UUID, request: Request) -> RunReader:
    logs = Threads(api, caller, "").logs
    return RunReader(api.sessions_for(caller), caller, logs, session_id, admission_of(api, caller, request))


def _require_version(declared: str | None) -> None:
    ours = PROTOCOL_VERSION.partition(".")[0]
    if declared is not None and declared.partition(".")[0] != ours:
        raise invalid_request(
            f"protocolVersion is {declared!r}, and this server speaks {PROTOCOL_VERSION}; "
            f"use a client of version {ours}"
        )


async def _send(threads: Threads, body: RunAgentInput, given_key: str | None) -> RunToFollow:
    new, options = body.new_messages, body.options
    if not new:
        raise invalid_request(
            "messages ends with no message of the user, and resume answers no interrupt; send one of them"
        )
    if len(new) > 1:
        # After a run without an answer, the messages before it are at the end as well.
        unknown = await threads.filter_new_ids(body.threadId, [message.id for message in new])
        new = [message for message in new if message.id in unknown] or new[-1:]
    text = "\n\n".join(filter(None, (_text(message) for message in new)))
    files = [file_of_part(threads, part) for message in new for part in _parts(message, MEDIA_PARTS)]
    sent = ThreadMessageSent(
        new[-1].id, text, files, run_id=body.runId, on_busy=options.on_busy, model=options.model
    )
    return await threads.send(body.threadId, sent, given_key)


def _text(message: AgUiMessage) -> str:
    if isinstance(message.content, str):
        return message.content
    texts = [part.get("text") for part in _parts(message, {"text"})]
    if not all(isinstance(text, str) for text in texts):
        raise invalid_request(f"a text of the message {message.id} is no text")
    return "\n".join(map(str, texts))


def _parts(message: AgUiMessage, types: Collection[str]) -> Sequence[Mapping[str, Any]]:
    """The parts of a message of these types."""
    content: Any = message.content
    if isinstance(content, str):
        return ()
    if not isinstance(content, list | tuple):
        raise invalid_request(f"the content of the message {message.id} is neither text nor a list of parts")
    parts = [json_map(part) for part in cast("Sequence[object]", content)]
    known = {"text", *MEDIA_PARTS}
    if unknown := [part.get("type") for part in parts if part.get("type") not in known]:
        raise invalid_request(
            f"the message {message.id} has a part of the type {unknown[0]!r}; send {', '.join(sorted(known))}"
        )
    return [part for part in parts if part["type"] in types]


async def _resume(threads: Threads, body: RunAgentInput, given_key: str | None) -> RunToFollow:
    answers = [_answer(entry) for entry in body.resume or ()]
    return await threads.answer(body.threadId, answers, given_key or f"ag-ui/{body.threadId}/{body.runId}")


def _answer(entry: ResumeEntry) -> GivenAnswer:
    request_id = parse_uuid(entry.interruptId, "interruptId")
    if entry.status == "cancelled":
        return GivenAnswer(request_id, is_cancelled=True)
    payload: Any = entry.payload
    if isinstance(payload, bool):
        return GivenAnswer(request_id, value=payload, approved=payload)
    decision = json_map(payload)
    approved, args, reason = (decision.get(name) for name in ("approved", "editedArgs", "reason"))
    return GivenAnswer(
        request_id,
        payload,
        approved if isinstance(approved, bool) else None,
        reason if isinstance(reason, str) else None,
        None if args is None else json_map(args),
    )
