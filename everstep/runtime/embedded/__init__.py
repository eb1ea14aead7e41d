"""The real Temporal server and PostgreSQL as child processes, without installing either.

    async with embedded(EmbeddedConfig(data=Path("/srv/everstep"))) as services:
        services.database_url, services.temporal_address, services.ui_url
        death = await services.died

Files in the data directory: `postgres/` and `temporal.db` hold the data; `database-password` holds the
clients' password; `logs/` holds the log of each server, and that of the previous start (`.1`);
`services.json` holds the servers' addresses, for other processes; `lock` is held while they run. The
directory and everything in it are private to their owner.

No server outlives this process, however it ends, and the next start recovers from a kill.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from everstep.runtime.embedded.child import ChildExit
from everstep.runtime.embedded.config import EmbeddedConfig, EmbeddedState, SearchAttributeType
from everstep.runtime.embedded.errors import DataInUse, EmbeddedError, NotInstalled, ServiceFailed
from everstep.runtime.embedded.folder import has_data, prepare, private_opener, write_private
from everstep.runtime.embedded.lock import data_lock, lock_holder
from everstep.runtime.embedded.postgres_server import Postgres
from everstep.runtime.embedded.service import Service
from everstep.runtime.embedded.temporal_server import Temporal

__all__ = [
    "ChildExit",
    "DataInUse",
    "EmbeddedConfig",
    "EmbeddedError",
    "EmbeddedServices",
    "EmbeddedState",
    "NotInstalled",
    "Postgres",
    "SearchAttributeType",
    "Service",
    "ServiceFailed",
    "Temporal",
    "find_running",
    "has_data",
    "open_services",
    "private_opener",
    "write_private",
]


class EmbeddedServices:
    """Both servers: their addresses, and whether they run."""

    def __init__(self, config: EmbeddedConfig) -> None:
        last = EmbeddedState.read(config.data)
        self.config = config
        self.postgres = Postgres(config, last, self._on_death)
        self.temporal = Temporal(config, last, self._on_death)
        self._death = asyncio.get_running_loop().create_future()

    @property
    def database_url(self) -> str:
        """The database's URL for SQLAlchemy: `postgresql+psycopg://…`."""
        return self.postgres.url

    @property
    def temporal_address(self) -> str:
        """The address for Temporal's clients: `127.0.0.1:port`."""
        return self.temporal.address

    @property
    def ui_url(self) -> str:
        """The URL of Temporal's web UI."""
        return self.temporal.ui_url

    @property
    def state(self) -> EmbeddedState:
        """The addresses, for other processes."""
        return EmbeddedState(
            pid=os.getpid(),
            database_url=self.database_url,
            temporal_address=self.temporal_address,
            ui_url=self.ui_url,
            temporal_port=self.temporal.port,
            ui_port=self.temporal.ui_port,
            postgres_port=self.postgres.tcp_port,
        )

    @property
    def death(self) -> Awaitable[ChildExit]:
        """Return the first unexpected death of a server; after a restart of both, the next one."""
        if self._death.done() and self.postgres.pid and self.temporal.pid:
            self._death = asyncio.get_running_loop().create_future()
        # A cancelled caller must not cancel the future of the others.
        return asyncio.shield(self._death)

    def _on_death(self, death: ChildExit) -> None:
        if not self._death.done():
            self._death.set_result(death)

    async def start(self) -> None:
        """Start both servers; an error of either is raised."""
        try:
            async with asyncio.TaskGroup() as starting:
                starting.create_task(self.postgres.start())
                starting.create_task(self.temporal.start())
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None

    async def stop(self) -> None:
        """Stop the servers that run."""
        try:
            async with asyncio.TaskGroup() as stopping:
                stopping.create_task(self.postgres.stop())
                stopping.create_task(self.temporal.stop())
        finally:
            self.postgres.forget()


@asynccontextmanager
async def open_services(config: EmbeddedConfig) -> AsyncGenerator[EmbeddedServices]:
    """Run both servers within the block; they answer when it begins."""
    config = replace(config, data=config.data.resolve())
    prepare(config.data)
    async with data_lock(config.data):
        services = EmbeddedServices(config)
        try:
            await services.start()
            services.state.write(config.data)
            yield services
        finally:
            await services.stop()


def find_running(data: Path) -> EmbeddedState | None:
    """Return the addresses of the services that run on this data directory, or None."""
    return EmbeddedState.read(data) if lock_holder(data) else None
