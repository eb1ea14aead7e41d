"""Authorization of a browser's channels."""

import hashlib
import hmac
import json
from dataclasses import replace
from time import time
from typing import Any
from uuid import uuid4

import pytest

from everstep.agent_domain.stream.channels import derived_secret, parse_since
from everstep.agent_domain.stream.reader import MAX_DRAFTS, Position
from everstep.broadcast_gateway.wires.pusher import PusherSubscribe
from everstep.http_api.api_keys import create_key
from everstep.http_api.tokens import sign_token
from tests.everstep.http_api.house import (
    SECRET,
    ApiCaller,
    ApiSetup,
    MakeCaller,
    assert_problem,
    http_client,
    make_app,
)

PATH = "/broadcasting/auth"
DRAFT = {"execution_id": str(uuid4()), "step_number": 2, "attempt": 1, "next_index": 14}
SINCE = {"epoch": "5d41", "seq": 7, "drafts": [DRAFT]}


def signature(*signed: str) -> str:
    """The signature of Pusher's documentation: over the socket, the channel, and any data."""
    return "everstep:" + hmac.new(b"hush", ":".join(signed).encode(), hashlib.sha256).hexdigest()


def check_signature(answer: Any, socket_id: str, channel: str) -> dict[str, Any]:
    """The signed data, if the signature is correct."""
    data = answer["channel_data"]
    assert answer["auth"] == signature(socket_id, channel, data)
    return json.loads(data)


async def test_the_channel_of_an_own_session_is_signed(ann: ApiCaller) -> None:
    """7.8.1"""
    channel = f"private-agent.session.{await ann.create_session()}"
    sent = {"socket_id": "1234.5678", "channel_name": channel}

    as_json = await ann.http.post(PATH, json=sent)
    as_form = await ann.http.post(PATH, data=sent)

    assert as_json.json() == as_form.json()
    assert [*check_signature(as_json.json(), "1234.5678", channel)] == ["exp"]


async def test_the_expiry_of_a_channel_is_signed(ann: ApiCaller, api_setup: ApiSetup) -> None:
    """8.10.2: until the token expires, or while the key is valid."""
    channel = f"private-agent.session.{await ann.create_session()}"
    sent = {"socket_id": "1.2", "channel_name": channel}
    now = time()
    made = await create_key(api_setup.keys, "shop", tenant_id=api_setup.tenant, user_id="ann")

    async def authorize(credential: str) -> dict[str, Any]:
        async with http_client(ann.app, {"Authorization": f"Bearer {credential}"}) as http:
            return check_signature((await http.post(PATH, json=sent)).json(), "1.2", channel)

    in_time = sign_token(SECRET, "ann", api_setup.tenant, days=1 / 24)
    late = sign_token(SECRET, "ann", api_setup.tenant, days=-10 / 86400)
    assert now + 3590 < (await authorize(in_time))["exp"] < now + 3610
    # Received late, it is valid for the rest of the permitted clock skew.
    assert now + 15 < (await authorize(late))["exp"] < now + 25
    assert await authorize(made.secret) == {"key": str(made.key.id)}


async def test_the_channel_of_another_user_is_refused(sign_in: MakeCaller) -> None:
    ann, ben, far = (
        await sign_in("ann"),
        await sign_in("ben"),
        await sign_in("ann", tenant=f"far-{uuid4().hex}"),
    )
    service = await sign_in("robot", "sessions:all")
    sent = {"socket_id": "1.2", "channel_name": f"private-agent.session.{await ann.create_session()}"}

    for stranger in (ben, far):
        assert_problem(
            await stranger.http.post(PATH, data=sent), 403, "The session of this channel does not exist"
        )
    unknown = {**sent, "channel_name": f"private-agent.session.{uuid4()}"}
    assert_problem(await ann.http.post(PATH, data=unknown), 403)
    assert (await service.http.post(PATH, data=sent)).status_code == 200


async def test_the_channel_of_an_own_execution_is_signed(sign_in: MakeCaller) -> None:
    """7.8.1"""
    ann, ben = await sign_in("ann"), await sign_in("ben")
    alone = await ann.start_execution("hello")
    within = (await ann.post_message(await ann.create_session(), "hello"))["execution_id"]

    for execution in (alone, within):
        sent = {"socket_id": "1.2", "channel_name": f"private-agent.execution.{execution}"}
        answer = await ann.http.post(PATH, data=sent)
        assert [*check_signature(answer.json(), "1.2", sent["channel_name"])] == ["exp"]
        assert_problem(
            await ben.http.post(PATH, data=sent), 403, "The execution of this channel does not exist"
        )
        # The channel names the wrong kind of object.
        mistaken = {**sent, "channel_name": f"private-agent.session.{execution}"}
        assert_problem(
            await ann.http.post(PATH, data=mistaken), 403, "The session of this channel does not exist"
        )


