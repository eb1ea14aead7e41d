"""A client of the test session's Temporal server, and a database for sessions."""

from collections.abc import AsyncGenerator

import pytest
import pytest_asyncio
from temporalio.client import Client

from everstep.store.sessions import PostgresSessions
from tests.engines import open_engine
from tests.services import Servers, make_database
from tests.workflows.harness import connect_temporal


@pytest_asyncio.fixture
async def temporal(services: Servers) -> Client:
    """A client with the settings of our processes."""
    return await connect_temporal(services)


@pytest.fixture(scope="session")
def conversations(services: Servers) -> str:
    """The URL of a database that all tests share, each with its own tenants."""
    return make_database(services, "conversations")


@pytest_asyncio.fixture
async def store(conversations: str) -> AsyncGenerator[PostgresSessions]:
    """A store with sessions."""
    async with open_engine(conversations) as engine:
        yield PostgresSessions(engine)
