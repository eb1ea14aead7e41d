"""One installation for all tests that leave its servers alone."""

from collections.abc import AsyncGenerator

import psycopg
import pytest_asyncio
from sqlalchemy import make_url

from everstep.runtime.embedded import EmbeddedServices
from tests.acceptance.harness import Installation, Nursery, installed


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def nursery() -> AsyncGenerator[Nursery]:
    """Where processes come from."""
    async with Nursery.opened() as nursery:
        yield nursery


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def installation(services: EmbeddedServices, nursery: Nursery) -> AsyncGenerator[Installation]:
    """Everstep on the servers of all tests, in a database of its own."""
    url = make_url(services.database_url)
    with psycopg.connect(services.database_url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute("CREATE DATABASE acceptance")
    own = url.set(database="acceptance").render_as_string(hide_password=False)
    async with installed(nursery, services, own) as installation:
        yield installation
