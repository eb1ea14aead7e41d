"""One installation for all tests that do not stop its servers."""

from collections.abc import AsyncGenerator
from pathlib import Path
from uuid import uuid4

import pytest_asyncio

from everstep.http_api.api_keys import create_key
from everstep.store.keys import PostgresKeys
from tests.acceptance.front import Front
from tests.acceptance.harness import Installation, Nursery, open_installation
from tests.services import Servers, make_database


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def nursery(programs: Path) -> AsyncGenerator[Nursery]:
    """The source of processes."""
    async with Nursery.open(programs) as nursery:
        yield nursery


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def installation(services: Servers, nursery: Nursery) -> AsyncGenerator[Installation]:
    """An installation on the session's servers, in its own database."""
    own = make_database(services, "acceptance")
    async with open_installation(nursery, services, own) as installation:
        yield installation


@pytest_asyncio.fixture(loop_scope="session")
async def front(installation: Installation, tmp_path: Path) -> AsyncGenerator[Front]:
    """An API with a worker and a key."""
    keys = PostgresKeys(installation.store.engine)
    made = await create_key(
        keys, "people", tenant_id=f"front-{uuid4().hex}", user_id="ann", scopes=["approve"]
    )
    front = Front(installation, tmp_path, made.secret, f"front-{uuid4().hex}")
    await front.process("worker", says="working on")
    yield front
    for process in front.begun:
        await process.kill()
