"""A gateway that follows a script, and a viewer."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest_asyncio

from tests.browsers.scripted_gateway import ScriptedGateway, scripted_gateway
from tests.browsers.viewer import Viewer, viewer


@pytest_asyncio.fixture
async def gateway() -> AsyncGenerator[ScriptedGateway]:
    """A gateway that follows the test's script."""
    async with scripted_gateway() as gateway:
        yield gateway


@pytest_asyncio.fixture
async def ann(gateway: ScriptedGateway, tmp_path: Path) -> AsyncGenerator[Viewer]:
    """A viewer with our client in node."""
    async with viewer(gateway.url, tmp_path) as ann:
        yield ann
