"""The wiring of an installation: servers, store, models, agents and client."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial
from time import monotonic
from typing import Any

from sqlalchemy import make_url
from temporalio.client import Client as TemporalClient
from temporalio.service import RPCError

from everstep.activities.failpoints import Strike, inert
from everstep.activities.token_limits import TokenLimits
from everstep.activities.worker_places import Places, WorkerPlaces
from everstep.agent_domain.agents.spawning import needed_resources
from everstep.agent_domain.background import keep_running
from everstep.agent_domain.errors import EverstepError, InvalidInput
from everstep.agent_domain.fairness.tenant_limits import LARGEST_LIMIT
from everstep.agent_domain.storage.overview import OverviewReader
from everstep.agent_domain.stream.bus import NULL_BUS, EnvelopeBus
from everstep.capabilities.mcp import close_connections
from everstep.client import titles
from everstep.client.client import Client
from everstep.client.context_validation import ContextRules
from everstep.client.current_limits import CurrentLimits
from everstep.client.fair_dispatch import FairDispatch
from everstep.client.outages import TRANSIENT_CODES
from everstep.client.reconciler import Reconciler
from everstep.client.schedule_entry import ScheduleEntry
from everstep.client.schedules import Schedules
from everstep.client.sessions import Sessions
from everstep.client.temporal_entry import TemporalEntry
from everstep.client.titles import Titles
from everstep.client.webhook_delivery import WebhookDelivery
from everstep.client.webhooks import Webhooks
from everstep.inference.models import Models
from everstep.runtime.agents import AgentBook, load_all_agents
from everstep.runtime.bus_choice import open_bus
from everstep.runtime.context_policy import load_context_policy
from everstep.runtime.data_folder import data_folder, local_url, record_project
from everstep.runtime.embedded import (
    EmbeddedConfig,
    EmbeddedServices,
    find_running,
    open_services,
    search_attributes,
)
from everstep.runtime.file_store import build_attachments
from everstep.runtime.garbage import GarbageCollection
from everstep.runtime.local_secret import find_local_secret, make_local_secret
from everstep.runtime.models import agent_window, models_of, require_prices
from everstep.runtime.protection import close_to_agents
from everstep.runtime.replica_choice import open_replica
from everstep.runtime.settings import Settings
from everstep.runtime.temporal import SEARCH_ATTRIBUTES, connect
from everstep.runtime.webhook_sender import HttpSender, SealedSecrets
from everstep.runtime.worker import build_failpoint, make_worker
from everstep.runtime.worker_telemetry import slots_source
from everstep.steps.attachments import Attachments
from everstep.steps.resource_lifetimes import open_resources
from everstep.store import migrate
from everstep.store.engine import create_engine, database_url
from everstep.store.epochs import renew_epoch
from everstep.store.errors import SchemaTooNew
from everstep.store.id_owners import PostgresIdOwners
from everstep.store.keys import PostgresKeys
from everstep.store.overview import PostgresOverview
from everstep.store.schedules import PostgresSchedules
from everstep.store.sessions import PostgresSessions
from everstep.store.sign_ins import PostgresSignIns
from everstep.store.webhooks import PostgresWebhooks
from everstep.streams.ordering import OrderedBus

HOW_TO_START = "start a local installation with `everstep up`, or set DATABASE_URL and TEMPORAL_ADDRESS"

log = logging.getLogger(__name__)


def locate_services(settings: Settings) -> Settings:
    """Return the settings, with the addresses of the local installation if none are given."""
    if settings.database_url and settings.temporal_address:
        return settings
    data = data_folder(settings)
    local = find_running(data)
    if local is None:
        raise InvalidInput(f"no servers are configured, and none run in {data}: {HOW_TO_START}")
    return settings.model_copy(
        update={
            "database_url": settings.database_url or local.database_url,
            "temporal_address": settings.temporal_address or local.temporal_address,
            "ui_url": settings.ui_url or local.ui_url,
            "auth_secret": settings.auth_secret or find_local_secret(data),
            "public_url": settings.public_url or local_url(data),
        }
    )


def database_without_password(settings: Settings) -> str:
    """Return the database's URL without its password, for display."""
    return make_url(settings.require("database_url", HOW_TO_START)).render_as_string()


