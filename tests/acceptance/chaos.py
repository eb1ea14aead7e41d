"""The chaos test's processes, stories and viewers, and the faults that hit them."""

import asyncio
import os
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any, Protocol, TypeAlias
from uuid import UUID, uuid4

import httpx2
from sqlalchemy import text
from temporalio.service import RPCError

from everstep.agent_domain.errors import StoreUnavailable
from everstep.agent_domain.ids import DEFAULT_TENANT
from everstep.agent_domain.stream.envelopes import Envelope, EnvelopeType
from everstep.client.client import Client
from everstep.http_api.api_keys import create_key
from everstep.runtime.agents import load_agents
from everstep.runtime.embedded import EmbeddedServices, open_services
from everstep.store.keys import PostgresKeys
from tests.acceptance.front import a_free_port
from tests.acceptance.harness import Installation, Nursery, Process, open_installation
from tests.acceptance.onlookers import (
    ClientViewer,
    Endpoints,
    NativeViewer,
    PusherViewer,
    SseViewer,
    StreamViewer,
)
from tests.acceptance.storytellers import STEPS, is_long
from tests.acceptance.ways import HOST, Address, Way
from tests.nats_server import NatsServer, open_nats
from tests.services import careless, data_directory

AGENTS = "tests.acceptance.storytellers:agents"
POLL_SECONDS = 0.1
"""Seconds between two polls."""
TAIL = 4000
"""Characters of a log that a report shows."""


Wreck: TypeAlias = Callable[[], Coroutine[object, object, None]]


@dataclass(frozen=True)
class Measure:
    """The size of a run."""

    stories: int
    viewers: int
    seconds: float
    """How long faults happen; work that is under way may take longer."""
    kills: int
    """Kills of gateways, and as many of workers."""
    drains: int
    restarts: int
    cut_every: float
    """Average seconds between two cuts of a viewer's connection."""
    unread: float
    """Seconds in which every fifth viewer reads nothing."""
    patience: float
    """Seconds until everything must be over, once the faults have stopped."""
    limit: int = 300
    """The whole test's time limit in seconds."""
    shared: int = 0
    """Additional gateways that share one port."""


SHORT = Measure(4, 10, 6, kills=2, drains=1, restarts=1, cut_every=2.5, unread=3, patience=90)
LONG = Measure(
    40, 120, 60, kills=8, drains=4, restarts=3, cut_every=3, unread=20, patience=240, limit=1800, shared=2
)

ABORTED, LOST = "0.2", "0.05"
"""The share of attempts that break off, and the share of frames lost on their way to a gateway."""


def measure() -> Measure:
    """The short run, or the long one if `EVERSTEP_CHAOS=long`."""
    return LONG if os.environ.get("EVERSTEP_CHAOS") == "long" else SHORT


@dataclass
class Story:
    """A story that a client asks for."""

    about: str
    execution_id: UUID | None = None

    def __str__(self) -> str:
        return f"{self.about} ({self.execution_id})"


@dataclass
class Plot:
    """A stream: a session with two stories, or one story without a session."""

    stories: list[Story]
    is_session: bool
    stream_id: UUID | None = None
    began: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    envelopes: list[Envelope] = field(default_factory=list[Envelope])
    """Every envelope stored for it, read at the end."""

    @property
    def is_long(self) -> bool:
        """Whether one of its stories is long."""
        return any(is_long(story.about) for story in self.stories)

    def __str__(self) -> str:
        return " and ".join(map(str, self.stories))


class HasPatience(Protocol):
    """The part of the stage that a role needs: how long it may take to start."""

    @property
    def patience(self) -> float: ...


class RoleContext(Protocol):
    """The installation in which a role runs."""

    folder: Path

    @property
    def measure(self) -> HasPatience: ...


class Starter(Protocol):
    """Starts `everstep` processes, on this machine or on one of a fleet."""

    async def start(self, *arguments: str, log: Path, environment: Mapping[str, str]) -> Process: ...


