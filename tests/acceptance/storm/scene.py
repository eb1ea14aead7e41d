import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import make_url, text
from sqlalchemy.exc import SQLAlchemyError

from everstep.agent_domain.errors import StoreUnavailable
from everstep.agent_domain.ids import DEFAULT_TENANT
from everstep.agent_domain.stream.envelopes import Envelope
from everstep.http_api.api_keys import create_key
from everstep.runtime.embedded import EmbeddedServices, open_services
from everstep.store.keys import PostgresKeys
from tests.acceptance.chaos import Role
from tests.acceptance.front import a_free_port
from tests.acceptance.harness import Installation, Nursery, open_installation
from tests.acceptance.onlookers import (
    ClientViewer,
    Endpoints,
    NativeViewer,
    PusherViewer,
    SseViewer,
    StreamViewer,
)
from tests.acceptance.storm.operations import Customer, Operation
from tests.acceptance.storm.people import Decisions, Talk
from tests.acceptance.storm.relays import Relay, Streams
from tests.acceptance.storm.weather import Weather
from tests.acceptance.ways import Way
from tests.services import careless, data_directory

AGENTS = "tests.acceptance.storm.programs:agents"
POLL_SECONDS = 0.2
"""Seconds between two polls of other processes."""
TAIL = 3000


@dataclass(frozen=True)
class Force:
    """The strength of the storm."""

    talks: int
    viewers: int
    seconds: float
    """How long faults happen; afterwards everything may finish."""
    faults: int
    patience: float
    limit: int
    """The whole test's time limit in seconds."""


SHORT = Force(talks=5, viewers=6, seconds=12, faults=6, patience=60, limit=200)
LONG = Force(talks=40, viewers=24, seconds=150, faults=30, patience=240, limit=1500)


def force() -> Force:
    """The short storm, or the long one if `EVERSTEP_CHAOS=long`."""
    return LONG if os.environ.get("EVERSTEP_CHAOS") == "long" else SHORT


