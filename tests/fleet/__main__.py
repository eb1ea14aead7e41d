"""`make fleet`: people use a fleet for half an hour in which hosts are parted and processes are killed.

Three workers, two APIs, two gateways and the servers run on hosts of their own; the processes reach
PostgreSQL through PgBouncer in transaction mode. Users of three tenants send messages with idempotency keys
to any API, and viewers reconnect to any gateway. In the end every acknowledged operation has to be done
exactly once, and each viewer has to have read what is stored, in order. Needs root, and Debian's iproute2,
nftables, pgbouncer and postgresql.

    make fleet
    EVERSTEP_FLEET_MINUTES=2 EVERSTEP_BUS=direct make fleet
"""

import asyncio
import os
import re
import sys
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from uuid import uuid4

from everstep.store.engine import create_engine
from everstep.store.postgres import PostgresStore
from tests.acceptance.storm.accounts import wrong_books
from tests.acceptance.storm.scene import Force, Person, Scene
from tests.fleet.faults import FleetWeather
from tests.fleet.hosts import Fleet, add_roles, open_fleet, upgrade
from tests.fleet.network import Network
from tests.pgbouncer import pgbouncer_version
from tests.servers.postgres import NotInstalled

PEOPLE = [(tenant, user) for tenant in ("acme", "globex", "initech") for user in ("ann", "bob")]
SECONDS_PER_FAULT = 15
FAULTS = "partition", "is killed", "freezes", "is told to stop", "ended by itself"


def force(minutes: float) -> Force:
    """A moderate load: about an operation in a second."""
    seconds = 60 * minutes
    faults = max(6, round(seconds / SECONDS_PER_FAULT))
    return Force(
        talks=6, viewers=12, seconds=seconds, faults=faults, patience=300, limit=0, pause=10, talk_seconds=90
    )


async def main() -> int:
    minutes = float(os.environ.get("EVERSTEP_FLEET_MINUTES", "30"))
    seed = os.environ.get("EVERSTEP_CHAOS_SEED") or uuid4().hex[:8]
    bus = os.environ.get("EVERSTEP_BUS", "nats")
    print(f"A fleet for {minutes:g} minutes; EVERSTEP_CHAOS_SEED={seed} draws the same faults.", flush=True)
    async with AsyncExitStack() as stack:
        network = await stack.enter_async_context(Network.open())
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="everstep-fleet-")))
        fleet = await stack.enter_async_context(open_fleet(network, folder, bus))
        store = PostgresStore(create_engine(fleet.direct_url))
        stack.push_async_callback(store.engine.dispose)
        logs = folder / "logs"
        logs.mkdir()
        await upgrade(fleet, logs)
        people = [await Person.create(store, tenant, user) for tenant, user in PEOPLE]
        scene = Scene(force(minutes), seed, store, logs, people)
        await add_roles(scene, fleet)
        await stack.enter_async_context(scene.running())
        print(f"{len(network.hosts)} hosts run: {', '.join(network.hosts)}", flush=True)
        weather = FleetWeather(scene, scene.dice("weather"), fleet)
        began = monotonic()
        await scene.play(weather)
        took = monotonic() - began
        scene.faults += await wrong_books(scene)
        scene.faults += await wrong_sessions(scene, fleet)
        await report(scene, took, fleet)
        return 1 if scene.faults else 0


async def wrong_sessions(scene: Scene, fleet: Fleet) -> list[str]:
    """Sessions of the database that a process has opened past PgBouncer, and a PgBouncer without any."""
    rows = await scene.rows(
        "SELECT host(client_addr) AS address, count(*) AS number FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid() GROUP BY client_addr"
    )
    sessions = {row["address"]: row["number"] for row in rows}
    (pooler,) = fleet.hosts_of("pgbouncer")
    print(f"PgBouncer {pgbouncer_version()} had {sessions.get(pooler.address, 0)} sessions of the database")
    names = {host.address: host.name for host in fleet.network.hosts.values()}
    faults = [
        f"{names[address]} reached PostgreSQL past PgBouncer"
        for address in sessions
        if address in names and address != pooler.address
    ]
    return faults if pooler.address in sessions else [*faults, "PgBouncer had no session of the database"]


async def report(scene: Scene, took: float, fleet: Fleet) -> None:
    """Print the figures, and what is wrong."""
    accepted = [each for each in scene.operations if each.is_accepted]
    rows = await scene.rows("SELECT status, count(*) AS number FROM agent_executions GROUP BY status")
    (envelopes,) = await scene.rows("SELECT count(*) AS number FROM agent_envelopes")
    faults = Counter(word for note in scene.notes for word in FAULTS if word in note)
    hit = Counter(
        host for note in scene.notes for host in fleet.network.hosts if re.search(rf"\b{host}\b", note)
    )
    retried = sum(each.tries > 1 for each in scene.operations)
    print(f"{took:.0f} s with {sum(faults.values())} faults: {dict(faults)}")
    print(f"of each host: {dict(hit)}")
    print(f"operations: {scene.counts}")
    print(
        f"{len(accepted)} operations were acknowledged, {len(scene.operations) - len(accepted)} refused;"
        f" {retried} were sent more than once until they were answered"
    )
    print(f"executions: { {row['status']: row['number'] for row in rows} }; {envelopes['number']} envelopes")
    read = sum(len(each.received.stored) for each in scene.viewers)
    connections = sum(each.connections for each in scene.viewers)
    print(f"{len(scene.viewers)} viewers read {read} envelopes over {connections} connections")
    print(f"lost, doubled or out of order: {len(scene.faults)}")
    if scene.faults:
        print(scene.report())


if __name__ == "__main__":
    try:
        sys.exit(asyncio.run(main()))
    except NotInstalled as error:
        sys.exit(str(error))
