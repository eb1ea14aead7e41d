"""Worker processes that can be killed, and what is left of an execution afterwards.

A site is a task queue of its own with the workers on it, and a folder in which they write down what
they did. The account of an execution is every row that the database has of it, without what may
differ between two runs: ids, times and attempts.
"""

import asyncio
import json
import os
import re
import signal
import sys
from asyncio.subprocess import PIPE
from collections import Counter, deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any, Final, cast

from sqlalchemy import text
from temporalio.client import Client as TemporalClient

from everstep.activities.failpoints import Failpoint
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.client.client import Client, Execution
from everstep.runtime.agents import load_agents
from everstep.runtime.embedded import EmbeddedServices
from everstep.runtime.settings import Settings
from everstep.runtime.temporal import connect
from everstep.store.engine import create_engine
from everstep.store.migrate import upgrade
from everstep.store.postgres import PostgresStore
from tests.acceptance.agents import ARMED, JOURNAL, OPEN

ROOT: Final = Path(__file__).parents[2]
AGENTS: Final = "tests.acceptance.agents:agents"
DEADLINE: Final = 90.0
"""Seconds after which something will not happen any more. A crash is noticed after 10; a worker that hangs
may keep for 10 each of the tasks that it had asked for."""

LOOK: Final = 0.02
"""Seconds between two looks at what another process does: nobody tells."""

OUR_ENVIRONMENT: Final = re.compile(r"EVERSTEP_|TEMPORAL_|DATABASE_URL|OPENAI_|ANTHROPIC_|COV_")


def environment(**more: str) -> dict[str, str]:
    """This process's, without what would tell another process which installation to use."""
    inherited = {name: value for name, value in os.environ.items() if not OUR_ENVIRONMENT.match(name)}
    return {**inherited, **more}


async def until(what: str, condition: Callable[[], Awaitable[object] | object]) -> None:
    """Wait for something that another process does."""
    try:
        async with asyncio.timeout(DEADLINE):
            while True:
                found = condition()
                if await found if isinstance(found, Awaitable) else found:
                    return
                await asyncio.sleep(LOOK)
    except TimeoutError:
        raise AssertionError(f"within {DEADLINE:g} s it did not happen that {what}") from None


