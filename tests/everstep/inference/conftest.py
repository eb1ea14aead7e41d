"""The counterparts of the model drivers."""

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.everstep.inference import aimock as aimock_server
from tests.everstep.inference.aimock import Aimock
from tests.everstep.inference.counterparts import (
    COUNTERPARTS,
    AimockCounterpart,
    Counterpart,
    ScriptedCounterpart,
    WireCounterpart,
)
from tests.everstep.inference.dialects import DIALECTS
from tests.everstep.inference.wire_server import WireServer, wire_server


@pytest.fixture(scope="session")
def aimock() -> Iterator[Aimock]:
    """One server for all tests; each test begins with a reset."""
    with aimock_server.running() as server:
        yield server


@pytest.fixture
async def server() -> AsyncIterator[WireServer]:
    """Our own server, with scripted responses."""
    async with wire_server() as server:
        yield server


@pytest.fixture(params=DIALECTS)
async def wire(request: pytest.FixtureRequest, server: WireServer) -> AsyncIterator[WireCounterpart]:
    """Our server, with the wire format of each provider."""
    counterpart = WireCounterpart(DIALECTS[request.param], server)
    async with counterpart.stack:
        yield counterpart


@pytest.fixture(params=COUNTERPARTS)
async def counterpart(request: pytest.FixtureRequest) -> AsyncIterator[Counterpart]:
    """All servers that a model driver supports."""
    kind, _, driver = request.param.partition(" ")
    if kind == "scripted":
        made: Counterpart = ScriptedCounterpart()
    elif kind == "aimock":
        made = AimockCounterpart(DIALECTS[driver], request.getfixturevalue("aimock"))
    else:
        async with wire_server() as server:
            made = WireCounterpart(DIALECTS[driver], server)
            async with made.stack:
                yield made
        return
    async with made.stack:
        yield made
