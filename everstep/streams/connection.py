"""A connection to the gateway, in its native protocol: frames, pings, and close codes."""

import asyncio
import ssl
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, NegotiationError
from websockets.typing import Subprotocol

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.values import FrozenDict, frozen_map, json_text, parse_json, reading
from everstep.streams.backoff import ClientTimings
from everstep.streams.client_events import StreamRefused

SUBPROTOCOL = Subprotocol("everstep.v1")
PATH = "/v1"
MAX_FRAME = 16 * 1024 * 1024
"""Bytes: one envelope, or the whole text of a step."""

_SCHEMES: Mapping[str, str] = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})

INVITING = range(3000, 3500)
REFUSING = range(3500, 4000)
_RECONNECT_DELAYS: Mapping[int, float] = {3001: 1.0, 3004: 1.0, 3005: 5.0, 3006: 2.0, 3007: 5.0}
"""Reconnect delays for closes without a `bye` frame; other codes of `INVITING` reconnect at once."""
_ADVICE: Mapping[int, str] = {
    3500: "the versions of this program and of the gateway do not match; update both",
    3501: "the frame is too large; pass a shorter token",
    3502: "pass a token or an API key that the HTTP API accepts, and a current one on every call",
}
_TEMPORARY = frozenset({HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS})


class Lost(Exception):
    """The connection was lost; the client may reconnect."""

    def __init__(self, why: str, back_in: float | None = None) -> None:
        self.back_in = back_in
        """Delay in seconds before reconnecting; None for the client's own backoff."""
        super().__init__(why)


class Garbled(Lost):
    """A frame could not be read."""


def socket_url(url: str) -> str:
    """Return the URL of the WebSocket endpoint of a gateway.

    Raises:
        InvalidInput: `url` is not the URL of a gateway.
    """
    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError:
        parts, port = None, None
    if parts is None or parts.scheme not in _SCHEMES or not parts.hostname or port == 0:
        raise InvalidInput(f"'{url}' is not the URL of a gateway; it looks like ws://127.0.0.1:6001")
    path = parts.path.rstrip("/")
    path = path if path.endswith(PATH) else path + PATH
    return parts._replace(scheme=_SCHEMES[parts.scheme], path=path, fragment="").geturl()


class GatewayConnection:
    """An authenticated connection."""

    def __init__(self, socket: ClientConnection, timings: ClientTimings) -> None:
        self._socket = socket
        self._reply_timeout = timings.reply_timeout
        self._ping_after = 0.0
        self._waited = 0.0
        self.is_subscribing = False
        """Whether a subscription waits for its reply."""

    async def authenticate(self, token: str) -> None:
        """Authenticate, and read the ping interval from the reply."""
        await self._send(type="hello", token=token)
        frame = await self._receive(self._reply_timeout)
        if frame is None or frame.get("type") != "welcome":
            raise Garbled("the gateway did not answer with a welcome")
        self._ping_after = _read_seconds(frame, "ping_after")

    async def subscribe(self, channel: str, since: Mapping[str, Any] | None) -> None:
        """Subscribe to a channel, from a position on."""
        self.is_subscribing, self._waited = True, 0.0
        await self._send(type="sub", channel=channel, **({} if since is None else {"since": since}))

    async def next_frame(self, within: float | None) -> FrozenDict | None:
        """Return the next frame; None if none arrives within so many seconds.

        Only time spent waiting here counts towards the timeouts, not time that the caller is busy.

        Args:
            within: Seconds to wait; None for as long as the gateway may be silent.

        Raises:
            Lost: The gateway was silent for too long.
        """
        silence = self._ping_after + self._reply_timeout
        if self.is_subscribing:
            silence = min(silence, self._reply_timeout - self._waited)
        start = monotonic()
        frame = await self._receive(silence if within is None else min(silence, within))
        self._waited += monotonic() - start
        if frame is None and (within is None or silence <= within):
            raise Lost("the gateway sent nothing in time")
        return frame

    async def send_pings(self) -> None:
        """Send pings at the interval that the gateway asked for."""
        with suppress(ConnectionClosed):
            while True:
                await asyncio.sleep(self._ping_after)
                await self._send(type="ping")

    async def _send(self, **frame: Any) -> None:
        await self._socket.send(json_text(frame))

    async def _receive(self, within: float) -> FrozenDict | None:
        try:
            async with asyncio.timeout(within):
                data = await self._socket.recv()
        except TimeoutError:
            return None
        try:
            # A binary frame is refused like invalid JSON.
            frame = frozen_map(parse_json(data if isinstance(data, str) else ""), "the frame")
        except InvalidInput as error:
            raise Garbled(str(error)) from None
        if frame.get("type") == "bye":
            raise _error_from_bye(frame)
        return frame


