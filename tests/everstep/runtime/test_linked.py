"""Long-running processes connect to the gateways; short commands do not."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import pytest

from everstep.runtime.installation import Installation, open_installation, upgrade
from everstep.runtime.settings import Settings
from everstep.store.gateways import PostgresGateways
from tests.everstep.cli.desk import a_database
from tests.everstep.streams.test_publisher import SECRET, FakeGateway, wait_until
from tests.services import Servers

pytestmark = pytest.mark.asyncio(loop_scope="session")


@asynccontextmanager
async def open_announced_gateway(installation: Installation) -> AsyncGenerator[FakeGateway]:
    """A gateway that has announced its address."""
    gateway = FakeGateway()
    await gateway.listen()
    try:
        await PostgresGateways(installation.store.engine).announce(gateway.id, gateway.url)
        yield gateway
    finally:
        await gateway.stop()


async def test_a_long_running_process_is_connected(services: Servers, tmp_path: Path) -> None:
    """A process that has the secret; without it, and in a short command, viewers read the table."""
    settings = Settings(
        database_url=await a_database(services, "linked"),
        temporal_address=services.temporal_address,
        data_dir=tmp_path,
        broadcast_secret=SECRET,
    )
    await upgrade(settings)
    stream_id, nobody = uuid4(), settings.model_copy(update={"broadcast_secret": None})
    async with open_installation(settings) as looks_in, open_announced_gateway(looks_in) as gateway:
        gateway.wanted[stream_id] = None
        async with (
            open_installation(nobody, is_linked=True) as alone,
            open_installation(settings, is_linked=True) as stays,
        ):
            await wait_until(lambda: stays.bus.has_subscribers(stream_id))
            assert not looks_in.bus.has_subscribers(stream_id)
            assert not alone.bus.has_subscribers(stream_id)
        await wait_until(lambda: gateway.connections[0].close_code is not None)
        assert len(gateway.connections) == 1
