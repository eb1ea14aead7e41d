"""`make cluster`: Everstep on a Temporal cluster, each role of which is a process that is killed.

The Temporal server is built with Go, once; PostgreSQL is Debian's. First, the throughput on the embedded
server and on the cluster, on the same PostgreSQL with its safe settings. Then people use the installation on
the cluster while every process is killed in turn, and in the end each acknowledged operation must have been
done exactly once.

    make cluster
    EVERSTEP_CLUSTER_ROUNDS=3 make cluster    # kills each process three times; 0: none
"""

import asyncio
import base64
import os
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final
from uuid import uuid4

from everstep.runtime.embedded import EmbeddedConfig
from everstep.runtime.embedded.temporal_server import Temporal
from tests.acceptance.harness import Nursery, environment, open_installation
from tests.acceptance.storm.accounts import wrong_books
from tests.acceptance.storm.local import add_roles
from tests.acceptance.storm.scene import Force, Person, Scene
from tests.cluster.features import find_features, wrong_features
from tests.cluster.kills import AWAY_SECONDS, BETWEEN_SECONDS, KillsInTurn
from tests.cluster.report import say, say_faults, say_features, say_kills, say_throughput
from tests.cluster.throughput import Throughput, measure_throughput
from tests.programs import open_programs
from tests.servers.build import build, find_built
from tests.servers.postgres import NotInstalled, Postgres
from tests.servers.temporal import ROLES, TemporalCluster, loopback_addresses

THIRD: Final = os.getpid() % 250 + 1
"""A part of the addresses, so that two runs do not meet."""
PEOPLE: Final = (("acme", "ann"), ("acme", "bob"), ("globex", "cat"))
EVERSTEP_PROCESSES: Final = 6


@dataclass(frozen=True)
class Servers:
    """The addresses of PostgreSQL and Temporal."""

    database_url: str
    temporal_address: str


def force(rounds: int) -> Force:
    """People who act until the kills are over."""
    kills = (len(ROLES) + 1 + EVERSTEP_PROCESSES) * rounds
    seconds = kills * (BETWEEN_SECONDS + sum(AWAY_SECONDS) / 2 + 2) + BETWEEN_SECONDS
    return Force(
        talks=6, viewers=8, seconds=seconds, faults=kills, patience=240, limit=0, pause=3, talk_seconds=60
    )


@asynccontextmanager
async def open_scene(
    measure: Force, nursery: Nursery, servers: Servers, folder: Path, variables: Mapping[str, str]
) -> AsyncGenerator[Scene]:
    """Start the processes of Everstep on these servers."""
    folder.mkdir()
    given = {"DATABASE_URL": servers.database_url, "TEMPORAL_ADDRESS": servers.temporal_address}
    log = folder / "upgrade.log"
    # Registers the search attributes, too.
    upgrade = await nursery.start("db", "upgrade", log=log, environment=environment(**given, **variables))
    assert await upgrade.wait() == 0, log.read_text()
    async with open_installation(nursery, servers, servers.database_url) as installation:
        people = [await Person.create(installation.store, tenant, user) for tenant, user in PEOPLE]
        seed = os.environ.get("EVERSTEP_CHAOS_SEED") or uuid4().hex[:8]
        scene = Scene(measure, seed, installation.store, folder, people)
        add_roles(scene, nursery, servers.database_url, servers.temporal_address, variables)
        async with scene.running():
            yield scene


async def measure_embedded_server(nursery: Nursery, postgres: Postgres, folder: Path) -> Throughput:
    """The throughput on the server that `everstep up` starts."""
    await postgres.run("CREATE DATABASE embedded")
    data = folder / "embedded"
    data.mkdir()
    temporal = Temporal(EmbeddedConfig(data, temporal_port=0, ui_port=0), None, say_end)
    await temporal.start()
    servers = Servers(postgres.url("embedded"), temporal.address)
    try:
        async with open_scene(force(0), nursery, servers, folder / "on-embedded", {}) as scene:
            return await measure_throughput(scene)
    finally:
        await temporal.kill()


def say_end(what: object) -> None:
    say(f"the embedded server ended: {what}")


async def run_cluster(nursery: Nursery, postgres: Postgres, folder: Path, rounds: int) -> Sequence[str]:
    """Measure, kill, and find what is wrong."""
    embedded = await measure_embedded_server(nursery, postgres, folder)
    logs = folder / "temporal"
    logs.mkdir()
    cluster = TemporalCluster(logs, postgres, await build(), loopback_addresses(THIRD))
    await cluster.create_databases()
    await postgres.run("CREATE DATABASE clustered")
    servers = Servers(postgres.url("clustered"), cluster.address)
    variables = {"EVERSTEP_PAYLOAD_KEY": base64.b64encode(os.urandom(32)).decode()}
    try:
        cluster.prepare()
        await cluster.start()
        async with open_scene(force(rounds), nursery, servers, folder / "on-cluster", variables) as scene:
            say_throughput(embedded, await measure_throughput(scene))
            weather = KillsInTurn(
                scene, scene.dice("kills"), [*cluster.servers.values(), postgres.server], rounds
            )
            if rounds:
                await scene.play(weather)
                say_kills(scene, weather)
            features = await find_features(scene, cluster)
            say_features(features)
            scene.faults += await wrong_books(scene)
            if scene.faults:
                say(scene.report())
            return [*scene.faults, *await wrong_features(scene, features)]
    finally:
        await cluster.stop()


async def main() -> int:
    if not find_built():
        say("Building the Temporal server with Go: some minutes, once ...")
    await build()
    rounds = int(os.environ.get("EVERSTEP_CLUSTER_ROUNDS", "1"))
    with (
        TemporaryDirectory(prefix="everstep-cluster-") as name,
        open_programs(Path(name) / "programs") as programs,
    ):
        folder = Path(name)
        settings = {"max_connections": "300"}
        postgres = await Postgres.create(
            folder, f"127.77.{THIRD}.250", 5432, settings, client_addresses="127.0.0.0/8"
        )
        await postgres.server.start()
        try:
            async with Nursery.open(programs) as nursery:
                faults = list(await run_cluster(nursery, postgres, folder, rounds))
        finally:
            await postgres.server.kill()
        say_faults(faults)
        return 1 if faults else 0


if __name__ == "__main__":
    try:
        sys.exit(asyncio.run(main()))
    except NotInstalled as error:
        sys.exit(str(error))
