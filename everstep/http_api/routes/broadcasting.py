"""Routes about the gateway: its URL, and authorisation for its channels."""

import math
from time import time
from typing import Annotated, Any, Final
from urllib.parse import parse_qsl

from fastapi import Depends
from pydantic import ValidationError
from starlette.requests import Request

from everstep.agent_domain.checks import faults
from everstep.agent_domain.stream.channels import channel_data
from everstep.http_api.auth import READ_MARKER, CallerDep
from everstep.http_api.channel_authorization import CHANNELS, private_channel
from everstep.http_api.idempotency import KeyDep
from everstep.http_api.problems import Refusal, forbidden, invalid_request, no_gateway
from everstep.http_api.routes.router import ApiDep, router
from everstep.http_api.schemas.request_bodies import ChannelSent
from everstep.http_api.schemas.responses import ChannelAuth, Gateway

routes = router("broadcasting")

SESSION_SECONDS: Final = 60.0
"""How long a person with a session in a browser may watch until the page asks again."""

_SCHEMA = ChannelSent.model_json_schema()
_FORMS = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": _SCHEMA},
            "application/x-www-form-urlencoded": {"schema": _SCHEMA},
        },
    }
}


async def _parse_body(request: Request) -> ChannelSent:
    # pusher-js sends a form, other clients send JSON.
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    try:
        if kind == "application/x-www-form-urlencoded":
            form = dict(parse_qsl((await request.body()).decode(), keep_blank_values=True, max_num_fields=20))
            return ChannelSent.model_validate(form)
        data: Any = await request.json()
        return ChannelSent.model_validate(data)
    except ValidationError as error:
        raise invalid_request(f"Correct these parts of the request: {faults(error)}") from None
    except (ValueError, RecursionError):
        raise invalid_request("The body cannot be read; send JSON or a form, in UTF-8") from None


@routes.get("/agent/gateway")
async def read_gateway(api: ApiDep, caller: CallerDep) -> Gateway:
    """Read the URL of the gateway, which streams events in real time."""
    del caller
    url = api.gateway_url()
    if url is None:
        raise Refusal(404, "no-gateway", "No gateway", "No gateway is configured; set EVERSTEP_GATEWAY_URL")
    return Gateway(url=url, key=api.signer and api.signer.key, channels=[*CHANNELS])


@routes.post(
    "/broadcasting/auth", openapi_extra={**_FORMS, READ_MARKER: True}, response_model_exclude_none=True
)
async def authorise_channel(
    body: Annotated[ChannelSent, Depends(_parse_body)], api: ApiDep, caller: CallerDep, key: KeyDep
) -> ChannelAuth:
    """Authorise a browser for the channel of a session or an execution that its user may read."""
    del key
    if api.signer is None:
        raise no_gateway()
    channel = private_channel(body.channel_name)
    now = time()
    until = caller.may_watch_until(now)
    if caller.is_session:
        # The gateway cannot see that a session has ended, so the signature is for a short time.
        until = min(until or math.inf, now + SESSION_SECONDS)
    data = channel_data(body.since, until, caller.key_id)
    signature = api.signer.signature(body.socket_id, body.channel_name, data)
    if await api.streams.stream(channel, caller.scope) is None:
        kind = "session" if channel.is_session else "execution"
        raise forbidden(f"The {kind} of this channel does not exist, or you may not read it")
    return ChannelAuth(auth=signature, channel_data=data)
