"""Everything wired together: where the servers are, the store, the models, the agents, the client."""

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cached_property

from temporalio.client import Client as TemporalClient

from activities.failpoints import Strike, inert
from agent_domain.errors import InvalidInput
from everstep.client.client import Client
from everstep.client.front_door import FrontDoor
from everstep.inference.models import Models
from everstep.inference.presets import Presets
from everstep.runtime.agents import AgentBook, load_agents
from everstep.runtime.demo_agent import DEMO
from everstep.runtime.embedded import EmbeddedConfig, EmbeddedServices, embedded, running
from everstep.runtime.settings import Settings
from everstep.runtime.temporal import SEARCH_ATTRIBUTES, connect
from everstep.runtime.worker import make_worker
from everstep.store import migrate
from everstep.store.engine import create_engine
from everstep.store.postgres import PostgresStore

HOW_TO_START = "start a local installation with `everstep up`, or set DATABASE_URL and TEMPORAL_ADDRESS"


def located(settings: Settings) -> Settings:
    """The settings, with the addresses of the local installation where none are given."""
    if settings.database_url and settings.temporal_address:
        return settings
    local = running(settings.data_dir)
    if local is None:
        raise InvalidInput(f"no servers are configured, and none run in {settings.data_dir}: {HOW_TO_START}")
    return settings.model_copy(
        update={
            "database_url": settings.database_url or local.database_url,
            "temporal_address": settings.temporal_address or local.temporal_address,
            "ui_url": settings.ui_url or local.ui_url,
        }
    )


async def upgrade(settings: Settings) -> None:
    """Bring the database's tables up to date; safe to repeat, and while others do."""
    await migrate.upgrade(located(settings).required("database_url", HOW_TO_START))


@dataclass(frozen=True)
class Installation:
    """The parts of one installation, ready to be used."""

    settings: Settings
    temporal: TemporalClient
    store: PostgresStore
    models: Models

    @cached_property
    def book(self) -> AgentBook:
        """The agents of this process: those that the settings name, and the demo agent."""
        own = load_agents(self.settings.agents) if self.settings.agents else []
        named = {agent.descriptor.name for agent in own}
        return AgentBook([*own, *([] if DEMO.descriptor.name in named else [DEMO])], self.models)

    @property
    def client(self) -> Client:
        """What starts and handles executions."""
        return Client(
            self.temporal,
            self.store,
            self.book.agents,
            task_queue=self.settings.task_queue,
            search_attributes=self.settings.search_attributes,
        )

    async def work(self, stop: asyncio.Event, strike: Strike = inert) -> None:
        """Be a worker until told to stop; running model calls may finish."""
        worker = make_worker(
            self.temporal, self.store, self.book, self.settings, strike, front_door=FrontDoor(self.client)
        )
        async with worker:
            await stop.wait()


@asynccontextmanager
async def local(
    settings: Settings, *, temporal_port: int = 7233, ui_port: int = 8233
) -> AsyncGenerator[tuple[Installation, EmbeddedServices]]:
    """An installation with servers of its own, whatever the environment names, stopped at the end."""
    config = EmbeddedConfig(settings.data_dir, temporal_port, ui_port, search_attributes=SEARCH_ATTRIBUTES)
    async with embedded(config) as services:
        here = {
            "data_dir": config.data,
            "database_url": services.database_url,
            "temporal_address": services.temporal_address,
            "ui_url": services.ui_url,
            "search_attributes": True,
        }
        settings = settings.model_copy(update=here)
        await upgrade(settings)
        async with opened(settings, "everstep local") as installation:
            yield installation, services


@asynccontextmanager
async def opened(settings: Settings, application: str = "everstep") -> AsyncGenerator[Installation]:
    """Connect to everything; what is missing is said in one sentence."""
    settings = located(settings)
    models = Models(Presets.read(settings.presets, os.environ, settings.preset), os.environ)
    engine = create_engine(settings.required("database_url", HOW_TO_START), application_name=application)
    try:
        yield Installation(settings, await connect(settings), PostgresStore(engine), models)
    finally:
        await engine.dispose()
        await models.aclose()
