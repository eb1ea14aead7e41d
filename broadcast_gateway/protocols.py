"""The handlers of the two WebSocket protocols: each frame of a viewer, and the reply to it.

Frames are handled in order. Those that need the table or another server are queued, and only then does the
connection have a task.
"""

import asyncio
import logging
import math
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from everstep.agent_domain.errors import InvalidInput, StoreUnavailable
from everstep.agent_domain.stream.channels import Channel, ChannelGrant
from everstep.agent_domain.stream.reader import Position
from everstep.broadcast_gateway.frames import Wire
from everstep.broadcast_gateway.hub import Hub
from everstep.broadcast_gateway.limits import Bounds
from everstep.broadcast_gateway.metrics import Metrics
from everstep.broadcast_gateway.ports import Doors, Guest, NotAdmitted
from everstep.broadcast_gateway.subscriptions import Joined, Viewer
from everstep.broadcast_gateway.wires import pusher, websocket
from everstep.broadcast_gateway.wires.closing import (
    EXPIRED,
    FLOODING,
    FULL,
    NOT_NOW,
    UNAUTHORIZED,
    UNKNOWN_KEY,
    WRONG_PROTOCOL,
    BadFrame,
    Closing,
)

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class House:
    """The objects that all connections of a gateway share."""

    hub: Hub
    doors: Doors
    metrics: Metrics
    bounds: Bounds = field(default_factory=Bounds)
    secrets: Mapping[str, str] = field(default_factory=dict[str, str])
    """The secrets of the applications that Pusher clients name, by key."""
    tasks: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])
    users: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    """The number of connections per user."""


class Line(Protocol):
    """The connection under a protocol handler."""

    viewer: Viewer
    """The viewer of the connection."""
    due: float
    """When the sweeper calls `look` next."""

    @property
    def is_open(self) -> bool:
        """Whether the connection can still send."""
        ...

    def close(self, closing: Closing, reconnect_in: float | None = None) -> None:
        """Send the closing frame and close the connection."""
        ...


class Dialogue(ABC):
    """Handles one viewer's frames in one protocol."""

    __slots__ = ("_connection", "_context", "_waiting", "_working")

    def __init__(self, line: Line, house: House) -> None:
        self._connection = line
        self._context = house
        # Usually empty, and an empty deque takes ten times as much memory.
        self._waiting = list[Any]()
        self._working: asyncio.Task[None] | None = None

    @abstractmethod
    def begin(self) -> None:
        """Called when the connection is open."""

    @abstractmethod
    def received(self, data: bytes) -> None:
        """Handle a frame.

        Raises:
            BadFrame: The protocol does not allow it.
        """

    @abstractmethod
    def farewell(self, closing: Closing, reconnect_in: float | None) -> tuple[bytes, int]:
        """Return the last frame, and the code for closing the connection."""

    def look(self, now: float) -> float | None:
        """Check the timeouts; returns when to check again, or None."""
        del now
        return None

    def end(self) -> None:
        """Release everything: the connection is closed."""
        self._waiting.clear()
        if self._working:
            self._working.cancel()

    @abstractmethod
    async def _act(self, sent: Any) -> None:
        """Handle a queued frame."""

    def _later(self, sent: Any) -> None:
        if len(self._waiting) >= self._context.bounds.waiting:
            raise BadFrame("too many frames are waiting", FLOODING)
        self._waiting.append(sent)
        if self._working is None:
            self._working = asyncio.get_running_loop().create_task(self._work())
            self._context.tasks.add(self._working)
            self._working.add_done_callback(self._context.tasks.discard)

    async def _work(self) -> None:
        try:
            while self._waiting and self._connection.is_open:
                await self._act(self._waiting.pop(0))
        except StoreUnavailable:
            self._connection.close(NOT_NOW)
        except NotAdmitted:
            self._connection.close(UNAUTHORIZED)
        except BadFrame as error:
            self._connection.close(error.closing)
        except Exception:
            # The viewer must not wait for a reply forever.
            logger.exception("a viewer cannot be answered")
            self._connection.close(NOT_NOW)
        finally:
            self._working = None

    def _refused(self, name: str) -> str | None:
        """Why this connection may not watch another channel, or None."""
        watched, most = self._connection.viewer.subscriptions, self._context.bounds.channels
        if len(watched) < most or name in watched:
            return None
        return f"this connection watches {most} channels already; leave one, or open another connection"


@dataclass(frozen=True, slots=True)
class _Check:
    """A queued check whether the token is still valid."""


