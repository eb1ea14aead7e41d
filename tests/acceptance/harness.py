"""Worker processes that can be killed, and the stored rows of an execution afterwards.

A site is a task queue with its own workers, and a folder in which they journal their actions. The account of
an execution is every database row of it, without the values that may differ between two runs: ids, times and
attempts.
"""

import asyncio
import json
import marshal
import os
import re
import signal
import socket
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager
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
from everstep.runtime.settings import Settings
from everstep.runtime.temporal import connect
from everstep.store.engine import create_engine
from everstep.store.migrate import upgrade
from everstep.store.postgres import PostgresStore
from tests.acceptance.agents import ARMED, JOURNAL, OPEN
from tests.programs import LENGTH, NAME, SOCKET
from tests.services import Servers

ROOT: Final = Path(__file__).parents[2]
AGENTS: Final = "tests.acceptance.agents:agents"
DEADLINE: Final = 90.0
"""Seconds after which a wait fails. A crash is noticed after 10; a worker that hangs may hold each of the
tasks that it had polled for 10.
"""

POLL_SECONDS: Final = (0.02, 0.15)
"""Seconds between two polls of another process, which sends no signal: at first, and after some time. A poll
may be a query or the reading of a journal, and dozens of waits run at once.
"""

OUR_ENVIRONMENT: Final = re.compile(r"EVERSTEP_|TEMPORAL_|DATABASE_URL|OPENAI_|ANTHROPIC_|COV_")


def environment(**more: str) -> dict[str, str]:
    """This process's environment, without the variables that select another installation."""
    inherited = {name: value for name, value in os.environ.items() if not OUR_ENVIRONMENT.match(name)}
    return {**inherited, **more}


async def until(what: str, condition: Callable[[], Awaitable[object] | object]) -> None:
    """Wait for an effect of another process."""
    seconds, longest = POLL_SECONDS
    try:
        async with asyncio.timeout(DEADLINE):
            while True:
                found = condition()
                if await found if isinstance(found, Awaitable) else found:
                    return
                await asyncio.sleep(seconds)
                seconds = min(seconds * 1.2, longest)
    except TimeoutError:
        raise AssertionError(f"within {DEADLINE:g} s it did not happen that {what}") from None


class Nursery:
    """The source of processes, which are forks; see `tests/programs.py`."""

    def __init__(self, programs: Path) -> None:
        self.everstep = programs / NAME
        """The command, each run of which is a fork."""
        self._socket = str(programs / SOCKET)
        self._running = set[asyncio.Task[None]]()

    @classmethod
    @asynccontextmanager
    async def open(cls, programs: Path) -> AsyncGenerator["Nursery"]:
        """A nursery that ends all its processes when the block ends."""
        nursery = cls(programs)
        try:
            yield nursery
        finally:
            for task in nursery._running:
                task.cancel()
            await asyncio.gather(*nursery._running, return_exceptions=True)

    async def start(
        self,
        *arguments: str,
        log: Path,
        environment: Mapping[str, str],
        errors: Path | None = None,
        folder: Path = ROOT,
        stdin: int | None = None,
    ) -> "Process":
        """Start an `everstep` process.

        Args:
            arguments: The command and its arguments.
            log: The file of its output.
            environment: All of its environment.
            errors: The file of its standard error; by default the log.
            folder: The folder that it runs in.
            stdin: A descriptor of this process that becomes its standard input; may be closed afterwards.
        """
        os.umask(umask := os.umask(0))
        order = marshal.dumps([list(arguments), dict(environment), str(folder), umask, [str(ROOT)], []])
        with ExitStack() as files:
            given = os.dup(stdin) if stdin is not None else os.open(os.devnull, os.O_RDONLY)
            files.callback(os.close, given)
            # Not truncated: it may have lines of an earlier process.
            out = os.open(log, os.O_WRONLY | os.O_CREAT, 0o644)
            files.callback(os.close, out)
            err = os.open(errors, os.O_WRONLY | os.O_CREAT, 0o644) if errors else os.dup(out)
            files.callback(os.close, err)
            own = socket.socket(socket.AF_UNIX)
            own.connect(self._socket)
            socket.send_fds(own, [len(order).to_bytes(LENGTH, "big")], [given, out, err])
        reader, writer = await asyncio.open_unix_connection(sock=own)
        writer.write(order)
        pid = int(await reader.readline())
        ended = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(self._watch(reader, writer, ended))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return Process(pid, log, ended)

    async def _watch(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, ended: asyncio.Future[int]
    ) -> None:
        """Wait for a process's exit code. It is killed when the connection closes."""
        try:
            ended.set_result(int(await reader.readline()))
        finally:
            writer.close()


