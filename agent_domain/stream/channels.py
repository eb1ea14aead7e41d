"""Channels: the names of streams, and the signatures that admit viewers.

`agent.session.{id}`, or `agent.{id}` for short, is the channel of a session. `agent.execution.{id}` is that
of an execution without a session. The prefix `private-` belongs to Pusher's protocol, which has no other way
to mark a channel that needs authorization.
"""

import hashlib
import hmac
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol, Self
from uuid import UUID

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.ids import Scope
from everstep.agent_domain.stream.reader import Position
from everstep.agent_domain.values import json_text, parse_json, reading

PRIVATE_PREFIX = "private-"
_CHANNEL = re.compile(
    rf"(?P<private>{PRIVATE_PREFIX})?agent\.(?:(?P<kind>session|execution)\.)?"
    r"(?P<id>[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})"
)


@dataclass(frozen=True, slots=True)
class Channel:
    """The stream that a channel name refers to."""

    stream_id: UUID
    is_session: bool = True
    """Whether the stream belongs to a session, and not to an execution without one."""
    is_private: bool = False
    """Whether the name has Pusher's prefix."""

    @property
    def session_id(self) -> UUID | None:
        """The session of the stream, if it has one."""
        return self.stream_id if self.is_session else None

    @classmethod
    def parse(cls, name: str) -> "Channel":
        """Parse a channel name, in any of its forms.

        Raises:
            InvalidInput: It is not a channel name.
        """
        if match := _CHANNEL.fullmatch(name):
            return cls(UUID(match["id"]), match["kind"] != "execution", match["private"] is not None)
        raise InvalidInput("this is not a channel name; use agent.session.{id} or agent.execution.{id}")


class StreamStore(Protocol):
    """Resolves channels to streams."""

    async def stream(self, channel: Channel, scope: Scope | None) -> UUID | None:
        """The stream of a channel; None if it does not exist or the scope does not cover it.

        An execution inside a session is published in the session's stream, to viewers who may see the
        session.

        Args:
            channel: The channel.
            scope: The viewer's scope; None checks only whether the session or execution exists.
        """
        ...


class StreamIndex(Protocol):
    """Finds envelopes in streams."""

    async def place(self, stream_id: UUID, envelope_id: UUID) -> tuple[int, int | None]:
        """The last seq of a stream, 0 if it has none, and that of an envelope in it, if it is stored."""
        ...


def channel_signature(secret: str, socket_id: str, channel: str, data: str | None = None) -> str:
    """The signature that allows a connection to join a channel.

    Args:
        secret: The gateway's secret.
        socket_id: The id of the connection.
        channel: The channel name.
        data: `channel_data`, which is signed as well and passed to the gateway.
    """
    signed = f"{socket_id}:{channel}" if data is None else f"{socket_id}:{channel}:{data}"
    return hmac.new(secret.encode(), signed.encode(), hashlib.sha256).hexdigest()


def derived_secret(secret: str) -> str:
    """The gateway's default secret, derived from the token secret without revealing that one."""
    return hmac.new(secret.encode(), b"everstep/broadcasting", hashlib.sha256).hexdigest()


@dataclass(frozen=True, slots=True)
class ChannelGrant:
    """The signed data of a subscription: the viewer's position, and how long it may watch."""

    since: Position | None = None
    exp: float | None = None
    """When the viewer's token expires, in seconds since 1970."""
    key_id: UUID | None = None
    """The API key that granted access; revoking the key ends it."""

    @classmethod
    def parse(cls, data: str | None) -> Self:
        """Parse `channel_data`.

        Raises:
            InvalidInput: It cannot be read.
        """
        if data is None:
            return cls()
        with reading("channel_data"):
            fields = parse_json(data)
            since, exp, key = fields.get("since"), fields.get("exp"), fields.get("key")
            return cls(
                None if since is None else Position.from_dict(since),
                None if exp is None else float(exp),
                None if key is None else UUID(key),
            )


def channel_data(since: Position | None, exp: float | None = None, key_id: UUID | None = None) -> str | None:
    """A grant as `channel_data` of Pusher's protocol, which is signed as well; None for an empty grant."""
    fields = {
        "since": since and since.to_dict(),
        "exp": exp,
        "key": None if key_id is None else str(key_id),
    }
    given = {name: value for name, value in fields.items() if value is not None}
    return json_text(given) if given else None


def parse_since(data: str | None) -> Position | None:
    """The viewer's position, if its `channel_data` contains one."""
    return ChannelGrant.parse(data).since


@dataclass(frozen=True, slots=True)
class Admission:
    """How long a viewer may watch: until a moment, and while its API key is valid."""

    expires_at: float | None = None
    """Seconds since 1970; None: without a limit."""
    is_still_valid: Callable[[], Awaitable[bool]] | None = None
    """Called periodically, because keys can be revoked."""


UNLIMITED_ADMISSION = Admission()


def event_id(epoch: str, seq: int) -> str:
    """A position as the id of a server-sent event; browsers send the last id when they reconnect."""
    return f"{epoch}:{seq}"


def position_from_event_id(event: str) -> Position:
    """The viewer's position, from the id of the last event that it read, or from a `seq`.

    Raises:
        InvalidInput: It is neither.
    """
    epoch, _, seq = event.rpartition(":")
    if not seq.isdecimal() or not seq.isascii():
        raise InvalidInput("it is neither the id of an event nor a seq; send 0 to receive everything")
    return Position.from_dict({"epoch": epoch or None, "seq": int(seq)})
