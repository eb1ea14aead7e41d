"""A server that answers as a provider of models does."""

from collections.abc import AsyncIterator

import pytest

from tests.everstep.inference.counterparts import WireModelServer
from tests.everstep.inference.dialects import DIALECTS
from tests.everstep.inference.wire_server import WireServer, wire_server


@pytest.fixture
async def server() -> AsyncIterator[WireServer]:
    """Our own server, with scripted responses."""
    async with wire_server() as server:
        yield server


@pytest.fixture(params=DIALECTS)
async def wire(request: pytest.FixtureRequest, server: WireServer) -> AsyncIterator[WireModelServer]:
    """Our server, with the wire format of each provider."""
    counterpart = WireModelServer(DIALECTS[request.param], server)
    async with counterpart.stack:
        yield counterpart
