"""A connection with a deadline for every wait, closed when a wait is interrupted.

The server's own deadlines (`statement_timeout`) end statements that run too long. They do not help if the
answer never arrives: a middlebox can acknowledge packets and drop them, and TCP notices nothing. So each wait
for the server has a client-side deadline, after which the connection is closed.

A wait that is interrupted, by its deadline or by a cancel, leaves a connection in the middle of a pipeline or
of an answer. The next statement would read the answer to the previous one, so the connection is closed at
once. Every statement of psycopg and SQLAlchemy passes through `wait`, so this holds for all of them.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from time import monotonic
from typing import Any, Final, TypeVar

import psycopg
from psycopg import waiting
from psycopg.abc import PQGen
from psycopg.errors import ConnectionTimeout
from psycopg.pq import ConnStatus, TransactionStatus
from psycopg.types.numeric import Int8Dumper

from everstep.store.flat_arrays import FlatArrayDumper
from everstep.store.poolers import Preparing, adopt, is_refusal_of_options
from everstep.store.prepared_statements import PreparedStatements, Query

T = TypeVar("T")

CANCEL_SECONDS: Final = 1.0
"""How long to wait for the server to accept a cancel request. Cancelling releases its locks."""

_POLL_SECONDS: Final = 0.1
"""How often the driver polls an idle socket."""


OVERDUE = psycopg.errors._WaitTimeout  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
"""The exception that psycopg's wait functions are documented to raise; it has no public name."""


class ServerSilent(psycopg.OperationalError):
    """The server does not answer."""


class ServerLink:
    """The deadlines of one pool's connections, and the time of the last unanswered wait."""

    def __init__(
        self,
        seconds: float,
        connect_seconds: float,
        session: Mapping[str, str] | None = None,
        preparing: Preparing = "auto",
    ) -> None:
        self.session = session or {}
        """The settings of sessions, which a server takes when a connection begins."""
        self.preparing: Preparing = preparing
        self.sends_options = True
        """Whether connections begin with the settings of the session; a pooler may refuse that."""
        self.seconds = seconds
        """The longest wait for the server, in seconds."""
        self.connect_seconds = connect_seconds
        """The time limit for opening a connection, in seconds, all steps included."""
        self.was_silent_at = float("-inf")

    async def connect(self, *args: Any, **options: Any) -> "ServerConnection":
        """Open a connection within the time limit.

        Raises:
            ConnectionTimeout: There was no connection in time.
        """
        try:
            async with asyncio.timeout(self.connect_seconds):
                connection = await self._open(*args, **options)
                connection.link = self
                try:
                    await adopt(connection, self.session, self.preparing, has_options=self.sends_options)
                except BaseException:
                    await connection.close()
                    raise
        except TimeoutError:
            raise ConnectionTimeout(f"no connection within {self.connect_seconds:g} seconds") from None
        return connection

    async def _open(self, *args: Any, **options: Any) -> "ServerConnection":
        if self.sends_options:
            try:
                return await ServerConnection.connect(*args, **options)
            except psycopg.OperationalError as error:
                if not is_refusal_of_options(error):
                    raise
                self.sends_options = False
        return await ServerConnection.connect(*args, **{**options, "options": ""})

    def is_suspect(self, connection: "ServerConnection") -> bool:
        """Return whether the connection is older than the last unanswered wait: it is probably dead too."""
        return connection.connected_at < self.was_silent_at


class ServerConnection(psycopg.AsyncConnection[Any]):
    """A psycopg connection whose waits all have a deadline."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.link: ServerLink | None = None
        self.adapters.register_dumper(list, FlatArrayDumper)
        # A statement is prepared for the types of its parameters: whole numbers have one, small or large.
        self.adapters.register_dumper(int, Int8Dumper)
        self.statements = PreparedStatements(self.adapters)
        self.connected_at = monotonic()
        self.is_pooled = False
        """Whether a pooler is in between, so that each transaction may run in another session."""
        self.settings: Query | None = None
        """Sets the settings of the session for one transaction, if the session does not have them."""

    async def wait(
        self,
        gen: PQGen[T],
        interval: float = _POLL_SECONDS,
        timeout: float | None = None,  # noqa: ASYNC109 -- the driver's interface
    ) -> T:
        """Wait for the server, at most until the link's deadline; an interrupted wait closes the connection.

        Raises:
            ServerSilent: The server did not answer in time.
        """
        seconds = self.link.seconds if timeout is None and self.link else timeout
        try:
            return await waiting.wait_async(gen, self.pgconn.socket, interval, seconds)
        except OVERDUE:
            if self.link:
                self.link.was_silent_at = monotonic()
            await self._abandon(gen)
            raise ServerSilent(f"it has not answered for {seconds:g} seconds") from None
        except (psycopg.Error, UnicodeError):
            # Either a complete answer of the server, or a value that psycopg refused to send.
            raise
        except BaseException:
            await self._abandon(gen)
            raise

    async def _abandon(self, gen: PQGen[Any]) -> None:
        """Close the connection, and ask the server to cancel a running statement if it can be reached."""
        try:
            if self.pgconn.transaction_status == TransactionStatus.ACTIVE:
                with suppress(psycopg.Error):
                    await self.cancel_safe(timeout=CANCEL_SECONDS)
        finally:
            if self.pgconn.status != ConnStatus.BAD:
                self.pgconn.finish()
            with suppress(Exception):
                # The generator's cleanup uses the closed connection. Left to the garbage collector, it would
                # log errors.
                gen.close()