@dataclass
class Role:
    """A process that is restarted whenever it ends, as an operator's supervisor does."""

    name: str
    arguments: tuple[str, ...]
    says: str
    environment: Mapping[str, str]
    stage: RoleContext
    starter: Starter
    lives: list[Process] = field(default_factory=list[Process])
    busy: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def start(self) -> None:
        """Start; a process that finds no database is started again."""
        deadline = monotonic() + self.stage.measure.patience
        while True:
            log = self.stage.folder / f"{self.name}-{len(self.lives) + 1}.log"
            log.touch()
            process = await self.starter.start(*self.arguments, log=log, environment=self.environment)
            self.lives.append(process)
            while process.code is None:
                if self.says in log.read_text():
                    return
                await asyncio.sleep(POLL_SECONDS / 4)
            assert monotonic() < deadline, f"{self.name} does not start:\n{log.read_text()[-TAIL:]}"
            await asyncio.sleep(POLL_SECONDS)

    async def crash(self, pause: float) -> None:
        """Kill the process, and restart it after a moment."""
        async with self.busy:
            await self.lives[-1].kill()
            await asyncio.sleep(pause)
            await self.start()

    async def drain(self) -> None:
        """Stop the process gracefully while another one takes over."""
        async with self.busy:
            assert await self.lives[-1].stop() == 0, self.lives[-1].log.read_text()[-TAIL:]
            await self.start()

    @property
    def log(self) -> str:
        return "".join(each.log.read_text() for each in self.lives)


