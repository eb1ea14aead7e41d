"""A client of the test session's Temporal server, and a database for sessions."""

from collections.abc import AsyncGenerator

import psycopg
import pytest_asyncio
from sqlalchemy import make_url
from temporalio.client import Client

from everstep.runtime.embedded import EmbeddedServices
from everstep.store.engine import create_engine
from everstep.store.migrate import upgrade
from everstep.store.sessions import PostgresSessions
from tests.workflows.harness import connect_temporal

DATABASE = "conversations"


@pytest_asyncio.fixture
async def temporal(services: EmbeddedServices) -> Client:
    """A client with the settings of our processes."""
    return await connect_temporal(services)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def conversations(services: EmbeddedServices) -> str:
    """The URL of a database that all tests share, each with its own tenants."""
    url = services.database_url
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {DATABASE}")
    own = make_url(url).set(database=DATABASE).render_as_string(hide_password=False)
    await upgrade(own)
    return own


@pytest_asyncio.fixture
async def store(conversations: str) -> AsyncGenerator[PostgresSessions]:
    """A store with sessions."""
    engine = create_engine(conversations)
    yield PostgresSessions(engine)
    await engine.dispose()
