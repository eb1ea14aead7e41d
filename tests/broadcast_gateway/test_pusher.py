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
from everstep.broadcast_gateway.frames import News
from everstep.broadcast_gateway.subscriptions import Joined
from everstep.broadcast_gateway.wires import pusher
from everstep.broadcast_gateway.wires.closing import BadFrame
from everstep.broadcast_gateway.wires.pusher import (
    CLIENT_EVENTS_REFUSED,
    ClientEvent,
    Other,
    Ping,
    Pong,
    Pusher,
    Sent,
    Subscribe,
    Unsubscribe,
    parse,
)
from tests.broadcast_gateway.writers import EXECUTION, SESSION, bodies, entry

CHANNEL = f"private-agent.session.{SESSION}"
SECRETS = {"everstep": "hush"}
SOCKET = "1234.5678"


def decoded(frame: bytes) -> Any:
    """Decode as pusher-js does: `data` may be a string with JSON in it."""
    (body,) = bodies(frame)
    message = json.loads(body)
    if isinstance(message["data"], str):
        message["data"] = json.loads(message["data"])
    return message


def raw(frame: bytes) -> Any:
    (body,) = bodies(frame)
    return json.loads(body)


def sent(event: str, **data: Any) -> bytes:
    return json.dumps({"event": event, "data": data}).encode()


# Frames from clients.


@pytest.mark.parametrize(
    ("frame", "meant"),
    [
        (sent("pusher:subscribe", auth="k:s", channel="c"), Subscribe("c", "k:s")),
        (sent("pusher:subscribe", channel="c", auth=None, channel_data=None), Subscribe("c", "")),
        (sent("pusher:subscribe", auth="k:s", channel="c", channel_data="{}"), Subscribe("c", "k:s", "{}")),
        (
            json.dumps({"event": "pusher:subscribe", "data": '{"channel":"c","auth":"k:s"}'}).encode(),
            Subscribe("c", "k:s"),
        ),
        (sent("pusher:unsubscribe", channel="c"), Unsubscribe("c")),
        (sent("pusher:ping"), Ping()),
        (b'{"event":"pusher:ping"}', Ping()),
        (sent("pusher:pong"), Pong()),
        (b'{"event":"client-typing","channel":"c","data":{}}', ClientEvent()),
        (sent("pusher:signin", auth="k:s", user_data="{}"), Other()),
    ],
)
def test_a_frame_of_a_client_is_parsed(frame: bytes, meant: Sent) -> None:
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
        sent("pusher:subscribe"),
        sent("pusher:subscribe", channel=7),
        sent("pusher:subscribe", channel="c", auth=7),
        sent("pusher:subscribe", channel="c", channel_data={"since": 7}),
        sent("pusher:unsubscribe"),
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
    assert isinstance(meant, Sent)
    if isinstance(meant, Subscribe):
        assert not meant.is_signed(SOCKET, SECRETS)


# Authorisation of channels.


def test_a_viewer_with_the_signature_may_join() -> None:
    signature = hmac.new(b"hush", f"{SOCKET}:{CHANNEL}".encode(), hashlib.sha256).hexdigest()
    assert Subscribe(CHANNEL, f"everstep:{signature}").is_signed(SOCKET, SECRETS)


def test_a_position_comes_back_signed() -> None:
    """7.8.4: the client cannot send its position, so its authorisation endpoint signs it."""
    since = Position(7, "of-now", {EXECUTION: Place(2, 1, 40)})
    data = channel_data(since)
    signature = channel_signature("hush", SOCKET, CHANNEL, data)
    frame = sent("pusher:subscribe", auth=f"everstep:{signature}", channel=CHANNEL, channel_data=data)
    subscribe = parse(frame)
    assert isinstance(subscribe, Subscribe)
    assert subscribe.is_signed(SOCKET, SECRETS)
    assert subscribe.grant.since == since


SIGNED = "everstep:" + channel_signature("hush", SOCKET, CHANNEL, "{}")