@dataclass
class Scene:
    """The processes, links, sessions and viewers of one storm."""

    measure: Force
    seed: str
    installation: Installation
    services: EmbeddedServices
    folder: Path
    secret: str
    database: Relay
    temporal: Relay
    roles: list[Role] = field(default_factory=list[Role])
    api_ports: list[int] = field(default_factory=list[int])
    gateway_ports: list[int] = field(default_factory=list[int])
    talks: list[Talk] = field(default_factory=list[Talk])
    customers: list[Customer] = field(default_factory=list[Customer])
    viewers: list[StreamViewer] = field(default_factory=list[StreamViewer])
    faults: list[str] = field(default_factory=list[str])
    notes: list[str] = field(default_factory=list[str])
    began: float = field(default_factory=monotonic)

    def dice(self, what: str) -> Random:
        """A random generator; the same seed draws the same values."""
        return Random(f"{self.seed} {what}")  # noqa: S311 -- no secret

    def note(self, what: str) -> None:
        """Log an event with its time, for the report."""
        self.notes.append(f"{monotonic() - self.began:7.2f} {what}")

    @property
    def operations(self) -> list[Operation]:
        """Every operation with its definite answer."""
        return [each for customer in self.customers for each in customer.done]

    def _role(self, name: str, *arguments: str, says: str) -> None:
        given = {
            "DATABASE_URL": self._relayed_database_url(),
            "TEMPORAL_ADDRESS": f"127.0.0.1:{self.temporal.port}",
            "EVERSTEP_TASK_QUEUE": "storm",
            "EVERSTEP_AGENTS": AGENTS,
            "EVERSTEP_DEFAULT_AGENT": "player",
            "EVERSTEP_BROADCAST_SECRET": "a secret of the storm, long enough to be one",
            "EVERSTEP_TEST_FOLDER": str(self.folder),
            "EVERSTEP_GATEWAY_DRAIN_SECONDS": "1",
        }
        environment = {**self.installation.environment(), **given}
        self.roles.append(Role(name, arguments, says, environment, self))

    def _relayed_database_url(self) -> str:
        url = make_url(self.services.database_url)
        return url.set(host="127.0.0.1", port=self.database.port, query={}).render_as_string(
            hide_password=False
        )

    async def open(self) -> None:
        for number in range(2):
            api, gateway = a_free_port(), a_free_port()
            self.api_ports.append(api)
            self.gateway_ports.append(gateway)
            self._role(f"api-{number}", "api", "--port", str(api), says="answering at")
            self._role(f"gateway-{number}", "gateway", "--port", str(gateway), says="viewers watch at")
            self._role(f"worker-{number}", "worker", says="working on")
        await asyncio.gather(*(role.start() for role in self.roles))

    async def close(self) -> None:
        for role in self.roles:
            if role.lives:
                await role.lives[-1].kill()

    # The storm.

    async def play(self) -> None:
        """Run clients and faults, and wait until nothing runs any more."""
        self.began = monotonic()
        end = self.began + self.measure.seconds
        weather = Weather(self, self.dice("weather"))
        async with AsyncExitStack() as ways, asyncio.TaskGroup() as tasks:
            decisions = Decisions(self._customer("decisions"), self.dice("decisions"))
            is_quiet = asyncio.Event()
            deciding = tasks.create_task(decisions.run(is_quiet.is_set))
            self.talks = [
                Talk(number, self._customer(f"talk {number}"), self.dice(f"acts {number}"))
                for number in range(self.measure.talks)
            ]
            talking = [tasks.create_task(talk.run(end)) for talk in self.talks]
            guards = [tasks.create_task(self._guard(role)) for role in self.roles]
            watching = [
                tasks.create_task(self._watch(number, ways)) for number in range(self.measure.viewers)
            ]
            await asyncio.gather(weather.run(), *talking)
            self.note("clients are done and nothing goes wrong any more")
            await self.until("every execution ended", self._is_quiet)
            is_quiet.set()
            await deciding
            await asyncio.gather(*(self._until_seen(each) for each in self.viewers))
            for task in (*watching, *guards):
                task.cancel()

    async def _guard(self, role: Role) -> None:
        """Restart a process that ended by itself, which is a fault."""
        while True:
            await asyncio.sleep(POLL_SECONDS)
            async with role.busy:
                life = role.lives[-1]
                if life.code is not None:
                    self.faults.append(f"{role.name} ended by itself with {life.code}: {role.log[-TAIL:]}")
                    await role.start()

    def _customer(self, name: str) -> Customer:
        made = Customer(
            self.api_ports, self.secret, self.dice(name), self.measure.patience, self.faults.append
        )
        self.customers.append(made)
        return made

    async def until(self, what: str, holds: Callable[[], Awaitable[bool]]) -> None:
        """Wait for other processes; a timeout becomes a fault."""
        deadline = monotonic() + self.measure.patience
        while not await holds():
            if monotonic() > deadline:
                self.faults.append(f"within {self.measure.patience:g} s it did not happen that {what}")
                return
            await asyncio.sleep(POLL_SECONDS)

    async def _is_quiet(self) -> bool:
        try:
            (found,) = await self.rows(
                "SELECT count(*) AS open FROM agent_executions"
                " WHERE status NOT IN ('completed', 'failed', 'cancelled')"
            )
        except StoreUnavailable:
            return False
        return found["open"] == 0

    async def rows(self, statement: str, **given: object) -> list[dict[str, Any]]:
        """The rows of the database."""
        try:
            async with self.installation.store.engine.connect() as connection:
                found = await connection.execute(text(statement), given)
                return [dict(row) for row in found.mappings()]
        except (SQLAlchemyError, OSError) as error:
            raise StoreUnavailable(str(error)) from error

    async def _watch(self, number: int, ways: AsyncExitStack) -> None:
        dice, kind = (
            self.dice(f"viewer {number}"),
            (NativeViewer, PusherViewer, SseViewer, ClientViewer)[number % 4],
        )
        talk = self.talks[number % len(self.talks)]
        await talk.began.wait()
        ports = self.api_ports if kind is SseViewer else self.gateway_ports
        way = await ways.enter_async_context(Way.open(lambda: dice.choice(ports)))
        entrance = Endpoints(f"http://127.0.0.1:{self.api_ports[0]}", self.secret)
        name = f"{number} ({kind.__name__})"
        onlooker = kind(name, UUID(talk.session_id), True, way, entrance, dice)
        self.viewers.append(onlooker)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(onlooker.watch())
            tasks.create_task(self._cut(onlooker, dice))

    async def _cut(self, onlooker: StreamViewer, dice: Random) -> None:
        while monotonic() < self.began + self.measure.seconds:
            await asyncio.sleep(dice.uniform(1, 8))
            onlooker.way.cut()

    async def _until_seen(self, onlooker: StreamViewer) -> None:
        stored = await self.installation.store.envelopes(DEFAULT_TENANT, onlooker.stream_id)

        async def has_seen() -> bool:
            return len(onlooker.received.stored) >= len(stored)

        await self.until(f"viewer {onlooker.name} saw all {len(stored)} envelopes", has_seen)

    async def read_stream(self, stream_id: UUID) -> list[Envelope]:
        found = await self.installation.store.envelopes(DEFAULT_TENANT, stream_id)
        return [Envelope.placed(each) for each in found]

    def _matters(self, operation: Operation) -> bool:
        """Whether it was refused, or concerns an execution that a fault names."""
        execution = operation.path.split("/")[3] if operation.path.count("/") > 2 else ""
        return not operation.is_accepted or any(execution and execution in each for each in self.faults)

    def report(self) -> str:
        """Everything that helps to explain a fault."""
        kinds = [f"{operation.kind} {operation.status}" for operation in self.operations]
        counts = {kind: kinds.count(kind) for kind in sorted(set(kinds))}
        logs = [f"--- {role.name}\n{role.log[-TAIL:]}" for role in self.roles]
        head = [f"EVERSTEP_CHAOS_SEED={self.seed}", f"operations: {counts}"]
        head += [f"{each.moment - self.began:7.2f} {each}" for each in self.operations if self._matters(each)]
        return "\n".join([*head, *self.notes, *logs, *self.faults[:100]])