@dataclass
class Stage:
    measure: Measure
    seed: str
    installation: Installation
    services: EmbeddedServices
    folder: Path
    key: str
    api_port: int
    nats: NatsServer | None = None
    """The bus, if it is not direct."""
    gateways: list[Role] = field(default_factory=list[Role])
    workers: list[Role] = field(default_factory=list[Role])
    apis: list[Role] = field(default_factory=list[Role])
    plots: list[Plot] = field(default_factory=list[Plot])
    viewers: list[StreamViewer] = field(default_factory=list[StreamViewer])
    ports: list[int] = field(default_factory=list[int])
    notes: list[str] = field(default_factory=list[str])
    began: float = field(default_factory=monotonic)
    faults: list[str] = field(default_factory=list[str])
    """Everything that is wrong."""
    restarting: asyncio.Lock = field(default_factory=asyncio.Lock)

    def dice(self, what: str) -> Random:
        """A random generator; the same seed draws the same values."""
        return Random(f"{self.seed} {what}")  # noqa: S311 -- no secret

    def note(self, what: str) -> None:
        """Log an event with its time, for the report."""
        self.notes.append(f"{monotonic() - self.began:6.2f} {what}")

    @property
    def endpoints(self) -> Endpoints:
        return Endpoints(f"http://127.0.0.1:{self.api_port}", self.key)

    @property
    def client(self) -> Client:
        agents = {agent.descriptor.name: agent for agent in load_agents(AGENTS)}
        return Client(self.installation.temporal, self.installation.store, agents, task_queue="stories")

    # Processes.

    def role(self, name: str, *arguments: str, says: str, **more: str) -> Role:
        given = {
            "EVERSTEP_TASK_QUEUE": "stories",
            "EVERSTEP_AGENTS": AGENTS,
            "EVERSTEP_DEFAULT_AGENT": "teller",
            "EVERSTEP_BROADCAST_SECRET": "of the chaos, of the chaos, of the chaos",
            "EVERSTEP_TEST_FOLDER": str(self.folder),
            "EVERSTEP_TEST_ABORTED": ABORTED,
            "EVERSTEP_FAILPOINT": f"link.before_send:{LOST}",
            "EVERSTEP_GATEWAY_DRAIN_SECONDS": "1",
            **({"EVERSTEP_BUS": "nats", "EVERSTEP_NATS_URL": self.nats.url} if self.nats else {}),
            **more,
        }
        environment = self.installation.environment(**given)
        return Role(name, arguments, says, environment, self, self.installation.nursery)

    async def open(self) -> None:
        for number in range(2):
            port = a_free_port()
            self.ports.append(port)
            role = self.role(f"gateway-{number}", "gateway", "--port", str(port), says="viewers watch at")
            self.gateways.append(role)
            self.workers.append(self.role(f"worker-{number}", "worker", says="working on"))
        if self.measure.shared:
            port = a_free_port()
            self.ports.append(port)
            for number in range(self.measure.shared):
                shared = ("gateway", "--port", str(port))
                says, option = "viewers watch at", "true"
                self.gateways.append(
                    self.role(f"shared-{number}", *shared, says=says, EVERSTEP_GATEWAY_PORT_IS_SHARED=option)
                )
        self.apis.append(self.role("api", "api", "--port", str(self.api_port), says="answering at"))
        await asyncio.gather(*(role.start() for role in self.roles))
        self.note("everything runs")

    @property
    def roles(self) -> list[Role]:
        return [*self.gateways, *self.workers, *self.apis]

    async def close(self) -> None:
        for role in self.roles:
            if role.lives:
                await role.lives[-1].kill()

    def _draw(self) -> None:
        """Half of all stories belong to sessions, two in each."""
        about = [Story(f"Story {number}") for number in range(self.measure.stories)]
        half = self.measure.stories // 4 * 2
        self.plots += [Plot(about[place : place + 2], is_session=True) for place in range(0, half, 2)]
        self.plots += [Plot([story], is_session=False) for story in about[half:]]

    async def play(self) -> None:
        """Run the scenario until every viewer has received every story."""
        self._draw()
        self.began = monotonic()
        async with AsyncExitStack() as ways, asyncio.TaskGroup() as tasks:
            for number, plot in enumerate(self.plots):
                tasks.create_task(self._run_plot(plot, self.dice(f"plot {number}")))
            for number in range(self.measure.viewers):
                tasks.create_task(self._add_viewer(number, ways, tasks))
            tasks.create_task(self._run_faults())
        self.note("everything was told")

    async def _run_plot(self, plot: Plot, dice: Random) -> None:
        """Start a stream at a random moment and wait until all of it is stored."""
        await asyncio.sleep(dice.uniform(0, 0.6) * self.measure.seconds)
        if plot.is_session:
            for story in plot.stories:
                path = f"/agent/sessions/{plot.stream_id}/messages" if plot.stream_id else "/agent/messages"
                accepted = await self._post(path, story.about)
                story.execution_id = UUID(accepted["execution_id"])
                plot.stream_id = UUID(accepted["session_id"])
                plot.began.set()
                await asyncio.sleep(dice.uniform(0, 3))
        else:
            (story,) = plot.stories
            story.execution_id = plot.stream_id = UUID(int=dice.getrandbits(128), version=4)
            await self._start(story.about, story.execution_id)
            plot.began.set()
        await self.until(f"{plot} ended", lambda: self._has_ended(plot))
        assert plot.stream_id
        plot.envelopes = await self._read_stream(plot.stream_id)
        plot.ended.set()

    async def _post(self, path: str, content: str) -> dict[str, str]:
        headers = {**self.endpoints.headers, "Idempotency-Key": content.replace(" ", "-")}
        deadline = monotonic() + self.measure.patience
        async with httpx2.AsyncClient(base_url=self.endpoints.api, headers=headers, timeout=20) as http:
            while True:
                assert monotonic() < deadline, f"{content} was not accepted"
                try:
                    answer = await http.post(path, json={"content": content})
                except httpx2.TransportError as error:
                    self.note(f"{content} is sent again: {error!r}")
                else:
                    if answer.status_code != 503:
                        assert answer.status_code == 201, answer.text
                        return answer.json()
                await asyncio.sleep(POLL_SECONDS)

    async def _start(self, about: str, execution_id: UUID) -> None:
        deadline = monotonic() + self.measure.patience
        while True:
            try:
                await self.client.start("teller", about, execution_id=execution_id, user_id="ann")
            except (StoreUnavailable, RPCError) as error:
                assert monotonic() < deadline, f"{about} was not accepted"
                self.note(f"{about} is started again: {error!r}")
                await asyncio.sleep(POLL_SECONDS)
            else:
                return

    async def _has_ended(self, plot: Plot) -> bool:
        wanted = [story.execution_id for story in plot.stories]
        try:
            found = await self.rows(
                "SELECT count(*) AS ended FROM agent_executions WHERE id = ANY(:ids)"
                " AND status IN ('completed', 'failed', 'stopped', 'cancelled')",
                ids=wanted,
            )
        except StoreUnavailable:
            return False
        return found[0]["ended"] == len(wanted)

    async def rows(self, statement: str, **given: object) -> list[dict[str, Any]]:
        try:
            async with self.installation.store.engine.connect() as connection:
                found = await connection.execute(text(statement), given)
                return [dict(row) for row in found.mappings()]
        except Exception as error:
            raise StoreUnavailable(str(error)) from error

    async def until(self, what: str, holds: Callable[[], Awaitable[bool] | bool]) -> None:
        """Wait for other processes; the timeout starts when the faults stop."""
        deadline = self.began + self.measure.seconds + self.measure.patience
        while True:
            found = holds()
            if await found if isinstance(found, Awaitable) else found:
                return
            if monotonic() > deadline:
                self.faults.append(f"it did not happen that {what}")
                return
            await asyncio.sleep(POLL_SECONDS)

    # Viewers.

    async def _add_viewer(self, number: int, ways: AsyncExitStack, tasks: asyncio.TaskGroup) -> None:
        """Add a viewer at its moment."""
        dice, kinds = (
            self.dice(f"viewer {number}"),
            (NativeViewer, PusherViewer, SseViewer, ClientViewer, PusherViewer, SseViewer),
        )
        kind = kinds[(number + number // len(self.plots)) % len(kinds)]
        is_slow = number % 5 == 0
        plots = [plot for plot in self.plots if plot.is_long] if is_slow else self.plots
        # Both kinds are counted apart, so that every stream has viewers.
        plot = plots[(number // 5 if is_slow else number - number // 5 - 1) % len(plots)]

        def choose() -> Address:
            return HOST, self.api_port if kind is SseViewer else dice.choice(self.ports)

        way = await ways.enter_async_context(Way.open(choose, is_narrow=is_slow))
        await plot.began.wait()
        if dice.random() < 0.15:
            await plot.ended.wait()
        else:
            await asyncio.sleep(dice.choice([0.0, dice.uniform(0, self.measure.seconds / 3)]))
        assert plot.stream_id
        onlooker = kind(
            f"{number} ({kind.__name__})", plot.stream_id, plot.is_session, way, self.endpoints, dice
        )
        self.viewers.append(onlooker)
        watching = tasks.create_task(self._watch(onlooker))
        troubles = tasks.create_task(self._disturb(onlooker, dice, is_slow=is_slow))
        await plot.ended.wait()
        await self.until(
            f"{onlooker.name} saw all {len(plot.envelopes)} of {plot}",
            lambda: len(onlooker.received.stored) >= len(plot.envelopes),
        )
        troubles.cancel()
        watching.cancel()

    async def _watch(self, onlooker: StreamViewer) -> None:
        try:
            await onlooker.watch()
        except Exception as error:  # noqa: BLE001 -- the test's own viewers may fail in any way
            self.faults.append(f"viewer {onlooker.name} gave up: {error!r}")

    async def _disturb(self, onlooker: StreamViewer, dice: Random, *, is_slow: bool) -> None:
        """Cut the viewer's connections, and stop reading for a while."""
        if is_slow:
            # Starts with the long text: with less, a pause in reading has no effect.
            while not any(map(_begins_the_last, onlooker.received.stored)):  # noqa: ASYNC110 -- there is no signal to wait for
                await asyncio.sleep(POLL_SECONDS / 4)
            await onlooker.way.hold(self.measure.unread)
        while monotonic() < self.began + self.measure.seconds:
            await asyncio.sleep(dice.uniform(0, 2) * self.measure.cut_every)
            onlooker.way.cut()

    async def _read_stream(self, stream_id: UUID) -> list[Envelope]:
        while True:
            try:
                found = await self.installation.store.envelopes(DEFAULT_TENANT, stream_id)
            except StoreUnavailable:
                await asyncio.sleep(POLL_SECONDS)
            else:
                return [Envelope.placed(each) for each in found]

    # Faults.

    async def _run_faults(self) -> None:
        """Run every fault at its random moment."""
        dice, measure = self.dice("wrecks"), self.measure
        wrecks: list[tuple[float, str, Wreck]] = []

        def add_fault(what: str, wreck: Wreck) -> None:
            wrecks.append((dice.uniform(0.1, 0.9) * measure.seconds, what, wreck))

        def crash(role: Role) -> Wreck:
            pause = dice.uniform(0, 1)
            return lambda: role.crash(pause)

        for _ in range(measure.kills):
            add_fault("a gateway is killed", crash(dice.choice(self.gateways)))
            add_fault("a worker is killed", crash(dice.choice(self.workers)))
        for _ in range(measure.drains):
            add_fault("a gateway is sent away", dice.choice(self.gateways).drain)
        for _ in range(measure.restarts):
            add_fault("PostgreSQL is restarted", self._restart)
        if self.nats:
            for _ in range(measure.kills):
                add_fault("NATS is killed", self._restart_nats)
        async with asyncio.TaskGroup() as tasks:
            for moment, what, wreck in sorted(wrecks, key=lambda each: each[0]):
                await asyncio.sleep(max(0.0, self.began + moment - monotonic()))
                self.note(what)
                tasks.create_task(wreck())
        self.note("nothing goes wrong any more")

    async def _restart_nats(self) -> None:
        assert self.nats
        async with self.restarting:
            await self.nats.kill()
            await asyncio.sleep(0.5)
            await self.nats.start()

    async def _restart(self) -> None:
        async with self.restarting:
            await self.services.postgres.stop()
            await self.services.postgres.start()

    def report(self) -> str:
        """Everything that helps to explain a failure."""
        seen = [
            f"{each.name}: {each.connections} connections, {each.way.cuts // 2} cuts, {each.resyncs} resyncs,"
            f" {each.received.words} texts, {len(each.received.stored)} stored;"
            f" ends {Counter(each.ends).most_common(5)}"
            for each in self.viewers
        ]
        logs = [f"--- {role.name}\n{role.log[-TAIL:]}" for role in self.roles]
        return "\n".join([f"EVERSTEP_CHAOS_SEED={self.seed}", *self.faults, *self.notes, *seen, *logs])


def _begins_the_last(envelope: Envelope) -> bool:
    """Whether a story's last step begins, which may be long."""
    step_number = envelope.payload.get("step_number")
    return envelope.type == EnvelopeType.AGENT_STEP_STARTED and step_number == STEPS


@asynccontextmanager
async def open_stage(measure: Measure, nursery: Nursery, folder: Path) -> AsyncGenerator[Stage]:
    """Start servers for this test alone, and all processes."""
    seed = os.environ.get("EVERSTEP_CHAOS_SEED") or uuid4().hex[:8]
    with data_directory() as data:
        async with (
            open_services(careless(data)) as services,
            open_installation(nursery, services, services.database_url) as installation,
        ):
            key = await create_key(PostgresKeys(installation.store.engine), "people", user_id="ann")
            is_on_nats = os.environ.get("EVERSTEP_CHAOS_BUS") == "nats"
            async with open_nats() if is_on_nats else nullcontext() as nats:
                made = Stage(measure, seed, installation, services, folder, key.secret, a_free_port(), nats)
                try:
                    await made.open()
                    yield made
                finally:
                    await made.close()