async def upgrade(settings: Settings) -> None:
    """Upgrade the database's tables; safe to repeat, also from several processes at once."""
    if settings.database_direct_url:
        database_url(settings.database_direct_url, "DATABASE_DIRECT_URL")
        await migrate.upgrade(settings.database_direct_url, may_be_pooled=True)
    else:
        await migrate.upgrade(locate_services(settings).require("database_url", HOW_TO_START))


async def upgrade_unless_newer(settings: Settings) -> bool:
    """Upgrade the tables; return False if they are those of a newer release, which this one can use."""
    try:
        await upgrade(settings)
    except SchemaTooNew:
        # On the way back to this release.
        return False
    return True


async def mark_restore(settings: Settings) -> None:
    """Record that the database was restored: all subscribers read their streams again."""
    # Only the database is needed: after a restore, no other service may run yet.
    url = settings.database_url or locate_services(settings).require("database_url", HOW_TO_START)
    engine = create_engine(url, application_name="everstep db restored", preparing=settings.database_prepared)
    try:
        await renew_epoch(engine)
    finally:
        await engine.dispose()


async def register(settings: Settings) -> str:
    """Register the search attributes in Temporal; return a sentence about the result."""
    try:
        await search_attributes.register(await connect(locate_services(settings)), SEARCH_ATTRIBUTES)
    except (EverstepError, RPCError) as error:
        return f"the search attributes are not registered, run `everstep db upgrade` again later: {error}"
    use = (
        "; EVERSTEP_SEARCH_ATTRIBUTES=false prevents their use" if settings.search_attributes is False else ""
    )
    return f"Temporal knows the search attributes{use}"


async def choose_search_attributes(settings: Settings, temporal: TemporalClient) -> Settings:
    """Return the settings, in which `search_attributes` says whether executions get them.

    If it was not set, they do if the namespace has them.
    """
    if settings.search_attributes is not None:
        return settings
    try:
        has_all = not await search_attributes.find_missing(temporal, SEARCH_ATTRIBUTES)
    except RPCError as error:
        # A start without them is possible: only lists in Temporal are less useful.
        log.warning("Temporal does not list its search attributes: %s", error)
        has_all = error.status in TRANSIENT_CODES
    return settings.model_copy(update={"search_attributes": has_all})


