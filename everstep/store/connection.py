"""A connection that answers in time, and is closed where it was interrupted.

The server's own deadlines (`statement_timeout`) end what it takes too long for. They do not help where its
answer does not arrive: a link that swallows acknowledges what is sent, and TCP notices nothing. So each wait
for the server ends after a deadline of our own, and the connection is closed.

A wait that is interrupted, by its deadline or by a cancel, leaves a connection in the middle of a pipeline or
of an answer. The next statement on it would read the answer of another one. It is closed at once.
Every statement of psycopg and SQLAlchemy comes through `wait`, so this holds for all of them.
"""

import asyncio
from contextlib import suppress
from time import monotonic
from typing import Any, Final, TypeVar

import psycopg
from psycopg import waiting
from psycopg.abc import PQGen
from psycopg.errors import ConnectionTimeout
from psycopg.pq import ConnStatus, TransactionStatus

T = TypeVar("T")

CANCEL_SECONDS: Final = 1.0
"""So long the server may take to hear that its answer is not wanted any more: it frees its locks then."""

_LOOK: Final = 0.1
"""So often the driver looks at a socket that says nothing."""


OVERDUE = psycopg.errors._WaitTimeout  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
"""What the driver's functions that wait are documented to raise; it has no public name."""


class Silent(psycopg.OperationalError):
    """The server does not answer."""


class Link:
    """What the connections of one pool know of the way to the server."""

    def __init__(self, seconds: float, connect_seconds: float) -> None:
        self.seconds = seconds
        """How long a wait for the server may take."""
        self.connect_seconds = connect_seconds
        """How long a new connection may take, whatever it takes to get one."""
        self.was_silent_at = float("-inf")

    async def connect(self, *args: Any, **options: Any) -> "Connection":
        """A new connection, in time."""
        try:
            async with asyncio.timeout(self.connect_seconds):
                connection = await Connection.connect(*args, **options)
        except TimeoutError:
            raise ConnectionTimeout(f"no connection within {self.connect_seconds:g} seconds") from None
        connection.link = self
        return connection

    def suspects(self, connection: "Connection") -> bool:
        """Whether a connection is older than the last silence: it leads where no answer came from."""
        return connection.connected_at < self.was_silent_at


class Connection(psycopg.AsyncConnection[Any]):
    """A connection of psycopg's whose every wait has an end."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.link: Link | None = None
        self.connected_at = monotonic()

    async def wait(
        self,
        gen: PQGen[T],
        interval: float = _LOOK,
        timeout: float | None = None,  # noqa: ASYNC109 -- the driver's interface
    ) -> T:
        """Wait for the server, until the link's deadline at most; interrupted, the connection is closed."""
        seconds = self.link.seconds if timeout is None and self.link else timeout
        try:
            return await waiting.wait_async(gen, self.pgconn.socket, interval, seconds)
        except OVERDUE:
            if self.link:
                self.link.was_silent_at = monotonic()
            await self._give_up(gen)
            raise Silent(f"it has not answered for {seconds:g} seconds") from None
        except (psycopg.Error, UnicodeError):
            # An answer, which the driver has read to its end; or a value that it did not send.
            raise
        except BaseException:
            await self._give_up(gen)
            raise

    async def _give_up(self, gen: PQGen[Any]) -> None:
        """Close the connection; what the server is still busy with is called off if it can be reached."""
        try:
            if self.pgconn.transaction_status == TransactionStatus.ACTIVE:
                with suppress(psycopg.Error):
                    await self.cancel_safe(timeout=CANCEL_SECONDS)
        finally:
            if self.pgconn.status != ConnStatus.BAD:
                self.pgconn.finish()
            with suppress(Exception):
                # What it does at its end needs the connection, and would complain wherever it is collected.
                gen.close()
