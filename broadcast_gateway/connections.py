"""A connection: bytes in, bytes out, timeouts and the close. Its messages are handled by a protocol class.

The WebSocket protocol is that of `websockets`, without its I/O: there is no task per connection, and a frame
for many viewers is encoded once and written to each transport unchanged.
"""

import asyncio
import secrets
from http import HTTPStatus
from typing import Protocol, cast
from urllib.parse import parse_qs

from websockets.datastructures import Headers
from websockets.frames import Frame, Opcode
from websockets.http11 import Request, Response
from websockets.protocol import CONNECTING, OPEN
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from everstep.broadcast_gateway.protocols import GatewayContext, NativeHandler, ProtocolHandler, PusherHandler
from everstep.broadcast_gateway.subscriptions import Viewer
from everstep.broadcast_gateway.wires import websocket
from everstep.broadcast_gateway.wires.closing import (
    BAD_FRAME,
    FLOODING,
    MAX_FRAME,
    SILENT,
    TOO_SLOW,
    BadFrame,
    Closing,
)
from everstep.telemetry import tracing

HIGH_WATER = 64 * 1024
"""Bytes in the write buffer above which a viewer is paused."""

NATIVE_PATH = "/v1"
PUSHER_PATH = "/app/"


def _ignore(data: object) -> None:
    del data


_NO_VIEWER = Viewer(_ignore, _ignore)


class ConnectionRegistry(Protocol):
    """Admits and counts connections, and answers plain HTTP requests."""

    def on_connect(self, connection: "ViewerConnection") -> None:
        """Register a new connection."""
        ...

    def refusal(self, connection: "ViewerConnection", request: Request) -> tuple[HTTPStatus, str] | None:
        """Return why a handshake is refused, or None."""
        ...

    def page(self, path: str, request: Request) -> tuple[str, bytes] | None:
        """Return the content type and body of a plain HTTP page, or None."""
        ...

    def on_disconnect(self, connection: "ViewerConnection") -> None:
        """Unregister a closed connection."""
        ...


