"""The plugin of pytest: `durable_agents`, which runs agents durably in a test, and `--everstep-record`.

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


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that accepts what recorded runs do now."""
    parser.getgroup("everstep").addoption(
        "--everstep-record",
        action="store_true",
        help="Write what exported runs do now into their files, instead of failing where they differ.",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Let replays write their files, if the option is given."""
    if config.getoption("--everstep-record"):
        from everstep.testing.replay import Recording  # noqa: PLC0415 -- only for tests that use it

        Recording.is_on = True


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
