"""A client of the test session's Temporal server, and second attempts that do not keep tests waiting."""

from collections.abc import Generator
from datetime import timedelta

import pytest
import pytest_asyncio
from temporalio.client import Client
from temporalio.common import RetryPolicy

from everstep.runtime.embedded import EmbeddedServices
from tests.workflows.harness import connected
from workflows.activity_options import CHILD, MODEL, QUICK_TOOL, SETTLE, TOOL


@pytest.fixture(scope="package", autouse=True)
def impatient() -> Generator[None]:
    """Between two attempts passes next to no time, unless a provider wants it to."""
    soon = RetryPolicy(initial_interval=timedelta(milliseconds=10), backoff_coefficient=1.0)
    with pytest.MonkeyPatch.context() as patch:
        for options in (MODEL, TOOL, QUICK_TOOL, CHILD, SETTLE):
            patch.setitem(options, "retry_policy", soon)
        yield


@pytest_asyncio.fixture
async def temporal(services: EmbeddedServices) -> Client:
    """Connected as our processes are."""
    return await connected(services)
