"""The route that streams events of a session or an execution."""

from typing import Annotated
from uuid import UUID

from fastapi import Header, Path, Query
from starlette.requests import Request
from starlette.responses import Response

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.stream.channels import Channel, position_from_event_id
from everstep.http_api.admissions import admission_of
from everstep.http_api.auth import CallerDep
from everstep.http_api.event_stream import EventStream
from everstep.http_api.problems import invalid_request, no_gateway, not_found
from everstep.http_api.routes.router import ApiDep, router

routes = router("streams")

StreamId = Annotated[UUID, Path(description="The id of a session, or of an execution.")]
LastEventId = Annotated[
    str | None,
    Header(
        max_length=200,
        description="The id of the last received event, which browsers send when they reconnect: later "
        "events are sent first. `0` for all stored events; without it, only new events are sent.",
    ),
]
Since = Annotated[
    str | None,
    Query(
        max_length=200, description="The same, for clients that cannot set the header on the first request."
    ),
]


@routes.get(
    "/agent/streams/{stream_id}",
    response_class=EventStream,
    responses={
        200: {"content": {"text/event-stream": {}}, "description": "Events, until the client disconnects."}
    },
)
async def stream_events(
    stream_id: StreamId,
    api: ApiDep,
    caller: CallerDep,
    request: Request,
    last_event_id: LastEventId = None,
    since: Since = None,
) -> Response:
    """Follow a session or an execution as server-sent events.

    The first event is `joined`: if `recovered` is false, load the history over the API first. Envelopes
    follow, each as an event of its type. The last event is `bye`, which asks the client to reconnect, with a
    newer token if its reason requires one.
    """
    shown = last_event_id or since
    try:
        position = None if shown is None else position_from_event_id(shown)
    except InvalidInput as error:
        raise invalid_request(f"Last-Event-ID cannot be used: {error}") from None
    for is_session in (True, False):
        stream = await api.streams.stream(Channel(stream_id, is_session), caller.scope)
        if stream is not None:
            break
    else:
        raise not_found("session or execution", stream_id)
    if api.feed is None:
        raise no_gateway()
    admission = admission_of(api, caller, request)
    return EventStream(await api.feed(stream, is_session or stream != stream_id, position, admission))
