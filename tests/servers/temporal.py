"""A Temporal cluster: its databases, its configuration, and a process for each role.

The processes find each other in the database and by gossip. All of a role listen on the same ports, so each
process has an address of its own.
"""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, Final

from google.protobuf.duration_pb2 import Duration
from temporalio.api.workflowservice.v1 import RegisterNamespaceRequest
from temporalio.client import Client
from temporalio.service import RPCError

from everstep.runtime.temporal_threads import temporal_runtime
from tests.servers.build import TemporalPrograms
from tests.servers.postgres import ROLE, Postgres
from tests.servers.programs import POLL_SECONDS, START_SECONDS, Here, Place, Server, accepts, run

ROLES: Final = ("frontend", "history1", "history2", "matching", "worker")
"""The processes; the digit is no part of the role."""

PORTS: Final = {"frontend": 7233, "history": 7234, "matching": 7235, "worker": 7239}
GOSSIP: Final = -300
"""The port for gossip, relative to the other one."""

SHARDS: Final = 16
"""The number of history shards, which can never be changed later."""

DATABASES: Final = {"temporal": "temporal", "temporal_visibility": "visibility"}
"""The databases, and the schema of each."""

NAMESPACE: Final = "default"
RETENTION: Final = timedelta(days=3)

DYNAMIC_CONFIG: Final[Mapping[str, object]] = {
    # Tasks are dispatched fairly by tenant and user.
    "matching.enableFairness": True,
    # How often a history process looks for tasks to dispatch: at the default of 20 times a second, an
    # execution waits in every step.
    "history.transferProcessorMaxPollRPS": 1000,
}


def role_of(process: str) -> str:
    """The role of a process."""
    return process.rstrip("0123456789")


@dataclass
class TemporalCluster:
    """The processes of a cluster."""

    folder: Path
    postgres: Postgres
    programs: TemporalPrograms
    addresses: Mapping[str, str]
    """The address of each process."""
    places: Mapping[str, Place] = field(default_factory=dict[str, Place])
    """Where each process runs; by default on this machine."""
    servers: dict[str, Server] = field(default_factory=dict[str, Server])

    @property
    def address(self) -> str:
        """The address for clients."""
        return f"{self.addresses['frontend']}:{PORTS['frontend']}"

    async def create_databases(self) -> None:
        """Create the databases and their tables, as the SQL tool does for every new version."""
        postgres = self.postgres
        given = {
            "SQL_PLUGIN": "postgres12",
            "SQL_HOST": postgres.address,
            "SQL_PORT": str(postgres.port),
            "SQL_USER": ROLE,
            "SQL_PASSWORD": postgres.password,
        }
        for database, schema in DATABASES.items():
            name = f"postgresql/v12/{schema}"
            for command in (
                ("create-database", "--defaultdb", "postgres"),
                ("setup-schema", "--version", "0.0"),
                ("update-schema", "--schema-name", name),
            ):
                await run(str(self.programs.sql_tool), "--db", database, *command, environment=given)

    def prepare(self) -> None:
        """Write the configuration of all processes."""
        dynamic = self.folder / "dynamic.yaml"
        dynamic.write_text(json.dumps({key: [{"value": value}] for key, value in DYNAMIC_CONFIG.items()}))
        for process, address in self.addresses.items():
            config = self.folder / f"{process}.yaml"
            # JSON is YAML.
            config.write_text(json.dumps(self._config(address, dynamic)))
            role = role_of(process)
            command = (str(self.programs.server), "--config-file", str(config), "--allow-no-auth", "start")
            self.servers[process] = Server(
                f"Temporal's {process}",
                self.places.get(process, Here()).command(*command, "--service", role),
                self.folder / f"{process}.log",
                partial(accepts, address, PORTS[role]),
            )

    async def start(self) -> None:
        """Start all processes, and register the namespace."""
        for server in self.servers.values():
            await server.start()
        await self._register_namespace()

    async def stop(self) -> None:
        """End all processes."""
        for server in self.servers.values():
            await server.kill()

    def _config(self, address: str, dynamic: Path) -> Mapping[str, Any]:
        return {
            "log": {"stdout": True, "level": "warn"},
            "persistence": {
                "numHistoryShards": SHARDS,
                "defaultStore": "temporal",
                "visibilityStore": "temporal_visibility",
                "datastores": {name: {"sql": self._store(name)} for name in DATABASES},
            },
            "global": {"membership": {"maxJoinDuration": "30s", "broadcastAddress": address}},
            "services": {
                role: {"rpc": {"grpcPort": port, "membershipPort": port + GOSSIP, "bindOnIP": address}}
                for role, port in PORTS.items()
            },
            "clusterMetadata": {
                "enableGlobalNamespace": False,
                "failoverVersionIncrement": 10,
                "masterClusterName": "active",
                "currentClusterName": "active",
                "clusterInformation": {
                    "active": {
                        "enabled": True,
                        "initialFailoverVersion": 1,
                        "rpcName": "frontend",
                        "rpcAddress": self.address,
                    }
                },
            },
            "dcRedirectionPolicy": {"policy": "noop"},
            "dynamicConfigClient": {"filepath": str(dynamic), "pollInterval": "10s"},
        }

    def _store(self, database: str) -> Mapping[str, object]:
        return {
            "pluginName": "postgres12",
            "databaseName": database,
            "connectAddr": f"{self.postgres.address}:{self.postgres.port}",
            "connectProtocol": "tcp",
            "user": ROLE,
            "password": self.postgres.password,
            "maxConns": 20,
            "maxIdleConns": 20,
            "maxConnLifetime": "1h",
        }

    async def _register_namespace(self) -> None:
        client = await Client.connect(self.address, runtime=temporal_runtime())
        retention = Duration()
        retention.FromTimedelta(RETENTION)
        await client.workflow_service.register_namespace(
            RegisterNamespaceRequest(namespace=NAMESPACE, workflow_execution_retention_period=retention),
            retry=True,
        )
        # The processes read the namespaces every 10 seconds.
        deadline = monotonic() + START_SECONDS
        while not await _knows_namespace(client):
            assert monotonic() < deadline, f"the namespace {NAMESPACE} is not known"
            await asyncio.sleep(POLL_SECONDS)


async def _knows_namespace(client: Client) -> bool:
    try:
        await client.count_workflows()
    except RPCError:
        return False
    return True


def loopback_addresses(third: int) -> Mapping[str, str]:
    """An address of this machine for each process."""
    return {process: f"127.77.{third}.{number}" for number, process in enumerate(ROLES, 1)}
