"""A client of the test session's Temporal server."""

import pytest_asyncio
from temporalio.client import Client

from everstep.runtime.embedded import EmbeddedServices
from tests.workflows.harness import connected


@pytest_asyncio.fixture
async def temporal(services: EmbeddedServices) -> Client:
    """Connected as our processes are."""
    return await connected(services)
