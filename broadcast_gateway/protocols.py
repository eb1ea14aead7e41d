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
from everstep.broadcast_gateway.limits import GatewayLimits
from everstep.broadcast_gateway.metrics import GatewayMetrics
from everstep.broadcast_gateway.ports import Guest, NotAdmitted, ViewerAuthorization
from everstep.broadcast_gateway.subscriptions import SubscribeReply, Viewer
from everstep.broadcast_gateway.wires import pusher, websocket
from everstep.broadcast_gateway.wires.closing import (
    EXPIRED,
    FLOODING,
    FULL,
    STORE_UNAVAILABLE,
    UNAUTHORIZED,
    UNKNOWN_KEY,
    WRONG_PROTOCOL,
    BadFrame,
    Closing,
)

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class GatewayContext:
    """The objects that all connections of a gateway share."""

    hub: Hub
    authorization: ViewerAuthorization
    metrics: GatewayMetrics
    limits: GatewayLimits = field(default_factory=GatewayLimits)
    secrets: Mapping[str, str] = field(default_factory=dict[str, str])
    """The secrets of the applications that Pusher clients name, by key."""
    tasks: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])
    users: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    """The number of connections per user."""


class ConnectionHandle(Protocol):
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


class ProtocolHandler(ABC):
    """Handles one viewer's frames in one protocol."""

    __slots__ = ("_connection", "_context", "_waiting", "_working")

    def __init__(self, connection: ConnectionHandle, context: GatewayContext) -> None:
        self._connection = connection
        self._context = context
        # Usually empty, and an empty deque takes ten times as much memory.
        self._waiting = list[Any]()
        self._working: asyncio.Task[None] | None = None

    @abstractmethod
    def on_open(self) -> None:
        """Called when the connection is open."""

    @abstractmethod
    def on_frame(self, data: bytes) -> None:
        """Handle a frame.

        Raises:
            BadFrame: The protocol does not allow it.
        """

    @abstractmethod
    def closing_frame(self, closing: Closing, reconnect_in: float | None) -> tuple[bytes, int]:
        """Return the last frame, and the code for closing the connection."""

    def check_timeouts(self, now: float) -> float | None:
        """Check the timeouts; returns when to check again, or None."""
        del now
        return None

    def on_close(self) -> None:
        """Release everything: the connection is closed."""
        self._waiting.clear()
        if self._working:
            self._working.cancel()

    @abstractmethod
    async def _handle(self, frame: Any) -> None:
        """Handle a queued frame."""

    def _enqueue(self, frame: Any) -> None:
        if len(self._waiting) >= self._context.limits.waiting:
            raise BadFrame("too many frames are waiting", FLOODING)
        self._waiting.append(frame)
        if self._working is None:
            self._working = asyncio.get_running_loop().create_task(self._run_queue())
            self._context.tasks.add(self._working)
            self._working.add_done_callback(self._context.tasks.discard)

    async def _run_queue(self) -> None:
        try:
            while self._waiting and self._connection.is_open:
                await self._handle(self._waiting.pop(0))
        except StoreUnavailable:
            self._connection.close(STORE_UNAVAILABLE)
        except NotAdmitted:
            self._connection.close(UNAUTHORIZED)
        except BadFrame as error:
            self._connection.close(error.closing)
        except Exception:
            # The viewer must not wait for a reply forever.
            logger.exception("a viewer cannot be answered")
            self._connection.close(STORE_UNAVAILABLE)
        finally:
            self._working = None

    def _channel_refusal(self, name: str) -> str | None:
        """Why this connection may not watch another channel, or None."""
        watched, most = self._connection.viewer.subscriptions, self._context.limits.channels
        if len(watched) < most or name in watched:
            return None
        return f"this connection watches {most} channels already; leave one, or open another connection"


@dataclass(frozen=True, slots=True)
class _TokenCheck:
    """A queued check whether the token is still valid."""


