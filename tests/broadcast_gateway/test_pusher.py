"""Pusher's protocol, version 7, as pusher-js 8 speaks it."""

import hashlib
import hmac
import json
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given, strategies as st

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.stream.channels import ChannelGrant, channel_data, channel_signature
from everstep.agent_domain.stream.reader import Place, Position
from everstep.broadcast_gateway.frames import RelayedEnvelope
from everstep.broadcast_gateway.subscriptions import SubscribeReply
from everstep.broadcast_gateway.wires import pusher
from everstep.broadcast_gateway.wires.closing import BadFrame
from everstep.broadcast_gateway.wires.pusher import (
    CLIENT_EVENTS_REFUSED,
    ClientEvent,
    PusherFrame,
    PusherOther,
    PusherPing,
    PusherPong,
    PusherSubscribe,
    PusherUnsubscribe,
    PusherWire,
    parse,
)
from tests.broadcast_gateway.writers import EXECUTION, SESSION, bodies, entry

CHANNEL = f"private-agent.session.{SESSION}"
SECRETS = {"everstep": "hush"}
SOCKET = "1234.5678"


def decode(frame: bytes) -> Any:
    """Decode as pusher-js does: `data` may be a string with JSON in it."""
    (body,) = bodies(frame)
    message = json.loads(body)
    if isinstance(message["data"], str):
        message["data"] = json.loads(message["data"])
    return message


def raw(frame: bytes) -> Any:
    (body,) = bodies(frame)
    return json.loads(body)


def client_frame(event: str, **data: Any) -> bytes:
    return json.dumps({"event": event, "data": data}).encode()


# Frames from clients.


@pytest.mark.parametrize(
    ("frame", "meant"),
    [
        (client_frame("pusher:subscribe", auth="k:s", channel="c"), PusherSubscribe("c", "k:s")),
        (
            client_frame("pusher:subscribe", channel="c", auth=None, channel_data=None),
            PusherSubscribe("c", ""),
        ),
        (
            client_frame("pusher:subscribe", auth="k:s", channel="c", channel_data="{}"),
            PusherSubscribe("c", "k:s", "{}"),
        ),
        (
            json.dumps({"event": "pusher:subscribe", "data": '{"channel":"c","auth":"k:s"}'}).encode(),
            PusherSubscribe("c", "k:s"),
        ),
        (client_frame("pusher:unsubscribe", channel="c"), PusherUnsubscribe("c")),
        (client_frame("pusher:ping"), PusherPing()),
        (b'{"event":"pusher:ping"}', PusherPing()),
        (client_frame("pusher:pong"), PusherPong()),
        (b'{"event":"client-typing","channel":"c","data":{}}', ClientEvent()),
        (client_frame("pusher:signin", auth="k:s", user_data="{}"), PusherOther()),
    ],
)
def test_a_frame_of_a_client_is_parsed(frame: bytes, meant: PusherFrame) -> None:
    assert parse(frame) == meant


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"[]",
        b"{}",
        b'{"event":7}',
        b'{"event":"pusher:subscribe"}',
        b'{"event":"pusher:subscribe","data":"{"}',
        b'{"event":"pusher:subscribe","data":[]}',
        client_frame("pusher:subscribe"),
        client_frame("pusher:subscribe", channel=7),
        client_frame("pusher:subscribe", channel="c", auth=7),
        client_frame("pusher:subscribe", channel="c", channel_data={"since": 7}),
        client_frame("pusher:unsubscribe"),
    ],
)
def test_a_frame_outside_the_protocol_is_a_bad_frame(frame: bytes) -> None:
    with pytest.raises(BadFrame):
        parse(frame)


EVENTS = ("pusher:subscribe", "pusher:unsubscribe", "pusher:ping", "client-x", "pusher:signin")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)
DATA = st.fixed_dictionaries({}, optional={"channel": JSON, "auth": JSON, "channel_data": JSON})
FRAMES = st.fixed_dictionaries({"event": st.sampled_from(EVENTS), "data": DATA | DATA.map(json.dumps) | JSON})


@given(st.binary() | (FRAMES | JSON).map(lambda frame: json.dumps(frame).encode()))
def test_any_frame_is_parsed_or_a_bad_frame(data: bytes) -> None:
    try:
        meant = parse(data)
    except BadFrame:
        return
    assert isinstance(meant, PusherFrame)
    if isinstance(meant, PusherSubscribe):
        assert not meant.is_signed(SOCKET, SECRETS)


# Authorisation of channels.


def test_a_viewer_with_the_signature_may_join() -> None:
    signature = hmac.new(b"hush", f"{SOCKET}:{CHANNEL}".encode(), hashlib.sha256).hexdigest()
    assert PusherSubscribe(CHANNEL, f"everstep:{signature}").is_signed(SOCKET, SECRETS)


def test_a_position_comes_back_signed() -> None:
    """7.8.4: the client cannot send its position, so its authorisation endpoint signs it."""
    since = Position(7, "of-now", {EXECUTION: Place(2, 1, 40)})
    data = channel_data(since)
    signature = channel_signature("hush", SOCKET, CHANNEL, data)
    frame = client_frame("pusher:subscribe", auth=f"everstep:{signature}", channel=CHANNEL, channel_data=data)
    subscribe = parse(frame)
    assert isinstance(subscribe, PusherSubscribe)
    assert subscribe.is_signed(SOCKET, SECRETS)
    assert subscribe.grant.since == since


