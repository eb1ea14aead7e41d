"""A connection to NATS that is opened again whenever it is lost.

The client's own reconnecting is off: it would send what was queued before the loss, in another order than
what readers have found in the table by then. Here each connection starts with an empty queue and with the
subscriptions that are wanted at that moment.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

from nats import errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from everstep.agent_domain.background import keep_running
from everstep.agent_domain.errors import EverstepError, InvalidInput
from everstep.streams.nats_credentials import NatsCredentials, refusal_advice
from everstep.telemetry.metrics import BUS_CONNECTED

logger = logging.getLogger(__name__)

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0
"""Seconds before a reconnect; doubles up to the second value."""
STEADY_SECONDS = 5.0
"""A connection that lasted this long resets the pause."""
CONNECT_SECONDS = 5.0
PING_SECONDS = 5.0
"""The interval of pings; a connection without a reply to two of them is lost."""
CLOSE_SECONDS = 1.0
CHECK_SECONDS = 0.5
"""How often the state of the client is checked. It cannot report a loss while its socket is blocked."""
MOST_REASONS = 5
"""How many reasons of an outage are logged."""

_SCHEMES = frozenset({"nats", "tls"})

Handler = Callable[[str, bytes], None]
"""Takes a subject and a message. It must not raise."""


class NatsUnavailable(EverstepError):
    """There is no connection to NATS."""


@dataclass(frozen=True, slots=True)
class NatsServers:
    """Where NATS is, and how a client logs in."""

    urls: tuple[str, ...]
    """The URLs without users and passwords."""
    user: str | None = None
    """The user, or a token if there is no password."""
    password: str | None = None
    credentials: Path | None = None
    """A file of credentials: a JWT and its key."""

    @classmethod
    def of(cls, urls: str, credentials: Path | None = None) -> "NatsServers":
        """Parse URLs that are separated by commas; the first one with a user counts for all.

        Raises:
            InvalidInput: A URL cannot be used, or the file of credentials cannot be read.
        """
        parsed = [_parse(url) for part in urls.split(",") if (url := part.strip())]
        usable = [each for each in parsed if each]
        if not parsed or len(usable) < len(parsed) or len({each.scheme for each in usable}) > 1:
            raise InvalidInput(
                "EVERSTEP_NATS_URL cannot be used: write nats://user:password@host:4222 or tls://host:4222, "
                "and separate the servers of a cluster by commas"
            )
        if credentials is not None:
            NatsCredentials.read(credentials)
        login = next((each for each in usable if each.username), usable[0])
        return cls(
            tuple(f"{each.scheme}://{each.netloc.rpartition('@')[2]}" for each in usable),
            login.username and unquote(login.username),
            login.password and unquote(login.password),
            credentials,
        )

    def __str__(self) -> str:
        return ", ".join(urlsplit(url).netloc for url in self.urls)


def _parse(url: str) -> SplitResult | None:
    try:
        parts = urlsplit(url)
        is_usable = parts.scheme in _SCHEMES and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return None
    return parts if is_usable else None


class _Client(Client):
    """A client that sends no password over a connection without TLS if the URL is `tls://`."""

    def _connect_command(self) -> bytes:
        server = self._current_server
        if server and server.uri.scheme == "tls" and not self._server_info.get("tls_required"):
            raise errors.Error("the server does not require TLS, and the URL is tls://")
        return super()._connect_command()

    def abort(self) -> None:
        """Close the socket at once, although the server reads nothing."""
        writer: asyncio.StreamWriter | None = getattr(self._transport, "_io_writer", None)
        if writer:
            writer.transport.abort()


class NatsConnection:
    """Keeps a connection to NATS, between `start` and `aclose`."""

    def __init__(self, servers: NatsServers, name: str, on_connect: Callable[[], Awaitable[None]]) -> None:
        """Connect later.

        Args:
            servers: The servers.
            name: The name of the connection in NATS' monitoring.
            on_connect: Called with each new connection, to subscribe.
        """
        self._servers = servers
        self._name = name
        self._on_connect = on_connect
        self._client: _Client | None = None
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._subscriptions: dict[str, Subscription] = {}
        self._last_error: BaseException | None = None
        self._reported = set[str]()
        self._gauge = ExitStack()
        self.on_disconnect: Callable[[], None] = _ignore_loss
        """Called when a connection is lost."""
        self.on_drop: Callable[[], None] = _ignore_loss
        """Called when the client had to drop messages that it received."""

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection now."""
        return self._client is not None

    @property
    def max_payload(self) -> int:
        """The largest message that the server accepts; 0 without a connection."""
        return self._client.max_payload if self._client else 0

    def start(self) -> None:
        """Start connecting. It need not succeed: this process works without NATS, if slower."""
        self._gauge.enter_context(BUS_CONNECTED.source(lambda: {(): float(self.is_connected)}))
        self._task = asyncio.create_task(
            keep_running(
                "the connection to NATS",
                self._keep_connection,
                sleep=asyncio.sleep,
                clock=monotonic,
                log=logger,
            )
        )

    async def aclose(self) -> None:
        """Send what is queued, for a limited time, and close the connection."""
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._gauge.close()

    async def publish(self, subject: str, message: bytes) -> None:
        """Send a message.

        Raises:
            NatsUnavailable: It was not sent.
        """
        client = self._client
        if client is None:
            raise NatsUnavailable("there is no connection to NATS")
        try:
            async with asyncio.timeout(2 * PING_SECONDS) as limit:
                await client.publish(subject, message)
        except (errors.Error, OSError, TimeoutError) as error:
            raise NatsUnavailable(f"publishing to NATS failed: {error}") from None
        if limit.expired():
            # The client swallows a cancellation while its socket is blocked.
            self.reconnect()
            raise NatsUnavailable("NATS accepts no messages")

    async def subscribe(self, subject: str, handler: Handler) -> None:
        """Subscribe to a subject on the current connection; without one, do nothing."""
        client, subscriptions = self._client, self._subscriptions
        if client is None or subject in subscriptions:
            return

        async def take(message: Msg) -> None:
            handler(message.subject, message.data)

        with suppress(errors.Error, OSError):
            # A connection that was just lost starts again with `on_connect`.
            subscriptions[subject] = await client.subscribe(subject, cb=take)  # pyright: ignore[reportUnknownMemberType] -- its `future`

    async def unsubscribe(self, subject: str) -> None:
        """Unsubscribe from a subject."""
        subscription = self._subscriptions.pop(subject, None)
        if subscription:
            with suppress(errors.Error, OSError):
                await subscription.unsubscribe()

    def reconnect(self) -> None:
        """Give up the current connection, because it does not keep up."""
        if client := self._client:
            self._on_loss(client)
            self._changed.set()

    async def _keep_connection(self) -> None:
        pause = FIRST_PAUSE
        while True:
            opened_at = monotonic()
            try:
                await self._connect()
            except NatsUnavailable as error:
                self._report(str(error))
            if monotonic() - opened_at > STEADY_SECONDS:
                pause = FIRST_PAUSE
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _connect(self) -> None:
        """Connect, and wait until the connection is lost."""
        client = await connect(self._servers, self._name, self._on_error, self._on_closed)
        self._changed.clear()
        self._subscriptions = {}
        self._client = client
        if self._reported:
            logger.info("connected to NATS at %s again", self._servers)
        self._reported.clear()
        try:
            await self._on_connect()
            while self._client is client and not client.is_closed:
                with suppress(TimeoutError):
                    async with asyncio.timeout(CHECK_SECONDS):
                        await self._changed.wait()
        finally:
            self._on_loss(client)
            await _close(client)
        why = f" ({self._last_error})" if self._last_error else ""
        raise NatsUnavailable(f"the connection to NATS at {self._servers} is lost{why}")

    def _report(self, reason: str) -> None:
        """Log why there is no connection: each reason once, as that of a refusal follows that of a loss."""
        if reason not in self._reported and len(self._reported) < MOST_REASONS:
            logger.warning("%s; viewers get events from the table until it is back", reason)
            self._reported.add(reason)

    def _on_loss(self, client: _Client) -> None:
        if self._client is client:
            self._client = None
            self._subscriptions = {}
            self.on_disconnect()

    async def _on_closed(self) -> None:
        self._changed.set()

    async def _on_error(self, error: Exception) -> None:
        self._last_error = error
        if isinstance(error, errors.SlowConsumerError):
            logger.warning("messages of NATS were dropped, as this process does not keep up")
            self.on_drop()
        else:
            logger.debug("NATS: %s", error)


