"""The replica that the settings name, for lists."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from sqlalchemy.ext.asyncio import AsyncEngine

from everstep.runtime.settings import Settings
from everstep.store.engine import create_engine, database_url
from everstep.store.replica import Replica

HOW = "set DATABASE_URL"
WAIT_SECONDS = 1.0
"""How long a list waits for a connection to the replica."""


@asynccontextmanager
async def open_replica(
    settings: Settings, primary: AsyncEngine, application: str = "everstep"
) -> AsyncGenerator[Replica | None]:
    """Yield the replica, or None without one. It need not answer: then lists are read from the primary.

    Raises:
        InvalidInput: Its URL is not one of PostgreSQL.
    """
    if settings.database_replica_url is None:
        yield None
        return
    database_url(settings.database_replica_url, "DATABASE_REPLICA_URL")
    engine = create_engine(
        settings.database_replica_url,
        application_name=application,
        pool_size=settings.database_connections,
        max_overflow=0,
        pool_timeout=WAIT_SECONDS,
        preparing=settings.database_prepared,
    )
    try:
        yield Replica(primary, engine)
    finally:
        await engine.dispose()


async def probe_replica(settings: Settings) -> str:
    """Return words about how far the replica is.

    Raises:
        EverstepError: It cannot be used; the message says why.
    """
    primary = create_engine(settings.require("database_url", HOW))
    try:
        async with open_replica(settings, primary, "everstep doctor") as replica:
            return "not set" if replica is None else await replica.check()
    finally:
        await primary.dispose()