class NativeHandler(ProtocolHandler):
    """The native protocol, `everstep.v1`."""

    __slots__ = ("_began_at", "_checked_at", "_expires_at", "_guest", "_keys", "_token")

    def __init__(self, connection: ConnectionHandle, context: GatewayContext) -> None:
        super().__init__(connection, context)
        self._guest: Guest | None = None
        self._token = ""
        self._expires_at: float | None = None
        self._began_at = self._checked_at = 0.0
        self._keys: dict[str, str] = {}
        """The subscription key of each channel: several names may mean the same stream."""

    def on_open(self) -> None:
        """Start the timeout for `hello`, which the viewer sends first."""
        self._began_at = asyncio.get_running_loop().time()

    def on_frame(self, data: bytes) -> None:
        """Answer a ping at once; queue other frames."""
        sent = websocket.parse(data)
        if isinstance(sent, websocket.Ping):
            self._connection.viewer.write(websocket.pong())
        else:
            self._enqueue(sent)

    def closing_frame(self, closing: Closing, reconnect_in: float | None) -> tuple[bytes, int]:
        """Return `bye`, and the native code."""
        return websocket.bye(closing, reconnect_in), closing.native

    def check_timeouts(self, now: float) -> float | None:
        """Close the connection when its token expires; check a token without expiry again periodically."""
        bounds = self._context.limits
        if self._guest is None:
            if now >= self._began_at + bounds.hello_seconds:
                self._connection.close(STORE_UNAVAILABLE if self._working else UNAUTHORIZED)
            return self._began_at + bounds.hello_seconds
        if self._expires_at is not None:
            if now >= self._expires_at:
                self._connection.close(EXPIRED)
            return self._expires_at
        if now >= self._checked_at + bounds.recheck_seconds:
            self._checked_at = now
            if not self._waiting:
                self._enqueue(_TokenCheck())
        return self._checked_at + bounds.recheck_seconds

    def on_close(self) -> None:
        """Release everything: the connection is closed."""
        super().on_close()
        self._release_user()

    async def _handle(self, frame: Any) -> None:
        match frame:
            case websocket.Hello(token):
                await self._handle_hello(token)
            case _ if self._guest is None:
                raise BadFrame("the first frame must be hello", UNAUTHORIZED)
            case websocket.Subscribe(channel, since):
                await self._subscribe(channel, since, self._guest)
            case websocket.Unsubscribe(channel):
                if key := self._keys.pop(channel, None):
                    self._connection.viewer.unsubscribe(key)
            case websocket.Refresh(token):
                await self._authenticate(token)
                self._connection.viewer.write(websocket.refresh_ok())
            case _:
                await self._authenticate(self._token)

    async def _handle_hello(self, token: str) -> None:
        if self._guest is not None:
            raise BadFrame("hello can be sent only once; send refresh")
        await self._authenticate(token)
        if self._connection.is_open:
            self._connection.viewer.write(websocket.welcome(self._context.limits.ping_after))

    async def _authenticate(self, token: str) -> None:
        guest = await self._context.authorization.authenticate_viewer(token)
        previous = self._guest
        if previous and (previous.tenant_id, previous.user_id) != (guest.tenant_id, guest.user_id):
            raise NotAdmitted("the token is another user's; open another connection")
        self._guest, self._token = guest, token
        self._checked_at = asyncio.get_running_loop().time()
        self._expires_at = None
        if guest.expires_at is not None:
            self._expires_at = self._checked_at + guest.expires_at - time.time()
            self._connection.due = min(self._connection.due, self._expires_at)
        if previous is None and guest.user_id is not None:
            users, user = self._context.users, (guest.tenant_id, guest.user_id)
            users[user] += 1
            if users[user] > self._context.limits.per_user:
                self._connection.close(FULL)
        if not self._connection.is_open:
            self._release_user()

    async def _subscribe(self, name: str, since: Position | None, guest: Guest) -> None:
        viewer = self._connection.viewer
        try:
            channel = Channel.parse(name)
        except InvalidInput as error:
            viewer.write(websocket.sub_error(name, str(error)))
            return
        stream_id = await self._context.authorization.find_stream(channel, guest)
        if not self._connection.is_open:
            return
        key = str(stream_id)
        refusal = (
            "there is no such channel, or you may not watch it"
            if stream_id is None
            else self._channel_refusal(key)
        )
        if stream_id is None or refusal:
            viewer.write(websocket.sub_error(name, refusal or ""))
            return
        is_session = channel.is_session or stream_id != channel.stream_id
        joined = await self._context.hub.join(
            viewer, key, stream_id, is_session=is_session, wire=_native_wire, since=since
        )
        if not self._connection.is_open:
            viewer.end()
            return
        self._keys[name] = key
        viewer.write(websocket.sub_ok(name, joined))
        self._context.hub.catch_up(viewer, key)

    def _release_user(self) -> None:
        """Uncount the connection of its user."""
        if (guest := self._guest) and guest.user_id is not None:
            user = guest.tenant_id, guest.user_id
            self._context.users[user] -= 1
            if not self._context.users[user]:
                del self._context.users[user]
        self._guest = None


def _native_wire(epoch: str) -> Wire:
    del epoch
    return websocket.NATIVE