class Nursery:
    """Where processes come from; see `nursery.py`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._births: deque[asyncio.Future[int]] = deque()
        self._deaths: dict[int, asyncio.Future[int]] = {}
        self._listening = asyncio.create_task(self._listen())

    @classmethod
    @asynccontextmanager
    async def opened(cls) -> AsyncGenerator["Nursery"]:
        """Ready to start processes; none of them survives it."""
        module = (sys.executable, "-m", "tests.acceptance.nursery")
        process = await asyncio.create_subprocess_exec(
            *module, stdin=PIPE, stdout=PIPE, cwd=ROOT, env=environment()
        )
        nursery = cls(process)
        try:
            yield nursery
        finally:
            if process.stdin:
                process.stdin.close()
            await process.wait()
            await nursery._listening

    async def start(self, *arguments: str, log: Path, environment: Mapping[str, str]) -> "Process":
        """An `everstep` process."""
        born = asyncio.get_running_loop().create_future()
        self._births.append(born)
        order = {"arguments": arguments, "log": str(log), "environment": dict(environment)}
        assert self._process.stdin
        self._process.stdin.write(f"{json.dumps(order)}\n".encode())
        pid = await born
        return Process(pid, log, self._deaths[pid])

    async def _listen(self) -> None:
        assert self._process.stdout
        async for line in self._process.stdout:
            match json.loads(line):
                case {"began": pid}:
                    self._deaths[pid] = asyncio.get_running_loop().create_future()
                    self._births.popleft().set_result(pid)
                case {"ended": pid, "code": code}:
                    self._deaths[pid].set_result(code)
                case other:
                    raise AssertionError(other)


@dataclass
class Process:
    """A process of ours."""

    pid: int
    log: Path
    ended: asyncio.Future[int]

    @property
    def code(self) -> int | None:
        """What it ended with, as in `subprocess`; None while it lives."""
        return self.ended.result() if self.ended.done() else None

    async def death(self) -> int:
        """What it ends with."""
        async with asyncio.timeout(DEADLINE):
            return await asyncio.shield(self.ended)

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)

    async def kill(self) -> None:
        """As a crash would."""
        if self.code is None:
            self.signal(signal.SIGKILL)
        await self.death()

    async def stop(self) -> int:
        """As an operator would; what it was doing it may finish."""
        self.signal(signal.SIGTERM)
        return await self.death()


@dataclass(frozen=True)
class Entry:
    """A line of a journal."""

    event: str
    where: str
    pid: int
    told: Mapping[str, Any]


def read_journal(file: Path) -> list[Entry]:
    """All lines of a journal, if there is one."""
    lines = map(json.loads, file.read_text().splitlines()) if file.exists() else ()
    return [Entry(line.pop("event"), line.pop("where"), line.pop("pid"), line) for line in lines]


@dataclass
class Installation:
    """Servers with the tables in place, and what reaches them."""

    database_url: str
    temporal_address: str
    temporal: TemporalClient
    store: PostgresStore
    nursery: Nursery

    def environment(self, **more: str) -> dict[str, str]:
        """What a process is told to use these servers."""
        return environment(DATABASE_URL=self.database_url, TEMPORAL_ADDRESS=self.temporal_address, **more)

    def client(self, queue: str, agents: str = AGENTS) -> Client:
        """Starts and handles executions of these agents."""
        known = {agent.descriptor.name: agent for agent in load_agents(agents)}
        return Client(self.temporal, self.store, known, task_queue=queue)


@asynccontextmanager
async def installed(
    nursery: Nursery, services: EmbeddedServices, database_url: str
) -> AsyncGenerator[Installation]:
    """Everstep on these servers, with its tables."""
    await upgrade(database_url)
    engine = create_engine(database_url)
    settings = Settings.read(database_url=database_url, temporal_address=services.temporal_address)
    try:
        yield Installation(
            database_url, services.temporal_address, await connect(settings), PostgresStore(engine), nursery
        )
    finally:
        await engine.dispose()


@dataclass
class Site:
    """A task queue, its workers, and their folder."""

    name: str
    installation: Installation
    folder: Path
    agents: str = AGENTS
    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    """What its workers find in their environment besides."""
    workers: list[Process] = field(default_factory=list[Process])

    @property
    def client(self) -> Client:
        """Starts executions that only the workers of this site can run."""
        return self.installation.client(self.name, self.agents)

    async def worker(
        self,
        *,
        kill_at: Failpoint | None = None,
        fuse: str | None = None,
        gates: str = "",
        grace: float = 60,
    ) -> Process:
        """One more worker: `kill_at` where it dies, once armed at `fuse`; `gates` where it is held up."""
        given = {
            "EVERSTEP_TASK_QUEUE": self.name,
            "EVERSTEP_AGENTS": self.agents,
            "EVERSTEP_GRACEFUL_SHUTDOWN_SECONDS": f"{grace:g}",
            "EVERSTEP_TEST_FOLDER": str(self.folder),
            "EVERSTEP_FAILPOINT": f"{kill_at}:{self.folder / ARMED}" if kill_at else "",
            "EVERSTEP_TEST_FUSE": fuse or "",
            "EVERSTEP_TEST_GATES": gates,
            **self.variables,
        }
        log = self.folder / f"worker-{len(self.workers) + 1}.log"
        log.touch()
        environment = self.installation.environment(**given)
        worker = await self.installation.nursery.start("worker", log=log, environment=environment)
        self.workers.append(worker)
        await until("a worker works", lambda: "working on" in log.read_text() or worker.ended.done())
        assert worker.code is None, log.read_text()
        return worker

    async def start(self, message: str, agent: str = "clerk") -> Execution:
        """An execution, for the workers of this site."""
        return await self.client.start(agent, message)

    async def ended(self, execution: Execution) -> "Account":
        """The account of an execution that comes to its end."""
        async with asyncio.timeout(DEADLINE):
            await execution.result()
        return await account(self.installation, execution)

    def open_gates(self) -> None:
        """Whoever is held up goes on."""
        (self.folder / OPEN).touch()

    async def reached(self, event: str, where: str) -> None:
        """Wait until a worker has written this down."""
        await until(f"a worker of {self.name} {event} at {where}", lambda: self.count(event, where))

    def journal(self, *events: str) -> list[Entry]:
        """What the workers did; all of it, or only such events."""
        entries = read_journal(self.folder / JOURNAL)
        return [entry for entry in entries if not events or entry.event in events]

    def counted(self, event: str) -> dict[str, int]:
        """How often this happened, by where."""
        return dict(Counter(entry.where for entry in self.journal(event)))

    def count(self, event: str, where: str) -> int:
        """How often this happened there."""
        return self.counted(event).get(where, 0)

    async def close(self) -> None:
        """Leave no process behind."""
        for worker in self.workers:
            await worker.kill()


@asynccontextmanager
async def site(
    name: str, installation: Installation, folder: Path, agents: str = AGENTS, **variables: str
) -> AsyncGenerator[Site]:
    """A site of its own; its workers do not survive it."""
    folder.mkdir()
    made = Site(name, installation, folder, agents, variables)
    try:
        yield made
    finally:
        await made.close()


async def paused(execution: Execution) -> None:
    """Wait until it waits for people."""

    async def is_paused() -> bool:
        return (await execution.get()).status is ExecutionStatus.PAUSED

    await until("the execution is paused", is_paused)


# Accounts.


@dataclass(frozen=True)
class Account:
    """All that is stored of an execution, comparable with that of another one."""

    status: ExecutionStatus
    answer: str | None
    steps: tuple[int, ...]
    conversation: tuple[tuple[str, str], ...]
    rows: Mapping[str, Any]
    """By table, without what may differ."""

    @property
    def told(self) -> str:
        """What the model was told last."""
        return next(text for role, text in reversed(self.conversation) if role == "tool")


TABLES: Final = {
    "agent_executions": ("id", "id"),
    "agent_steps": ("execution_id", "number"),
    "agent_transcript": ("execution_id", "step, idx"),
    "agent_tool_calls": ("execution_id", "step, idx"),
    "agent_requests": ("execution_id", "created_at"),
    "agent_settlements": ("execution_id", "created_at"),
    "agent_steered": ("execution_id", "position"),
    "agent_state_snapshots": ("agent_execution_id", "created_at"),
    "agent_streams": ("stream_id", "stream_id"),
    "agent_envelopes": ("execution_id", "seq"),
}
"""Whose a row is, and how the rows are ordered."""

DIFFERS: Final = re.compile(r".*(_at|At|[sS]econds|duration_?[mM]s|attempts?)|epoch|timestamp|task_queue")
"""Keys of what may differ: when, how long, and at which attempt."""

AN_ID: Final = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}|call_[0-9a-f]{12}")


async def account(installation: Installation, execution: Execution) -> Account:
    """What is stored of an execution; its envelopes have to be without gap and duplicate."""
    row = await execution.get()
    steps = await execution.steps()
    envelopes = await installation.store.envelopes(execution.ref.tenant_id, execution.ref.stream_id)
    assert [envelope.seq for envelope in envelopes] == list(range(1, len(envelopes) + 1))
    assert len({envelope.id for envelope in envelopes}) == len(envelopes)
    said = await installation.store.transcript(execution.ref)
    return Account(
        row.status,
        str(row.output["response"]) if row.output else None,
        tuple(step.number for step in steps),
        tuple((str(message.role), message.text) for message in said),
        await _rows(installation, execution),
    )


async def _rows(installation: Installation, execution: Execution) -> Mapping[str, Any]:
    found: dict[str, Any] = {}
    async with installation.store.engine.connect() as connection:
        for table, (whose, order) in TABLES.items():
            wanted = f"SELECT to_jsonb(t) FROM {table} t WHERE {whose} = :id ORDER BY {order}"  # noqa: S608 -- our own words
            rows = await connection.execute(text(wanted), {"id": execution.id})
            found[table] = [_without_what_differs(row) for row in rows.scalars()]
    _forget_what_was_taken_back(found)
    names: dict[str, str] = {}
    return json.loads(AN_ID.sub(lambda id_: names.setdefault(id_[0], f"id {len(names)}"), json.dumps(found)))


def _forget_what_was_taken_back(found: dict[str, Any]) -> None:
    """Readers are told that an attempt was given up, of which nothing else is left than this number."""
    told = [row for row in found["agent_envelopes"] if row["type"] != "agent.attempt.superseded"]
    for stream in found["agent_streams"]:
        stream["head"] -= len(found["agent_envelopes"]) - len(told)
    found["agent_envelopes"] = [row | {"seq": seq} for seq, row in enumerate(told, 1)]


def _without_what_differs(value: object) -> object:
    if isinstance(value, list):
        return [_without_what_differs(entry) for entry in cast("list[object]", value)]
    if isinstance(value, dict):
        entries = cast("dict[str, object]", value).items()
        return {name: _without_what_differs(entry) for name, entry in entries if not DIFFERS.fullmatch(name)}
    return value


async def elapsed(work: Awaitable[object]) -> float:
    """How many seconds something takes."""
    began = monotonic()
    await work
    return monotonic() - began
