"""The servers and the processes of a fleet, each on its host."""

import json
import secrets
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from everstep.runtime.embedded.temporal_server import DYNAMIC_CONFIG, temporal_executable
from tests.acceptance.chaos import Role
from tests.acceptance.harness import environment
from tests.acceptance.storm.scene import Scene
from tests.fleet.network import RANGE, Host, Network
from tests.servers.build import TemporalPrograms, find_built
from tests.servers.pgbouncer import add_pgbouncer, pooled_url
from tests.servers.postgres import Postgres
from tests.servers.programs import EverstepStarter, Here, Server, accepts
from tests.servers.temporal import ROLES, TemporalCluster

API_PORT: Final = 8080
GATEWAY_PORT: Final = 6001
POSTGRES_PORT: Final = 5432
PGBOUNCER_PORT: Final = 6432
TEMPORAL_PORT: Final = 7233
NATS_PORT: Final = 4222
WORKERS, APIS, GATEWAYS = 3, 2, 2

DATABASE: Final = "everstep"
DATABASE_SETTINGS: Final = {"max_connections": "300"}


@dataclass
class Fleet:
    """Hosts, the servers on them, and the addresses of the servers."""

    network: Network
    postgres: Postgres
    temporal_address: str = ""
    """The address for Temporal's clients."""
    servers: dict[str, Server] = field(default_factory=dict[str, Server])
    bus: dict[str, str] = field(default_factory=dict[str, str])
    """The settings of the way from workers and APIs to gateways."""

    @property
    def direct_url(self) -> str:
        """The URL of Everstep's database, without a pooler in between."""
        return self.postgres.url(DATABASE)

    @property
    def variables(self) -> Mapping[str, str]:
        """The settings by which processes find the servers."""
        (pooler,) = self.hosts_of("pgbouncer")
        return {
            "DATABASE_URL": pooled_url(self.postgres, pooler.address, PGBOUNCER_PORT, DATABASE),
            "DATABASE_DIRECT_URL": self.direct_url,
            "TEMPORAL_ADDRESS": self.temporal_address,
            **self.bus,
        }

    def hosts_of(self, kind: str) -> list[Host]:
        """The hosts of this kind."""
        return [host for name, host in self.network.hosts.items() if name.rstrip("0123456789") == kind]


@asynccontextmanager
async def open_fleet(network: Network, folder: Path, bus: str) -> AsyncGenerator[Fleet]:
    """Start the servers, each on a host of its own.

    Args:
        network: The network of the hosts.
        folder: The folder of the servers' data.
        bus: How events reach gateways: `nats` or `direct`.
    """
    database = await network.add("postgres")
    postgres = await Postgres.create(
        folder, database.address, POSTGRES_PORT, DATABASE_SETTINGS, client_addresses=RANGE, place=database
    )
    fleet = Fleet(network, postgres)
    fleet.servers["postgres"] = postgres.server
    try:
        await postgres.server.start()
        await postgres.run(f"CREATE DATABASE {DATABASE}")
        await _start_pgbouncer(fleet, folder)
        programs = find_built()
        await (_start_cluster(fleet, folder, programs) if programs else _start_embedded_server(fleet, folder))
        if bus == "nats":
            await _start_nats(fleet, folder)
        yield fleet
    finally:
        for server in reversed(fleet.servers.values()):
            await server.kill()


async def _start_pgbouncer(fleet: Fleet, folder: Path) -> None:
    """Start PgBouncer, through which all processes of Everstep reach PostgreSQL."""
    host = await fleet.network.add("pgbouncer")
    server = add_pgbouncer(folder, fleet.postgres, host, host.address, PGBOUNCER_PORT)
    fleet.servers["pgbouncer"] = server
    await server.start()


async def _start_cluster(fleet: Fleet, folder: Path, programs: TemporalPrograms) -> None:
    """Start Temporal as a cluster, each process on a host of its own."""
    hosts = {process: await fleet.network.add(f"temporal-{process}") for process in ROLES}
    addresses = {process: host.address for process, host in hosts.items()}
    logs = folder / "temporal"
    logs.mkdir()
    cluster = TemporalCluster(logs, fleet.postgres, programs, addresses, hosts)
    await cluster.create_databases()
    fleet.temporal_address = cluster.address
    cluster.prepare()
    fleet.servers |= {f"temporal-{process}": server for process, server in cluster.servers.items()}
    await cluster.start()


async def _start_embedded_server(fleet: Fleet, folder: Path) -> None:
    """Start the server that `everstep up` starts, on a host of its own."""
    host = await fleet.network.add("temporal-frontend")
    fleet.temporal_address = f"{host.address}:{TEMPORAL_PORT}"
    # Bound to one address, its parts would look for each other at another one.
    options = {
        "db-filename": "temporal.db",
        "ip": "0.0.0.0",  # noqa: S104 -- in a namespace
        "port": str(TEMPORAL_PORT),
        "log-level": "error",
    }
    given = [part for name, value in options.items() for part in (f"--{name}", value)]
    dynamic = [f"{name}={json.dumps(value)}" for name, value in DYNAMIC_CONFIG.items()]
    flags = [part for each in dynamic for part in ("--dynamic-config-value", each)]
    command = host.command(str(temporal_executable()), "server", "start-dev", "--headless", *given, *flags)
    answers = partial(accepts, host.address, TEMPORAL_PORT)
    server = fleet.servers["temporal"] = Server("Temporal", command, folder / "temporal.log", answers, folder)
    await server.start()


async def _start_nats(fleet: Fleet, folder: Path) -> None:
    """Start NATS, which carries events from workers and APIs to gateways."""
    host, password = await fleet.network.add("nats"), secrets.token_urlsafe(24)
    program = Path(sys.executable).with_name("nats-server")
    options = ("--addr", host.address, "--port", str(NATS_PORT), "--user", "everstep", "--pass", password)
    answers = partial(accepts, host.address, NATS_PORT)
    command = host.command(str(program), *options)
    server = fleet.servers["nats"] = Server("NATS", command, folder / "nats.log", answers)
    url = f"nats://everstep:{password}@{host.address}:{NATS_PORT}"
    fleet.bus = {"EVERSTEP_BUS": "nats", "EVERSTEP_NATS_URL": url}
    await server.start()


async def upgrade(fleet: Fleet, logs: Path) -> None:
    """Create the tables and register the search attributes, as an operator does."""
    log = logs / "upgrade.log"
    given = environment(**fleet.variables)
    process = await EverstepStarter(Here()).start("db", "upgrade", log=log, environment=given)
    assert await process.wait() == 0, log.read_text()


async def add_roles(scene: Scene, fleet: Fleet) -> None:
    """Add the processes of Everstep, each on a host of its own."""
    common = environment(**scene.variables, **fleet.variables)

    async def add(kind: str, count: int, *arguments: str, says: str) -> list[Host]:
        hosts = [await fleet.network.add(f"{kind}{number}") for number in range(1, count + 1)]
        for host in hosts:
            own = {"EVERSTEP_HTTP_HOST": host.address, "EVERSTEP_GATEWAY_HOST": host.address}
            role = Role(host.name, arguments, says, {**common, **own}, scene, EverstepStarter(host))
            scene.roles.append(role)
        return hosts

    apis = await add("api", APIS, "api", "--port", str(API_PORT), says="answering at")
    gateways = await add("gateway", GATEWAYS, "gateway", "--port", str(GATEWAY_PORT), says="viewers watch at")
    await add("worker", WORKERS, "worker", says="working on")
    scene.apis = [(host.address, API_PORT) for host in apis]
    scene.gateways = [(host.address, GATEWAY_PORT) for host in gateways]
