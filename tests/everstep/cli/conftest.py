"""A command line with a worker, for all tests of the commands."""

import os
from collections.abc import AsyncGenerator, Generator
from pathlib import Path
from uuid import uuid4

import pytest
import pytest_asyncio

from tests.acceptance.harness import Installation, Nursery, open_installation
from tests.everstep.cli.agents import hesitant
from tests.everstep.cli.desk import CommandLine, a_database
from tests.services import Servers


@pytest.fixture(autouse=True)
def environment_as_before() -> Generator[None]:
    """Restores the variables: of two commands at once, the second restores those of the first."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def nursery(programs: Path) -> AsyncGenerator[Nursery]:
    """The source of processes."""
    async with Nursery.open(programs) as nursery:
        yield nursery


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def installation(services: Servers, nursery: Nursery) -> AsyncGenerator[Installation]:
    """Everstep on the servers of all tests, in its own database."""
    async with open_installation(nursery, services, await a_database(services, "cli")) as installation:
        yield installation


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def desk(installation: Installation) -> AsyncGenerator[CommandLine]:
    """With a worker."""
    # The processes of a parallel run share a Temporal server, and each has such a worker.
    desk = CommandLine(installation, f"cli-{uuid4().hex}")
    async with desk.open_worker():
        yield desk


@pytest_asyncio.fixture(loop_scope="session")
async def hesitant_model_waits() -> AsyncGenerator[None]:
    """Resets the hesitant agent."""
    hesitant.go_on.clear()
    yield
    hesitant.go_on.set()