@asynccontextmanager
async def open_scene(measure: Force, seed: str, nursery: Nursery, folder: Path) -> AsyncGenerator[Scene]:
    with data_directory() as data:
        async with open_services(careless(data)) as services, AsyncExitStack() as stack:
            installation = await stack.enter_async_context(
                open_installation(nursery, services, services.database_url)
            )

            async def to_postgres() -> Streams:
                query = make_url(services.database_url).query
                socket = Path(str(query["host"])) / f".s.PGSQL.{query['port']}"
                return await asyncio.open_unix_connection(socket)

            async def to_temporal() -> Streams:
                host, _, port = services.temporal_address.rpartition(":")
                return await asyncio.open_connection(host, int(port))

            database = await stack.enter_async_context(Relay.open("the link to PostgreSQL", to_postgres))
            temporal = await stack.enter_async_context(Relay.open("the link to Temporal", to_temporal))
            keys, scopes = PostgresKeys(installation.store.engine), ["approve", "approve:edit"]
            key = await create_key(keys, "storm", user_id="ann", scopes=scopes)
            scene = Scene(measure, seed, installation, services, folder, key.secret, database, temporal)
            try:
                await scene.open()
                yield scene
            finally:
                await scene.close()


LONG_RUNS = 5


def seeds() -> list[str]:
    """The seeds of this run: the given one, a fixed one by default, or several random ones for long runs."""
    given = os.environ.get("EVERSTEP_CHAOS_SEED")
    if given:
        return given.split(",")
    if force() is SHORT:
        return ["1"]
    drawn = uuid4().hex[:6]
    return [f"{drawn}-{number}" for number in range(1, LONG_RUNS + 1)]
