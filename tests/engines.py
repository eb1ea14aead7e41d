"""Engines that tests use one after the other, each test in an event loop of its own.

A new engine connects, reads what the server can do and compiles each statement again, and each new process of
the server reads the catalogue. That took a quarter of the CPU time of the HTTP API's tests.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Final

from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.pool import QueuePool

from everstep.store.engine import create_engine

_FREE: Final = defaultdict[str, list[AsyncEngine]](list)
"""By the URL of the database."""


@asynccontextmanager
async def open_engine(url: str) -> AsyncGenerator[AsyncEngine]:
    """Yield an engine with the default settings, which nothing else uses until the block ends."""
    engine = take_engine(url)
    try:
        yield engine
    finally:
        await give_back_engine(url, engine)


def take_engine(url: str) -> AsyncEngine:
    """Return an engine with the default settings, which nothing else uses until it is given back."""
    return _FREE[url].pop() if _FREE[url] else create_engine(url)


async def give_back_engine(url: str, engine: AsyncEngine) -> None:
    """Keep an engine for the next test that uses this database."""
    if _can_change_loops(engine):
        _FREE[url].append(engine)
    else:
        await engine.dispose()


def _can_change_loops(engine: AsyncEngine) -> bool:
    """Return whether no connection is in use, and no task can have waited for one.

    The pool's queue belongs to the event loop in which a task first waited for a connection, and a task waits
    only if the pool is full.
    """
    pool = engine.pool
    assert isinstance(pool, QueuePool)
    return not pool.checkedout() and pool.checkedin() < pool.size()


@contextmanager
def listening(engine: AsyncEngine, listener: Callable[..., None]) -> Generator[None]:
    """Call a function before each statement that SQLAlchemy sends, as long as the block lasts."""
    event.listen(engine.sync_engine, "before_cursor_execute", listener)
    try:
        yield
    finally:
        event.remove(engine.sync_engine, "before_cursor_execute", listener)


def close_engines() -> None:
    """Close the connections of all engines."""

    free = [engine for engines in _FREE.values() for engine in engines]
    _FREE.clear()

    async def dispose_all() -> None:
        for engine in free:
            await engine.dispose()

    asyncio.run(dispose_all())
