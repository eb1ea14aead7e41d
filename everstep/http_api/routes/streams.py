"""The route that streams events of a session or an execution."""

from typing import Annotated
from uuid import UUID

from fastapi import Header, Path, Query
from starlette.requests import Request
from starlette.responses import Response

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.stream.channels import Channel, position_from_event_id
from everstep.agent_domain.stream.envelopes import Envelope
from everstep.http_api.admissions import admission_of
from everstep.http_api.auth import CallerDep
from everstep.http_api.event_stream import EventStream
from everstep.http_api.problems import invalid_request, no_gateway, not_found
from everstep.http_api.routes.router import ApiDep, router
from everstep.http_api.schemas.envelope_responses import EnvelopeResponse, EnvelopesResponse

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


@routes.get("/agent/streams/{stream_id}/envelopes")
async def list_envelopes(
    stream_id: StreamId,
    api: ApiDep,
    caller: CallerDep,
    after: Annotated[int, Query(ge=0, le=2**53, description="Only envelopes after this `seq`.")] = 0,
    limit: Annotated[int, Query(ge=1, le=500, description="The maximum number of items.")] = 100,
) -> EnvelopesResponse:
    """List stored envelopes of a session or an execution, in the order of their `seq`.

    The numbers have no gaps: any part of a long stream can be read at once.
    """
    for is_session in (True, False):
        stream = await api.streams.stream(Channel(stream_id, is_session), caller.scope)
        if stream is not None:
            break
    else:
        raise not_found("session or execution", stream_id)
    store = api.sessions.client.store
    first, last = await store.envelope_range(caller.tenant_id, stream)
    stored = await store.envelopes(caller.tenant_id, stream, after, limit)
    return EnvelopesResponse(
        items=[EnvelopeResponse.of(Envelope.placed(each)) for each in stored], first_seq=first, last_seq=last
    )
