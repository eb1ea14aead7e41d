"""One installation for all tests that leave its servers alone."""

from collections.abc import AsyncGenerator

import psycopg
import pytest
import pytest_asyncio
from sqlalchemy import make_url

from everstep.runtime.embedded import EmbeddedServices
from tests.acceptance.harness import Installation, Nursery, installed


def pytest_configure(config: pytest.Config) -> None:
    """Name the marker of what takes too long for every day."""
    config.addinivalue_line("markers", "slow: takes too long for every day; run with -m slow")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave those out, unless they are asked for."""
    if "slow" in str(config.getoption("markexpr")):
        return
    left_out = [item for item in items if item.get_closest_marker("slow")]
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def nursery() -> AsyncGenerator[Nursery]:
    """Where processes come from."""
    async with Nursery.opened() as nursery:
        yield nursery


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def installation(services: EmbeddedServices, nursery: Nursery) -> AsyncGenerator[Installation]:
    """Everstep on the servers of all tests, in a database of its own."""
    with psycopg.connect(services.database_url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute("CREATE DATABASE acceptance")
    own = make_url(services.database_url).set(database="acceptance")
    async with installed(nursery, services, own.render_as_string(hide_password=False)) as installation:
        yield installation