class ViewerConnection(asyncio.Protocol):
    """A connection with one viewer."""

    __slots__ = (
        "_context",
        "_credit",
        "_credit_at",
        "_handler",
        "_is_ending",
        "_parts",
        "_protocol",
        "_registry",
        "_transport",
        "address",
        "due",
        "received_at",
        "viewer",
    )

    def __init__(self, context: GatewayContext, registry: ConnectionRegistry) -> None:
        self._context = context
        self._registry = registry
        # The parser refuses larger frames itself. Frames up to this size are refused with the protocol's own
        # error.
        self._protocol = ServerProtocol(max_size=4 * MAX_FRAME)
        self._handler: ProtocolHandler | None = None
        self._transport: asyncio.Transport | None = None
        self._parts: list[bytes] = []
        self._is_ending = False
        self._credit = context.limits.frames
        self._credit_at = 0.0
        self.viewer = _NO_VIEWER
        self.address = ""
        """The address of the peer."""
        self.received_at = 0.0
        self.due = 0.0
        """When the sweeper calls `look` next."""

    # Callbacks of the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the connection and start the handshake timeout."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=HIGH_WATER)
        self.viewer = Viewer(self._transport.write, self.close)
        peer = transport.get_extra_info("peername")
        self.address = peer[0] if peer else ""
        self.received_at = self._now()
        self.due = self.received_at + self._context.limits.hello_seconds
        self._registry.on_connect(self)

    def data_received(self, data: bytes) -> None:
        """Parse the bytes and handle the frames in them."""
        self.received_at = self._now()
        protocol = self._protocol
        protocol.receive_data(data)
        for event in protocol.events_received():
            if isinstance(event, Request):
                self._handshake(event)
            elif not self._is_ending:
                self._handle_frame(event)
        self._flush()

    def eof_received(self) -> bool:
        """The peer sends nothing more, so the connection is closed."""
        self._protocol.receive_eof()
        self._flush()
        return False

    def pause_writing(self) -> None:
        """The write buffer is full: pause the viewer."""
        if self._transport and not self._is_ending:
            self.viewer.pause(self._now(), self._transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """The write buffer has drained: continue with the viewer."""
        if not self._is_ending:
            self._context.hub.fulfil(self.viewer.resume())

    def connection_lost(self, exc: Exception | None) -> None:
        """Release everything; reference cycles are broken here because the garbage collector is off."""
        del exc
        self._is_ending = True
        self.viewer.end()
        if self._handler:
            self._handler.on_close()
        self._protocol.parser.close()
        self._protocol.handshake_exc = self._protocol.parser_exc = None
        self._registry.on_disconnect(self)
        self._transport = self._handler = None
        self.viewer = _NO_VIEWER

    # Called by the protocol classes and the sweeper.

    @property
    def is_open(self) -> bool:
        """Whether the connection can still send."""
        return not self._is_ending

    @property
    def is_viewer(self) -> bool:
        """Whether it has become a WebSocket, unlike one that reads a page."""
        return self._handler is not None

    @property
    def is_paused(self) -> bool:
        """Whether the write buffer is full."""
        return self.viewer.is_paused

    def close(self, closing: Closing, reconnect_in: float | None = None) -> None:
        """Send the closing frame and close the connection."""
        if self._is_ending or not self._transport:
            return
        self._is_ending = True
        self.due = self._now() + self._context.limits.closing_seconds
        self.viewer.end()
        if self._handler is None:
            self._transport.abort()
            return
        if self._protocol.state is not OPEN:
            # Data in the same read already ended the connection, and the reply is buffered.
            self._flush()
            return
        self._context.metrics.count_close(closing)
        frame, code = self._handler.closing_frame(closing, reconnect_in)
        self._transport.write(frame)
        self._protocol.send_close(code, closing.reason)
        self._flush()

    def abort(self) -> None:
        """Close the connection without a closing frame."""
        if self._transport:
            self._transport.abort()

    def check_timeouts(self, now: float) -> None:
        """Check the timeouts: send a ping, or close a connection that has been silent for too long."""
        if not self._transport:
            return
        bounds = self._context.limits
        if self._is_ending or self._handler is None:
            self._transport.abort()
            return
        silent = now - self.received_at
        if silent >= bounds.silent_after:
            self.close(SILENT)
            return
        if silent >= bounds.ping_after:
            self._protocol.send_ping(b"")
            self._flush()
            self.due = self.received_at + bounds.silent_after
        else:
            self.due = self.received_at + bounds.ping_after
        at = self._handler.check_timeouts(now)
        if at is not None and not self._is_ending:
            self.due = min(self.due, at)

    def check_stuck(self, now: float) -> None:
        """Close the connection if the viewer has read nothing for too long."""
        if not self._transport or self._is_ending:
            return
        if self.viewer.is_stuck(now, self._transport.get_write_buffer_size(), self._context.limits.patience):
            self.close(TOO_SLOW)

    # WebSocket framing.

    def _handshake(self, request: Request) -> None:
        if self._protocol.eof_sent:
            # Bytes right behind the request already ended the connection, so no response is due.
            return
        path, _, query = request.path.partition("?")
        if page := self._registry.page(path, request):
            self._protocol.send_response(_page_response(*page))
            return
        if refusal := self._registry.refusal(self, request):
            response = self._protocol.reject(*refusal)
            if refusal[0] is HTTPStatus.SERVICE_UNAVAILABLE:
                response.headers["Retry-After"] = "5"
            self._protocol.send_response(response)
            self._context.metrics.count_refusal(refusal[0])
            return
        handler: ProtocolHandler
        if path == NATIVE_PATH:
            self._protocol.available_subprotocols = [Subprotocol(websocket.SUBPROTOCOL)]
            handler = NativeHandler(self, self._context)
        elif path.startswith(PUSHER_PATH):
            version = parse_qs(query).get("protocol", [""])[-1]
            socket_id = f"{secrets.randbelow(10**9)}.{secrets.randbelow(10**9)}"
            handler = PusherHandler(self, self._context, path.removeprefix(PUSHER_PATH), version, socket_id)
        else:
            text = f"Nothing is here; watch at {NATIVE_PATH} or {PUSHER_PATH}{{key}}.\n"
            self._protocol.send_response(self._protocol.reject(HTTPStatus.NOT_FOUND, text))
            return
        response = self._protocol.accept(request)
        _drop_tracebacks(self._protocol.handshake_exc)
        self._protocol.send_response(response)
        if response.status_code == HTTPStatus.SWITCHING_PROTOCOLS:
            self.viewer.traceparent = request.headers.get(tracing.TRACEPARENT)
            self._flush()
            # The parser keeps the request as long as the connection exists.
            request.headers.clear()
            self._handler = handler
            self.due = self.received_at + min(
                self._context.limits.hello_seconds, self._context.limits.ping_after
            )
            handler.on_open()
        else:
            self._context.metrics.count_refusal(response.status_code)

    def _handle_frame(self, frame: object) -> None:
        if not isinstance(frame, Frame) or self._handler is None:
            return
        if not self._charge_frame():
            self.close(FLOODING)
        elif frame.opcode is Opcode.BINARY:
            self.close(BAD_FRAME)
        elif frame.opcode in (Opcode.TEXT, Opcode.CONT):
            self._parts.append(bytes(frame.data))
            if frame.fin:
                data, self._parts = b"".join(self._parts), []
                try:
                    self._handler.on_frame(data)
                except BadFrame as error:
                    self.close(error.closing)

    def _charge_frame(self) -> bool:
        """Charge one frame, pings included, to the rate limit."""
        rate = self._context.limits.frames
        self._credit = min(rate, self._credit + (self.received_at - self._credit_at) * rate) - 1
        self._credit_at = self.received_at
        return self._credit >= 0

    def _flush(self) -> None:
        transport = self._transport
        for data in self._protocol.data_to_send():
            if transport is None or transport.is_closing():
                return
            if data:
                transport.write(data)
            else:
                transport.close()
        if self._protocol.state not in (OPEN, CONNECTING) and not self._is_ending:
            # The viewer closed the connection, or sent data that is not WebSocket.
            self._is_ending = True
            self.due = self._now() + self._context.limits.closing_seconds
            self.viewer.end()

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def _drop_tracebacks(error: BaseException | None) -> None:
    """Drop tracebacks: they refer to all local variables, which are only freed by a garbage collection."""
    while error:
        error.__traceback__ = None
        error = error.__context__


def _page_response(kind: str, body: bytes) -> Response:
    headers = Headers(
        {
            "Connection": "close",
            "Content-Length": str(len(body)),
            "Content-Type": kind,
            "Cache-Control": "no-store",
        }
    )
    return Response(200, "OK", headers, body)
