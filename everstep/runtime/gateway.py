"""The process of the gateway, and its links to publishers."""

import asyncio
import logging
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from time import monotonic
from uuid import UUID, uuid4

from sqlalchemy.ext.asyncio import AsyncEngine

from everstep.agent_domain.background import keep_running
from everstep.agent_domain.errors import InvalidInput, StoreUnavailable
from everstep.agent_domain.stream.gateways import ANNOUNCE_SECONDS, GatewayDirectory
from everstep.broadcast_gateway.hub import HUB_TIMINGS, Hub, HubTimings
from everstep.broadcast_gateway.limits import GatewayLimits
from everstep.broadcast_gateway.links import WriterLinks
from everstep.broadcast_gateway.metrics import GatewayMetrics
from everstep.broadcast_gateway.protocols import GatewayContext
from everstep.broadcast_gateway.server import GatewayServer
from everstep.broadcast_gateway.sse import Feeds
from everstep.http_api.channel_authorization import Signer
from everstep.runtime.authorization import build_gateway_access, channel_signer
from everstep.runtime.bus_choice import nats_servers
from everstep.runtime.data_folder import data_folder
from everstep.runtime.embedded import write_private
from everstep.runtime.installation import HOW_TO_START, Installation
from everstep.runtime.journal import PostgresJournal
from everstep.runtime.public_hosts import EVERYWHERE, allowed_hosts
from everstep.runtime.serving import bind_socket, format_address
from everstep.runtime.settings import Settings
from everstep.runtime.viewing import GATEWAY_URL, console_ports
from everstep.runtime.waiting import Port
from everstep.store.engine import create_engine
from everstep.store.gateways import PostgresGateways
from everstep.telemetry import exposition
from everstep.telemetry.event_loop import measured_event_loop
from everstep.telemetry.metrics import GATEWAY_VIEWERS

logger = logging.getLogger(__name__)

NO_SECRET = "set EVERSTEP_AUTH_SECRET or EVERSTEP_BROADCAST_SECRET, the same for every process"  # noqa: S105


@asynccontextmanager
async def open_gateway_process(settings: Settings, listener: socket.socket) -> AsyncGenerator[str]:
    """Run a gateway as a process of its own within the block; yield the URL."""
    engine = create_engine(
        settings.require("database_url", HOW_TO_START),
        application_name="everstep gateway",
        pool_size=settings.database_connections,
        max_overflow=0,
        preparing=settings.database_prepared,
    )
    try:
        async with measured_event_loop(), open_gateway(settings, engine, listener=listener) as url:
            yield url
    finally:
        await engine.dispose()


@asynccontextmanager
async def open_local_gateway(installation: Installation) -> AsyncGenerator[str]:
    """Run a gateway on the configured or a free port, and store its URL for other processes."""
    settings = installation.settings
    url_file = data_folder(settings) / GATEWAY_URL
    async with open_gateway(settings, installation.store.engine, or_any_port=True) as url:
        write_private(url_file, url + "\n")
        try:
            yield url
        finally:
            url_file.unlink(missing_ok=True)


@asynccontextmanager
async def open_gateway(
    settings: Settings,
    engine: AsyncEngine,
    *,
    or_any_port: bool = False,
    listener: socket.socket | None = None,
) -> AsyncGenerator[str]:
    """Run a gateway within the block, on the given listener if any; yield the URL for subscribers."""
    signs = _signer(settings)
    metrics = GatewayMetrics()
    hub = Hub(PostgresJournal(engine), metrics)
    bounds = GatewayLimits(
        per_address=settings.gateway_connections_per_address,
        handshakes=settings.gateway_handshakes_per_second,
        drain_seconds=settings.gateway_drain_seconds,
    )
    house = GatewayContext(
        hub, build_gateway_access(settings, engine), metrics, bounds, {signs.key: signs.secret}
    )
    host = settings.gateway_host
    gateway = GatewayServer(
        house,
        settings.allowed_origins,
        allowed_hosts(settings, host, "EVERSTEP_GATEWAY"),
        partial(console_ports, settings) if settings.auth == "off" else None,
    )
    with listener or _bind_gateway(settings, or_any=or_any_port) as front:
        writers = open_publisher_links(settings, engine, hub, metrics, signs.secret)
        viewers = GATEWAY_VIEWERS.source(lambda: {(): gateway.viewer_count})
        async with writers, gateway.open_server(front):
            with viewers, exposition.publish_registry(metrics.registry):
                yield f"ws://{format_address(host, front.getsockname()[1])}"