@dataclass(frozen=True)
class Installation:
    """The parts of an open installation."""

    settings: Settings
    temporal: TemporalClient
    store: PostgresSessions
    models: Models
    limits: CurrentLimits
    """The limits of tenants, which long-running processes read again every few seconds."""
    bus: EnvelopeBus = NULL_BUS

    def with_public_url(self, url: str) -> "Installation":
        """Return the installation with this public URL, unless the settings have one.

        It shares the servers of this one, and has agents and titles of its own.
        """
        settings = self.settings.model_copy(update={"public_url": self.settings.public_url or url})
        return replace(self, settings=settings)

    @cached_property
    def book(self) -> AgentBook:
        """The agents of this process: those that the settings name, and the demo agent."""
        close_to_agents(self.settings)
        known = load_all_agents(self.settings.agents, self.models.presets, self.settings.mcp)
        return AgentBook(known.values(), self.models)

    @property
    def client(self) -> Client:
        """The client that starts and controls executions."""
        return Client(
            self.temporal,
            self.store,
            self.book.agents,
            task_queue=self.settings.task_queue,
            search_attributes=bool(self.settings.search_attributes),
            public_url=self.settings.public_url or "",
            strike=build_failpoint(self.settings.failpoint),
            check_model=self.models.presets.resolve,
            window_of=partial(agent_window, self.models.presets),
            check_prices=partial(require_prices, self.models.presets),
            attachments=self.attachments,
            dispatch=self.dispatch,
            limits=self.limits,
        )

    @cached_property
    def dispatch(self) -> FairDispatch:
        """The priorities of executions that this process starts."""
        return FairDispatch(self.limits.weight, self.store.find_pending)

    @cached_property
    def attachments(self) -> Attachments:
        """The attached files."""
        return build_attachments(self.settings, self.store.engine)

    @property
    def sessions(self) -> Sessions:
        """The sessions."""
        strike = build_failpoint(self.settings.failpoint)
        return Sessions(self.client, self.store, self.default_agent, self.contexts, self.titles, strike)

    @cached_property
    def contexts(self) -> ContextRules:
        """The rules for the contexts of sessions and messages."""
        named = self.settings.context_policy
        policy = None if named is None else load_context_policy(named)
        return ContextRules(frozenset(self.settings.related_types), policy)

    @cached_property
    def titles(self) -> Titles | None:
        """The generator of session titles, or None if there is no preset for it."""
        if titles.PRESET not in self.models.presets.names:
            return None
        try:
            return Titles(self.models.model(titles.PRESET), self.store, self.models.model)
        except InvalidInput as error:
            # A title is worth no outage: without one, the first words of the session are shown.
            log.warning("no model writes titles of sessions: %s", error)
            return None

    async def close_titles(self) -> None:
        """Close the generator of session titles, if it was used."""
        if isinstance(used := vars(self).get("titles"), Titles):
            await used.aclose()

    @property
    def schedules(self) -> Schedules:
        """The schedules."""
        return Schedules(self.client, PostgresSchedules(self.store.engine))

    @property
    def webhooks(self) -> Webhooks:
        """The webhooks."""
        sender = HttpSender(allows_private=self.settings.webhook_private_addresses == "on")
        box = SealedSecrets(self.settings.payload_key)
        return Webhooks(PostgresWebhooks(self.store.engine), sender, box)

    @cached_property
    def reconciler(self) -> Reconciler:
        """The reconciler, which recovers what lost processes left behind."""
        return Reconciler(self.sessions, schedules=self.schedules)

    async def maintain(self, stop: asyncio.Event) -> None:
        """Recover what lost processes left behind, and deliver events to webhooks, until the stop event."""
        delivery = WebhookDelivery(self.webhooks, self.client)
        await asyncio.gather(self.reconciler.run(stop), delivery.run(stop))

    @property
    def default_agent(self) -> str:
        """The agent of sessions that name none: the configured one, else the first."""
        return self.settings.default_agent or next(iter(self.book.agents))

    @property
    def keys(self) -> PostgresKeys:
        """The store of idempotency keys and API keys."""
        return PostgresKeys(self.store.engine)

    @property
    def sign_ins(self) -> PostgresSignIns:
        """The store of sessions of people in browsers."""
        return PostgresSignIns(self.store.engine)

    @property
    def id_owners(self) -> PostgresIdOwners:
        """The tenants of ids, over all tenants: for the operator's own commands."""
        return PostgresIdOwners(self.store.engine)

    @property
    def overview(self) -> OverviewReader:
        """What runs now, over all tenants."""
        return PostgresOverview(self.store.engine)

    async def work(self, stop: asyncio.Event, strike: Strike = inert) -> None:
        """Run a worker until the stop event; running model calls may finish.

        Raises:
            ResourceFailed: A resource of the agents cannot be started.
        """
        async with self.open_worker(strike) as run:
            await run(stop)

    @asynccontextmanager
    async def open_worker(
        self, strike: Strike = inert
    ) -> AsyncGenerator[Callable[[asyncio.Event], Coroutine[Any, Any, None]]]:
        """Start the resources of the agents; yield a function that runs a worker until the stop event.

        Raises:
            ResourceFailed: One of them cannot be started.
        """
        async with open_resources(needed_resources(self.book.agents.values())) as resources:
            yield partial(self._work, self.book.with_resources(resources), strike)

    def _worker_places(self) -> WorkerPlaces:
        places = WorkerPlaces(
            Places(self.settings.worker_activities, self.limits.place_terms),
            Places(LARGEST_LIMIT, self.limits.model_call_terms),
            TokenLimits(self.store, self.limits.token_terms),
        )
        self.limits.on_change(places.grant_waiting)
        return places

    async def _work(self, book: AgentBook, strike: Strike, stop: asyncio.Event) -> None:
        places = self._worker_places()
        worker = make_worker(
            self.temporal,
            self.store,
            book,
            self.settings,
            strike,
            front_door=TemporalEntry(self.client, may_approve=self.settings.approve_by_signal == "on"),
            schedules=ScheduleEntry(self.sessions, self.schedules),
            ended=self.sessions.on_end,
            bus=self.bus,
            attachments=self.attachments,
            places=places,
        )
        try:
            async with worker:
                with slots_source(places.places, self.settings.worker_activities):
                    await asyncio.gather(self.maintain(stop), GarbageCollection().run(stop))
        finally:
            await close_connections()


