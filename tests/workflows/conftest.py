"""A client of the test session's Temporal server, and retries without long waits.

Executions are kept in memory, and one test in twelve runs on PostgreSQL as well: an error in a statement
shows only on PostgreSQL. `EVERSTEP_TEST_STORE=postgres` runs all of them there, `EVERSTEP_TEST_STORE=memory`
none.
"""

import os
from collections.abc import AsyncGenerator, Generator
from datetime import timedelta
from zlib import crc32

import pytest
import pytest_asyncio
from temporalio.client import Client
from temporalio.common import RetryPolicy

from everstep.workflows.activity_options import CHILD, MODEL, QUICK_TOOL, SETTLE, TOOL
from tests.services import Servers
from tests.workflows.harness import STORAGE, Storage, connect_temporal


@pytest.fixture(scope="package", autouse=True)
def fast_retries() -> Generator[None]:
    """Retry almost at once, unless a provider asks for a wait."""
    soon = RetryPolicy(initial_interval=timedelta(milliseconds=10), backoff_coefficient=1.0)
    with pytest.MonkeyPatch.context() as patch:
        for options in (MODEL, TOOL, QUICK_TOOL, CHILD, SETTLE):
            patch.setitem(options, "retry_policy", soon)
        yield


MEMORY, POSTGRES = "memory", "postgres"
ONE_IN = 12
"""One in this many tests runs on PostgreSQL as well, the same ones in each run."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Choose the stores of a test."""
    if "storage" not in metafunc.fixturenames:
        return
    wanted = os.environ.get("EVERSTEP_TEST_STORE")
    is_drawn = not crc32(metafunc.function.__qualname__.encode()) % ONE_IN
    places = [wanted] if wanted else [MEMORY, POSTGRES] if is_drawn else []
    if places:
        metafunc.parametrize("storage", places, indirect=True)


@pytest.fixture
def storage(request: pytest.FixtureRequest) -> Generator[Storage]:
    """The stores of the test, chosen by its parameter."""
    if getattr(request, "param", MEMORY) == POSTGRES:
        STORAGE.databases = request.getfixturevalue("databases")
    yield STORAGE
    STORAGE.databases = None


@pytest_asyncio.fixture
async def temporal(storage: Storage, services: Servers) -> AsyncGenerator[Client]:
    """A client with the settings of our processes."""
    yield await connect_temporal(services)
    await storage.close()
