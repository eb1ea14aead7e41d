"""Statements are prepared once for each connection, and sent together."""

import gc
import weakref
from collections.abc import AsyncGenerator
from typing import Any
from uuid import UUID

import pytest
import pytest_asyncio
from psycopg.errors import DivisionByZero
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from everstep.store.engine import create_engine
from everstep.store.postgres import PostgresStore
from everstep.store.transaction import Transaction, transaction

SUM = text("SELECT CAST(:left AS numeric) + CAST(:right AS numeric) AS total")
PREPARED = text("SELECT name FROM pg_prepared_statements WHERE statement LIKE :start AND from_sql = false")


@pytest_asyncio.fixture
async def postgres(database: str) -> AsyncGenerator[PostgresStore]:
    """A store whose connections have prepared nothing."""
    engine = create_engine(database)
    yield PostgresStore(engine)
    await engine.dispose()


async def names_of(work: Transaction, start: str) -> list[str]:
    """The names under which the server knows a statement."""
    return [row.name for row in (await work.execute(PREPARED, {"start": start})).all()]


async def add(work: Transaction, left: Any, right: Any) -> Any:
    return (await work.execute(SUM, {"left": left, "right": right})).scalar_one()


async def test_a_statement_is_prepared_when_it_is_first_sent(postgres: PostgresStore) -> None:
    async with transaction(postgres.engine) as work:
        assert [await add(work, 1, 2), await add(work, 3, 4)] == [3, 7]
        assert len(await names_of(work, "SELECT CAST($1 AS numeric) + %")) == 1


async def test_one_statement_takes_small_and_large_numbers_and_null(postgres: PostgresStore) -> None:
    async with transaction(postgres.engine) as work:
        assert [await add(work, 1, each) for each in (2, 2**40, None)] == [3, 2**40 + 1, None]
        assert len(await names_of(work, "SELECT CAST($1 AS numeric) + %")) == 1


async def test_a_statement_twice_in_a_batch_is_prepared_once(postgres: PostgresStore) -> None:
    query = text('SELECT CAST(:id AS uuid) AS id, CAST(:id AS uuid) AS "a b"')
    async with transaction(postgres.engine) as work:
        answers = await work.together((query, {"id": UUID(int=1)}), (query, {"id": UUID(int=2)}))
        assert [answer.one().id for answer in answers] == [UUID(int=1), UUID(int=2)]
        assert len(await names_of(work, "SELECT CAST($1 AS uuid) AS id%")) == 1


async def test_a_batch_that_fails_executes_nothing_and_leaves_a_connection_that_works(
    postgres: PostgresStore,
) -> None:
    table = text("CREATE TABLE of_a_failed_batch (id int)")
    division, after = text("SELECT 1 / CAST(:zero AS int) AS a"), text("SELECT 5 AS never_prepared")
    for _ in range(2):
        with pytest.raises(DBAPIError) as failed:
            async with transaction(postgres.engine) as work:
                await work.together((table, {}), (division, {"zero": 0}), (after, {}), last=True)
        assert isinstance(failed.value.orig, DivisionByZero)
    async with transaction(postgres.engine) as work:
        known = await work.execute(text("SELECT to_regclass('of_a_failed_batch') AS found"))
        assert known.scalar_one() is None
        found = await work.together((division, {"zero": 1}), (after, {}))
        assert [answer.scalar_one() for answer in found] == [1, 5]


async def test_statements_that_were_discarded_are_prepared_again(postgres: PostgresStore) -> None:
    async with transaction(postgres.engine) as work:
        await add(work, 1, 2)
        await work.execute(text("DEALLOCATE ALL"))
    with pytest.raises(DBAPIError, match="does not exist"):
        async with transaction(postgres.engine) as work:
            await add(work, 1, 2)
    async with transaction(postgres.engine) as work:
        assert await add(work, 1, 2) == 3


async def test_a_connection_is_freed_as_soon_as_it_is_not_used(database: str) -> None:
    """Its prepared statements do not keep it until the garbage collector runs."""
    engine = create_engine(database, pool_size=1)
    async with transaction(engine) as work:
        await add(work, 1, 2)
        connection = weakref.ref(work._driver)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    gc.disable()
    try:
        await engine.dispose()
        del work
        assert connection() is None
    finally:
        gc.enable()