@asynccontextmanager
async def open_local_installation(
    settings: Settings, *, temporal_port: int = 7233, ui_port: int = 8233
) -> AsyncGenerator[tuple[Installation, EmbeddedServices]]:
    """Open an installation with embedded servers, regardless of the environment; stop them at the end."""
    data = data_folder(settings)
    config = EmbeddedConfig(data, temporal_port, ui_port, search_attributes=SEARCH_ATTRIBUTES)
    async with open_services(config) as services:
        record_project(data)
        here = {
            "data_dir": data,
            "database_url": services.database_url,
            "temporal_address": services.temporal_address,
            "ui_url": services.ui_url,
            "auth_secret": settings.auth_secret or make_local_secret(data),
        }
        settings = settings.model_copy(update=here)
        await upgrade(settings)
        async with open_installation(settings, "everstep local", is_linked=True) as installation:
            yield installation, services


@asynccontextmanager
async def open_installation(
    settings: Settings, application: str = "everstep", *, is_linked: bool = False
) -> AsyncGenerator[Installation]:
    """Connect to all servers; an error says in one sentence what is missing.

    Args:
        settings: The settings.
        application: The name of the database connections.
        is_linked: Whether to link to the gateways, as long-running processes do. Without a link, subscribers
            find new envelopes in the tables.
    """
    settings = locate_services(settings)
    engine = create_engine(
        settings.require("database_url", HOW_TO_START),
        application_name=application,
        pool_size=settings.database_connections,
        max_overflow=0,
        preparing=settings.database_prepared,
    )
    try:
        async with (
            open_bus(settings, engine) if is_linked else nullcontext(NULL_BUS) as way,
            open_replica(settings, engine, application) as replica,
        ):
            bus = OrderedBus(way)
            store = PostgresSessions(engine, bus)
            store.replica = replica
            limits = CurrentLimits(store)
            async with _open_models(settings, store, limits) as models:
                temporal = await connect(settings)
                settings = await choose_search_attributes(settings, temporal)
                installation = Installation(settings, temporal, store, models, limits, bus)
                async with _current_limits(limits) if is_linked else nullcontext():
                    yield installation
                await installation.close_titles()
    finally:
        await engine.dispose()


@asynccontextmanager
async def _open_models(
    settings: Settings, store: PostgresSessions, limits: CurrentLimits
) -> AsyncGenerator[Models]:
    """Yield the models, whose presets share their limits with other processes."""
    models = models_of(settings, store, lambda claimant: limits.weight(claimant.tenant))
    try:
        yield models
    finally:
        await models.aclose()


@asynccontextmanager
async def _current_limits(limits: CurrentLimits) -> AsyncGenerator[None]:
    """Read the limits of tenants within the block."""
    reading = asyncio.create_task(
        keep_running(
            "the reading of the limits of tenants", limits.run, sleep=asyncio.sleep, clock=monotonic, log=log
        )
    )
    try:
        yield
    finally:
        reading.cancel()
        await asyncio.wait([reading])
