"""The bus that the settings choose: direct connections to gateways, or NATS."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from sqlalchemy.ext.asyncio import AsyncEngine

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.stream.bus import NULL_BUS, EnvelopeBus
from everstep.runtime.settings import Settings
from everstep.runtime.worker import build_frame_loss
from everstep.store.gateways import PostgresGateways

if TYPE_CHECKING:
    from everstep.streams.nats_connection import NatsServers


def nats_servers(settings: Settings) -> "NatsServers | None":
    """Return the servers of NATS; None for direct connections.

    Raises:
        InvalidInput: The settings for NATS cannot be used.
    """
    if settings.bus == "direct":
        return None
    try:
        from everstep.streams.nats_connection import NatsServers  # noqa: PLC0415 -- needs the extra
    except ModuleNotFoundError:
        raise InvalidInput(
            "EVERSTEP_BUS is nats, and its client is missing; install it with: pip install 'everstep[nats]'"
        ) from None
    url = settings.require("nats_url", "EVERSTEP_BUS is nats; set EVERSTEP_NATS_URL=nats://host:4222")
    return NatsServers.of(url, settings.nats_credentials)


@asynccontextmanager
async def open_bus(settings: Settings, engine: AsyncEngine) -> AsyncGenerator[EnvelopeBus]:
    """Yield a bus to all gateways, if there is a secret for it.

    Raises:
        InvalidInput: The settings for NATS cannot be used.
    """
    servers = nats_servers(settings)
    if settings.gateway_secret is None:
        yield NULL_BUS
        return
    gateways, loses = PostgresGateways(engine), build_frame_loss(settings.failpoint)
    if servers:
        from everstep.streams.nats_publisher import NatsBus  # noqa: PLC0415 -- needs the extra

        bus = NatsBus(servers, gateways, settings.gateway_secret, loses=loses)
    else:
        from everstep.streams.publisher import DirectBus  # noqa: PLC0415 -- read-only commands need no sockets

        bus = DirectBus(gateways, settings.gateway_secret, loses=loses)
    bus.start()
    try:
        yield bus
    finally:
        await bus.aclose()


async def probe_nats(settings: Settings) -> str:
    """Connect to NATS once; return its address.

    Raises:
        EverstepError: NATS cannot be used; the message says why.
    """
    servers = nats_servers(settings)
    if servers is None:
        raise InvalidInput("the bus is not NATS")
    from everstep.streams.nats_connection import connect  # noqa: PLC0415 -- needs the extra

    client = await connect(servers, "everstep doctor")
    await client.close()
    return str(servers)