@pytest.mark.parametrize(
    "subscribe",
    [
        Subscribe(CHANNEL, SIGNED),
        Subscribe(CHANNEL, SIGNED, '{"since":{"seq":1}}'),
        Subscribe(f"private-agent.execution.{SESSION}", SIGNED, "{}"),
        Subscribe(CHANNEL, SIGNED.replace("everstep", "other"), "{}"),
        Subscribe(CHANNEL, SIGNED[:-1], "{}"),
        Subscribe(CHANNEL, SIGNED + "ß", "{}"),
        Subscribe(CHANNEL, "", "{}"),
        Subscribe(CHANNEL, "everstep", "{}"),
    ],
)
def test_a_signature_over_other_data_is_invalid(subscribe: Subscribe) -> None:
    assert not subscribe.is_signed(SOCKET, SECRETS)
    assert Subscribe(CHANNEL, SIGNED, "{}").is_signed(SOCKET, SECRETS)
    assert not Subscribe(CHANNEL, SIGNED, "{}").is_signed("1234.5679", SECRETS)


@pytest.mark.parametrize("data", ['{"exp":"soon"}', '{"exp":[]}', '{"key":7}', '{"key":"x"}', "7", "["])
def test_a_grant_that_cannot_be_read_is_refused(data: str) -> None:
    with pytest.raises(InvalidInput):
        assert Subscribe(CHANNEL, "", data).grant


def test_a_grant_contains_its_expiry() -> None:
    """8.10.2"""
    key = uuid4()
    data = channel_data(None, 17.5, key)
    assert Subscribe(CHANNEL, "", data).grant == ChannelGrant(None, 17.5, key)
    assert channel_data(None) is None
    assert Subscribe(CHANNEL, "").grant == ChannelGrant()


def test_a_position_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(InvalidInput):
        assert Subscribe(CHANNEL, "", '{"since":7}').grant


# Frames to clients.


def test_the_first_frame_has_its_data_as_text() -> None:
    frame = pusher.connection_established(SOCKET, 30)
    assert raw(frame)["data"] == '{"socket_id":"1234.5678","activity_timeout":30}'
    assert decoded(frame)["event"] == "pusher:connection_established"


def test_a_viewer_who_joins_receives_the_start_position() -> None:
    """7.8.1, 7.8.4"""
    frame = pusher.subscription_succeeded(CHANNEL, Joined("e", 7, recovered=False))
    assert decoded(frame) == {
        "event": "pusher_internal:subscription_succeeded",
        "channel": CHANNEL,
        "data": {"epoch": "e", "seq": 7, "recovered": False},
    }


def test_a_refused_channel_keeps_the_connection() -> None:
    assert decoded(pusher.subscription_error(CHANNEL, "The signature is wrong", 401)) == {
        "event": "pusher:subscription_error",
        "channel": CHANNEL,
        "data": {"type": "AuthError", "error": "The signature is wrong", "status": 401},
    }


def test_client_events_are_refused_by_an_error() -> None:
    assert decoded(pusher.error(CLIENT_EVENTS_REFUSED, "Nobody may speak here")) == {
        "event": "pusher:error",
        "data": {"code": 4301, "message": "Nobody may speak here"},
    }


def test_each_side_may_ping_the_other() -> None:
    assert decoded(pusher.ping()) == {"event": "pusher:ping", "data": {}}
    assert decoded(pusher.pong()) == {"event": "pusher:pong", "data": {}}


def test_an_envelope_is_an_event_of_its_channel() -> None:
    """7.1.2"""
    envelope = entry(7)
    frame = envelope.frame(Pusher(CHANNEL))
    assert raw(frame)["data"] == envelope.body.decode()
    assert decoded(frame) == {
        "event": "agent.tool.started",
        "channel": CHANNEL,
        "data": json.loads(envelope.body),
    }
    assert envelope.frame(Pusher(CHANNEL)) is frame


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
    frame = Pusher(CHANNEL).event(News("execution.queued", json.dumps(stored).encode(), 7))
    message = decoded(frame)
    assert (message["event"], message["channel"]) == ("execution.queued", CHANNEL)
    assert message["data"] == envelope | stored
