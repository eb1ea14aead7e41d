"""Authorisation of browsers for channels of the gateway, in Pusher's protocol."""

import re
from dataclasses import dataclass

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.stream.channels import Channel, channel_signature
from everstep.http_api.problems import invalid_request

CHANNELS = ("agent.session.{session_id}", "agent.execution.{execution_id}")
"""The patterns of channel names."""

_SOCKET = re.compile(r"[0-9]{1,20}\.[0-9]{1,20}")


def private_channel(name: str) -> Channel:
    """Parse the name of a private channel.

    Raises:
        Refusal: It is not the name of one.
    """
    try:
        channel = Channel.parse(name)
    except InvalidInput:
        channel = None
    if channel and channel.is_private:
        return channel
    raise invalid_request(
        "channel_name is unknown; "
        "use private-agent.session.{session_id} or private-agent.execution.{execution_id}"
    )


@dataclass(frozen=True, slots=True)
class Signer:
    """Signs subscriptions with the secret that it shares with the gateway."""

    key: str
    secret: str

    def signature(self, socket_id: str, channel: str, data: str | None = None) -> str:
        """The signature that a client sends to the gateway, for a socket, a channel and optional data.

        Raises:
            Refusal: `socket_id` is invalid.
        """
        if not _SOCKET.fullmatch(socket_id):
            raise invalid_request(
                "socket_id is invalid; send the two numbers with a dot from the gateway's first message"
            )
        return f"{self.key}:{channel_signature(self.secret, socket_id, channel, data)}"
