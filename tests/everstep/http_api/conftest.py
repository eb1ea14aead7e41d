"""The API on real servers, in a database that its tests share: each test has its own tenant."""

from collections.abc import AsyncGenerator

import psycopg
import pytest_asyncio
from sqlalchemy import make_url

from everstep.runtime.embedded import EmbeddedServices
from everstep.store.migrate import upgrade
from tests.everstep.http_api.house import ApiCaller, ApiSetup, MakeCaller, open_api_setup, open_callers
from tests.workflows.harness import connect_temporal


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def http_database(services: EmbeddedServices) -> str:
    """A database with empty tables."""
    with psycopg.connect(services.database_url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute("CREATE DATABASE http_api")
    url = make_url(services.database_url).set(database="http_api").render_as_string(hide_password=False)
    await upgrade(url)
    return url


@pytest_asyncio.fixture
async def api_setup(http_database: str, services: EmbeddedServices) -> AsyncGenerator[ApiSetup]:
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