@dataclass
class Process:
    """An `everstep` process."""

    pid: int
    log: Path
    ended: asyncio.Future[int]

    @property
    def code(self) -> int | None:
        """The return code, as in `subprocess`; None while it runs."""
        return self.ended.result() if self.ended.done() else None

    async def wait(self) -> int:
        """Wait for its end and return its code."""
        async with asyncio.timeout(DEADLINE):
            return await asyncio.shield(self.ended)

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    async def kill(self) -> None:
        """Kill it with SIGKILL, as a crash would."""
        if self.code is None:
            self.signal(signal.SIGKILL)
        await self.wait()

    async def stop(self) -> int:
        """Stop it as an operator would; it may finish its current work."""
        self.signal(signal.SIGTERM)
        return await self.wait()


@dataclass(frozen=True)
class Entry:
    event: str
    where: str
    pid: int
    data: Mapping[str, Any]


def read_journal(file: Path) -> list[Entry]:
    """All lines of a journal, if it exists."""
    lines = map(json.loads, file.read_text().splitlines()) if file.exists() else ()
    return [Entry(line.pop("event"), line.pop("where"), line.pop("pid"), line) for line in lines]


@dataclass
class Installation:
    """Servers with the tables in place, and the connections to them."""

    database_url: str
    temporal_address: str
    temporal: TemporalClient
    store: PostgresStore
    nursery: Nursery

    def environment(self, **more: str) -> dict[str, str]:
        """The variables that make a process use these servers."""
        return environment(DATABASE_URL=self.database_url, TEMPORAL_ADDRESS=self.temporal_address, **more)

    def client(self, queue: str, agents: str = AGENTS) -> Client:
        """A client that starts and handles executions of these agents."""
        known = {agent.descriptor.name: agent for agent in load_agents(agents)}
        return Client(self.temporal, self.store, known, task_queue=queue)


@asynccontextmanager
async def open_installation(
    nursery: Nursery, services: Servers, database_url: str
) -> AsyncGenerator[Installation]:
    """An installation on these servers, with its tables."""
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
    """Additional environment variables of its workers."""
    workers: list[Process] = field(default_factory=list[Process])

    @property
    def client(self) -> Client:
        """A client whose executions only the workers of this site can run."""
        return self.installation.client(self.name, self.agents)

    async def worker(
        self,
        *options: str,
        kill_at: Failpoint | None = None,
        fuse: str | None = None,
        gates: str = "",
        grace: float = 60,
    ) -> Process:
        """A worker that dies at `kill_at` once the failpoint at `fuse` is armed, or waits at `gates`.

        `options` are those of its command.
        """
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
        worker = await self.installation.nursery.start("worker", *options, log=log, environment=environment)
        self.workers.append(worker)
        await until("a worker works", lambda: "working on" in log.read_text() or worker.ended.done())
        assert worker.code is None, log.read_text()
        return worker

    async def start(self, message: str, agent: str = "clerk") -> Execution:
        """Start an execution for the workers of this site."""
        return await self.client.start(agent, message)

    async def final_account(self, execution: Execution) -> "Account":
        """Wait for the end of an execution and return its account."""
        async with asyncio.timeout(DEADLINE):
            await execution.result()
        return await account(self.installation, execution)

    def open_gates(self) -> None:
        """Release the workers that wait at a gate."""
        (self.folder / OPEN).touch()

    async def until_entry(self, event: str, where: str) -> None:
        """Wait until a worker has journalled this."""
        await until(f"a worker of {self.name} {event} at {where}", lambda: self.count(event, where))

    def journal(self, *events: str) -> list[Entry]:
        """The workers' journal; all of it, or only these events."""
        entries = read_journal(self.folder / JOURNAL)
        return [entry for entry in entries if not events or entry.event in events]

    def counts(self, event: str) -> dict[str, int]:
        """How often this happened, by place."""
        return dict(Counter(entry.where for entry in self.journal(event)))

    def count(self, event: str, where: str) -> int:
        """How often this happened at a place."""
        return self.counts(event).get(where, 0)

    async def close(self) -> None:
        """End every process."""
        for worker in self.workers:
            await worker.kill()


