"""Server-sent events: one direction, over HTTP. The position is the id of the last event that is stored.

A viewer who comes back shows it as `Last-Event-ID`, which browsers do by themselves. What a model was writing
then comes anew, as a snapshot.
"""

from dataclasses import dataclass

from everstep.agent_domain.stream.channels import event_id
from everstep.agent_domain.values import json_text
from everstep.broadcast_gateway.frames import News
from everstep.broadcast_gateway.subscriptions import Joined
from everstep.broadcast_gateway.wires.closing import Closing

QUIET = b":\n\n"
"""Says nothing: somebody is there."""


@dataclass(frozen=True, slots=True)
class Sse:
    """Envelopes as events of their types, in one history."""

    epoch: str

    def event(self, news: News) -> bytes:
        """The envelope; only what is stored moves the position."""
        at = f"id: {event_id(self.epoch, news.seq)}\n" if news.seq else ""
        return f"{at}event: {news.kind}\ndata: ".encode() + news.body + b"\n\n"


def joined(answer: Joined) -> bytes:
    """The first event: what follows comes after this seq."""
    data = {"epoch": answer.epoch, "seq": answer.seq, "recovered": answer.recovered}
    return f"id: {event_id(answer.epoch, answer.seq)}\nevent: joined\ndata: {json_text(data)}\n\n".encode()


def bye(closing: Closing) -> bytes:
    """The last event; whoever speaks this protocol comes back by itself."""
    data = {"reason": closing.reason}
    pause = int(1000 * (closing.reconnect_in or 1))
    return f"retry: {pause}\nevent: bye\ndata: {json_text(data)}\n\n".encode()
