"""The plugin of pytest: `durable_agents`, which runs agents durably in a test.

It imports nothing of Everstep until a test uses it.
"""

import asyncio
from collections.abc import Callable, Generator
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from everstep.testing.durable import DurableAgents


@pytest.fixture(scope="session")
def everstep_server() -> Generator[Any]:
    """A Temporal server on which time can be skipped, for all tests of the session."""
    from everstep.testing.durable import open_server  # noqa: PLC0415 -- only for tests that use it

    with asyncio.Runner() as runner:
        opened = open_server()
        server = runner.run(opened.__aenter__())
        yield server
        runner.run(opened.__aexit__(None, None, None))


@pytest.fixture
def durable_agents(everstep_server: Any) -> "Callable[..., AbstractAsyncContextManager[DurableAgents]]":
    """Opens agents that run durably while the body of an `async with` runs.

    See `everstep.testing.open_agents` for the arguments, and `DurableAgents` for what to do with it.
    """
    from everstep.testing.durable import open_agents  # noqa: PLC0415 -- only for tests that use it

    return partial(open_agents, everstep_server)
