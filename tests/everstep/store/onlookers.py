"""Outside observers: other connections to the same database, and a record of our own statements."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncEngine

from everstep.store.transaction import BoundStatement, QueryResult, Transaction

WAITING = (
    "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
)


@contextmanager
def open_admin_connection(engine: AsyncEngine) -> Generator[psycopg.Connection[Any]]:
    """A second connection to the same database, independent of the store under test."""
    url = engine.url.render_as_string(hide_password=False).replace("+psycopg", "")
    with psycopg.connect(url) as connection:
        yield connection


async def run_behind_lock(
    engine: AsyncEngine, let_go: Callable[[], None], *work: Awaitable[Any]
) -> list[Any]:
    """Start this work, release the locks once all of it waits for them, and return its result."""
    tasks = [asyncio.ensure_future(each) for each in work]
    with open_admin_connection(engine) as onlooker:
        onlooker.autocommit = True
        async with asyncio.timeout(10):
            while onlooker.execute(WAITING).fetchall() != [(len(tasks),)]:
                assert not any(task.done() for task in tasks)
                await asyncio.sleep(0)
    let_go()
    return await asyncio.gather(*tasks, return_exceptions=True)


def count_round_trips(engine: AsyncEngine, trace: Path) -> Callable[[], int]:
    """The number of times that users of this engine have waited for the server so far.

    libpq records the end of a response together with the next request, so send one statement before counting.
    """

    @event.listens_for(engine.sync_engine, "connect")
    def watch(connection: Any, _record: object) -> None:  # pyright: ignore[reportUnusedFunction] -- SQLAlchemy calls it
        connection.driver_connection.pgconn.trace(os.open(trace, os.O_WRONLY | os.O_CREAT | os.O_APPEND))

    return lambda: trace.read_text().count("\tReadyForQuery")


def record_statements(patch: pytest.MonkeyPatch) -> list[tuple[BoundStatement, QueryResult]]:
    """The statements that transactions send from now on, and the rows that they receive."""
    known, together = list[tuple[BoundStatement, QueryResult]](), Transaction.together

    async def fetch_and_record(
        self: Transaction, *asked: BoundStatement, last: bool = False
    ) -> list[QueryResult]:
        answers = await together(self, *asked, last=last)
        known.extend(zip(asked, answers, strict=True))
        return answers

    patch.setattr(Transaction, "together", fetch_and_record)
    return known


def plan_of(engine: AsyncEngine, asked: BoundStatement) -> str:
    """The server's query plan for a statement."""
    statement, values = asked
    named = str(statement.compile(dialect=engine.dialect))
    with open_admin_connection(engine) as connection:
        # With the settings of our own connections.
        connection.execute("SET random_page_cost = 1.1")
        plan = connection.execute(f"EXPLAIN {named}".encode(), values).fetchall()
    return "\n".join(line for (line,) in plan)
