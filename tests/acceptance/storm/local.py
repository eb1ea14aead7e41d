"""A storm on this machine: two processes of each kind, and links to the servers that can be cut."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from sqlalchemy import make_url

from everstep.agent_domain.ids import DEFAULT_TENANT
from everstep.runtime.embedded import open_services
from tests.acceptance.chaos import Role
from tests.acceptance.front import a_free_port
from tests.acceptance.harness import Nursery, environment, open_installation
from tests.acceptance.storm.relays import Relay, Streams
from tests.acceptance.storm.scene import Force, Person, Scene
from tests.acceptance.storm.weather import LocalWeather, Weather
from tests.acceptance.ways import HOST
from tests.services import careless, data_directory


def add_roles(
    scene: Scene,
    nursery: Nursery,
    database_url: str,
    temporal_address: str,
    variables: Mapping[str, str] | None = None,
) -> None:
    """Two APIs, gateways and workers, for these servers and with these settings."""
    servers = {"DATABASE_URL": database_url, "TEMPORAL_ADDRESS": temporal_address}
    given = {**environment(), **servers, **scene.variables, **(variables or {})}

    def add(name: str, *arguments: str, says: str) -> None:
        role = Role(name, arguments, says, given, scene, nursery)
        scene.roles.append(role)

    for number in range(2):
        api, gateway = a_free_port(), a_free_port()
        scene.apis.append((HOST, api))
        scene.gateways.append((HOST, gateway))
        add(f"api-{number}", "api", "--port", str(api), says="answering at")
        add(f"gateway-{number}", "gateway", "--port", str(gateway), says="viewers watch at")
        add(f"worker-{number}", "worker", says="working on")


@asynccontextmanager
async def open_scene(
    measure: Force, seed: str, nursery: Nursery, folder: Path
) -> AsyncGenerator[tuple[Scene, Weather]]:
    """Start servers, links and processes, and draw the faults."""
    async with AsyncExitStack() as stack:
        data = stack.enter_context(data_directory())
        services = await stack.enter_async_context(open_services(careless(data)))
        installation = await stack.enter_async_context(
            open_installation(nursery, services, services.database_url)
        )
        url = make_url(services.database_url)

        async def to_postgres() -> Streams:
            socket = Path(str(url.query["host"])) / f".s.PGSQL.{url.query['port']}"
            return await asyncio.open_unix_connection(socket)

        async def to_temporal() -> Streams:
            host, _, port = services.temporal_address.rpartition(":")
            return await asyncio.open_connection(host, int(port))

        database = await stack.enter_async_context(Relay.open("the link to PostgreSQL", to_postgres))
        temporal = await stack.enter_async_context(Relay.open("the link to Temporal", to_temporal))
        people = [await Person.create(installation.store, DEFAULT_TENANT, "ann")]
        scene = Scene(measure, seed, installation.store, folder, people)
        relayed = url.set(host=HOST, port=database.port, query={}).render_as_string(hide_password=False)
        add_roles(scene, nursery, relayed, f"{HOST}:{temporal.port}")
        await stack.enter_async_context(scene.running())
        yield scene, LocalWeather(scene, scene.dice("weather"), services, database, temporal)