SIGNED = "everstep:" + channel_signature("hush", SOCKET, CHANNEL, "{}")


@pytest.mark.parametrize(
    "subscribe",
    [
        PusherSubscribe(CHANNEL, SIGNED),
        PusherSubscribe(CHANNEL, SIGNED, '{"since":{"seq":1}}'),
        PusherSubscribe(f"private-agent.execution.{SESSION}", SIGNED, "{}"),
        PusherSubscribe(CHANNEL, SIGNED.replace("everstep", "other"), "{}"),
        PusherSubscribe(CHANNEL, SIGNED[:-1], "{}"),
        PusherSubscribe(CHANNEL, SIGNED + "ß", "{}"),
        PusherSubscribe(CHANNEL, "", "{}"),
        PusherSubscribe(CHANNEL, "everstep", "{}"),
    ],
)
def test_a_signature_over_other_data_is_invalid(subscribe: PusherSubscribe) -> None:
    assert not subscribe.is_signed(SOCKET, SECRETS)
    assert PusherSubscribe(CHANNEL, SIGNED, "{}").is_signed(SOCKET, SECRETS)
    assert not PusherSubscribe(CHANNEL, SIGNED, "{}").is_signed("1234.5679", SECRETS)


@pytest.mark.parametrize("data", ['{"exp":"soon"}', '{"exp":[]}', '{"key":7}', '{"key":"x"}', "7", "["])
def test_a_grant_that_cannot_be_read_is_refused(data: str) -> None:
    with pytest.raises(InvalidInput):
        assert PusherSubscribe(CHANNEL, "", data).grant


def test_a_grant_contains_its_expiry() -> None:
    """8.10.2"""
    key = uuid4()
    data = channel_data(None, 17.5, key)
    assert PusherSubscribe(CHANNEL, "", data).grant == ChannelGrant(None, 17.5, key)
    assert channel_data(None) is None
    assert PusherSubscribe(CHANNEL, "").grant == ChannelGrant()


def test_a_position_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(InvalidInput):
        assert PusherSubscribe(CHANNEL, "", '{"since":7}').grant


# Frames to clients.


def test_the_first_frame_has_its_data_as_text() -> None:
    frame = pusher.connection_frame(SOCKET, 30)
    assert raw(frame)["data"] == '{"socket_id":"1234.5678","activity_timeout":30}'
    assert decode(frame)["event"] == "pusher:connection_established"


def test_a_viewer_who_joins_receives_the_start_position() -> None:
    """7.8.1, 7.8.4"""
    frame = pusher.subscription_frame(CHANNEL, SubscribeReply("e", 7, recovered=False))
    assert decode(frame) == {
        "event": "pusher_internal:subscription_succeeded",
        "channel": CHANNEL,
        "data": {"epoch": "e", "seq": 7, "recovered": False},
    }


def test_a_refused_channel_keeps_the_connection() -> None:
    assert decode(pusher.subscription_error(CHANNEL, "The signature is wrong", 401)) == {
        "event": "pusher:subscription_error",
        "channel": CHANNEL,
        "data": {"type": "AuthError", "error": "The signature is wrong", "status": 401},
    }


def test_client_events_are_refused_by_an_error() -> None:
    assert decode(pusher.error(CLIENT_EVENTS_REFUSED, "Nobody may speak here")) == {
        "event": "pusher:error",
        "data": {"code": 4301, "message": "Nobody may speak here"},
    }


def test_each_side_may_ping_the_other() -> None:
    assert decode(pusher.ping()) == {"event": "pusher:ping", "data": {}}
    assert decode(pusher.pong()) == {"event": "pusher:pong", "data": {}}


def test_an_envelope_is_an_event_of_its_channel() -> None:
    """7.1.2"""
    envelope = entry(7)
    frame = envelope.frame(PusherWire(CHANNEL))
    assert raw(frame)["data"] == envelope.body.decode()
    assert decode(frame) == {
        "event": "agent.tool.started",
        "channel": CHANNEL,
        "data": json.loads(envelope.body),
    }
    assert envelope.frame(PusherWire(CHANNEL)) is frame


def test_a_stored_message_is_announced_on_one_level() -> None:
    """7.7.1"""
    envelope: dict[str, Any] = {
        "message_id": "m",
        "event_type": "execution.queued",
        "content": "Execution queued",
        "metadata": {},
    }
    stored: dict[str, Any] = {
        "type": "execution.queued",
        "session_id": str(SESSION),
        "execution_id": str(EXECUTION),
        "timestamp": "2026-01-16T10:05:00.000Z",
        "payload": envelope,
        "id": "m",
        "seq": 7,
    }
    frame = PusherWire(CHANNEL).encode(RelayedEnvelope("execution.queued", json.dumps(stored).encode(), 7))
    message = decode(frame)
    assert (message["event"], message["channel"]) == ("execution.queued", CHANNEL)
    assert message["data"] == envelope | stored
