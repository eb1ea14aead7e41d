"""The store through PgBouncer in transaction mode, which gives each transaction any session of the server."""

import asyncio
from collections.abc import AsyncGenerator

import psycopg
import pytest
import pytest_asyncio
from sqlalchemy import make_url, text

from everstep.agent_domain.errors import StoreUnavailable
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.store import migrate
from everstep.store.deadline_connection import ServerConnection
from everstep.store.engine import create_engine
from everstep.store.postgres import PostgresStore
from everstep.store.transaction import BEGIN_SNAPSHOT, Transaction, transaction
from tests.databases import MIGRATED, Databases
from tests.everstep.store import test_executions, test_steps, test_tool_calls
from tests.everstep.store.store_words import TENANT, a_settlement, accept_execution, run_step
from tests.pgbouncer import PgBouncer, keeps_statements, needs_pgbouncer, open_pgbouncer

pytestmark = [needs_pgbouncer, pytest.mark.asyncio(loop_scope="module")]

SETTINGS = text("""
    SELECT current_setting('timezone') AS timezone, current_setting('jit') AS jit,
           current_setting('statement_timeout') AS statement_timeout,
           current_setting('lock_timeout') AS lock_timeout,
           current_setting('application_name') AS application_name, pg_backend_pid() AS process
""")
PREPARED = text("SELECT count(*) FROM pg_prepared_statements WHERE NOT from_sql")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pgbouncer(databases: Databases) -> AsyncGenerator[PgBouncer]:
    """With two sessions of the server, so that a client gets another one all the time."""
    url = databases.create(MIGRATED)
    async with open_pgbouncer(url, size=2) as running:
        yield running
    databases.drop(url)


@pytest.fixture
def database(databases: Databases, pgbouncer: PgBouncer) -> str:
    """An empty database behind PgBouncer."""
    databases.empty(databases.url_of(str(make_url(pgbouncer.url).database)))
    return pgbouncer.url


@pytest.fixture
def database_or_none(database: str) -> str:
    """The database of all stores of this module."""
    return database


class TestLists(test_executions.TestLists):
    """The same, with the store of this module."""


class TestRecordingAReply(test_steps.TestRecordingAReply):
    """The same, with the store of this module."""


class TestRecordingACall(test_tool_calls.TestRecordingACall):
    """The same, with the store of this module."""


async def read_settings(work: Transaction) -> dict[str, str]:
    found = (await work.execute(SETTINGS)).one()
    return {name: str(getattr(found, name)) for name in found._fields}


async def test_each_transaction_has_the_settings_of_a_session(database: str) -> None:
    """Follows rule 1.3.6: whichever session it gets, and none keeps them for other clients."""
    engine = create_engine(database, application_name="everstep test", statement_timeout=7, lock_timeout=3)
    other = create_engine(database, application_name="somewhere else", statement_timeout=90)
    async with transaction(engine) as one, transaction(other, BEGIN_SNAPSHOT) as two:
        first, second = await read_settings(one), await read_settings(two)
    assert first["process"] != second["process"]
    for _ in range(3):
        async with transaction(other) as two, transaction(engine) as one:
            second, first = await read_settings(two), await read_settings(one)
        wanted = {"timezone": "UTC", "jit": "off", "statement_timeout": "7s", "lock_timeout": "3s"}
        assert wanted.items() <= first.items()
        assert first["application_name"] == "everstep test"
        assert (second["statement_timeout"], second["application_name"]) == ("90s", "somewhere else")
        async with transaction(engine) as work:
            (alone,) = await work.together((SETTINGS, {}), last=True)
        assert alone.one().statement_timeout == "7s"
    await engine.dispose()
    await other.dispose()


