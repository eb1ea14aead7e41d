"""The API on real servers, in a database that its tests share: each test has its own tenant."""

from collections.abc import AsyncGenerator

import psycopg
import pytest_asyncio
from sqlalchemy import make_url

from everstep.runtime.embedded import EmbeddedServices
from everstep.store.migrate import upgrade
from tests.everstep.http_api.house import House, Let, Person, a_house, door_of
from tests.workflows.harness import connected


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def http_database(services: EmbeddedServices) -> str:
    """A database with empty tables."""
    with psycopg.connect(services.database_url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute("CREATE DATABASE http_api")
    url = make_url(services.database_url).set(database="http_api").render_as_string(hide_password=False)
    await upgrade(url)
    return url


@pytest_asyncio.fixture
async def api_setup(http_database: str, services: EmbeddedServices) -> AsyncGenerator[House]:
    """The API, without a worker."""
    async with a_house(http_database, await connected(services)) as api_setup:
        yield api_setup


@pytest_asyncio.fixture
async def sign_in(api_setup: House) -> AsyncGenerator[Let]:
    """Creates authenticated callers."""
    async with door_of(api_setup) as sign_in:
        yield sign_in


@pytest_asyncio.fixture
async def ann(sign_in: Let) -> Person:
    """A caller without scopes."""
    return await sign_in("ann")


@pytest_asyncio.fixture
async def work(api_setup: House) -> AsyncGenerator[None]:
    """A worker in this process."""
    async with api_setup.at_work():
        yield
