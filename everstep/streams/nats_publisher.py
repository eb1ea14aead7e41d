"""The bus of a writer over NATS, for installations on many hosts.

A writer publishes a stream under the subject of the stream, if a gateway wants it. NATS delivers to those
gateways. Nothing waits for NATS: frames that it does not accept in time are dropped, text first. Gateways
find lost envelopes in the table.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from uuid import UUID

from everstep.agent_domain.background import keep_running
from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.stream.bus import Frame, SendQueue, TextChunk
from everstep.agent_domain.stream.bus_messages import PushedLines, parse_interest
from everstep.agent_domain.stream.gateways import GATEWAY_EXPIRY_SECONDS, GatewayDirectory
from everstep.agent_domain.stream.link import MAX_LINK_MESSAGE_BYTES, group_lines
from everstep.agent_domain.stream.records import StoredEnvelope
from everstep.streams.bus_seal import OVERHEAD_BYTES, BusKeys, Sealer
from everstep.streams.encoded_frames import encoded_or_empty
from everstep.streams.gateway_watch import REFRESH_SECONDS, GatewayWatch
from everstep.streams.nats_connection import NatsConnection, NatsServers, NatsUnavailable
from everstep.streams.publisher import FLUSH_SECONDS, MOST_FRAMES, never_loses
from everstep.telemetry.metrics import BUS_REFUSED

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Gateway:
    """What a gateway wants."""

    sender: bytes
    """Its connection. A new one begins with a new state."""
    number: int
    """The number of the last message, so that repeated ones have no effect."""
    wanted: frozenset[UUID]
    seen_at: float


class NatsBus:
    """Publishes frames for gateways on NATS, between `start` and `aclose`."""

    def __init__(
        self,
        servers: NatsServers,
        gateways: GatewayDirectory,
        secret: str,
        *,
        refresh: float = REFRESH_SECONDS,
        limit: int = MOST_FRAMES,
        loses: Callable[[], bool] = never_loses,
    ) -> None:
        self._keys = BusKeys(secret)
        self._own_url = announced_url(secret)
        self._connection = NatsConnection(servers, "everstep writer", self._on_connect)
        self._connection.on_disconnect = self._on_disconnect
        self._watch = GatewayWatch(gateways, self._on_gateways, refresh)
        self._limit = limit
        self._loses = loses
        self._sealer = Sealer(self._keys)
        self._epoch = ""
        self._has_epoch = asyncio.Event()
        """Gateways drop frames of another epoch, and interest may arrive before the table was read."""
        self._gateways: dict[UUID, _Gateway] = {}
        self._wanted: frozenset[UUID] = frozenset()
        self._outbox = SendQueue[tuple[UUID, Frame]](limit)
        self._wakeup = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._sending: asyncio.Task[None] | None = None
        self._is_closing = False
        self._warned = set[str]()

    @property
    def connection(self) -> NatsConnection:
        """The connection to NATS."""
        return self._connection

    def has_subscribers(self, stream_id: UUID) -> bool:
        """Whether a gateway wants this stream."""
        return stream_id in self._wanted

    def publish(self, stream_id: UUID, envelopes: Sequence[StoredEnvelope]) -> None:
        """Publish committed envelopes, if a gateway wants the stream."""
        for envelope in envelopes:
            self._put(stream_id, envelope)

    def publish_chunk(self, stream_id: UUID, chunk: TextChunk) -> None:
        """Publish a text chunk, if a gateway wants the stream."""
        self._put(stream_id, chunk)

    def _put(self, stream_id: UUID, frame: Frame) -> None:
        if stream_id not in self._wanted:
            return
        self._outbox.put((stream_id, frame), is_chunk=isinstance(frame, TextChunk))
        self._idle.clear()
        self._wakeup.set()
        if self._outbox.is_overrun:
            logger.warning("NATS does not keep up; reconnecting")
            self._connection.reconnect()

    def start(self) -> None:
        """Start connecting to NATS and looking for gateways."""
        self._watch.start()
        self._connection.start()
        self._sending = asyncio.create_task(
            keep_running(
                "the publishing on NATS", self._send, sleep=asyncio.sleep, clock=monotonic, log=logger
            )
        )

    async def aclose(self) -> None:
        """Send the rest of the queue, for a limited time, and close the connection."""
        await self._watch.aclose()
        with suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_SECONDS):
                await self._idle.wait()
        self._is_closing = True
        if self._sending:
            self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)
        await self._connection.aclose()

    # What gateways want.

    async def _on_connect(self) -> None:
        self._sealer = Sealer(self._keys)
        await self._connection.subscribe(self._keys.interest_subject, self._on_interest)
        subject = self._keys.request_subject
        with suppress(NatsUnavailable):
            await self._connection.publish(subject, self._sealer.seal(subject, b""))

    def _on_disconnect(self) -> None:
        """Drop what is queued, and what gateways wanted: both belong to the connection."""
        self._outbox.take()
        self._idle.set()
        self._gateways.clear()
        self._wanted = frozenset()

    def _on_interest(self, subject: str, message: bytes) -> None:
        try:
            opened = self._keys.open(subject, message)
            interest = parse_interest(opened.content)
        except InvalidInput as error:
            BUS_REFUSED.add()
            self._warn(f"a message on NATS was refused: {error}")
            return
        gateway = self._gateways.get(interest.gateway_id)
        if gateway is None or gateway.sender != opened.sender:
            gateway = _Gateway(opened.sender, 0, frozenset(), 0.0)
            self._gateways[interest.gateway_id] = gateway
        if opened.number > gateway.number:
            gateway.number, gateway.seen_at = opened.number, monotonic()
            gateway.wanted = interest.apply(gateway.wanted)
            self._combine()

    def _combine(self) -> None:
        self._wanted = frozenset[UUID]().union(*(each.wanted for each in self._gateways.values()))

    def _on_gateways(self, epoch: str, present: Sequence[tuple[UUID, str]]) -> None:
        """Take the epoch, forget silent gateways, and warn of those that this writer cannot reach."""
        self._epoch = epoch
        self._has_epoch.set()
        since = monotonic() - GATEWAY_EXPIRY_SECONDS
        silent = [key for key, each in self._gateways.items() if each.seen_at < since]
        for key in silent:
            del self._gateways[key]
        if silent:
            self._combine()
        for _, url in present:
            if not url.startswith("nats:"):
                self._warn(
                    f"the gateway at {url} has EVERSTEP_BUS=direct, and this process nats: its viewers get "
                    "events from the table, later; set the same everywhere"
                )
            elif url != self._own_url:
                self._warn("a gateway on NATS has another EVERSTEP_BROADCAST_SECRET; set the same everywhere")

    def _warn(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            logger.warning(text)

    # Sending.

    async def _send(self) -> None:
        while not self._is_closing:
            await self._wakeup.wait()
            await self._has_epoch.wait()
            self._wakeup.clear()
            frames = [each for each in self._outbox.take() if not self._loses()]
            streams: dict[UUID, list[Frame]] = {}
            for stream_id, frame in frames:
                streams.setdefault(stream_id, []).append(frame)
            try:
                for stream_id, its_frames in streams.items():
                    await self._send_stream(stream_id, its_frames)
            except NatsUnavailable as error:
                logger.debug("%s", error)
            if not self._outbox:
                self._idle.set()

    async def _send_stream(self, stream_id: UUID, frames: Sequence[Frame]) -> None:
        subject = self._keys.stream_subject(stream_id)
        room = self._connection.max_payload - OVERHEAD_BYTES - len(self._epoch.encode()) - 1
        encoded = [line for each in frames if (line := encoded_or_empty(stream_id, each))]
        fitting = [each for each in encoded if len(each) <= room]
        groups = group_lines(fitting, min(room, MAX_LINK_MESSAGE_BYTES))
        if len(fitting) < len(encoded):
            # Gateways read in the table what is too large.
            groups.append([])
        for lines in groups:
            content = PushedLines(self._epoch, lines).encode()
            await self._connection.publish(subject, self._sealer.seal(subject, content))


def announced_url(secret: str) -> str:
    """The URL under which gateways on NATS with this secret announce themselves."""
    return f"nats:{BusKeys(secret).prefix}"
