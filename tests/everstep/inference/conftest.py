"""The counterparts of the model drivers."""

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.everstep.inference import aimock as aimock_server
from tests.everstep.inference.aimock import Aimock
from tests.everstep.inference.counterparts import (
    COUNTERPARTS,
    AimockModelServer,
    ModelServer,
    ScriptedModelServer,
    WireModelServer,
)
from tests.everstep.inference.dialects import DIALECTS
from tests.everstep.inference.wire_server import wire_server


@pytest.fixture(scope="session")
def aimock() -> Iterator[Aimock]:
    """One server for all tests; each test begins with a reset."""
    with aimock_server.open_aimock() as server:
        yield server


@pytest.fixture(params=COUNTERPARTS)
async def counterpart(request: pytest.FixtureRequest) -> AsyncIterator[ModelServer]:
    """All servers that a model driver supports."""
    kind, _, driver = request.param.partition(" ")
    if kind == "scripted":
        made: ModelServer = ScriptedModelServer()
    elif kind == "aimock":
        made = AimockModelServer(DIALECTS[driver], request.getfixturevalue("aimock"))
    else:
        async with wire_server() as server:
            made = WireModelServer(DIALECTS[driver], server)
            async with made.stack:
                yield made
        return
    async with made.stack:
        yield made
