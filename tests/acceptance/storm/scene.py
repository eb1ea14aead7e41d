"""An installation under a storm: its processes, the people who use it, and its viewers."""

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

from everstep.agent_domain.errors import StoreUnavailable
from everstep.agent_domain.stream.envelopes import Envelope
from everstep.http_api.api_keys import create_key
from everstep.store.keys import PostgresKeys
from everstep.store.postgres import PostgresStore
from tests.acceptance.chaos import Role
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
from tests.acceptance.storm.weather import Weather
from tests.acceptance.ways import Address, Way

AGENTS = "tests.acceptance.storm.programs:agents"
SECRET = "a secret of the storm, long enough to be one"  # noqa: S105 -- of a test
POLL_SECONDS = 0.2
"""Seconds between two polls of other processes."""
TAIL = 3000
VIEWERS = NativeViewer, PusherViewer, SseViewer, ClientViewer


@dataclass(frozen=True)
class Force:
    """The strength of the storm."""

    talks: int
    """How many sessions people use at the same time."""
    viewers: int
    seconds: float
    """How long faults happen; afterwards everything may finish."""
    faults: int
    patience: float
    limit: int
    """The whole test's time limit in seconds."""
    pause: float = 1.2
    """The longest pause of a person between two operations."""
    talk_seconds: float | None = None
    """Seconds after which a person begins another session. None: the first one lasts until the end."""


SHORT = Force(talks=3, viewers=4, seconds=6, faults=5, patience=60, limit=200)
LONG = Force(talks=40, viewers=24, seconds=150, faults=30, patience=240, limit=1500)


def force() -> Force:
    """The short storm, or the long one if `EVERSTEP_CHAOS=long`."""
    return LONG if os.environ.get("EVERSTEP_CHAOS") == "long" else SHORT


@dataclass(frozen=True)
class Person:
    """A user of a tenant, with a key."""

    tenant: str
    user: str
    key: str

    @classmethod
    async def create(cls, store: PostgresStore, tenant: str, user: str) -> "Person":
        """A person who may approve and edit calls."""
        keys, scopes = PostgresKeys(store.engine), ["approve", "approve:edit"]
        made = await create_key(keys, "storm", tenant_id=tenant, user_id=user, scopes=scopes)
        return cls(tenant, user, made.secret)