def _error_from_bye(frame: FrozenDict) -> Exception:
    try:
        with reading("the gateway's last frame"):
            code, reason = int(frame["code"]), str(frame["reason"])
            back_in = None if frame["reconnect_in"] is None else _read_seconds(frame, "reconnect_in")
    except InvalidInput as error:
        return Garbled(str(error))
    if back_in is None or code in REFUSING:
        return _refusal(code, reason)
    return Lost(reason, back_in)


def _refusal(code: int, reason: str) -> StreamRefused:
    advice = _ADVICE.get(code, "a retry would not help")
    return StreamRefused(f"the gateway closed the stream: {reason or f'closed with {code}'}; {advice}", code)


def _read_seconds(frame: FrozenDict, name: str) -> float:
    seconds = frame.get(name)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or seconds < 0:
        raise Garbled(f"{name} is not a number of seconds")
    return float(seconds)


@asynccontextmanager
async def open_connection(url: str, token: str, timings: ClientTimings) -> AsyncGenerator[GatewayConnection]:
    """Open a connection; its failures are raised as `Lost`, or as `StreamRefused` if they are permanent."""
    # A proxy cannot reach this machine's loopback address.
    proxy = None if urlsplit(url).hostname in _LOOPBACK else True
    try:
        async with connect(
            url,
            subprotocols=[SUBPROTOCOL],
            open_timeout=timings.reply_timeout,
            # Pings of the protocol itself also show that the process is alive, not only its socket.
            ping_interval=None,
            close_timeout=1,
            max_size=MAX_FRAME,
            compression=None,
            proxy=proxy,
        ) as socket:
            try:
                connection = GatewayConnection(socket, timings)
                await connection.authenticate(token)
                pings = asyncio.create_task(connection.send_pings())
                try:
                    yield connection
                finally:
                    pings.cancel()
            except Lost:
                # Skip the closing handshake, which would get no reply.
                socket.transport.abort()
                raise
    except ConnectionClosed as error:
        raise _error_from_close(error) from None
    except (InvalidHandshake, OSError, TimeoutError) as error:
        raise _error_from_handshake(url, error) from None


def _error_from_close(error: ConnectionClosed) -> Exception:
    code = error.rcvd.code if error.rcvd else 1006
    reason = error.rcvd.reason if error.rcvd else "the connection broke"
    if code in REFUSING:
        return _refusal(code, reason)
    return Lost(f"{reason} ({code})", _RECONNECT_DELAYS.get(code, 0.0) if code in INVITING else None)


def _error_from_handshake(url: str, error: Exception) -> Exception:
    check = "check the URL of the gateway"
    match error:
        case InvalidStatus() if (status := error.response.status_code) in range(400, 500):
            if status in _TEMPORARY:
                return Lost(f"{url} answers {status}")
            return StreamRefused(f"{url} answers {status}, which a gateway does not; {check}")
        case NegotiationError():
            return StreamRefused(f"{url} does not support {SUBPROTOCOL}: {error}; {check}")
        case ssl.SSLCertVerificationError():
            return StreamRefused(f"the certificate of {url} is not trusted: {error.verify_message}")
        case _:
            return Lost(f"{url} cannot be reached: {str(error) or type(error).__name__}")
