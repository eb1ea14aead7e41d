"""Pusher's protocol, version 7, as far as its clients use it to watch private channels.

What is particular to it: `data` is a text with JSON in it; who may join was decided by somebody else, who
signed it; and a client cannot say where it was. So a position travels with the request for that signature and
comes back inside `channel_data`, which is signed along.
"""

import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.stream.channels import ChannelGrant, channel_signature
from everstep.agent_domain.stream.envelopes import TELEMETRY
from everstep.agent_domain.values import FrozenDict, frozen_map, json_text, parse_json
from everstep.broadcast_gateway.frames import News
from everstep.broadcast_gateway.subscriptions import Joined
from everstep.broadcast_gateway.wires.closing import MAX_CHANNEL, BadFrame, parse_frame, text_frame, text_of

PROTOCOL = 7
CLIENT_EVENTS_REFUSED = 4301


@dataclass(frozen=True, slots=True)
class Subscribe:
    """It wants to watch, and shows the signature that it may."""

    channel: str
    auth: str
    channel_data: str | None = None

    @property
    def grant(self) -> ChannelGrant:
        """Where it was, and how long it may watch; `InvalidInput` if that cannot be read."""
        return ChannelGrant.read(self.channel_data)

    def is_signed(self, socket_id: str, secrets: Mapping[str, str]) -> bool:
        """Whether the signature is right, by one of these keys and for this connection."""
        key, _, shown = self.auth.partition(":")
        secret = secrets.get(key)
        if secret is None:
            return False
        signature = channel_signature(secret, socket_id, self.channel, self.channel_data)
        return hmac.compare_digest(signature.encode(), shown.encode())


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    """It no longer watches."""

    channel: str


@dataclass(frozen=True, slots=True)
class Ping:
    """It wants to know whether anybody is there."""


@dataclass(frozen=True, slots=True)
class Pong:
    """It is there."""


@dataclass(frozen=True, slots=True)
class ClientEvent:
    """It wants to tell others something, which nobody can here."""


@dataclass(frozen=True, slots=True)
class Other:
    """Something else of the protocol, or of a later version: no answer is due."""


Sent = Subscribe | Unsubscribe | Ping | Pong | ClientEvent | Other


def parse(data: bytes) -> Sent:
    """What a viewer sent; `BadFrame` if it is none of this protocol."""
    frame = parse_frame(data)
    match text_of(frame, "event", MAX_CHANNEL):
        case "pusher:subscribe":
            sent = _data(frame)
            channel_data = None if sent.get("channel_data") is None else text_of(sent, "channel_data")
            auth = "" if sent.get("auth") is None else text_of(sent, "auth")
            return Subscribe(text_of(sent, "channel", MAX_CHANNEL), auth, channel_data)
        case "pusher:unsubscribe":
            return Unsubscribe(text_of(_data(frame), "channel", MAX_CHANNEL))
        case "pusher:ping":
            return Ping()
        case "pusher:pong":
            return Pong()
        case event:
            return ClientEvent() if event.startswith("client-") else Other()


def _data(frame: FrozenDict) -> FrozenDict:
    """Some clients send an object, some a text with one in it."""
    data = frame.get("data")
    try:
        return frozen_map(parse_json(data, "data") if isinstance(data, str) else data, "data")
    except InvalidInput as error:
        raise BadFrame(str(error)) from None


@dataclass(frozen=True, slots=True)
class Pusher:
    """Envelopes as events of a channel, under the name by which it was joined."""

    channel: str

    def event(self, news: News) -> bytes:
        """The envelope as text, within the event of its type."""
        body = news.body.decode()
        if not news.kind.startswith(TELEMETRY):
            body = json_text(_announced(json.loads(body)))
        return _frame(news.kind, body, self.channel)


def _announced(envelope: Mapping[str, Any]) -> dict[str, Any]:
    """A stored message, as applications are used to be told of one: all on one level, beside the envelope."""
    return {**envelope["payload"], **envelope}


def connection_established(socket_id: str, activity_timeout: int) -> bytes:
    """The first frame; a client that heard nothing for so many seconds pings."""
    return _frame(
        "pusher:connection_established",
        json_text({"socket_id": socket_id, "activity_timeout": activity_timeout}),
    )


def subscription_succeeded(channel: str, joined: Joined) -> bytes:
    """It watches: what follows comes after this seq."""
    data = {"epoch": joined.epoch, "seq": joined.seq, "recovered": joined.recovered}
    return _frame("pusher_internal:subscription_succeeded", json_text(data), channel)


def subscription_error(channel: str, message: str, status: int) -> bytes:
    """It may not watch this; the connection stays."""
    data = {"type": "AuthError", "error": message, "status": status}
    return _frame("pusher:subscription_error", json_text(data), channel)


def error(code: int, message: str) -> bytes:
    """Something was refused; the connection stays."""
    return _frame("pusher:error", {"code": code, "message": message})


def ping() -> bytes:
    """Are you there?"""
    return _frame("pusher:ping", "{}")


def pong() -> bytes:
    """Somebody is there."""
    return _frame("pusher:pong", "{}")


def _frame(event: str, data: Any, channel: str | None = None) -> bytes:
    fields = {"event": event} | ({} if channel is None else {"channel": channel}) | {"data": data}
    return text_frame(json_text(fields).encode())
