"""Both stores, each empty for each test."""

from collections.abc import AsyncGenerator, Generator

import pytest
import pytest_asyncio

from everstep.agent_domain.storage.execution_store import ExecutionStore
from everstep.store.engine import create_engine
from everstep.store.memory import MemoryStore
from everstep.store.postgres import PostgresStore
from everstep.streams.memory_bus import MemoryBus
from tests.databases import MIGRATED, Databases
from tests.engines import open_engine
from tests.everstep.store.store_words import TestClock


@pytest.fixture
def empty_database(databases: Databases) -> Generator[str]:
    """A database without tables."""
    url = databases.create()
    yield url
    databases.drop(url)


@pytest.fixture
def own_database(databases: Databases) -> Generator[str]:
    """A database with empty tables, for a test that changes the schema or settings."""
    url = databases.create(MIGRATED)
    yield url
    databases.drop(url)


@pytest.fixture(scope="session")
def shared_database(databases: Databases) -> str:
    """The database that most tests use in turn."""
    return databases.create(MIGRATED)


@pytest.fixture
def database(databases: Databases, shared_database: str) -> str:
    """The database that most tests share, emptied."""
    databases.empty(shared_database)
    return shared_database


@pytest_asyncio.fixture
async def postgres(database: str) -> AsyncGenerator[PostgresStore]:
    """The store in PostgreSQL."""
    async with open_engine(database) as engine:
        yield PostgresStore(engine)


@pytest.fixture
def clock() -> TestClock:
    """The clock of the store in memory."""
    return TestClock()


@pytest.fixture(params=["memory", "postgres"])
def database_or_none(request: pytest.FixtureRequest) -> str | None:
    """The URL of the store's database, or None for the store in memory."""
    return request.getfixturevalue("database") if request.param == "postgres" else None


@pytest.fixture
def bus() -> MemoryBus:
    """The bus to which the store publishes; it has no subscriber unless the test adds one."""
    return MemoryBus()


@pytest_asyncio.fixture
async def store(
    database_or_none: str | None, clock: TestClock, bus: MemoryBus
) -> AsyncGenerator[ExecutionStore]:
    """Each of the stores in turn."""
    if database_or_none is None:
        yield MemoryStore(clock, bus)
        return
    async with open_engine(database_or_none) as engine:
        yield PostgresStore(engine, bus)


@pytest_asyncio.fixture
async def own_store(own_database: str) -> AsyncGenerator[PostgresStore]:
    """A store whose tables a test may change."""
    engine = create_engine(own_database)
    yield PostgresStore(engine)
    await engine.dispose()
