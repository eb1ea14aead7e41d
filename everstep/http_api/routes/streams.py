"""What happens in a stream, as it happens."""

from typing import Annotated
from uuid import UUID

from fastapi import Header, Path, Query
from starlette.responses import Response

from agent_domain.channels import Channel, since_event
from agent_domain.errors import InvalidInput
from everstep.http_api.auth import Who
from everstep.http_api.event_stream import EventStream
from everstep.http_api.problems import missing, no_gateway, unusable
from everstep.http_api.routes.router import Given, router

routes = router("streams")

StreamId = Annotated[UUID, Path(description="The id of a session, or of an execution.")]
LastEventId = Annotated[
    str | None,
    Header(
        max_length=200,
        description="The id of the last event that was read, as browsers show it when they come back: what "
        "came after it is sent first. `0` for all that is kept; without one, from now on.",
    ),
]
Since = Annotated[
    str | None,
    Query(max_length=200, description="The same, for whoever cannot send that header the first time."),
]


@routes.get(
    "/agent/streams/{stream_id}",
    response_class=EventStream,
    responses={200: {"content": {"text/event-stream": {}}, "description": "Events, until you hang up."}},
)
async def stream_events(
    stream_id: StreamId, api: Given, caller: Who, last_event_id: LastEventId = None, since: Since = None
) -> Response:
    """Follow a session, or an execution, as server-sent events.

    The first event is `joined`: where `recovered` is false, load the history over the API first. Then come
    envelopes, each as an event of its type; `bye` is the last one, and asks you to come back.
    """
    shown = last_event_id or since
    try:
        position = None if shown is None else since_event(shown)
    except InvalidInput as error:
        raise unusable(f"Last-Event-ID cannot be used: {error}") from None
    for is_session in (True, False):
        stream = await api.streams.stream(Channel(stream_id, is_session), caller.scope)
        if stream is not None:
            break
    else:
        raise missing("session or execution", stream_id)
    if api.feed is None:
        raise no_gateway()
    return EventStream(await api.feed(stream, is_session or stream != stream_id, position))