class PusherHandler(ProtocolHandler):
    """Pusher's protocol."""

    __slots__ = ("_checked_at", "_grants", "_key", "_protocol", "_socket_id")

    def __init__(
        self, connection: ConnectionHandle, context: GatewayContext, key: str, protocol: str, socket_id: str
    ) -> None:
        super().__init__(connection, context)
        self._key = key
        self._protocol = protocol
        self._socket_id = socket_id
        self._grants: dict[str, ChannelGrant] | None = None
        """The grants of channels that expire or depend on an API key."""
        self._checked_at = 0.0

    def on_open(self) -> None:
        """Send the first frame, or close a connection with an unknown key or version."""
        if self._key not in self._context.secrets:
            self._connection.close(UNKNOWN_KEY)
        elif self._protocol != str(pusher.PROTOCOL):
            self._connection.close(WRONG_PROTOCOL)
        else:
            patience = int(self._context.limits.ping_after)
            self._connection.viewer.write(pusher.connection_frame(self._socket_id, patience))

    def on_frame(self, data: bytes) -> None:
        """Answer pings and client events at once; queue subscriptions."""
        match pusher.parse(data):
            case pusher.PusherPing():
                self._connection.viewer.write(pusher.pong())
            case pusher.ClientEvent():
                refusal = "Client events are not relayed here; use the HTTP API"
                self._connection.viewer.write(pusher.error(pusher.CLIENT_EVENTS_REFUSED, refusal))
            case pusher.PusherSubscribe() | pusher.PusherUnsubscribe() as sent:
                self._enqueue(sent)
            case _:
                # A pong, or a frame of a later version: no reply is due.
                return

    def closing_frame(self, closing: Closing, reconnect_in: float | None) -> tuple[bytes, int]:
        """Return an error frame that clients report, and the code that tells them whether to reconnect."""
        del reconnect_in
        return pusher.error(closing.pusher, closing.reason), closing.pusher

    def check_timeouts(self, now: float) -> float | None:
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
            check_at = self._checked_at + self._context.limits.recheck_seconds
            if now >= check_at:
                self._checked_at = now
                check_at = now + self._context.limits.recheck_seconds
                if not self._waiting:
                    self._enqueue(_TokenCheck())
        return min(now + expires - wall, check_at)

    async def _handle(self, frame: Any) -> None:
        match frame:
            case pusher.PusherSubscribe():
                await self._subscribe(frame)
            case _TokenCheck():
                await self._check_keys()
            case _:
                self._connection.viewer.unsubscribe(frame.channel)
                self._drop_grant(frame.channel)

    async def _check_keys(self) -> None:
        for key_id in {grant.key_id for grant in (self._grants or {}).values() if grant.key_id}:
            if not await self._context.authorization.is_good_key(key_id):
                raise NotAdmitted("the key was revoked")

    def _store_grant(self, name: str, grant: ChannelGrant) -> None:
        """Keep the grant of a channel; a later authorization replaces an earlier one."""
        if grant.exp is None and grant.key_id is None:
            self._drop_grant(name)
            return
        self._grants = self._grants or {}
        if not self._grants:
            self._checked_at = asyncio.get_running_loop().time()
        self._grants[name] = grant
        if (at := self.check_timeouts(asyncio.get_running_loop().time())) is not None:
            self._connection.due = min(self._connection.due, at)

    def _drop_grant(self, name: str) -> None:
        if self._grants:
            self._grants.pop(name, None)

    def _refusal(
        self, sent: pusher.PusherSubscribe, channel: Channel, grant: ChannelGrant
    ) -> tuple[str, int] | None:
        if not channel.is_private:
            return f"join private-{sent.channel}"[:200], 400
        if not sent.is_signed(self._socket_id, self._context.secrets):
            return "the signature is not valid", 401
        if grant.exp is not None and grant.exp <= time.time():
            return "the token has expired; send a newer one", 401
        if channel_refusal := self._channel_refusal(sent.channel):
            return channel_refusal, 429
        return None

    async def _subscribe(self, sent: pusher.PusherSubscribe) -> None:
        viewer, name, house = self._connection.viewer, sent.channel, self._context
        try:
            channel = Channel.parse(name)
            grant = sent.grant
        except InvalidInput as error:
            viewer.write(pusher.subscription_error(name, str(error), 400))
            return
        if refusal := self._refusal(sent, channel, grant):
            viewer.write(pusher.subscription_error(name, *refusal))
            return
        # The application's server has authorized the viewer by its signature.
        stream_id = await house.authorization.find_stream(channel, None)
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
            wire=lambda epoch: _pusher_wire(name, epoch),
            since=grant.since,
        )
        self._send_reply(name, joined)
        if self._connection.is_open:
            self._store_grant(name, grant)

    def _send_reply(self, name: str, joined: SubscribeReply) -> None:
        viewer = self._connection.viewer
        if self._connection.is_open:
            viewer.write(pusher.subscription_frame(name, joined))
            self._context.hub.catch_up(viewer, name)
        else:
            viewer.end()


def _pusher_wire(channel: str, epoch: str) -> Wire:
    del epoch
    return pusher.PusherWire(channel)
