"""Pusher's protocol, version 7, as far as its clients use it to watch private channels.

Its peculiarities: `data` is a string that contains JSON; the application's server decides who may join, and
signs that; and a client cannot send its position. So a position travels with the request for that signature
and comes back inside `channel_data`, which is covered by the signature.
"""

import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.stream.channels import ChannelGrant, channel_signature
from everstep.agent_domain.stream.envelope_types import TELEMETRY
from everstep.agent_domain.values import FrozenDict, frozen_map, json_text, parse_json
from everstep.broadcast_gateway.frames import RelayedEnvelope
from everstep.broadcast_gateway.subscriptions import SubscribeReply
from everstep.broadcast_gateway.wires.closing import (
    MAX_CHANNEL,
    BadFrame,
    parse_frame,
    text_field,
    text_frame,
)

PROTOCOL = 7
CLIENT_EVENTS_REFUSED = 4301


@dataclass(frozen=True, slots=True)
class PusherSubscribe:
    """A request to watch a channel, with the signature that authorizes it."""

    channel: str
    auth: str
    channel_data: str | None = None

    @property
    def grant(self) -> ChannelGrant:
        """The position and the expiry in `channel_data`; `InvalidInput` if it is malformed."""
        return ChannelGrant.parse(self.channel_data)

    def is_signed(self, socket_id: str, secrets: Mapping[str, str]) -> bool:
        """Whether the signature is valid, by one of these secrets and for this connection."""
        key, _, shown = self.auth.partition(":")
        secret = secrets.get(key)
        if secret is None:
            return False
        signature = channel_signature(secret, socket_id, self.channel, self.channel_data)
        return hmac.compare_digest(signature.encode(), shown.encode())


@dataclass(frozen=True, slots=True)
class PusherUnsubscribe:
    """A request to stop watching a channel."""

    channel: str


@dataclass(frozen=True, slots=True)
class PusherPing:
    """A ping."""


@dataclass(frozen=True, slots=True)
class PusherPong:
    """The reply to a ping."""


@dataclass(frozen=True, slots=True)
class ClientEvent:
    """A client event, which Pusher would relay to other clients. The gateway does not."""


@dataclass(frozen=True, slots=True)
class PusherOther:
    """Another frame of the protocol, or one of a later version: no reply is due."""


PusherFrame = PusherSubscribe | PusherUnsubscribe | PusherPing | PusherPong | ClientEvent | PusherOther


def parse(data: bytes) -> PusherFrame:
    """Parse a frame.

    Raises:
        BadFrame: The protocol does not allow it.
    """
    frame = parse_frame(data)
    match text_field(frame, "event", MAX_CHANNEL):
        case "pusher:subscribe":
            sent = _data(frame)
            channel_data = None if sent.get("channel_data") is None else text_field(sent, "channel_data")
            auth = "" if sent.get("auth") is None else text_field(sent, "auth")
            return PusherSubscribe(text_field(sent, "channel", MAX_CHANNEL), auth, channel_data)
        case "pusher:unsubscribe":
            return PusherUnsubscribe(text_field(_data(frame), "channel", MAX_CHANNEL))
        case "pusher:ping":
            return PusherPing()
        case "pusher:pong":
            return PusherPong()
        case event:
            return ClientEvent() if event.startswith("client-") else PusherOther()


def _data(frame: FrozenDict) -> FrozenDict:
    """Some clients send an object, others a string that contains one."""
    data = frame.get("data")
    try:
        return frozen_map(parse_json(data, "data") if isinstance(data, str) else data, "data")
    except InvalidInput as error:
        raise BadFrame(str(error)) from None


@dataclass(frozen=True, slots=True)
class PusherWire:
    """Envelopes as events of a channel, under the name by which it was joined."""

    channel: str

    def encode(self, envelope: RelayedEnvelope) -> bytes:
        """Return the frame of an envelope: an event of its type, with the envelope as text."""
        body = envelope.body.decode()
        if not envelope.kind.startswith(TELEMETRY):
            body = json_text(_flat_message(json.loads(body)))
        return _frame(envelope.kind, body, self.channel)


def _flat_message(envelope: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten a stored message, as Pusher applications expect it: the payload beside the envelope."""
    return {**envelope["payload"], **envelope}


def connection_frame(socket_id: str, activity_timeout: int) -> bytes:
    """Return the first frame; a client that receives nothing for so many seconds sends a ping."""
    return _frame(
        "pusher:connection_established",
        json_text({"socket_id": socket_id, "activity_timeout": activity_timeout}),
    )


def subscription_frame(channel: str, joined: SubscribeReply) -> bytes:
    """Return the reply to a subscription, with the position after which envelopes follow."""
    data = {"epoch": joined.epoch, "seq": joined.seq, "recovered": joined.recovered}
    return _frame("pusher_internal:subscription_succeeded", json_text(data), channel)


def subscription_error(channel: str, message: str, status: int) -> bytes:
    """Return the refusal of a subscription; the connection stays open."""
    data = {"type": "AuthError", "error": message, "status": status}
    return _frame("pusher:subscription_error", json_text(data), channel)


def error(code: int, message: str) -> bytes:
    """Return an error; the connection stays open."""
    return _frame("pusher:error", {"code": code, "message": message})


def ping() -> bytes:
    """Return a ping."""
    return _frame("pusher:ping", "{}")


def pong() -> bytes:
    """Return the reply to a ping."""
    return _frame("pusher:pong", "{}")


def _frame(event: str, data: Any, channel: str | None = None) -> bytes:
    fields = {"event": event} | ({} if channel is None else {"channel": channel}) | {"data": data}
    return text_frame(json_text(fields).encode())
