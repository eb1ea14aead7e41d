"""Which channels of the gateway a browser may join, in the words of Pusher's protocol."""

import re
from dataclasses import dataclass

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.stream.channels import Channel, channel_signature
from everstep.http_api.problems import unusable

CHANNELS = ("agent.session.{session_id}", "agent.execution.{execution_id}")
"""What may be watched."""

_SOCKET = re.compile(r"[0-9]{1,20}\.[0-9]{1,20}")


def private_channel(name: str) -> Channel:
    """The channel that a browser wants to join."""
    try:
        channel = Channel.named(name)
    except InvalidInput:
        channel = None
    if channel and channel.is_private:
        return channel
    raise unusable(
        "channel_name is no channel of ours; "
        "join private-agent.session.{session_id} or private-agent.execution.{execution_id}"
    )


@dataclass(frozen=True, slots=True)
class Signer:
    """Signs who may join; the gateway knows the same secret."""

    key: str
    secret: str

    def signature(self, socket_id: str, channel: str, data: str | None = None) -> str:
        """What a client shows to the gateway, together with the data that are signed along."""
        if not _SOCKET.fullmatch(socket_id):
            raise unusable(
                "socket_id is none: it is two numbers with a dot, as the gateway's greeting names it"
            )
        return f"{self.key}:{channel_signature(self.secret, socket_id, channel, data)}"