class Native(Dialogue):
    """The native protocol, `everstep.v1`."""

    __slots__ = ("_began_at", "_checked_at", "_expires_at", "_guest", "_keys", "_token")

    def __init__(self, line: Line, house: House) -> None:
        super().__init__(line, house)
        self._guest: Guest | None = None
        self._token = ""
        self._expires_at: float | None = None
        self._began_at = self._checked_at = 0.0
        self._keys: dict[str, str] = {}
        """The subscription key of each channel: several names may mean the same stream."""

    def begin(self) -> None:
        """Start the timeout for `hello`, which the viewer sends first."""
        self._began_at = asyncio.get_running_loop().time()

    def received(self, data: bytes) -> None:
        """Answer a ping at once; queue other frames."""
        sent = websocket.parse(data)
        if isinstance(sent, websocket.Ping):
            self._connection.viewer.write(websocket.pong())
        else:
            self._later(sent)

    def farewell(self, closing: Closing, reconnect_in: float | None) -> tuple[bytes, int]:
        """Return `bye`, and the native code."""
        return websocket.bye(closing, reconnect_in), closing.native

    def look(self, now: float) -> float | None:
        """Close the connection when its token expires; check a token without expiry again periodically."""
        bounds = self._context.bounds
        if self._guest is None:
            if now >= self._began_at + bounds.hello_seconds:
                self._connection.close(NOT_NOW if self._working else UNAUTHORIZED)
            return self._began_at + bounds.hello_seconds
        if self._expires_at is not None:
            if now >= self._expires_at:
                self._connection.close(EXPIRED)
            return self._expires_at
        if now >= self._checked_at + bounds.recheck_seconds:
            self._checked_at = now
            if not self._waiting:
                self._later(_Check())
        return self._checked_at + bounds.recheck_seconds

    def end(self) -> None:
        """Release everything: the connection is closed."""
        super().end()
        self._leave()

    async def _act(self, sent: Any) -> None:
        match sent:
            case websocket.Hello(token):
                await self._hello(token)
            case _ if self._guest is None:
                raise BadFrame("the first frame must be hello", UNAUTHORIZED)
            case websocket.Subscribe(channel, since):
                await self._subscribe(channel, since, self._guest)
            case websocket.Unsubscribe(channel):
                if key := self._keys.pop(channel, None):
                    self._connection.viewer.unsubscribe(key)
            case websocket.Refresh(token):
                await self._admit(token)
                self._connection.viewer.write(websocket.refreshed())
            case _:
                await self._admit(self._token)

    async def _hello(self, token: str) -> None:
        if self._guest is not None:
            raise BadFrame("hello can be sent only once; send refresh")
        await self._admit(token)
        if self._connection.is_open:
            self._connection.viewer.write(websocket.welcome(self._context.bounds.ping_after))

    async def _admit(self, token: str) -> None:
        guest = await self._context.doors.guest(token)
        known = self._guest
        if known and (known.tenant_id, known.user_id) != (guest.tenant_id, guest.user_id):
            raise NotAdmitted("the token is another user's; open another connection")
        self._guest, self._token = guest, token
        self._checked_at = asyncio.get_running_loop().time()
        self._expires_at = None
        if guest.expires_at is not None:
            self._expires_at = self._checked_at + guest.expires_at - time.time()
            self._connection.due = min(self._connection.due, self._expires_at)
        if known is None and guest.user_id is not None:
            users, user = self._context.users, (guest.tenant_id, guest.user_id)
            users[user] += 1
            if users[user] > self._context.bounds.per_user:
                self._connection.close(FULL)
        if not self._connection.is_open:
            self._leave()

    async def _subscribe(self, name: str, since: Position | None, guest: Guest) -> None:
        viewer = self._connection.viewer
        try:
            channel = Channel.named(name)
        except InvalidInput as error:
            viewer.write(websocket.sub_error(name, str(error)))
            return
        stream_id = await self._context.doors.stream(channel, guest)
        if not self._connection.is_open:
            return
        key = str(stream_id)
        refusal = (
            "there is no such channel, or you may not watch it" if stream_id is None else self._refused(key)
        )
        if stream_id is None or refusal:
            viewer.write(websocket.sub_error(name, refusal or ""))
            return
        is_session = channel.is_session or stream_id != channel.stream_id
        joined = await self._context.hub.join(
            viewer, key, stream_id, is_session=is_session, wire=_native, since=since
        )
        if not self._connection.is_open:
            viewer.leave()
            return
        self._keys[name] = key
        viewer.write(websocket.sub_ok(name, joined))
        self._context.hub.catch_up(viewer, key)

    def _leave(self) -> None:
        """Uncount the connection of its user."""
        if (guest := self._guest) and guest.user_id is not None:
            user = guest.tenant_id, guest.user_id
            self._context.users[user] -= 1
            if not self._context.users[user]:
                del self._context.users[user]
        self._guest = None


def _native(epoch: str) -> Wire:
    del epoch
    return websocket.NATIVE