async def test_settings_that_the_role_has_are_not_set_again(databases: Databases) -> None:
    """1.3.6: `ALTER ROLE ... SET` saves the statement."""
    url = databases.create(MIGRATED)
    name = make_url(url).database
    usual = {"jit": "off", "random_page_cost": "1.1", "idle_in_transaction_session_timeout": "1min"}
    for setting, value in {**usual, "statement_timeout": "15s", "lock_timeout": "10s"}.items():
        databases.run(f"ALTER DATABASE {name} SET {setting} = '{value}'")
    async with open_pgbouncer(url) as pgbouncer:
        for timeout, is_set in ((15, False), (20, True)):
            engine = create_engine(pgbouncer.url, statement_timeout=timeout)
            async with engine.connect() as connection:
                proxy = (await connection.get_raw_connection()).driver_connection
                assert isinstance(proxy, ServerConnection)
                assert (proxy.settings is not None) is is_set
            async with transaction(engine) as work:
                assert (await read_settings(work))["statement_timeout"] == f"{timeout}s"
            await engine.dispose()
    databases.drop(url)


async def test_statements_are_prepared_only_if_they_last(database: str, pgbouncer: PgBouncer) -> None:
    """1.3.6: `auto` finds out that PgBouncer before 1.21 forgets them, and `on` and `off` are obeyed."""
    for preparing, lasts in (("auto", keeps_statements()), ("off", False), ("on", True)):
        engine = create_engine(database, preparing=preparing)  # pyright: ignore[reportArgumentType]
        async with transaction(engine) as work:
            before = (await work.execute(PREPARED)).scalar()
            await work.execute(text("SELECT 'of this test', CAST(:x AS int)"), {"x": 1})
            after = (await work.execute(PREPARED)).scalar()
        assert (after > before) is lasts
        await engine.dispose()


async def test_a_direct_connection_prepares_unless_it_must_not(databases: Databases, database: str) -> None:
    """1.3.6"""
    direct = databases.url_of(str(make_url(database).database))
    for preparing, lasts in (("auto", True), ("off", False)):
        engine = create_engine(direct, preparing=preparing)  # pyright: ignore[reportArgumentType]
        async with transaction(engine) as work:
            assert bool((await work.execute(PREPARED)).scalar()) is lasts
            assert (await read_settings(work))["statement_timeout"] == "15s"
        await engine.dispose()


async def test_many_clients_share_few_sessions(database: str) -> None:
    """Follows rules 1.3.6 and 7.1.1: nothing of one execution reaches another one."""
    engine = create_engine(database)
    store = PostgresStore(engine)

    async def run() -> None:
        ref = await accept_execution(store)
        await run_step(store, ref)
        await store.settle(a_settlement(ref, ExecutionStatus.COMPLETED))
        found = await store.execution(ref)
        assert found
        assert found.status is ExecutionStatus.COMPLETED

    await asyncio.gather(*(run() for _ in range(10)))
    await engine.dispose()


async def test_the_store_survives_a_restart_of_pgbouncer(database: str, pgbouncer: PgBouncer) -> None:
    """Follows rule 1.3.6: while it is away, calls fail as unreachable."""
    engine = create_engine(database)
    store = PostgresStore(engine)
    ref = await accept_execution(store)
    await pgbouncer.kill()
    try:
        with pytest.raises(StoreUnavailable, match="cannot be reached"):
            await run_step(store, ref)
    finally:
        await pgbouncer.start()
    await run_step(store, ref)
    assert await store.envelopes(TENANT, ref.stream_id) == ()
    await engine.dispose()


async def test_upgrades_need_the_server_itself(
    database: str, databases: Databases, caplog: pytest.LogCaptureFixture
) -> None:
    """Follows rule 1.3.6: a lock of a session would belong to another client's session."""
    assert await migrate.pending(database) == []
    with pytest.raises(migrate.PooledConnection, match="DATABASE_DIRECT_URL"):
        await migrate.upgrade(database)
    await migrate.upgrade(database, may_be_pooled=True)
    assert caplog.messages[-1].startswith("DATABASE_DIRECT_URL leads to a connection pooler")
    held = (
        "SELECT count(*) FROM pg_locks JOIN pg_database ON oid = database "
        "WHERE locktype = 'advisory' AND datname = current_database()"
    )
    direct = databases.url_of(str(make_url(database).database))
    async with await psycopg.AsyncConnection.connect(direct.replace("+psycopg", "")) as connection:
        assert await (await connection.execute(held)).fetchone() == (0,)
    await migrate.upgrade(direct)
