"""Responses of agents, as OpenAI's Responses API has them."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from everstep.agent_domain.capabilities.rights import CANCEL, command_decider
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.client.errors import Ended
from everstep.client.execution import now
from everstep.http_api.auth import CallerDep
from everstep.http_api.callers import Caller
from everstep.http_api.dependencies import Api
from everstep.http_api.event_stream import EventStream, LateResponse
from everstep.http_api.idempotency import RequestKey
from everstep.http_api.late_answers import late_answer, read_to_end
from everstep.http_api.openai_errors import render_error
from everstep.http_api.openai_input import read_input, require_supported
from everstep.http_api.problems import Refusal, not_found
from everstep.http_api.response_threads import FollowedResponse, ResponseThreads, input_items
from everstep.http_api.routes.openai_models import require_model
from everstep.http_api.routes.router import ApiDep
from everstep.http_api.schemas.openai_requests import ResponseRequest
from everstep.http_api.threads import Threads
from everstep.http_api.wire_routes import GivenKey, wire_route
from everstep.wires.response_events import ResponseEvents

routes = APIRouter(route_class=wire_route(render_error), tags=["openai"])

ResponseId = Annotated[str, Path(max_length=200, description="The id of a response.")]
Include = Annotated[list[str] | None, Query(description="Ignored.")]
IncludeItems = Annotated[list[str] | None, Query(alias="include[]", description="Ignored.")]

CANCEL_SECONDS = 10.0
"""Seconds within which a worker usually ends a cancelled execution."""

_ANSWER: Mapping[int | str, dict[str, Any]] = {
    200: {
        "content": {"text/event-stream": {}, "application/json": {}},
        "description": "The response, or its events.",
    }
}


@routes.post("/v1/responses", response_class=JSONResponse, responses={**_ANSWER})
async def create_response(
    body: ResponseRequest, api: ApiDep, caller: CallerDep, request: Request, given_key: GivenKey = None
) -> Response:
    """Create a response: send a message to an agent, or answer what its last response asks.

    `model` is the name of the agent. With `previous_response_id` or `conversation`, the message is added to
    that session; otherwise it begins one. With `background`, the response is returned at once, and can be
    read and streamed later.
    """
    require_model(api, body.model)
    require_supported(body)
    responses = _responses(api, caller, request, body.model)
    followed = await responses.create(body, read_input(responses.threads, body), given_key)
    if body.stream:
        return EventStream(await responses.open(followed, ResponseEvents(followed.head)))
    if body.background:
        return await _read_now(responses, followed)
    events = ResponseEvents(followed.head)
    frames = await responses.open(followed, events)
    is_repeatable = given_key is not None or followed.head.previous_response_id is not None
    return LateResponse(lambda: late_answer(frames, events, is_repeatable=is_repeatable))


@routes.get("/v1/responses/{response_id}", response_class=JSONResponse, responses={**_ANSWER})
async def read_response(
    response_id: ResponseId,
    api: ApiDep,
    caller: CallerDep,
    request: Request,
    stream: bool = False,
    starting_after: Annotated[
        int, Query(ge=-1, le=2**53, description="With `stream`, only events after this `sequence_number`.")
    ] = -1,
    include_obfuscation: Annotated[bool | None, Query(description="Ignored.")] = None,
    include: Include = None,
    include_items: IncludeItems = None,
) -> Response:
    """Read a response, or stream its events: all of them, or those after `starting_after`."""
    del include, include_items, include_obfuscation
    responses = _responses(api, caller, request)
    followed = await responses.find(response_id)
    if stream:
        events = ResponseEvents(followed.head, starting_after)
        return EventStream(await responses.open(followed, events))
    return await _read_now(responses, followed)


@routes.delete("/v1/responses/{response_id}", response_class=JSONResponse)
async def delete_response(
    response_id: ResponseId, api: ApiDep, caller: CallerDep, request: Request
) -> Response:
    """Delete a response and its conversation, if the conversation has no other one."""
    responses = _responses(api, caller, request)
    row, session_id, _ = await responses.find_execution(response_id)
    roots = await responses.reader(session_id).roots()
    if [root.ref.execution_id for root in roots] != [row.ref.execution_id]:
        raise Refusal(
            409,
            "conversation-has-responses",
            "The conversation has other responses",
            f"The conversation has other responses; DELETE /agent/sessions/{session_id} deletes all of it",
        )
    if not await api.sessions_for(caller).delete(caller.scope, session_id):
        raise not_found("response", response_id)
    return JSONResponse({"id": response_id, "object": "response", "deleted": True})


@routes.post("/v1/responses/{response_id}/cancel", response_class=JSONResponse)
async def cancel_response(
    response_id: ResponseId, api: ApiDep, caller: CallerDep, request: Request, given_key: GivenKey = None
) -> Response:
    """Cancel the execution of a response. Cancelling it again changes nothing."""
    responses = _responses(api, caller, request)
    row, _, _ = await responses.find_execution(response_id)
    followed = await responses.find(response_id)
    sent_by = command_decider(caller.actor, CANCEL, row.user_id, now())
    key = str(RequestKey(caller, given_key or f"cancel/{response_id}").id("cancel"))
    is_pending = row.status is ExecutionStatus.PENDING
    try:
        await api.sessions_for(caller).cancel(row.ref, key, is_pending=is_pending, sent_by=sent_by)
    except Ended:
        detail = f"The response has ended and cannot be cancelled; GET /v1/responses/{response_id} returns it"
        raise Refusal(409, "response-ended", "The response has ended", detail) from None
    with suppress(TimeoutError):
        # A worker stores the end.
        async with asyncio.timeout(CANCEL_SECONDS):
            events = ResponseEvents(followed.head)
            await read_to_end(await responses.open(followed, events), events)
    return await _read_now(responses, followed)


@routes.get("/v1/responses/{response_id}/input_items")
async def list_input_items(
    response_id: ResponseId,
    api: ApiDep,
    caller: CallerDep,
    request: Request,
    after: Annotated[str | None, Query(max_length=200, description="Only items after this one.")] = None,
    limit: Annotated[int, Query(ge=1, le=100, description="The maximum number of items.")] = 20,
    order: Literal["asc", "desc"] = "desc",
    include: Include = None,
    include_items: IncludeItems = None,
) -> dict[str, Any]:
    """List the input of a response: the message that it answers."""
    del include, include_items, limit, order
    responses = _responses(api, caller, request)
    row, session_id, segment = await responses.find_execution(response_id)
    found = await responses.find_message(session_id, row.ref.execution_id, segment)
    items = input_items(found[0] if found else None)
    shown = [] if after is not None and any(item["id"] == after for item in items) else [*items]
    first, last = (shown[0]["id"], shown[-1]["id"]) if shown else (None, None)
    return {"object": "list", "data": shown, "first_id": first, "last_id": last, "has_more": False}


def _responses(api: Api, caller: Caller, request: Request, agent: str = "") -> ResponseThreads:
    return ResponseThreads(Threads(api, caller, agent), request)


async def _read_now(responses: ResponseThreads, followed: FollowedResponse) -> JSONResponse:
    return JSONResponse((await responses.snapshot(followed)).answer)
