"""The links of writers: they push envelopes to the hub and receive the list of wanted streams."""

import asyncio
import hmac
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from http import HTTPStatus
from socket import socket
from uuid import UUID

from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

from everstep.agent_domain.background import note_failure
from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.stream import link
from everstep.broadcast_gateway.hub import Hub
from everstep.broadcast_gateway.metrics import GatewayMetrics

logger = logging.getLogger(__name__)

MAX_MESSAGE = 64 << 20
"""Bytes. An envelope holds a complete message of a model or result of a tool."""
PING_SECONDS = 5.0


class WriterLinks:
    """All writers that are linked to this gateway."""

    def __init__(self, hub: Hub, metrics: GatewayMetrics, secret: str) -> None:
        self._hub = hub
        self._metrics = metrics
        self._authorization = f"Bearer {link.link_token(secret)}".encode()
        self._links: dict[ServerConnection, _InterestQueue] = {}
        hub.on_interest = self._on_interest

    @asynccontextmanager
    async def open_server(self, listener: socket) -> AsyncGenerator[None]:
        """Accept writers while the body runs."""
        async with serve(
            self._serve,
            sock=listener,
            process_request=self._refusal,
            subprotocols=[Subprotocol(link.SUBPROTOCOL)],
            compression=None,
            max_size=MAX_MESSAGE,
            ping_interval=PING_SECONDS,
            ping_timeout=PING_SECONDS,
        ):
            yield

    def _refusal(self, connection: ServerConnection, request: Request) -> Response | None:
        shown = ", ".join(request.headers.get_all("Authorization")).encode()
        if hmac.compare_digest(shown, self._authorization):
            return None
        logger.warning("a writer with another secret was refused; is EVERSTEP_BROADCAST_SECRET the same?")
        return connection.respond(
            HTTPStatus.UNAUTHORIZED, "Authentication required: writers send a bearer token.\n"
        )

    async def _serve(self, writer: ServerConnection) -> None:
        interests = self._links[writer] = _InterestQueue(dict.fromkeys(self._hub.stream_ids, True))
        self._metrics.links.set(len(self._links))
        sending = asyncio.create_task(interests.send_changes(writer))
        try:
            await self._listen(writer)
        except ConnectionClosed as closed:
            logger.debug("a writer is gone: %s", closed)
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            del self._links[writer]
            self._metrics.links.set(len(self._links))
            # Its last messages may be lost.
            self._hub.request_comparison()

    async def _listen(self, writer: ServerConnection) -> None:
        epoch = ""
        while True:
            message = await writer.recv(decode=False)
            try:
                parsed = link.parse_writer_message(message)
                if isinstance(parsed, link.EpochMessage):
                    epoch = parsed.epoch
                    continue
                for stream_id, body in parsed.lines:
                    self._hub.push(stream_id, body, epoch)
            except InvalidInput as error:
                logger.warning("a writer of another version pushed an unreadable message: %s", error)
                self._hub.request_comparison()

    def _on_interest(self, stream_id: UUID, is_wanted: bool) -> None:
        for interests in self._links.values():
            interests.put(stream_id, is_wanted)


class _InterestQueue:
    """The changes of wanted streams that one writer has not been sent yet."""

    def __init__(self, first: dict[UUID, bool]) -> None:
        self._changed = first
        self._has_changes = asyncio.Event()
        self._has_changes.set()

    def put(self, stream_id: UUID, is_wanted: bool) -> None:
        """Record a change; a later one replaces an earlier one for the same stream."""
        self._changed[stream_id] = is_wanted
        self._has_changes.set()

    async def send_changes(self, writer: ServerConnection) -> None:
        """Send the changes as they come. If that fails, the writer has to connect again."""
        try:
            await self._send(writer)
        except ConnectionClosed as closed:
            logger.debug("a writer is gone: %s", closed)
        except Exception as error:  # noqa: BLE001 -- the next connection starts from a clean state
            note_failure("a writer's link", error, logger)
            writer.transport.abort()

    async def _send(self, writer: ServerConnection) -> None:
        while True:
            await self._has_changes.wait()
            self._has_changes.clear()
            changed, self._changed = self._changed, {}
            want = [each for each, is_wanted in changed.items() if is_wanted]
            for message in link.interest_messages(want, changed.keys() - want):
                try:
                    async with asyncio.timeout(2 * PING_SECONDS):
                        await writer.send(message)
                except TimeoutError:
                    # A ping would wait behind a blocked send forever.
                    logger.warning("a writer no longer accepts messages; its connection is closed")
                    writer.transport.abort()
                    return
