"""Who looks on from outside: other connections to the same database, and what is written down of ours."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncEngine

WAITING = (
    "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
)


@contextmanager
def administrator(engine: AsyncEngine) -> Generator[psycopg.Connection[Any]]:
    """A connection of somebody else to the same database."""
    url = engine.url.render_as_string(hide_password=False).replace("+psycopg", "")
    with psycopg.connect(url) as connection:
        yield connection


async def once_blocked(engine: AsyncEngine, let_go: Callable[[], None], *work: Awaitable[Any]) -> list[Any]:
    """Begin this work, let go of the locks once all of it waits for them, and say what comes of it."""
    tasks = [asyncio.ensure_future(each) for each in work]
    with administrator(engine) as onlooker:
        onlooker.autocommit = True
        async with asyncio.timeout(10):
            while onlooker.execute(WAITING).fetchall() != [(len(tasks),)]:
                assert not any(task.done() for task in tasks)
                await asyncio.sleep(0)
    let_go()
    return await asyncio.gather(*tasks, return_exceptions=True)


def round_trips(engine: AsyncEngine, trace: Path) -> Callable[[], int]:
    """How often whoever uses this engine has waited for the server so far.

    libpq writes the end of an answer down with the next question, so ask one before you count.
    """

    @event.listens_for(engine.sync_engine, "connect")
    def watch(connection: Any, _record: object) -> None:  # pyright: ignore[reportUnusedFunction] -- SQLAlchemy calls it
        connection.driver_connection.pgconn.trace(os.open(trace, os.O_WRONLY | os.O_CREAT | os.O_APPEND))

    return lambda: trace.read_text().count("\tReadyForQuery")
