"""The native protocol, `everstep.v1`."""

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, strategies as st

from everstep.agent_domain.stream.reader import Place, Position
from everstep.broadcast_gateway.subscriptions import SubscribeReply
from everstep.broadcast_gateway.wires import websocket
from everstep.broadcast_gateway.wires.closing import MAX_CHANNEL, RESTARTING, TOO_SLOW, UNAUTHORIZED, BadFrame
from everstep.broadcast_gateway.wires.websocket import (
    NATIVE,
    Hello,
    NativeFrame,
    Ping,
    Refresh,
    Subscribe,
    Unsubscribe,
    parse,
)
from tests.broadcast_gateway.writers import EXECUTION, bodies, entry

KINDS = ("hello", "sub", "unsub", "refresh", "ping")
PLACE = {"execution_id": str(EXECUTION), "step_number": 2, "attempt": 1, "next_index": 40}


def read(frame: bytes) -> Any:
    (body,) = bodies(frame)
    return json.loads(body)


@pytest.mark.parametrize(
    ("frame", "sent"),
    [
        ({"type": "hello", "token": "t"}, Hello("t")),
        ({"type": "sub", "channel": "c"}, Subscribe("c")),
        ({"type": "sub", "channel": "c", "since": None}, Subscribe("c")),
        ({"type": "sub", "channel": "c", "since": {"seq": 7}}, Subscribe("c", Position(7))),
        (
            {"type": "sub", "channel": "c", "since": {"seq": 7, "epoch": "e", "drafts": [PLACE]}},
            Subscribe("c", Position(7, "e", {EXECUTION: Place(2, 1, 40)})),
        ),
        ({"type": "unsub", "channel": "c"}, Unsubscribe("c")),
        ({"type": "refresh", "token": "t"}, Refresh("t")),
        ({"type": "ping", "of": "a later version"}, Ping()),
    ],
)
def test_a_frame_of_a_viewer_is_parsed(frame: object, sent: NativeFrame) -> None:
    """7.8.1, 7.8.4"""
    assert parse(json.dumps(frame).encode()) == sent


@pytest.mark.parametrize(
    "frame",
    [
        {},
        {"type": "publish"},
        {"type": ["hello"]},
        {"type": "hello"},
        {"type": "hello", "token": 7},
        {"type": "sub"},
        {"type": "sub", "channel": "c" * (MAX_CHANNEL + 1)},
        {"type": "sub", "channel": "c", "since": 7},
        {"type": "sub", "channel": "c", "since": {"seq": -1}},
        {"type": "sub", "channel": "c", "since": {"seq": 2**63}},
        {"type": "unsub", "channel": None},
        {"type": "refresh"},
    ],
)
def test_a_frame_outside_the_protocol_is_a_bad_frame(frame: object) -> None:
    with pytest.raises(BadFrame):
        parse(json.dumps(frame).encode())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(KINDS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)
FRAMES = st.fixed_dictionaries(
    {"type": st.sampled_from(KINDS)},
    optional={
        "token": JSON,
        "channel": JSON,
        "since": JSON | st.fixed_dictionaries({"seq": JSON, "drafts": JSON}),
    },
)


@given(
    st.binary() | st.text().map(str.encode) | (FRAMES | JSON).map(lambda frame: json.dumps(frame).encode())
)
def test_any_frame_is_parsed_or_a_bad_frame(data: bytes) -> None:
    with suppress(BadFrame):
        assert isinstance(parse(data), NativeFrame)


def test_envelopes_are_sent_unchanged() -> None:
    envelope = entry(7)
    assert list(bodies(envelope.frame(NATIVE))) == [envelope.body]


def test_replies_to_a_viewer() -> None:
    """7.8.1, 7.8.4"""
    assert read(websocket.welcome(25)) == {"type": "welcome", "ping_after": 25}
    assert read(websocket.sub_ok("c", SubscribeReply("e", 7, recovered=True))) == {
        "type": "sub_ok",
        "channel": "c",
        "epoch": "e",
        "seq": 7,
        "recovered": True,
    }
    assert read(websocket.sub_error("c", "no")) == {"type": "sub_error", "channel": "c", "message": "no"}
    assert read(websocket.pong()) == {"type": "pong"}


def test_the_last_frame_says_when_to_reconnect() -> None:
    """7.8.2"""
    assert read(websocket.bye(TOO_SLOW)) == {
        "type": "bye",
        "code": 3001,
        "reason": TOO_SLOW.reason,
        "reconnect_in": 1.0,
    }
    assert read(websocket.bye(RESTARTING, 2.5))["reconnect_in"] == 2.5
    assert read(websocket.bye(UNAUTHORIZED))["reconnect_in"] is None
