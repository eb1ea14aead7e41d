"""The bus of a writer: a connection to every gateway, over which goes what that gateway wants.

Nothing waits for it. What a gateway does not take in time is dropped, text first; a gateway that is too far
behind has its connection cut, and compares with the table once it is linked again. So do those that a lost
connection left behind.
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
from everstep.agent_domain.stream.bus import Chunk, Frame, Outbox, envelope_of
from everstep.agent_domain.stream.gateways import PRESENT_SECONDS, Gateways
from everstep.agent_domain.stream.records import StoredEnvelope

logger = logging.getLogger(__name__)

REFRESH_SECONDS = 1.0
"""So often the gateways that are there are looked for."""
MOST_FRAMES = 10_000
"""As many wait for one gateway before chunks are dropped."""
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0
"""Seconds before a gateway is tried again: twice as long each time."""
STEADY_SECONDS = 5.0
"""A connection that held for so long was a good one: the next is tried soon."""
PING_SECONDS = 5.0
"""So often a silent gateway is asked whether it is there, and so long it may take to answer."""
FLUSH_SECONDS = 1.0
"""So long the last words may take."""


def nothing_is_lost() -> bool:
    """As everywhere outside of crash tests: what is sent arrives, or the connection is gone."""
    return False


class DirectBus:
    """Takes frames to the gateways. It is at work between `start` and `aclose`."""

    def __init__(
        self,
        gateways: Gateways,
        secret: str,
        *,
        refresh: float = REFRESH_SECONDS,
        limit: int = MOST_FRAMES,
        first_pause: float = FIRST_PAUSE,
        ping: float = PING_SECONDS,
        loses: Callable[[], bool] = nothing_is_lost,
    ) -> None:
        self._gateways = gateways
        self._refresh = refresh
        self._token = link.link_token(secret)
        self._limit = limit
        self._first_pause = first_pause
        self._ping = ping
        self._loses = loses
        self._links: dict[tuple[UUID, str], _Link] = {}
        self._finding: asyncio.Task[None] | None = None
        self._is_lost = False

    def wants(self, stream_id: UUID) -> bool:
        """Whether a gateway asked for this stream."""
        return any(stream_id in each.wanted for each in self._links.values())

    def publish(self, stream_id: UUID, envelopes: Sequence[StoredEnvelope]) -> None:
        """Take what was committed to the gateways that want it."""
        for envelope in envelopes:
            self._put(stream_id, envelope)

    def chunk(self, stream_id: UUID, chunk: Chunk) -> None:
        """Take what was written to the gateways that want it."""
        self._put(stream_id, chunk)

    def _put(self, stream_id: UUID, frame: Frame) -> None:
        line = None
        for each in self._links.values():
            if stream_id in each.wanted:
                line = line or _Line(stream_id, frame)
                each.put(line)

    def start(self) -> None:
        """Begin to look for gateways."""
        self._finding = asyncio.create_task(
            keep_running(
                "the search for gateways", self._find, sleep=asyncio.sleep, clock=monotonic, log=logger
            )
        )

    async def aclose(self) -> None:
        """Send what waits, for a moment at most, and leave."""
        if self._finding:
            await _cancelled([self._finding])
        links, self._links = list(self._links.values()), {}
        with suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_SECONDS):
                await asyncio.gather(*(each.idle() for each in links))
        await _cancelled([each.task for each in links if each.task])

    async def _find(self) -> None:
        while True:
            try:
                self._found(*await self._gateways.present(PRESENT_SECONDS))
                self._is_lost = False
            except Exception as error:  # noqa: BLE001 -- whatever it is, what is known still works
                if not self._is_lost:
                    logger.warning("where gateways are cannot be found out; those known are kept: %s", error)
                self._is_lost = True
            await asyncio.sleep(self._refresh)

    def _found(self, epoch: str, present: Sequence[tuple[UUID, str]]) -> None:
        for key in present:
            if key not in self._links:
                self._links[key] = _Link(
                    key[1], self._token, self._limit, self._first_pause, self._ping, loses=self._loses
                )
        for key, each in list(self._links.items()):
            # Who is gone is not linked again; while a connection holds, somebody is there.
            each.is_present = key in present
            if each.is_present or each.is_open:
                each.tell(epoch)
            else:
                del self._links[key]
                each.drop()


class _Line:
    """A frame as it is sent, written once for all gateways and not before the first one takes it."""

    __slots__ = ("_frame", "_stream_id", "_written", "is_chunk")

    def __init__(self, stream_id: UUID, frame: Frame) -> None:
        self._stream_id = stream_id
        self._frame = frame
        self._written: bytes | None = None
        self.is_chunk = isinstance(frame, Chunk)

    @property
    def written(self) -> bytes:
        """Empty if it cannot be written: whoever reads finds the hole."""
        if self._written is None:
            try:
                self._written = link.line(self._stream_id, envelope_of(self._frame))
            except Exception:
                logger.exception("something of the stream %s cannot be pushed", self._stream_id)
                self._written = b""
        return self._written


class _Link:
    """What goes to one gateway, over one connection after the other."""

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
        self._outbox = Outbox[_Line](limit)
        self._some = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def is_open(self) -> bool:
        """Whether there is a connection now."""
        return self._connection is not None

    async def idle(self) -> None:
        """Once nothing waits any more."""
        await self._idle.wait()

    def tell(self, epoch: str) -> None:
        """Of which history is told from now on."""
        if epoch != self._epoch:
            self._epoch = epoch
            self._some.set()
        if self.task is None or self.task.done():
            self.task = asyncio.create_task(
                keep_running(
                    "a link to a gateway", self._stay, sleep=asyncio.sleep, clock=monotonic, log=logger
                )
            )

    def put(self, line: _Line) -> None:
        """One more line. A gateway that is too far behind has to read the table."""
        self._outbox.put(line, is_chunk=line.is_chunk)
        self._idle.clear()
        self._some.set()
        if self._outbox.is_overrun and self._connection:
            logger.warning("the gateway at %s does not keep up; it is linked anew", self._url)
            self._connection.transport.abort()
            self._reset()

    def drop(self) -> None:
        """The gateway is gone."""
        if self.task:
            self.task.cancel()

    async def _stay(self) -> None:
        """Linked, whatever happens, while the gateway is there."""
        pause = self._first_pause
        while self.is_present:
            began = monotonic()
            try:
                await self._linked()
            except InvalidStatus as refusal:
                self._complain(refusal)
            except (OSError, TimeoutError, WebSocketException) as error:
                logger.info("the link to the gateway at %s is lost: %s", self._url, error)
            if monotonic() - began > STEADY_SECONDS:
                pause = self._first_pause
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _complain(self, refusal: InvalidStatus) -> None:
        if not self._is_refused:
            advice = "is EVERSTEP_BROADCAST_SECRET the same?"
            logger.warning("the gateway at %s refuses this writer (%s); %s", self._url, refusal, advice)
        self._is_refused = True

    async def _linked(self) -> None:
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
            self._some.set()
            sending = asyncio.create_task(self._send(connection))
            try:
                await self._listen(connection)
            finally:
                if not self._idle.is_set():
                    # A closing handshake would wait for what the gateway does not take.
                    connection.transport.abort()
                self._reset()
                await _cancelled([sending])
                await connection.close(CloseCode.GOING_AWAY)

    def _reset(self) -> None:
        """Nothing is wanted over a connection that is not there."""
        self._connection = None
        self.wanted.clear()
        self._outbox.take()
        self._idle.set()

    async def _listen(self, connection: ClientConnection) -> None:
        async for message in connection:
            try:
                interest = link.read_gateway(message)
            except InvalidInput as error:
                logger.warning("a gateway of another version says what cannot be read: %s", error)
                continue
            if self._connection is connection:
                self.wanted = (self.wanted | interest.want) - interest.unwant

    async def _send(self, connection: ClientConnection) -> None:
        try:
            await self._send_all(connection)
        except (ConnectionClosed, TimeoutError):
            """Whoever listens hears of a connection that is closed, too."""
        except Exception as error:  # noqa: BLE001 -- a connection on which nothing is said helps nobody
            note_failure("a link to a gateway", error, logger)
            connection.transport.abort()

    async def _send_all(self, connection: ClientConnection) -> None:
        told = ""
        while True:
            await self._some.wait()
            self._some.clear()
            if told != self._epoch:
                told = self._epoch
                await self._sent(connection, link.told(told).encode())
            lines = [line.written for line in self._outbox.take() if not self._loses()]
            for message in link.messages(filter(None, lines)):
                await self._sent(connection, message)
            if not self._outbox:
                self._idle.set()

    async def _sent(self, connection: ClientConnection, message: bytes) -> None:
        """A ping would wait behind it for ever, so it has a deadline of its own."""
        try:
            async with asyncio.timeout(2 * self._ping):
                await connection.send(message, text=True)
        except TimeoutError:
            logger.warning("the gateway at %s takes nothing any more; it is linked anew", self._url)
            connection.transport.abort()
            raise


async def _cancelled(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
