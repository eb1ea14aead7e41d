"""The side of gateways of the bus over NATS: they subscribe to the streams that they have viewers for.

While NATS is away, a gateway compares its streams with the table more often, so that viewers get events
later, and lose none.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import asynccontextmanager, suppress
from time import monotonic
from typing import Protocol
from uuid import UUID, uuid4

from everstep.agent_domain.background import keep_running
from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.stream.bus_messages import (
    GatewayInterest,
    all_interests,
    changed_interests,
    parse_lines,
)
from everstep.streams.bus_seal import BusKeys, Sealer
from everstep.streams.nats_connection import NatsConnection, NatsServers, NatsUnavailable
from everstep.telemetry.metrics import BUS_REFUSED

logger = logging.getLogger(__name__)

REPEAT_SECONDS = 5.0
"""How often a gateway repeats which streams it wants, as a bus may lose messages."""
AWAY_SECONDS = 1.0
"""How often the streams are compared with the table while NATS is away."""


class StreamHub(Protocol):
    """The part of a hub that a bus needs."""

    on_interest: Callable[[UUID, bool], object]

    @property
    def stream_ids(self) -> Collection[UUID]:
        """The streams that have viewers."""
        ...

    def push(self, stream_id: UUID, body: bytes, epoch: str) -> None:
        """Add an envelope or a chunk."""
        ...

    def request_comparison(self, stream_id: UUID | None = None) -> None:
        """Compare the head of a stream, or of all, with the table soon."""
        ...


class NatsSubscriber:
    """Brings the envelopes of watched streams from NATS to a hub."""

    def __init__(self, hub: StreamHub, servers: NatsServers, secret: str) -> None:
        self.id = uuid4()
        """The id in messages to writers."""
        self._hub = hub
        self._keys = BusKeys(secret)
        self._sealer = Sealer(self._keys)
        self._connection = NatsConnection(servers, "everstep gateway", self._on_connect)
        self._connection.on_disconnect = self._on_disconnect
        self._connection.on_drop = hub.request_comparison
        self._changed: dict[UUID, bool] = {}
        self._wakeup = asyncio.Event()
        self._must_repeat = False
        self._is_closing = False
        self._is_refused = False
        hub.on_interest = self._on_interest

    @property
    def connection(self) -> NatsConnection:
        """The connection to NATS."""
        return self._connection

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[None]:
        """Subscribe while the body runs."""
        work = [
            asyncio.create_task(keep_running(name, run, sleep=asyncio.sleep, clock=monotonic, log=logger))
            for name, run in (("the subscriptions on NATS", self._run), ("the watch over NATS", self._watch))
        ]
        self._connection.start()
        try:
            yield
        finally:
            self._is_closing = True
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)
            with suppress(NatsUnavailable):
                await self._publish([GatewayInterest(self.id, part=0)])
            await self._connection.aclose()

    def _on_interest(self, stream_id: UUID, is_wanted: bool) -> None:
        self._changed[stream_id] = is_wanted
        self._wakeup.set()

    async def _on_connect(self) -> None:
        self._sealer = Sealer(self._keys)
        subject = self._keys.request_subject
        await self._connection.subscribe(subject, self._on_request)
        self._changed = dict.fromkeys(self._hub.stream_ids, True)
        self._repeat()
        # What was published before is in the table.
        self._hub.request_comparison()

    def _on_disconnect(self) -> None:
        self._hub.request_comparison()

    def _on_request(self, subject: str, message: bytes) -> None:
        """A writer has connected, and asks for the streams that gateways want; it may have lost frames."""
        if self._open(subject, message) is not None:
            self._repeat()
            self._hub.request_comparison()

    def _repeat(self) -> None:
        self._must_repeat = True
        self._wakeup.set()

    async def _run(self) -> None:
        """Subscribe, unsubscribe, and notify writers."""
        repeat_at = monotonic() + REPEAT_SECONDS
        while not self._is_closing:
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, repeat_at - monotonic())):
                    await self._wakeup.wait()
            self._wakeup.clear()
            if monotonic() >= repeat_at:
                self._must_repeat, repeat_at = True, monotonic() + REPEAT_SECONDS
            changed, self._changed = self._changed, {}
            for stream_id, is_wanted in changed.items():
                await self._change(stream_id, is_wanted)
            must_repeat, self._must_repeat = self._must_repeat, False
            want = [each for each, is_wanted in changed.items() if is_wanted]
            with suppress(NatsUnavailable):
                if must_repeat:
                    await self._publish(all_interests(self.id, self._hub.stream_ids))
                else:
                    await self._publish(changed_interests(self.id, want, changed.keys() - want))

    async def _change(self, stream_id: UUID, is_wanted: bool) -> None:
        subject = self._keys.stream_subject(stream_id)
        if not is_wanted:
            await self._connection.unsubscribe(subject)
            return

        def take(subject: str, message: bytes) -> None:
            self._push(stream_id, subject, message)

        await self._connection.subscribe(subject, take)

    async def _publish(self, interests: Collection[GatewayInterest]) -> None:
        subject = self._keys.interest_subject
        for each in interests:
            await self._connection.publish(subject, self._sealer.seal(subject, each.encode()))

    async def _watch(self) -> None:
        """Read the table more often while NATS is away."""
        while True:
            await asyncio.sleep(AWAY_SECONDS)
            if not self._connection.is_connected:
                self._hub.request_comparison()

    def _push(self, stream_id: UUID, subject: str, message: bytes) -> None:
        content = self._open(subject, message)
        if content is None:
            return
        try:
            pushed = parse_lines(content)
            for body in pushed.lines:
                self._hub.push(stream_id, body, pushed.epoch)
        except InvalidInput as error:
            logger.warning("a writer of another version pushed an unreadable message: %s", error)
            self._hub.request_comparison(stream_id)
            return
        if not pushed.lines:
            self._hub.request_comparison(stream_id)

    def _open(self, subject: str, message: bytes) -> bytes | None:
        """Decrypt a message; None if it is not of this installation."""
        try:
            return self._keys.open(subject, message).content
        except InvalidInput as error:
            BUS_REFUSED.add()
            if not self._is_refused:
                self._is_refused = True
                logger.warning("a message on NATS was refused: %s", error)
            return None
