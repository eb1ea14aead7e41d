"""Server-sent events: one direction, over HTTP. The position is the id of the last stored event.

A viewer that reconnects sends it as `Last-Event-ID`, which browsers do by themselves. The text in progress is
then sent again, as a snapshot.
"""

from dataclasses import dataclass

from everstep.agent_domain.stream.channels import event_id
from everstep.agent_domain.values import json_text
from everstep.broadcast_gateway.frames import RelayedEnvelope
from everstep.broadcast_gateway.subscriptions import SubscribeReply
from everstep.broadcast_gateway.wires.closing import Closing
from everstep.broadcast_gateway.wires.lines import FeedFormat

KEEPALIVE = b":\n\n"
"""A comment that keeps the connection open."""


@dataclass(frozen=True, slots=True)
class EventSourceWire:
    """Envelopes as events of their types, in one history."""

    epoch: str

    def encode(self, envelope: RelayedEnvelope) -> bytes:
        """Return the event of an envelope; only a stored one has an id."""
        at = f"id: {event_id(self.epoch, envelope.seq)}\n" if envelope.seq else ""
        return f"{at}event: {envelope.kind}\ndata: ".encode() + envelope.body + b"\n\n"


def joined_event(answer: SubscribeReply) -> bytes:
    """Return the first event, with the position after which the others follow."""
    data = {"epoch": answer.epoch, "seq": answer.seq, "recovered": answer.recovered}
    return f"id: {event_id(answer.epoch, answer.seq)}\nevent: joined\ndata: {json_text(data)}\n\n".encode()


def bye_event(closing: Closing) -> bytes:
    """Return the last event; clients of this protocol reconnect by themselves."""
    data = {"reason": closing.reason}
    pause = int(1000 * (closing.reconnect_in or 1))
    return f"retry: {pause}\nevent: bye\ndata: {json_text(data)}\n\n".encode()


FORMAT = FeedFormat(EventSourceWire, joined_event, bye_event, KEEPALIVE)
