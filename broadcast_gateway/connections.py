"""A connection: bytes in, bytes out, and when it ends. What is said over it is up to its dialogue.

The protocol on the wire is that of `websockets`, without its sockets: there is no task for a connection, and
what many are sent is written to each transport as it stands.
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

from everstep.broadcast_gateway.protocols import Dialogue, House, Native, Pusher
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

HIGH_WATER = 64 * 1024
"""Bytes that a viewer has not taken, after which nothing more is put together for him."""

NATIVE_PATH = "/v1"
PUSHER_PATH = "/app/"


def _nothing(said: object) -> None:
    """Nobody is there any more."""
    del said


_NOBODY = Viewer(_nothing, _nothing)


class Reception(Protocol):
    """Who lets connections in, and counts them."""

    def came(self, connection: "Connection") -> None:
        """Somebody is there."""
        ...

    def refusal(self, connection: "Connection", request: Request) -> tuple[HTTPStatus, str] | None:
        """Why this one may not watch now, if that is so."""
        ...

    def page(self, path: str, request: Request) -> tuple[str, bytes] | None:
        """What is here for who does not want to watch: its type and its bytes."""
        ...

    def left(self, connection: "Connection") -> None:
        """It is gone."""
        ...


class Connection(asyncio.Protocol):
    """With one viewer."""

    __slots__ = (
        "_credit",
        "_credit_at",
        "_dialogue",
        "_house",
        "_is_ending",
        "_parts",
        "_protocol",
        "_reception",
        "_transport",
        "address",
        "due",
        "heard_at",
        "viewer",
    )

    def __init__(self, house: House, reception: Reception) -> None:
        self._house = house
        self._reception = reception
        # Larger frames are refused there; those between the two are told so in the words of their protocol.
        self._protocol = ServerProtocol(max_size=4 * MAX_FRAME)
        self._dialogue: Dialogue | None = None
        self._transport: asyncio.Transport | None = None
        self._parts: list[bytes] = []
        self._is_ending = False
        self._credit = house.bounds.frames
        self._credit_at = 0.0
        self.viewer = _NOBODY
        """Who watches."""
        self.address = ""
        """Where it comes from."""
        self.heard_at = 0.0
        self.due = 0.0
        """When somebody should look at it."""

    # What the transport says.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Somebody is there."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=HIGH_WATER)
        self.viewer = Viewer(self._transport.write, self.close)
        peer = transport.get_extra_info("peername")
        self.address = peer[0] if peer else ""
        self.heard_at = self._now()
        self.due = self.heard_at + self._house.bounds.hello_seconds
        self._reception.came(self)

    def data_received(self, data: bytes) -> None:
        """Take what came."""
        self.heard_at = self._now()
        protocol = self._protocol
        protocol.receive_data(data)
        for event in protocol.events_received():
            if isinstance(event, Request):
                self._shake_hands(event)
            elif not self._is_ending:
                self._take(event)
        self._flush()

    def eof_received(self) -> bool:
        """It sends nothing more: then it also gets nothing more."""
        self._protocol.receive_eof()
        self._flush()
        return False

    def pause_writing(self) -> None:
        """It does not take what it is sent."""
        if self._transport and not self._is_ending:
            self.viewer.pause(self._now(), self._transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """It takes more."""
        if not self._is_ending:
            self._house.hub.meet(self.viewer.resume())

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone; nothing is left that refers to itself, as no garbage is collected."""
        del exc
        self._is_ending = True
        self.viewer.leave()
        if self._dialogue:
            self._dialogue.end()
        self._protocol.parser.close()
        self._protocol.handshake_exc = self._protocol.parser_exc = None
        self._reception.left(self)
        self._transport = self._dialogue = None
        self.viewer = _NOBODY

    # What dialogues and the sweeper say.

    @property
    def is_open(self) -> bool:
        """Whether anything can still be said."""
        return not self._is_ending

    @property
    def is_paused(self) -> bool:
        """Whether it does not take what it is sent."""
        return self.viewer.is_paused

    def close(self, closing: Closing, reconnect_in: float | None = None) -> None:
        """Say why, and end it."""
        if self._is_ending or not self._transport:
            return
        self._is_ending = True
        self.due = self._now() + self._house.bounds.closing_seconds
        self.viewer.leave()
        if self._dialogue is None:
            self._transport.abort()
            return
        if self._protocol.state is not OPEN:
            # What came in the same piece ended it, and that is said already.
            self._flush()
            return
        self._house.metrics.closed(closing)
        frame, code = self._dialogue.farewell(closing, reconnect_in)
        self._transport.write(frame)
        self._protocol.send_close(code, closing.reason)
        self._flush()

    def abort(self) -> None:
        """End it without a word."""
        if self._transport:
            self._transport.abort()

    def look(self, now: float) -> None:
        """Time has passed: is anybody still there?"""
        if not self._transport:
            return
        bounds = self._house.bounds
        if self._is_ending or self._dialogue is None:
            self._transport.abort()
            return
        silent = now - self.heard_at
        if silent >= bounds.silent_after:
            self.close(SILENT)
            return
        if silent >= bounds.ping_after:
            self._protocol.send_ping(b"")
            self._flush()
            self.due = self.heard_at + bounds.silent_after
        else:
            self.due = self.heard_at + bounds.ping_after
        at = self._dialogue.look(now)
        if at is not None and not self._is_ending:
            self.due = min(self.due, at)

    def look_whether_stuck(self, now: float) -> None:
        """Close it if it has taken nothing for too long."""
        if not self._transport or self._is_ending:
            return
        if self.viewer.is_stuck(now, self._transport.get_write_buffer_size(), self._house.bounds.patience):
            self.close(TOO_SLOW)

    # The wire.

    def _shake_hands(self, request: Request) -> None:
        if self._protocol.eof_sent:
            # What came right behind the request ended it already: nobody waits for an answer.
            return
        path, _, query = request.path.partition("?")
        if page := self._reception.page(path, request):
            self._protocol.send_response(_page(*page))
            return
        if refusal := self._reception.refusal(self, request):
            response = self._protocol.reject(*refusal)
            if refusal[0] is HTTPStatus.SERVICE_UNAVAILABLE:
                response.headers["Retry-After"] = "5"
            self._protocol.send_response(response)
            self._house.metrics.refused(refusal[0])
            return
        dialogue: Dialogue
        if path == NATIVE_PATH:
            self._protocol.available_subprotocols = [Subprotocol(websocket.SUBPROTOCOL)]
            dialogue = Native(self, self._house)
        elif path.startswith(PUSHER_PATH):
            version = parse_qs(query).get("protocol", [""])[-1]
            socket_id = f"{secrets.randbelow(10**9)}.{secrets.randbelow(10**9)}"
            dialogue = Pusher(self, self._house, path.removeprefix(PUSHER_PATH), version, socket_id)
        else:
            text = f"Nothing is here; watch at {NATIVE_PATH} or {PUSHER_PATH}{{key}}.\n"
            self._protocol.send_response(self._protocol.reject(HTTPStatus.NOT_FOUND, text))
            return
        response = self._protocol.accept(request)
        _forget_where(self._protocol.handshake_exc)
        self._protocol.send_response(response)
        if response.status_code == HTTPStatus.SWITCHING_PROTOCOLS:
            self._flush()
            # The parser keeps the request for as long as the connection lasts.
            request.headers.clear()
            self._dialogue = dialogue
            self.due = self.heard_at + min(self._house.bounds.hello_seconds, self._house.bounds.ping_after)
            dialogue.begin()
        else:
            self._house.metrics.refused(response.status_code)

    def _take(self, frame: object) -> None:
        if not isinstance(frame, Frame) or self._dialogue is None:
            return
        if not self._pays():
            self.close(FLOODING)
        elif frame.opcode is Opcode.BINARY:
            self.close(BAD_FRAME)
        elif frame.opcode in (Opcode.TEXT, Opcode.CONT):
            self._parts.append(bytes(frame.data))
            if frame.fin:
                data, self._parts = b"".join(self._parts), []
                try:
                    self._dialogue.received(data)
                except BadFrame as error:
                    self.close(error.closing)

    def _pays(self) -> bool:
        """Every frame costs something, pings as well."""
        rate = self._house.bounds.frames
        self._credit = min(rate, self._credit + (self.heard_at - self._credit_at) * rate) - 1
        self._credit_at = self.heard_at
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
            # The viewer has said goodbye, or what it sent is no WebSocket.
            self._is_ending = True
            self.due = self._now() + self._house.bounds.closing_seconds
            self.viewer.leave()

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def _forget_where(error: BaseException | None) -> None:
    """Traces refer to all that was there, which is kept then until somebody collects garbage."""
    while error:
        error.__traceback__ = None
        error = error.__context__


def _page(kind: str, body: bytes) -> Response:
    headers = Headers(
        {
            "Connection": "close",
            "Content-Length": str(len(body)),
            "Content-Type": kind,
            "Cache-Control": "no-store",
        }
    )
    return Response(200, "OK", headers, body)