@dataclass
class Scene:
    """The processes, sessions and viewers of one storm."""

    measure: Force
    seed: str
    store: PostgresStore
    folder: Path
    people: Sequence[Person]
    apis: list[Address] = field(default_factory=list[Address])
    gateways: list[Address] = field(default_factory=list[Address])
    roles: list[Role] = field(default_factory=list[Role])
    talks: list[Talk] = field(default_factory=list[Talk])
    customers: list[Customer] = field(default_factory=list[Customer])
    viewers: list[StreamViewer] = field(default_factory=list[StreamViewer])
    faults: list[str] = field(default_factory=list[str])
    notes: list[str] = field(default_factory=list[str])
    began: float = field(default_factory=monotonic)
    tenants: dict[UUID, str] = field(default_factory=dict[UUID, str])
    """The tenant of each watched stream."""
    _watching: list[asyncio.Task[None]] = field(default_factory=list[asyncio.Task[None]])

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

    @property
    def urls(self) -> list[str]:
        """The URL of each API."""
        return [f"http://{host}:{port}" for host, port in self.apis]

    @property
    def variables(self) -> dict[str, str]:
        """The settings of every process, apart from its servers."""
        return {
            "EVERSTEP_TASK_QUEUE": "storm",
            "EVERSTEP_AGENTS": AGENTS,
            "EVERSTEP_DEFAULT_AGENT": "player",
            "EVERSTEP_BROADCAST_SECRET": SECRET,
            "EVERSTEP_TEST_FOLDER": str(self.folder),
            "EVERSTEP_GATEWAY_DRAIN_SECONDS": "1",
        }

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Start all processes, and end them with the block."""
        try:
            await asyncio.gather(*(role.start() for role in self.roles))
            yield
        finally:
            for role in self.roles:
                if role.lives:
                    await role.lives[-1].kill()

    # The storm.

    async def play(self, weather: Weather) -> None:
        """Run clients and faults, and wait until nothing runs any more."""
        self.began = monotonic()
        async with asyncio.TaskGroup() as tasks:
            is_quiet = asyncio.Event()
            deciding = [
                tasks.create_task(self._decisions(number, person).run(is_quiet.is_set))
                for number, person in enumerate(self.people)
            ]
            talking = [tasks.create_task(self._talk(place, tasks)) for place in range(self.measure.talks)]
            guards = [tasks.create_task(self._guard(role)) for role in self.roles]
            await asyncio.gather(weather.run(), *talking)
            self.note("clients are done and nothing goes wrong any more")
            await self.until("every execution ended", self.is_quiet)
            is_quiet.set()
            await asyncio.gather(*deciding, *self._watching)
            for guard in guards:
                guard.cancel()

    @property
    def deadline(self) -> float:
        """When everything must be over."""
        return self.began + self.measure.seconds + self.measure.patience

    async def _talk(self, place: int, tasks: asyncio.TaskGroup) -> None:
        """Use sessions until the faults end, one after the other."""
        end, measure = self.began + self.measure.seconds, self.measure
        while monotonic() < end:
            number = len(self.talks)
            person = self.people[number % len(self.people)]
            name = f"talk {number}"
            talk = Talk(number, self._customer(name, person), self.dice(f"acts {number}"), measure.pause)
            self.talks.append(talk)
            self._watching += [
                tasks.create_task(self._watch(viewer, talk, person))
                for viewer in range(place, measure.viewers, measure.talks)
            ]
            await talk.run(min(end, monotonic() + (measure.talk_seconds or measure.seconds)))
            talk.ended.set()

    async def _guard(self, role: Role) -> None:
        """Restart a process that ended by itself, which is a fault."""
        while True:
            await asyncio.sleep(POLL_SECONDS)
            async with role.busy:
                life = role.lives[-1]
                if life.code is not None:
                    self.faults.append(f"{role.name} ended by itself with {life.code}: {role.log[-TAIL:]}")
                    await role.start()

    def _customer(self, name: str, person: Person) -> Customer:
        dice, patience = self.dice(name), self.measure.patience
        made = Customer(self.urls, person.key, dice, patience, self.faults.append)
        self.customers.append(made)
        return made

    def _decisions(self, number: int, person: Person) -> Decisions:
        name = f"decisions {number}"
        return Decisions(self._customer(name, person), self.dice(name), f"d{number}", self.measure.pause / 2)

    async def until(self, what: str, holds: Callable[[], Awaitable[bool]]) -> None:
        """Wait for other processes; a timeout becomes a fault."""
        deadline = max(self.deadline, monotonic() + self.measure.patience)
        while not await holds():
            if monotonic() > deadline:
                self.faults.append(f"it did not happen in time that {what}")
                return
            await asyncio.sleep(POLL_SECONDS)

    async def is_quiet(self) -> bool:
        """Whether every execution has ended."""
        return await self._count_running("TRUE") == 0

    async def _count_running(self, condition: str, **given: object) -> int | None:
        """How many executions have not ended; None while the database does not answer."""
        statement = (
            "SELECT count(*) AS open FROM agent_executions"  # noqa: S608 -- fixed texts
            f" WHERE status NOT IN ('completed', 'failed', 'cancelled') AND {condition}"
        )
        try:
            (found,) = await self.rows(statement, **given)
        except StoreUnavailable:
            return None
        return found["open"]

    async def rows(self, statement: str, **given: object) -> list[dict[str, Any]]:
        """The rows of the database."""
        try:
            async with self.store.engine.connect() as connection:
                found = await connection.execute(text(statement), given)
                return [dict(row) for row in found.mappings()]
        except (SQLAlchemyError, OSError) as error:
            raise StoreUnavailable(str(error)) from error

    # Viewers.

    async def _watch(self, number: int, talk: Talk, person: Person) -> None:
        """Watch a session until all of it was seen."""
        dice, kind = self.dice(f"viewer {number} of {talk.number}"), VIEWERS[number % len(VIEWERS)]
        await talk.began.wait()
        if not talk.session_id:
            return
        stream_id = UUID(talk.session_id)
        self.tenants[stream_id] = person.tenant
        addresses = self.apis if kind is SseViewer else self.gateways
        async with Way.open(lambda: dice.choice(addresses)) as way, asyncio.TaskGroup() as tasks:
            entrance = Endpoints(dice.choice(self.urls), person.key)
            name = f"{number} of {talk.number} ({kind.__name__})"
            onlooker = kind(name, stream_id, True, way, entrance, dice)
            self.viewers.append(onlooker)
            watching = tasks.create_task(onlooker.watch())
            cutting = tasks.create_task(self._cut(onlooker, dice))
            await talk.ended.wait()
            cutting.cancel()
            await self._until_seen(onlooker)
            watching.cancel()

    async def _cut(self, onlooker: StreamViewer, dice: Random) -> None:
        while True:
            await asyncio.sleep(dice.uniform(1, 8))
            onlooker.way.cut()

    async def _until_seen(self, onlooker: StreamViewer) -> None:
        stream = onlooker.stream_id

        async def has_ended() -> bool:
            return await self._count_running("session_id = :stream", stream=stream) == 0

        async def has_seen() -> bool:
            try:
                return len(onlooker.received.stored) >= len(await self.read_stream(stream))
            except StoreUnavailable:
                return False

        await self.until(f"all executions of {stream} ended", has_ended)
        await self.until(f"viewer {onlooker.name} saw all envelopes", has_seen)

    async def read_stream(self, stream_id: UUID) -> list[Envelope]:
        found = await self.store.envelopes(self.tenants[stream_id], stream_id)
        return [Envelope.placed(each) for each in found]

    # The report.

    def _matters(self, operation: Operation) -> bool:
        """Whether it was refused, or concerns an execution that a fault names."""
        execution = operation.path.split("/")[3] if operation.path.count("/") > 2 else ""
        return not operation.is_accepted or any(execution and execution in each for each in self.faults)

    @property
    def counts(self) -> dict[str, int]:
        """How many operations of each kind had each answer."""
        kinds = [f"{operation.kind} {operation.status}" for operation in self.operations]
        return {kind: kinds.count(kind) for kind in sorted(set(kinds))}

    def report(self) -> str:
        """Everything that helps to explain a fault."""
        logs = [f"--- {role.name}\n{role.log[-TAIL:]}" for role in self.roles]
        head = [f"EVERSTEP_CHAOS_SEED={self.seed}", f"operations: {self.counts}"]
        head += [f"{each.moment - self.began:7.2f} {each}" for each in self.operations if self._matters(each)]
        return "\n".join([*head, *self.notes, *logs, *self.faults[:100]])


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
