"""The bus of a writer: one connection to every gateway, carrying the streams that the gateway wants.

Writers never wait for a gateway. Frames that a gateway does not accept in time are dropped, text first. The
connection of a gateway that is too far behind is closed; the gateway compares its streams with the table once
it is linked again. Frames lost with a connection are recovered in the same way.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import monotonic
from uuid import UUID

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
from websockets.frames import CloseCode
from websockets.typing import Subprotocol

from everstep.agent_domain.background import keep_running, note_failure
from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.stream import link
from everstep.agent_domain.stream.bus import Frame, SendQueue, TextChunk
from everstep.agent_domain.stream.gateways import GatewayDirectory
from everstep.agent_domain.stream.records import StoredEnvelope
from everstep.streams.encoded_frames import encoded_or_empty
from everstep.streams.gateway_watch import REFRESH_SECONDS, GatewayWatch

logger = logging.getLogger(__name__)

MOST_FRAMES = 10_000
"""Frames queued per gateway before chunks are dropped."""
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0
"""Seconds before a reconnect; doubles up to the second value."""
STEADY_SECONDS = 5.0
"""A connection that lasted this long resets the backoff."""
PING_SECONDS = 5.0
"""The interval of pings, and the timeout of their replies."""
BUSY_LINES = 3000
JOIN_SECONDS = 0.003
"""From so many lines in a second on, lines wait so many seconds for others, and are sent together: to send
each of them takes more time of both processes than everything else about it.
"""
FLUSH_SECONDS = 1.0
"""Seconds for sending the rest of the queue on close."""


def never_loses() -> bool:
    """Return False, as everywhere outside of crash tests: frames arrive, or the connection is lost."""
    return False


class DirectBus:
    """Sends frames to the gateways, between `start` and `aclose`."""

    def __init__(
        self,
        gateways: GatewayDirectory,
        secret: str,
        *,
        refresh: float = REFRESH_SECONDS,
        limit: int = MOST_FRAMES,
        first_pause: float = FIRST_PAUSE,
        ping: float = PING_SECONDS,
        loses: Callable[[], bool] = never_loses,
    ) -> None:
        self._watch = GatewayWatch(gateways, self._update_links, refresh)
        self._token = link.link_token(secret)
        self._limit = limit
        self._first_pause = first_pause
        self._ping = ping
        self._loses = loses
        self._links: dict[tuple[UUID, str], _GatewayLink] = {}
        self._unreachable = set[str]()

    def has_subscribers(self, stream_id: UUID) -> bool:
        """Whether a gateway wants this stream."""
        return any(stream_id in each.wanted for each in self._links.values())

    def publish(self, stream_id: UUID, envelopes: Sequence[StoredEnvelope]) -> None:
        """Send committed envelopes to the gateways that want the stream."""
        for envelope in envelopes:
            self._put(stream_id, envelope)

    def publish_chunk(self, stream_id: UUID, chunk: TextChunk) -> None:
        """Send a text chunk to the gateways that want the stream."""
        self._put(stream_id, chunk)

    def _put(self, stream_id: UUID, frame: Frame) -> None:
        encoded = None
        for each in self._links.values():
            if stream_id in each.wanted:
                encoded = encoded or _EncodedFrame(stream_id, frame)
                each.put(encoded)

    def start(self) -> None:
        """Start looking for gateways."""
        self._watch.start()

    async def aclose(self) -> None:
        """Send the rest of the queues, for a limited time, and close all links."""
        await self._watch.aclose()
        links, self._links = list(self._links.values()), {}
        with suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_SECONDS):
                await asyncio.gather(*(each.wait_idle() for each in links))
        await _cancel_all([each.task for each in links if each.task])

    def _update_links(self, epoch: str, present: Sequence[tuple[UUID, str]]) -> None:
        for key in present:
            if not key[1].startswith("ws"):
                self._warn_of(key[1])
            elif key not in self._links:
                self._links[key] = _GatewayLink(
                    key[1], self._token, self._limit, self._first_pause, self._ping, loses=self._loses
                )
        for key, each in list(self._links.items()):
            # An absent gateway is not linked again, but a link that is still open proves that it is there.
            each.is_present = key in present
            if each.is_present or each.is_open:
                each.set_epoch(epoch)
            else:
                del self._links[key]
                each.stop()

    def _warn_of(self, url: str) -> None:
        if url not in self._unreachable:
            self._unreachable.add(url)
            logger.warning(
                "a gateway has EVERSTEP_BUS=nats, and this process direct: its viewers get events from the "
                "table, later; set the same everywhere"
            )


class _EncodedFrame:
    """A frame as it is sent: encoded once for all gateways, when the first one takes it."""

    __slots__ = ("_data", "_frame", "_stream_id", "is_chunk")

    def __init__(self, stream_id: UUID, frame: Frame) -> None:
        self._stream_id = stream_id
        self._frame = frame
        self._data: bytes | None = None
        self.is_chunk = isinstance(frame, TextChunk)

    @property
    def data(self) -> bytes:
        """The encoded frame; empty if it cannot be encoded, which readers detect as a hole."""
        if self._data is None:
            encoded = encoded_or_empty(self._stream_id, self._frame)
            self._data = encoded and link.line_from(self._stream_id, encoded)
        return self._data


class _LineRate:
    """How many lines are sent in a second, measured again and again."""

    SECONDS = 0.1

    def __init__(self) -> None:
        self.is_high = False
        self._since = monotonic()
        self._count = 0

    def add(self, lines: int) -> None:
        """Count lines that are sent."""
        self._count += lines
        seconds = monotonic() - self._since
        if seconds >= self.SECONDS:
            self.is_high = self._count >= BUSY_LINES * seconds
            self._since, self._count = monotonic(), 0


class _GatewayLink:
    """The queue and the successive connections of one gateway."""

    def __init__(
        self,
        url: str,
        token: str,
        limit: int,
        first_pause: float,
        ping: float,
        *,
        loses: Callable[[], bool],
    ) -> None:
        self.wanted: set[UUID] = set()
        self.is_present = True
        self.task: asyncio.Task[None] | None = None
        self._url = url
        self._token = token
        self._limit = limit
        self._first_pause = first_pause
        self._ping = ping
        self._loses = loses
        self._epoch = ""
        self._is_refused = False
        self._connection: ClientConnection | None = None
        self._outbox = SendQueue[_EncodedFrame](limit)
        self._wakeup = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def is_open(self) -> bool:
        """Whether there is a connection now."""
        return self._connection is not None

    async def wait_idle(self) -> None:
        """Wait until the queue is empty."""
        await self._idle.wait()

    def set_epoch(self, epoch: str) -> None:
        """Set the epoch of the frames that follow, and start the link."""
        if epoch != self._epoch:
            self._epoch = epoch
            self._wakeup.set()
        if self.task is None or self.task.done():
            self.task = asyncio.create_task(
                keep_running(
                    "a link to a gateway",
                    self._keep_connection,
                    sleep=asyncio.sleep,
                    clock=monotonic,
                    log=logger,
                )
            )

    def put(self, frame: _EncodedFrame) -> None:
        """Queue one more line. A gateway that is too far behind is disconnected and has to read the table."""
        self._outbox.put(frame, is_chunk=frame.is_chunk)
        self._idle.clear()
        self._wakeup.set()
        if self._outbox.is_overrun and self._connection:
            logger.warning("the gateway at %s does not keep up; reconnecting", self._url)
            self._connection.transport.abort()
            self._reset()

    def stop(self) -> None:
        """Stop the link of a gateway that is gone."""
        if self.task:
            self.task.cancel()

    async def _keep_connection(self) -> None:
        """Keep the link open while the gateway is there."""
        pause = self._first_pause
        while self.is_present:
            opened_at = monotonic()
            try:
                await self._connect()
            except InvalidStatus as refusal:
                self._log_refusal(refusal)
            except (OSError, TimeoutError, WebSocketException) as error:
                logger.info("the link to the gateway at %s is lost: %s", self._url, error)
            if monotonic() - opened_at > STEADY_SECONDS:
                pause = self._first_pause
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _log_refusal(self, refusal: InvalidStatus) -> None:
        if not self._is_refused:
            advice = "is EVERSTEP_BROADCAST_SECRET the same?"
            logger.warning("the gateway at %s refuses this writer (%s); %s", self._url, refusal, advice)
        self._is_refused = True

    async def _connect(self) -> None:
        async with connect(
            self._url,
            additional_headers={"Authorization": f"Bearer {self._token}"},
            subprotocols=[Subprotocol(link.SUBPROTOCOL)],
            compression=None,
            proxy=None,
            open_timeout=self._ping,
            ping_interval=self._ping,
            ping_timeout=self._ping,
            close_timeout=FLUSH_SECONDS,
        ) as connection:
            self._connection, self._is_refused = connection, False
            self._wakeup.set()
            sending = asyncio.create_task(self._send(connection))
            try:
                await self._listen(connection)
            finally:
                if not self._idle.is_set():
                    # A closing handshake would wait behind the frames that the gateway does not take.
                    connection.transport.abort()
                self._reset()
                await _cancel_all([sending])
                await connection.close(CloseCode.GOING_AWAY)

    def _reset(self) -> None:
        """Clear the queue and the wanted streams, which belong to the connection."""
        self._connection = None
        self.wanted.clear()
        self._outbox.take()
        self._idle.set()

    async def _listen(self, connection: ClientConnection) -> None:
        async for message in connection:
            try:
                interest = link.parse_gateway_message(message)
            except InvalidInput as error:
                logger.warning("a gateway of another version sent an unreadable message: %s", error)
                continue
            if self._connection is connection:
                self.wanted = (self.wanted | interest.want) - interest.unwant

    async def _send(self, connection: ClientConnection) -> None:
        try:
            await self._send_all(connection)
        except (ConnectionClosed, TimeoutError):
            """The listening side sees a closed connection, too."""
        except Exception as error:  # noqa: BLE001 -- a connection that can no longer send is useless
            note_failure("a link to a gateway", error, logger)
            connection.transport.abort()

    async def _send_all(self, connection: ClientConnection) -> None:
        sent_epoch, rate = "", _LineRate()
        while True:
            await self._wakeup.wait()
            if rate.is_high:
                await asyncio.sleep(JOIN_SECONDS)
            self._wakeup.clear()
            if sent_epoch != self._epoch:
                sent_epoch = self._epoch
                await self._send_message(connection, link.epoch_message(sent_epoch).encode())
            lines = [line.data for line in self._outbox.take() if not self._loses()]
            rate.add(len(lines))
            for message in link.pack_lines(filter(None, lines)):
                await self._send_message(connection, message)
            if not self._outbox:
                self._idle.set()

    async def _send_message(self, connection: ClientConnection, message: bytes) -> None:
        """Send with a deadline: a ping would wait behind a blocked send forever."""
        try:
            async with asyncio.timeout(2 * self._ping):
                await connection.send(message, text=True)
        except TimeoutError:
            logger.warning("the gateway at %s no longer accepts frames; reconnecting", self._url)
            connection.transport.abort()
            raise


async def _cancel_all(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