async def test_the_position_of_the_viewer_is_signed(ann: ApiCaller) -> None:
    """Follows rule 7.8.4."""
    channel = f"private-agent.session.{await ann.create_session()}"
    sent = {"socket_id": "1.2", "channel_name": channel}

    as_object = await ann.post(PATH, {**sent, "since": SINCE})
    as_text = await ann.post(PATH, {**sent, "since": json.dumps(SINCE)})
    as_form = (await ann.http.post(PATH, data={**sent, "since": json.dumps(SINCE)})).json()

    assert as_object == as_text == as_form
    assert parse_since(as_form["channel_data"]) == Position.from_dict(SINCE)
    assert as_form["auth"] == signature("1.2", channel, as_form["channel_data"])
    assert PusherSubscribe(channel, **as_form).is_signed("1.2", {"everstep": "hush"})


@pytest.mark.parametrize("since", ["", "null"])
async def test_a_viewer_without_a_position_starts_at_the_head(ann: ApiCaller, since: str) -> None:
    sent = {"socket_id": "1.2", "channel_name": f"private-agent.session.{await ann.create_session()}"}

    answer = await ann.http.post(PATH, data={**sent, "since": since})

    assert [*check_signature(answer.json(), *sent.values())] == ["exp"]


@pytest.mark.parametrize(
    ("since", "complaint"),
    [
        ("[object Object]", "since is not valid JSON"),
        ("undefined", "since is not valid JSON"),
        ("7", "the position cannot be read"),
        ("[]", "the position cannot be read"),
        ("{}", "seq"),
        ('{"seq": -1}', "seq"),
        ('{"seq": 1e3}', "seq"),
        ('{"seq": 9223372036854775808}', "seq"),
        (json.dumps({"seq": 1, "epoch": "x" * 101}), "epoch"),
        (json.dumps({"seq": 1, "epoch": 7}), "epoch"),
        (json.dumps({"seq": 1, "drafts": [DRAFT] * (MAX_DRAFTS + 1)}), "send at most 100"),
        (json.dumps({"seq": 1, "drafts": [{**DRAFT, "attempt": 0}]}), "attempt"),
    ],
)
async def test_an_invalid_position_is_refused(ann: ApiCaller, since: str, complaint: str) -> None:
    sent = {"socket_id": "1.2", "channel_name": f"private-agent.session.{await ann.create_session()}"}

    assert_problem(await ann.http.post(PATH, data={**sent, "since": since}), 422, "since: ", complaint)
    assert_problem(await ann.send_post(PATH, {**sent, "since": since}), 422, "since: ", complaint)
    try:
        parsed = json.loads(since)
    except ValueError:
        return
    assert_problem(await ann.send_post(PATH, {**sent, "since": parsed}), 422, "since: ", complaint)


@pytest.mark.parametrize(
    "changed",
    [
        {"socket_id": "x"},
        {"socket_id": "1.2:private-agent.session.1"},
        {"socket_id": "1.2\n"},
        {"channel_name": "private-agent.session.1"},
        {"channel_name": "private-agent.session.{id}\n"},
        {"channel_name": "presence-agent.session.{id}"},
        {"channel_name": "private-agent.session.{ID}"},
        {"channel_name": ""},
        {"other": "x"},
    ],
)
async def test_an_invalid_channel_or_socket_is_refused(ann: ApiCaller, changed: dict[str, str]) -> None:
    session = await ann.create_session()
    named = {name: value.format(id=session, ID=session.upper()) for name, value in changed.items()}
    sent = {"socket_id": "1.2", "channel_name": f"private-agent.session.{session}"} | named

    assert_problem(await ann.http.post(PATH, data=sent), 422)
    assert_problem(await ann.http.post(PATH, json=sent), 422)


async def test_the_address_of_the_gateway_can_be_read(api_setup: ApiSetup) -> None:
    api = replace(api_setup.api, gateway_url=lambda: "wss://watch.example")
    headers = {"Authorization": f"Bearer {api_setup.token('ann')}"}
    async with http_client(make_app(api), headers) as http:
        answer = await http.get("/agent/gateway")

    channels = ["agent.session.{session_id}", "agent.execution.{execution_id}"]
    assert answer.json() == {"url": "wss://watch.example", "key": "everstep", "channels": channels}


async def test_without_a_gateway_the_response_says_so(ann: ApiCaller) -> None:
    assert_problem(await ann.http.get("/agent/gateway"), 404, "No gateway", "EVERSTEP_GATEWAY_URL")


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"", "application/json"),
        (b"[" * 50_000, "application/json"),
        (b"\xff", "application/x-www-form-urlencoded"),
        (b"&".join(b"a=%d" % n for n in range(50)), "application/x-www-form-urlencoded"),
        (b"socket_id=1.2", "application/x-www-form-urlencoded"),
    ],
)
async def test_an_invalid_body_is_refused(ann: ApiCaller, content: bytes, kind: Any) -> None:
    assert_problem(await ann.http.post(PATH, content=content, headers={"Content-Type": kind}), 422)


def test_the_gateways_secret_is_derived_from_the_tokens_secret() -> None:
    assert derived_secret("a") == derived_secret("a") != derived_secret("b")
    assert len(derived_secret("a")) == 64
