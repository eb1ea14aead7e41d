"""The names under which streams are watched, and the signature that lets somebody in.

A channel names a stream: `agent.session.{id}` and, in short, `agent.{id}` a session's, `agent.execution.{id}`
that of an execution without one. `private-` before it belongs to Pusher's protocol, which has no other way to
say that a channel is not for everybody.
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

PRIVATE = "private-"
_CHANNEL = re.compile(
    rf"(?P<private>{PRIVATE})?agent\.(?:(?P<kind>session|execution)\.)?"
    r"(?P<id>[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})"
)


@dataclass(frozen=True, slots=True)
class Channel:
    """Which stream a name means."""

    stream_id: UUID
    is_session: bool = True
    """Whether the stream is a session's; an execution's own one otherwise."""
    is_private: bool = False
    """Whether the name has Pusher's prefix."""

    @property
    def session_id(self) -> UUID | None:
        """The session that the stream tells of."""
        return self.stream_id if self.is_session else None

    @classmethod
    def named(cls, name: str) -> "Channel":
        """Read a name, however the stream may be called."""
        if found := _CHANNEL.fullmatch(name):
            return cls(UUID(found["id"]), found["kind"] != "execution", found["private"] is not None)
        raise InvalidInput("this is no channel of ours; use agent.session.{id} or agent.execution.{id}")


class StreamStore(Protocol):
    """Knows whose streams are."""

    async def stream(self, channel: Channel, scope: Scope | None) -> UUID | None:
        """The stream that a channel means; None if there is none, or none that this scope covers.

        An execution inside a session is told about in the session's stream, to those who may see the session.
        Without a scope it only counts whether there is such a thing.
        """
        ...


def channel_signature(secret: str, socket_id: str, channel: str, data: str | None = None) -> str:
    """What proves that this connection may join; `data` is signed along and told to the gateway."""
    signed = f"{socket_id}:{channel}" if data is None else f"{socket_id}:{channel}:{data}"
    return hmac.new(secret.encode(), signed.encode(), hashlib.sha256).hexdigest()


def derived_secret(secret: str) -> str:
    """The gateway's secret where none is set: it follows from the one that signs tokens, and hides it."""
    return hmac.new(secret.encode(), b"everstep/broadcasting", hashlib.sha256).hexdigest()


@dataclass(frozen=True, slots=True)
class ChannelGrant:
    """What is signed along with a channel: where its viewer was, and how long it may watch."""

    since: Position | None = None
    exp: float | None = None
    """When the viewer's token expires, in seconds since 1970."""
    key_id: UUID | None = None
    """The API key by which it was granted; revoked, it grants nothing."""

    @classmethod
    def read(cls, data: str | None) -> Self:
        """What `channel_data` says; `InvalidInput` if that cannot be read."""
        if data is None:
            return cls()
        with reading("channel_data"):
            found = parse_json(data)
            since, exp, key = found.get("since"), found.get("exp"), found.get("key")
            return cls(
                None if since is None else Position.from_dict(since),
                None if exp is None else float(exp),
                None if key is None else UUID(key),
            )


def channel_data(since: Position | None, exp: float | None = None, key_id: UUID | None = None) -> str | None:
    """The same as Pusher's protocol carries it: signed along, so that nobody changes it. None for nothing."""
    told = {
        "since": since and since.to_dict(),
        "exp": exp,
        "key": None if key_id is None else str(key_id),
    }
    said = {name: value for name, value in told.items() if value is not None}
    return json_text(said) if said else None


def since_of(data: str | None) -> Position | None:
    """Where the viewer was, if his `channel_data` says so."""
    return ChannelGrant.read(data).since


@dataclass(frozen=True, slots=True)
class Admission:
    """How long somebody may watch: until a moment, and while it is good."""

    expires_at: float | None = None
    """Seconds since 1970; None for no such moment."""
    is_good: Callable[[], Awaitable[bool]] | None = None
    """Asked now and then: keys are revoked."""


FOR_GOOD = Admission()


def event_id(epoch: str, seq: int) -> str:
    """A position as the id of an event: browsers show the last one when they come back."""
    return f"{epoch}:{seq}"


def since_event(last: str) -> Position:
    """Where a viewer was, by the id of the last event that it read, or by a seq alone."""
    epoch, _, seq = last.rpartition(":")
    if not seq.isdecimal() or not seq.isascii():
        raise InvalidInput("it is no id of an event, and no seq either; 0 asks for everything")
    return Position.from_dict({"epoch": epoch or None, "seq": int(seq)})
