"""Readiness checks."""

from collections.abc import Generator, Sequence

import pytest
import pytest_asyncio
from sqlalchemy import make_url
from temporalio.client import Client

from everstep.http_api.dependencies import Check
from everstep.runtime import readiness
from everstep.runtime.readiness import Readiness
from everstep.store.engine import create_engine
from everstep.store.errors import SchemaTooNew
from everstep.store.migrate import upgrade
from tests.databases import Databases
from tests.engines import open_engine
from tests.services import Servers
from tests.workflows.harness import an_agent, at_work, connect_temporal, eventually


@pytest.fixture
def empty(databases: Databases) -> Generator[str]:
    """A database without tables."""
    url = databases.create()
    yield url
    databases.drop(url)


@pytest_asyncio.fixture
async def temporal(services: Servers) -> Client:
    """A client with the settings of our processes."""
    return await connect_temporal(services)


def names_of_missing(checks: Sequence[Check]) -> list[str]:
    """The missing parts."""
    return [check.name for check in checks if not check.is_good]


async def missing_at_start(database: str, temporal: Client, task_queue: str = "idle") -> list[str]:
    """The missing parts, as a starting process finds them."""
    async with open_engine(database) as engine:
        return names_of_missing(await Readiness(engine, temporal, task_queue)())


async def test_all_requirements_are_checked(empty: str, temporal: Client) -> None:
    assert await missing_at_start(empty, temporal) == ["tables", "worker"]

    await upgrade(empty)
    async with at_work(temporal, an_agent("Hello")) as office:
        queue = office.settings.task_queue

        async def is_ready() -> bool:
            return await missing_at_start(empty, temporal, queue) == []

        await eventually(is_ready)


async def test_tables_of_a_newer_release_are_good(
    empty: str, temporal: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """18.5.5: while a release is rolled out, load balancers keep the processes of the release before."""

    async def pending(_database: object) -> list[str]:
        raise SchemaTooNew("from_the_future")

    monkeypatch.setattr(readiness, "pending", pending)

    assert await missing_at_start(empty, temporal) == ["worker"]


async def test_unreachable_servers_are_named(empty: str, temporal: Client) -> None:
    nowhere = "postgresql+psycopg://postgres:hush@127.0.0.1:9/x"
    async with open_engine(nowhere) as engine:
        checks = await Readiness(engine, temporal, "idle")()

    assert "database" in names_of_missing(checks)
    # The endpoint is public.
    assert not any("hush" in check.detail or "127.0.0.1" in check.detail for check in checks)
    away = await Client.connect("127.0.0.1:9", lazy=True)
    assert await missing_at_start(empty, away) == ["tables", "temporal"]


async def test_the_pool_is_checked_and_a_further_connection_only_while_all_are_in_use(
    empty: str, databases: Databases, temporal: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """13.4.4: a server that accepts no further connection does not end the work of the pool."""
    monkeypatch.setattr(readiness, "FRESH", 0.0)
    name = make_url(empty).database
    engine = create_engine(empty, pool_size=1, max_overflow=0)
    try:
        ready = Readiness(engine, temporal, "idle")
        async with engine.connect():
            assert names_of_missing(await ready()) == ["tables", "worker"]
        databases.run(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        assert names_of_missing(await ready()) == ["tables", "worker"]
        async with engine.connect():
            assert names_of_missing(await ready()) == ["database", "worker"]
    finally:
        await engine.dispose()


async def test_concurrent_checks_share_one_result(
    empty: str, temporal: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0

    async def pending(_database: object) -> list[str]:
        nonlocal looks
        looks += 1
        return []

    monkeypatch.setattr(readiness, "pending", pending)
    monkeypatch.setattr(readiness, "FRESH", 60.0)
    async with open_engine(empty) as engine:
        ready = Readiness(engine, temporal, "idle")
        for _ in range(5):
            await ready()

    assert looks == 1
