"""Lines of JSON: envelopes for a reader in this process, which makes events of another protocol of them."""

from collections.abc import Callable
from dataclasses import dataclass

from everstep.agent_domain.values import json_text
from everstep.broadcast_gateway.frames import RelayedEnvelope, Wire
from everstep.broadcast_gateway.subscriptions import SubscribeReply
from everstep.broadcast_gateway.wires.closing import Closing


@dataclass(frozen=True, slots=True)
class FeedFormat:
    """The format of a feed: its envelopes, its first and last item, and a sign of life."""

    wire: Callable[[str], Wire]
    """The wire of envelopes, given the epoch."""
    joined: Callable[[SubscribeReply], bytes]
    bye: Callable[[Closing], bytes]
    keepalive: bytes


@dataclass(frozen=True, slots=True)
class LinesWire:
    """Envelopes as they are, in one history."""

    epoch: str

    def encode(self, envelope: RelayedEnvelope) -> bytes:
        """Return the envelope as a line; JSON has no line breaks of its own."""
        return envelope.body + b"\n"


def joined_line(answer: SubscribeReply) -> bytes:
    """Return the first line, with the position after which the envelopes follow."""
    fields = {"type": "joined", "epoch": answer.epoch, "seq": answer.seq, "recovered": answer.recovered}
    return json_text(fields).encode() + b"\n"


def bye_line(closing: Closing) -> bytes:
    """Return the last line: why the feed ends, and whether the reader may open it again."""
    fields = {"type": "bye", "reason": closing.reason, "may_reconnect": closing.reconnect_in is not None}
    return json_text(fields).encode() + b"\n"


FORMAT = FeedFormat(LinesWire, joined_line, bye_line, b"\n")
