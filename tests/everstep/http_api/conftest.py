"""The API on real servers, in a database that its tests share: each test has its own tenant."""

from collections.abc import AsyncGenerator

import pytest
import pytest_asyncio

from tests.everstep.http_api.house import ApiCaller, ApiSetup, MakeCaller, open_api_setup, open_callers
from tests.services import Servers, make_database
from tests.workflows.harness import connect_temporal


@pytest.fixture(scope="session")
def http_database(services: Servers) -> str:
    """A database with empty tables."""
    return make_database(services, "http_api")


@pytest_asyncio.fixture
async def api_setup(http_database: str, services: Servers) -> AsyncGenerator[ApiSetup]:
    """The API, without a worker."""
    async with open_api_setup(http_database, await connect_temporal(services)) as api_setup:
        yield api_setup


@pytest_asyncio.fixture
async def sign_in(api_setup: ApiSetup) -> AsyncGenerator[MakeCaller]:
    """Creates authenticated callers."""
    async with open_callers(api_setup) as sign_in:
        yield sign_in


@pytest_asyncio.fixture
async def ann(sign_in: MakeCaller) -> ApiCaller:
    """A caller without scopes."""
    return await sign_in("ann")


@pytest_asyncio.fixture
async def work(api_setup: ApiSetup) -> AsyncGenerator[None]:
    """A worker in this process."""
    async with api_setup.open_worker():
        yield
