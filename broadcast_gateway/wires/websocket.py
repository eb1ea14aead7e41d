"""The native protocol, `everstep.v1`: JSON objects with a `type`, in both directions.

A viewer says `hello` with its token and is answered `welcome`; it subscribes (`sub`) to channels and is
answered `sub_ok` or `sub_error`; what it missed and what happens then comes as envelopes, as they are. `bye`
says why the connection is closed and when to come back.
"""

from dataclasses import dataclass
from typing import Any

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.stream.reader import Position
from everstep.agent_domain.values import json_text
from everstep.broadcast_gateway.frames import News
from everstep.broadcast_gateway.subscriptions import Joined
from everstep.broadcast_gateway.wires.closing import (
    MAX_CHANNEL,
    BadFrame,
    Closing,
    parse_frame,
    text_frame,
    text_of,
)

SUBPROTOCOL = "everstep.v1"


@dataclass(frozen=True, slots=True)
class Hello:
    """Who this is, and the first frame of all."""

    token: str


@dataclass(frozen=True, slots=True)
class Subscribe:
    """It wants to watch, from where it was."""

    channel: str
    since: Position | None = None


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    """It no longer watches."""

    channel: str


@dataclass(frozen=True, slots=True)
class Refresh:
    """A token that is valid for longer."""

    token: str


@dataclass(frozen=True, slots=True)
class Ping:
    """It wants to know whether anybody is there."""


Sent = Hello | Subscribe | Unsubscribe | Refresh | Ping


def parse(data: bytes) -> Sent:
    """What a viewer sent; `BadFrame` if it is nothing of these. Fields that are not known are ignored."""
    frame = parse_frame(data)
    match frame.get("type"):
        case "hello":
            return Hello(text_of(frame, "token"))
        case "sub":
            return Subscribe(text_of(frame, "channel", MAX_CHANNEL), _since(frame.get("since")))
        case "unsub":
            return Unsubscribe(text_of(frame, "channel", MAX_CHANNEL))
        case "refresh":
            return Refresh(text_of(frame, "token"))
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
class Native:
    """Envelopes as they are: each says by itself which session and execution it is about."""

    def event(self, news: News) -> bytes:
        """The envelope."""
        return text_frame(news.body)


NATIVE = Native()


def welcome(ping_after: float) -> bytes:
    """The answer to `hello`; a viewer who was silent for so many seconds should ping."""
    return _frame("welcome", ping_after=ping_after)


def sub_ok(channel: str, joined: Joined) -> bytes:
    """It watches: what follows comes after this seq."""
    return _frame("sub_ok", channel=channel, epoch=joined.epoch, seq=joined.seq, recovered=joined.recovered)


def sub_error(channel: str, message: str) -> bytes:
    """It may not watch this, or there is no such thing."""
    return _frame("sub_error", channel=channel, message=message)


def refreshed() -> bytes:
    """The newer token is taken."""
    return _frame("refreshed")


def pong() -> bytes:
    """Somebody is there."""
    return _frame("pong")


def bye(closing: Closing, reconnect_in: float | None = None) -> bytes:
    """The last frame; a moment of its own spreads the return of many."""
    seconds = closing.reconnect_in if reconnect_in is None else reconnect_in
    return _frame("bye", code=closing.native, reason=closing.reason, reconnect_in=seconds)


def _frame(kind: str, **fields: Any) -> bytes:
    return text_frame(json_text({"type": kind, **fields}).encode())
