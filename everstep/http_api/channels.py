"""Which channels of the gateway a browser may join, in the words of Pusher's protocol."""

import hashlib
import hmac
import re
from dataclasses import dataclass
from uuid import UUID

from everstep.http_api.problems import unusable

_CHANNEL = re.compile(r"private-agent\.session\.([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})")
_SOCKET = re.compile(r"[0-9]{1,20}\.[0-9]{1,20}")


def session_of(channel: str) -> UUID:
    """The session whose channel this is."""
    if named := _CHANNEL.fullmatch(channel):
        return UUID(named[1])
    raise unusable("channel_name is no channel of ours; join private-agent.session.{session_id}")


@dataclass(frozen=True, slots=True)
class Signer:
    """Signs who may join; the gateway knows the same secret."""

    key: str
    secret: str

    def signature(self, socket_id: str, channel: str) -> str:
        """What a client shows to the gateway."""
        if not _SOCKET.fullmatch(socket_id):
            raise unusable(
                "socket_id is none: it is two numbers with a dot, as the gateway's greeting names it"
            )
        signed = hmac.new(self.secret.encode(), f"{socket_id}:{channel}".encode(), hashlib.sha256)
        return f"{self.key}:{signed.hexdigest()}"


def derived_secret(secret: str) -> str:
    """The gateway's secret where none is set: it follows from the one that signs tokens, and hides it."""
    return hmac.new(secret.encode(), b"everstep/broadcasting", hashlib.sha256).hexdigest()
