"""The real Temporal server and the real PostgreSQL as children of this process, without installing either.

    async with embedded(EmbeddedConfig(data=Path(".everstep"))) as services:
        services.database_url, services.temporal_address, services.ui_url
        death = await services.died

Below the data directory: `postgres/` and `temporal.db` hold what must not be lost; `logs/` the log of
each server, and the one of the start before (`.1`); `run/` the database's socket; `services.json` where
the servers listen, for other processes; `lock` is held as long as they run.

No server outlives this process, whatever ends it, and the next start recovers what a kill left.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from everstep.runtime.embedded.child import Death
from everstep.runtime.embedded.config import EmbeddedConfig, EmbeddedState, SearchAttributeType
from everstep.runtime.embedded.errors import DataInUse, EmbeddedError, NotInstalled, ServiceFailed
from everstep.runtime.embedded.lock import lock_holder, locked
from everstep.runtime.embedded.postgres import Postgres
from everstep.runtime.embedded.service import Service
from everstep.runtime.embedded.temporal import Temporal

__all__ = [
    "DataInUse",
    "Death",
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
    "embedded",
    "running",
]

OURS: Final = (
    "api-secret",
    "api-url",
    "gateway-url",
    "lock",
    "logs",
    "postgres",
    "run",
    "services.json",
    "temporal.db",
)
"""What there may be in a data directory that somebody else has used."""


class EmbeddedServices:
    """Both servers, where they listen, and whether they live."""

    def __init__(self, config: EmbeddedConfig) -> None:
        last = EmbeddedState.read(config.data)
        self.config = config
        self.postgres = Postgres(config, last, self._on_death)
        self.temporal = Temporal(config, last, self._on_death)
        self._death = asyncio.get_running_loop().create_future()

    @property
    def database_url(self) -> str:
        """For SQLAlchemy: `postgresql+psycopg://…`."""
        return self.postgres.url

    @property
    def temporal_address(self) -> str:
        """For Temporal's clients: `127.0.0.1:port`."""
        return self.temporal.address

    @property
    def ui_url(self) -> str:
        """Temporal's web UI."""
        return self.temporal.ui_url

    @property
    def state(self) -> EmbeddedState:
        """All of it, for other processes."""
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
    def died(self) -> Awaitable[Death]:
        """The first death of a server that nobody had asked to end; once all run again, the next one."""
        if self._death.done() and self.postgres.pid and self.temporal.pid:
            self._death = asyncio.get_running_loop().create_future()
        # Who stops waiting does not stop the others.
        return asyncio.shield(self._death)

    def _on_death(self, death: Death) -> None:
        if not self._death.done():
            self._death.set_result(death)

    async def start(self) -> None:
        """Start both; what one of them raises is raised."""
        try:
            async with asyncio.TaskGroup() as starting:
                starting.create_task(self.postgres.start())
                starting.create_task(self.temporal.start())
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None

    async def stop(self) -> None:
        """Stop both, whichever run."""
        try:
            async with asyncio.TaskGroup() as stopping:
                stopping.create_task(self.postgres.stop())
                stopping.create_task(self.temporal.stop())
        finally:
            self.postgres.forget()


@asynccontextmanager
async def embedded(config: EmbeddedConfig) -> AsyncGenerator[EmbeddedServices]:
    """Both servers, answering; stopped at the end."""
    config = replace(config, data=config.data.resolve())
    _make(config.data)
    async with locked(config.data):
        services = EmbeddedServices(config)
        try:
            await services.start()
            services.state.write(config.data)
            yield services
        finally:
            await services.stop()


def running(data: Path) -> EmbeddedState | None:
    """Where the services on this data directory listen, if some process runs them now."""
    return EmbeddedState.read(data) if lock_holder(data) else None


def _make(data: Path) -> None:
    try:
        data.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EmbeddedError(f"{data} cannot be the data directory: {error}") from error
    for path in (data, *(data / name for name in OURS)):
        if path.exists() and not os.access(path, os.W_OK):
            raise EmbeddedError(
                f"this user may not write to {path}; run as the user who started the services there before, "
                "or choose another data directory"
            )