class Pusher(Dialogue):
    """Pusher's protocol."""

    __slots__ = ("_checked_at", "_grants", "_key", "_protocol", "_socket_id")

    def __init__(self, line: Line, house: House, key: str, protocol: str, socket_id: str) -> None:
        super().__init__(line, house)
        self._key = key
        self._protocol = protocol
        self._socket_id = socket_id
        self._grants: dict[str, ChannelGrant] | None = None
        """The grants of channels that expire or depend on an API key."""
        self._checked_at = 0.0

    def begin(self) -> None:
        """Send the first frame, or close a connection with an unknown key or version."""
        if self._key not in self._context.secrets:
            self._connection.close(UNKNOWN_KEY)
        elif self._protocol != str(pusher.PROTOCOL):
            self._connection.close(WRONG_PROTOCOL)
        else:
            patience = int(self._context.bounds.ping_after)
            self._connection.viewer.write(pusher.connection_established(self._socket_id, patience))

    def received(self, data: bytes) -> None:
        """Answer pings and client events at once; queue subscriptions."""
        match pusher.parse(data):
            case pusher.Ping():
                self._connection.viewer.write(pusher.pong())
            case pusher.ClientEvent():
                refusal = "Client events are not relayed here; use the HTTP API"
                self._connection.viewer.write(pusher.error(pusher.CLIENT_EVENTS_REFUSED, refusal))
            case pusher.Subscribe() | pusher.Unsubscribe() as sent:
                self._later(sent)
            case _:
                # A pong, or a frame of a later version: no reply is due.
                return

    def farewell(self, closing: Closing, reconnect_in: float | None) -> tuple[bytes, int]:
        """Return an error frame that clients report, and the code that tells them whether to reconnect."""
        del reconnect_in
        return pusher.error(closing.pusher, closing.reason), closing.pusher

    def look(self, now: float) -> float | None:
        """Close the connection when a channel's token expires; check API keys again periodically."""
        if not self._grants:
            return None
        grants = self._grants.values()
        wall = time.time()
        expires = min((grant.exp for grant in grants if grant.exp is not None), default=math.inf)
        if wall >= expires:
            self._connection.close(EXPIRED)
            return None
        check_at = math.inf
        if any(grant.key_id for grant in grants):
            check_at = self._checked_at + self._context.bounds.recheck_seconds
            if now >= check_at:
                self._checked_at = now
                check_at = now + self._context.bounds.recheck_seconds
                if not self._waiting:
                    self._later(_Check())
        return min(now + expires - wall, check_at)

    async def _act(self, sent: Any) -> None:
        match sent:
            case pusher.Subscribe():
                await self._subscribe(sent)
            case _Check():
                await self._check_keys()
            case _:
                self._connection.viewer.unsubscribe(sent.channel)
                self._forget(sent.channel)

    async def _check_keys(self) -> None:
        for key_id in {grant.key_id for grant in (self._grants or {}).values() if grant.key_id}:
            if not await self._context.doors.is_good_key(key_id):
                raise NotAdmitted("the key was revoked")

    def _remember(self, name: str, grant: ChannelGrant) -> None:
        """Keep the grant of a channel; a later authorization replaces an earlier one."""
        if grant.exp is None and grant.key_id is None:
            self._forget(name)
            return
        self._grants = self._grants or {}
        if not self._grants:
            self._checked_at = asyncio.get_running_loop().time()
        self._grants[name] = grant
        if (at := self.look(asyncio.get_running_loop().time())) is not None:
            self._connection.due = min(self._connection.due, at)

    def _forget(self, name: str) -> None:
        if self._grants:
            self._grants.pop(name, None)

    def _refusal(
        self, sent: pusher.Subscribe, channel: Channel, grant: ChannelGrant
    ) -> tuple[str, int] | None:
        if not channel.is_private:
            return f"join private-{sent.channel}"[:200], 400
        if not sent.is_signed(self._socket_id, self._context.secrets):
            return "the signature is not valid", 401
        if grant.exp is not None and grant.exp <= time.time():
            return "the token has expired; send a newer one", 401
        if full := self._refused(sent.channel):
            return full, 429
        return None

    async def _subscribe(self, sent: pusher.Subscribe) -> None:
        viewer, name, house = self._connection.viewer, sent.channel, self._context
        try:
            channel = Channel.named(name)
            grant = sent.grant
        except InvalidInput as error:
            viewer.write(pusher.subscription_error(name, str(error), 400))
            return
        if refusal := self._refusal(sent, channel, grant):
            viewer.write(pusher.subscription_error(name, *refusal))
            return
        # The application's server has authorized the viewer by its signature.
        stream_id = await house.doors.stream(channel, None)
        if not self._connection.is_open:
            return
        if stream_id is None:
            viewer.write(pusher.subscription_error(name, "there is no such channel any more", 404))
            return
        joined = await house.hub.join(
            viewer,
            name,
            stream_id,
            is_session=channel.is_session or stream_id != channel.stream_id,
            wire=lambda epoch: _pusher(name, epoch),
            since=grant.since,
        )
        self._answer(name, joined)
        if self._connection.is_open:
            self._remember(name, grant)

    def _answer(self, name: str, joined: Joined) -> None:
        viewer = self._connection.viewer
        if self._connection.is_open:
            viewer.write(pusher.subscription_succeeded(name, joined))
            self._context.hub.catch_up(viewer, name)
        else:
            viewer.leave()


def _pusher(channel: str, epoch: str) -> Wire:
    del epoch
    return pusher.Pusher(channel)
