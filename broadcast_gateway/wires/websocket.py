"""The native protocol, `everstep.v1`: JSON objects with a `type`, in both directions.

A viewer sends `hello` with its token and receives `welcome`; it subscribes (`sub`) to channels and receives
`sub_ok` or `sub_error`; missed and new envelopes follow unchanged. `bye` gives the reason for closing the
connection and the time to reconnect.
"""

from dataclasses import dataclass
from typing import Any

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.stream.reader import Position
from everstep.agent_domain.values import json_text
from everstep.broadcast_gateway.frames import RelayedEnvelope
from everstep.broadcast_gateway.subscriptions import SubscribeReply
from everstep.broadcast_gateway.wires.closing import (
    MAX_CHANNEL,
    BadFrame,
    Closing,
    parse_frame,
    text_field,
    text_frame,
)

SUBPROTOCOL = "everstep.v1"


@dataclass(frozen=True, slots=True)
class Hello:
    """The first frame: authenticates the viewer."""

    token: str


@dataclass(frozen=True, slots=True)
class Subscribe:
    """A request to watch a channel, from a position on."""

    channel: str
    since: Position | None = None


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    """A request to stop watching a channel."""

    channel: str


@dataclass(frozen=True, slots=True)
class Refresh:
    """A token that is valid for longer."""

    token: str


@dataclass(frozen=True, slots=True)
class Ping:
    """A ping."""


NativeFrame = Hello | Subscribe | Unsubscribe | Refresh | Ping


def parse(data: bytes) -> NativeFrame:
    """Parse a frame; unknown fields are ignored.

    Raises:
        BadFrame: It has no known type, or a malformed field.
    """
    frame = parse_frame(data)
    match frame.get("type"):
        case "hello":
            return Hello(text_field(frame, "token"))
        case "sub":
            return Subscribe(text_field(frame, "channel", MAX_CHANNEL), _since(frame.get("since")))
        case "unsub":
            return Unsubscribe(text_field(frame, "channel", MAX_CHANNEL))
        case "refresh":
            return Refresh(text_field(frame, "token"))
        case "ping":
            return Ping()
        case _:
            raise BadFrame("type must be hello, sub, unsub, refresh or ping")


def _since(value: Any) -> Position | None:
    try:
        return None if value is None else Position.from_dict(value)
    except InvalidInput as error:
        raise BadFrame(str(error)) from None


@dataclass(frozen=True, slots=True)
class NativeWire:
    """Envelopes unchanged: each one names its session and execution."""

    def encode(self, envelope: RelayedEnvelope) -> bytes:
        """Return the frame of an envelope."""
        return text_frame(envelope.body)


NATIVE = NativeWire()


def welcome(ping_after: float) -> bytes:
    """Return the reply to `hello`; a viewer should ping after so many seconds of silence."""
    return _frame("welcome", ping_after=ping_after)


def sub_ok(channel: str, joined: SubscribeReply) -> bytes:
    """Return the reply to a subscription, with the position after which envelopes follow."""
    return _frame("sub_ok", channel=channel, epoch=joined.epoch, seq=joined.seq, recovered=joined.recovered)


def sub_error(channel: str, message: str) -> bytes:
    """Return the refusal of a subscription."""
    return _frame("sub_error", channel=channel, message=message)


def refresh_ok() -> bytes:
    """Return the reply to `refresh`."""
    return _frame("refreshed")


def pong() -> bytes:
    """Return the reply to a ping."""
    return _frame("pong")


def bye(closing: Closing, reconnect_in: float | None = None) -> bytes:
    """Return the last frame; a `reconnect_in` per connection spreads the reconnects of many."""
    seconds = closing.reconnect_in if reconnect_in is None else reconnect_in
    return _frame("bye", code=closing.native, reason=closing.reason, reconnect_in=seconds)


def _frame(kind: str, **fields: Any) -> bytes:
    return text_frame(json_text({"type": kind, **fields}).encode())
