"""Reading lists from a replica: a standby of the same PostgreSQL, by streaming replication.

A list contains all that was committed before it was asked for, by whichever process. So the place in the
server's log is read first, and the replica has to have reached it; if it has not within a moment, or does not
answer, the primary is read. A replica that fails is left alone for some seconds.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import TypeVar

from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from everstep.agent_domain.errors import StoreUnavailable
from everstep.store.errors import StoreError, error_translation
from everstep.telemetry.metrics import REPLICA_READS

T = TypeVar("T")

logger = logging.getLogger(__name__)

LAG_SECONDS = 0.1
"""How long a list waits for the replica."""
STEP_SECONDS = 0.002
"""Between two looks at the replica; doubles."""
ANSWER_SECONDS = 1.0
"""How long the replica may take to say how far it is."""
PAUSE_SECONDS = 5.0
"""How long a replica that failed is left alone."""

_PRIMARY = text("""
    SELECT pg_current_wal_lsn() AS place, (SELECT system_identifier FROM pg_control_system()) AS cluster
""")
_REPLICA = text("""
    SELECT coalesce(pg_last_wal_replay_lsn() >= CAST(:place AS pg_lsn), false) AS has_place,
           pg_is_in_recovery() AS is_standby, (SELECT system_identifier FROM pg_control_system()) AS cluster
""")


class WrongReplica(StoreError):
    """The replica's URL does not lead to a standby of the database."""

    def __init__(self) -> None:
        super().__init__(
            "DATABASE_REPLICA_URL does not lead to a standby of this PostgreSQL by streaming replication; "
            "lists are read from DATABASE_URL"
        )


class Replica:
    """Reads lists from a replica, or else from the primary."""

    def __init__(self, primary: AsyncEngine, replica: AsyncEngine) -> None:
        self.engine = replica
        self._primary = primary
        self._left_until = float("-inf")
        self._is_reported = False

    async def read(self, ask: Callable[[AsyncEngine], Awaitable[T]]) -> T:
        """Read from the replica if it is up to date, else from the primary.

        Args:
            ask: Reads from an engine; may be called twice.
        """
        if monotonic() < self._left_until:
            REPLICA_READS.add("away")
            return await ask(self._primary)
        place, cluster = await self._read_place()
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                has_place = await self.has_reached(place, cluster)
            if has_place:
                found = await ask(self.engine)
                REPLICA_READS.add("replica")
                self._is_reported = False
                return found
            REPLICA_READS.add("late")
        except (StoreUnavailable, WrongReplica, TimeoutError, SQLAlchemyError) as error:
            REPLICA_READS.add("away")
            self._left_until = monotonic() + PAUSE_SECONDS
            if not self._is_reported:
                logger.warning("lists are read from the primary, as the replica cannot be used: %s", error)
            self._is_reported = True
        return await ask(self._primary)

    async def _read_place(self) -> tuple[str, int]:
        with error_translation(self._primary.url):
            async with self._primary.connect() as connection:
                found = (await connection.execute(_PRIMARY)).one()
        return found.place, found.cluster

    async def has_reached(self, place: str, cluster: int) -> bool:
        """Whether the replica reaches this place of the log within a moment.

        Raises:
            WrongReplica: It is no standby of this cluster.
            StoreUnavailable: It cannot be reached.
        """
        deadline, pause = monotonic() + LAG_SECONDS, STEP_SECONDS
        with error_translation(self.engine.url):
            async with self.engine.connect() as connection:
                while True:
                    found = (await connection.execute(_REPLICA, {"place": place})).one()
                    if not found.is_standby or found.cluster != cluster:
                        raise WrongReplica
                    if found.has_place or monotonic() + pause > deadline:
                        return found.has_place
                    await asyncio.sleep(pause)
                    pause *= 2

    async def check(self) -> str:
        """Return words about how far the replica is.

        Raises:
            EverstepError: It cannot be used.
        """
        place, cluster = await self._read_place()
        is_there = await self.has_reached(place, cluster)
        return "up to date" if is_there else f"more than {LAG_SECONDS * 1000:g} ms behind"