async def connect(
    servers: NatsServers,
    name: str,
    on_error: Callable[[Exception], Coroutine[Any, Any, None]] | None = None,
    on_closed: Callable[[], Coroutine[Any, Any, None]] | None = None,
) -> _Client:
    """Connect to one of the servers.

    Raises:
        NatsUnavailable: None of them accepts this client; the message says why.
    """
    client, failures = _Client(), deque[Exception](maxlen=5)

    async def note(error: Exception) -> None:
        failures.append(error)
        if on_error:
            await on_error(error)

    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            await client.connect(
                [*servers.urls],
                name=name,
                error_cb=note,
                closed_cb=on_closed,
                allow_reconnect=False,
                max_reconnect_attempts=1,
                reconnect_time_wait=0,
                connect_timeout=CONNECT_SECONDS,  # pyright: ignore[reportArgumentType] -- as below
                ping_interval=PING_SECONDS,  # pyright: ignore[reportArgumentType] -- it is only slept for
                max_outstanding_pings=1,
                # A user without a password is a token.
                user=servers.user if servers.password is not None else None,
                password=servers.password,
                token=servers.user if servers.password is None else None,
                user_credentials=servers.credentials and NatsCredentials.read(servers.credentials).text,
                skip_subject_validation=True,
            )
    except (errors.Error, OSError, TimeoutError, ValueError, InvalidInput) as error:
        await _close(client)
        causes = (
            each for each in (error, *reversed(failures)) if not isinstance(each, errors.NoServersError)
        )
        raise NatsUnavailable(_refusal(servers, next(causes, error))) from None
    return client


def _refusal(servers: NatsServers, error: BaseException) -> str:
    if isinstance(error, InvalidInput):
        return str(error)
    is_silent = isinstance(error, TimeoutError | errors.TimeoutError)
    text = f"no answer within {CONNECT_SECONDS:g} seconds" if is_silent else str(error)
    if "authorization" in text.lower() or "authentication" in text.lower():
        advice = (
            refusal_advice(servers.credentials)
            if servers.credentials
            else "check the user and password in EVERSTEP_NATS_URL, or set EVERSTEP_NATS_CREDENTIALS"
        )
        return f"NATS at {servers} refuses the credentials; {advice}"
    return f"NATS at {servers} cannot be reached ({text}); check EVERSTEP_NATS_URL"


async def _close(client: _Client) -> None:
    """Close a client, which would wait without limit for a server that reads nothing."""
    with suppress(errors.Error, OSError, TimeoutError):
        async with asyncio.timeout(CLOSE_SECONDS):
            await client.close()
    client.abort()


def _ignore_loss() -> None:
    """Do nothing."""
