"""Long-running processes connect to the gateways; short commands do not."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import pytest

from everstep.runtime.embedded import EmbeddedServices
from everstep.runtime.installation import Installation, opened, upgrade
from everstep.runtime.settings import Settings
from everstep.store.gateways import PostgresGateways
from tests.everstep.cli.desk import a_database
from tests.everstep.streams.test_publisher import SECRET, Gateway, until

pytestmark = pytest.mark.asyncio(loop_scope="session")


@asynccontextmanager
async def listened_to(installation: Installation) -> AsyncGenerator[Gateway]:
    """A gateway that has announced its address."""
    gateway = Gateway()
    await gateway.listen()
    try:
        await PostgresGateways(installation.store.engine).announce(gateway.id, gateway.url)
        yield gateway
    finally:
        await gateway.stop()


async def test_a_long_running_process_is_connected(services: EmbeddedServices, tmp_path: Path) -> None:
    """A process that has the secret; without it, and in a short command, viewers read the table."""
    settings = Settings(
        database_url=await a_database(services, "linked"),
        temporal_address=services.temporal_address,
        data_dir=tmp_path,
        broadcast_secret=SECRET,
    )
    await upgrade(settings)
    stream_id, nobody = uuid4(), settings.model_copy(update={"broadcast_secret": None})
    async with opened(settings) as looks_in, listened_to(looks_in) as gateway:
        gateway.wanted[stream_id] = None
        async with opened(nobody, is_linked=True) as alone, opened(settings, is_linked=True) as stays:
            await until(lambda: stays.bus.wants(stream_id))
            assert not looks_in.bus.wants(stream_id)
            assert not alone.bus.wants(stream_id)
        await until(lambda: gateway.connections[0].close_code is not None)
        assert len(gateway.connections) == 1