@asynccontextmanager
async def site(
    name: str, installation: Installation, folder: Path, agents: str = AGENTS, **variables: str
) -> AsyncGenerator[Site]:
    """A new site; its workers end with the block."""
    folder.mkdir()
    made = Site(name, installation, folder, agents, variables)
    try:
        yield made
    finally:
        await made.close()


async def until_pause(execution: Execution) -> None:
    """Wait until an execution waits for people."""

    async def is_paused() -> bool:
        return (await execution.get()).status is ExecutionStatus.PAUSED

    await until("the execution is paused", is_paused)


# Accounts.


@dataclass(frozen=True)
class Account:
    """All stored rows of an execution, comparable with those of another one."""

    status: ExecutionStatus
    answer: str | None
    steps: tuple[int, ...]
    conversation: tuple[tuple[str, str], ...]
    rows: Mapping[str, Any]
    """By table, without the values that may differ."""

    @property
    def last_tool_message(self) -> str:
        """The last message that the model received."""
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
"""The column that links a row to its execution, and the order of the rows."""

DIFFERS: Final = re.compile(r".*(_at|At|[sS]econds|duration_?[mM]s|attempts?)|epoch|timestamp|task_queue")
"""Keys whose values may differ: times, durations and attempt numbers."""

AN_ID: Final = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}|call_[0-9a-f]{12}")


async def account(installation: Installation, execution: Execution) -> Account:
    """Read the account of an execution; its envelopes must have no gap and no duplicate."""
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
            wanted = f"SELECT to_jsonb(t) FROM {table} t WHERE {whose} = :id ORDER BY {order}"  # noqa: S608 -- fixed text
            rows = await connection.execute(text(wanted), {"id": execution.id})
            found[table] = [_comparable(row) for row in rows.scalars()]
    _drop_announcements(found)
    names: dict[str, str] = {}
    return json.loads(AN_ID.sub(lambda id_: names.setdefault(id_[0], f"id {len(names)}"), json.dumps(found)))


def _drop_announcements(found: dict[str, Any]) -> None:
    """Drop the announcement that an attempt was superseded, of which only this number remains."""
    kept_rows = [row for row in found["agent_envelopes"] if row["type"] != "agent.attempt.superseded"]
    for stream in found["agent_streams"]:
        stream["head"] -= len(found["agent_envelopes"]) - len(kept_rows)
    found["agent_envelopes"] = [row | {"seq": seq} for seq, row in enumerate(kept_rows, 1)]


def _comparable(value: object) -> object:
    if isinstance(value, list):
        return [_comparable(entry) for entry in cast("list[object]", value)]
    if isinstance(value, dict):
        entries = cast("dict[str, object]", value).items()
        return {name: _comparable(entry) for name, entry in entries if not DIFFERS.fullmatch(name)}
    return value


async def measure_seconds(work: Awaitable[object]) -> float:
    """Measure how many seconds something takes."""
    began = monotonic()
    await work
    return monotonic() - began
