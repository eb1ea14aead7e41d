"""A command line with a worker, for all tests of the commands."""

from collections.abc import AsyncGenerator

import pytest_asyncio

from everstep.runtime.embedded import EmbeddedServices
from tests.acceptance.harness import Installation, Nursery, installed
from tests.everstep.cli.agents import hesitant
from tests.everstep.cli.desk import Desk, a_database


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def nursery() -> AsyncGenerator[Nursery]:
    """The directory of processes."""
    async with Nursery.opened() as nursery:
        yield nursery


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def installation(services: EmbeddedServices, nursery: Nursery) -> AsyncGenerator[Installation]:
    """Everstep on the servers of all tests, in its own database."""
    async with installed(nursery, services, await a_database(services, "cli")) as installation:
        yield installation


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def desk(installation: Installation) -> AsyncGenerator[Desk]:
    """With a worker."""
    desk = Desk(installation, "cli")
    async with desk.at_work():
        yield desk


@pytest_asyncio.fixture(loop_scope="session")
async def hesitant_model_waits() -> AsyncGenerator[None]:
    """Resets the hesitant agent."""
    hesitant.go_on.clear()
    yield
    hesitant.go_on.set()