def gateway_port(settings: Settings) -> Port:
    """Return the port of the gateway, for a process that waits before it serves."""
    _signer(settings)
    hosts = allowed_hosts(settings, settings.gateway_host, "EVERSTEP_GATEWAY")
    return Port(_bind_gateway(settings), hosts)


def _bind_gateway(settings: Settings, *, or_any: bool = False) -> socket.socket:
    return bind_socket(
        settings.gateway_host,
        settings.gateway_port,
        or_any=or_any,
        what="EVERSTEP_GATEWAY",
        is_shared=settings.gateway_port_is_shared,
    )


def _signer(settings: Settings) -> Signer:
    signs = channel_signer(settings)
    if signs is None:
        raise InvalidInput(
            f"no secret is set that publishers and subscribers could be authenticated with: {NO_SECRET}"
        )
    return signs


@asynccontextmanager
async def open_feeds(
    settings: Settings, engine: AsyncEngine, timings: HubTimings = HUB_TIMINGS
) -> AsyncGenerator[Feeds | None]:
    """Yield feeds of streams, or None if no secret for publishers is set."""
    signs = channel_signer(settings)
    if signs is None:
        yield None
        return
    metrics = GatewayMetrics()
    hub = Hub(PostgresJournal(engine), metrics, timings=timings)
    # A gateway on the same machine may have configured the link port.
    settings = settings.model_copy(update={"gateway_link_port": 0})
    async with open_publisher_links(settings, engine, hub, metrics, signs.secret):
        comparing = asyncio.create_task(
            keep_running(
                "the comparison with the table", hub.run, sleep=asyncio.sleep, clock=monotonic, log=logger
            )
        )
        try:
            feeds = Feeds(hub)
            with GATEWAY_VIEWERS.source(lambda: {(): feeds.viewer_count}):
                yield feeds
        finally:
            comparing.cancel()
            await asyncio.gather(comparing, return_exceptions=True)


@asynccontextmanager
async def open_publisher_links(
    settings: Settings, engine: AsyncEngine, hub: Hub, metrics: GatewayMetrics, secret: str
) -> AsyncGenerator[None]:
    """Take the frames of publishers within the block, over the bus that the settings choose."""
    if servers := nats_servers(settings):
        from everstep.streams.nats_publisher import announced_url  # noqa: PLC0415 -- needs the extra
        from everstep.streams.nats_subscriber import NatsSubscriber  # noqa: PLC0415 -- needs the extra

        subscriber = NatsSubscriber(hub, servers, secret)
        async with subscriber.open(), _announcement(engine, announced_url(secret)):
            yield
        return
    host = settings.gateway_host
    links = WriterLinks(hub, metrics, secret)
    with bind_socket(host, settings.gateway_link_port, what="EVERSTEP_GATEWAY_LINK") as back:
        reached = settings.gateway_link_host or (socket.gethostname() if host in EVERYWHERE else host)
        url = f"ws://{format_address(reached, back.getsockname()[1])}"
        async with links.open_server(back), _announcement(engine, url):
            yield


@asynccontextmanager
async def _announcement(engine: AsyncEngine, url: str) -> AsyncGenerator[None]:
    """Announce a gateway to publishers within the block."""
    gateways, own = PostgresGateways(engine), uuid4()
    # Announce it now, so that an unreachable database fails the start.
    await gateways.announce(own, url)
    announcing = asyncio.create_task(
        keep_running(
            "the announcement of the gateway",
            partial(_announce, gateways, own, url),
            sleep=asyncio.sleep,
            clock=monotonic,
            log=logger,
        )
    )
    try:
        yield
    finally:
        announcing.cancel()
        await asyncio.gather(announcing, return_exceptions=True)
        await _withdraw(gateways, own)


async def _announce(gateways: GatewayDirectory, own: UUID, url: str) -> None:
    while True:
        await asyncio.sleep(ANNOUNCE_SECONDS)
        try:
            await gateways.announce(own, url)
        except StoreUnavailable as error:
            logger.warning("cannot announce this gateway to publishers: %s", error)


async def _withdraw(gateways: GatewayDirectory, own: UUID) -> None:
    try:
        await gateways.withdraw(own)
    except StoreUnavailable as error:
        logger.warning("cannot withdraw this gateway's announcement: %s", error)
