"""Measures how many executions stream at once from one worker, with everything on the same cores.

`everstep worker` and `everstep gateway` run as processes beside PostgreSQL, Temporal and the load.
Each execution types 20 words a second and has one viewer. Every word contains the time at which it was
written, so its way to the viewer is measured. Prints a table for each number of executions, and the cores
that each process used, and at the end one for all. Fails if the first number misses a target; the others
show where the targets end.

    python bench/fleet.py [--executions N ...] [--model inside|http] [--processes N] [--fill | --paused N]
"""

import argparse
import asyncio
import json
import os
import resource
import sys
import time
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from uuid import UUID, uuid4

import psycopg
from crowd import Measured, Target, cpu_of, memory_of
from figures import MISSED, line, misses, name_part
from fleet_agents import AGENTS, ASKER, EVERY, TYPIST, WRITER
from gateway import HERE, SESSIONS, LoadProcess, open_load, process

from everstep.client.client import Client
from everstep.http_api.callers import Grant
from everstep.http_api.tokens import sign_token
from everstep.runtime.embedded import EmbeddedConfig, EmbeddedServices, open_services
from everstep.runtime.installation import open_installation, upgrade
from everstep.runtime.settings import Settings

BEGIN_SECONDS: Final = 20.0
STARTS_AT_ONCE: Final = 30
WARM_UP: Final = 100
SETTLE_SECONDS: Final = 3.0
"""Between the first word of the last execution and the measurement."""
PAUSED_PARTS: Final = 5
"""A worker keeps one of so many paused executions in memory."""
CHUNK: Final = b'{"type":"agent.stream.chunk"'
MODELS: Final = {"inside": TYPIST, "http": WRITER}

FILL: Final = """
    INSERT INTO agent_sessions (id, tenant_id, user_id, title, created_at)
    SELECT gen_random_uuid(), 'default', 'user ' || i % 1000, 'Trip number ' || i,
           now() - i * interval '1 minute'
      FROM generate_series(1, {sessions}) AS i;
    INSERT INTO agent_streams (stream_id, tenant_id, head)
    SELECT id, 'default', 10 FROM agent_sessions WHERE title LIKE 'Trip number %';
    INSERT INTO agent_envelopes (stream_id, seq, tenant_id, id, type, execution_id, payload)
    SELECT stream_id, seq, 'default', gen_random_uuid(), 'agent.tool.completed', stream_id,
           json_build_object('call_id', 'call_1', 'result', repeat('.', 200))
      FROM agent_streams JOIN agent_sessions ON id = stream_id AND title LIKE 'Trip number %',
           generate_series(1, 10) AS seq;
    ANALYZE
"""
ENDS: Final = frozenset({"completed", "failed", "cancelled"})
STATUSES: Final = "SELECT status, count(*) FROM agent_executions WHERE session_id = ANY (%s) GROUP BY 1"

SESSIONS_FILLED: Final = 100_000
"""Of ten envelopes each."""


@dataclass(frozen=True)
class Row:
    """A line of the table: a value with a limit."""

    name: str
    value: float
    unit: str
    target: str = ""

    @property
    def is_missed(self) -> bool:
        """Whether the value misses its target."""
        return misses(self.value, self.target)

    @property
    def text(self) -> str:
        """The value with its unit."""
        return f"{self.value:,.2f} {self.unit}".strip()


def tree(pid: int) -> set[int]:
    """The process and its descendants."""
    parents = dict[int, int]()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
    found, more = set[int](), {pid}
    while more:
        found |= more
        more = {child for child, parent in parents.items() if parent in more} - found
    return found


def cpu_of_trees(roots: Mapping[str, int]) -> dict[str, dict[int, float]]:
    """The CPU seconds of each process of each tree."""
    used: dict[str, dict[int, float]] = {}
    for name, root in roots.items():
        used[name] = {}
        for pid in tree(root):
            try:
                used[name][pid] = cpu_of(pid)
            except (FileNotFoundError, ProcessLookupError):
                continue
    return used


def cores_between(
    before: Mapping[str, Mapping[int, float]], after: Mapping[str, Mapping[int, float]], seconds: float
) -> dict[str, float]:
    """The cores that each tree used on average; what has ended in between is not counted."""
    return {
        name: sum(used - before[name].get(pid, 0.0) for pid, used in processes.items()) / seconds
        for name, processes in after.items()
    }


@dataclass
class Bench:
    """The measurement, on running servers."""

    settings: Settings
    crowd: LoadProcess
    client: Client
    gateway: Target
    agent: str
    roots: Mapping[str, int]
    """The first process of each part of the fleet."""
    seconds: float
    failures: list[str] = field(default_factory=list[str])

    async def measure(self, count: int) -> list[Row]:
        """Run so many executions at once."""
        begin = min(BEGIN_SECONDS, 5 + count / 25)
        words = int((begin + SETTLE_SECONDS + self.seconds + 2) / EVERY)
        streams = self._sessions(count)
        await self.crowd.ask("join", self.gateway, streams, count, kind=CHUNK)
        before = self._worker_memory()
        started, began = cpu_of_trees(self.roots), time.monotonic()
        starting = asyncio.create_task(self._start(streams, words))
        first: Measured = await self.crowd.ask("count_sent", 1, BEGIN_SECONDS * 3)
        begun = time.monotonic() - began
        to_begin = sum(cores_between(started, cpu_of_trees(self.roots), begun).values())
        await starting
        await asyncio.sleep(SETTLE_SECONDS)
        cpu = cpu_of_trees(self.roots)
        timed: Measured = await self.crowd.ask("measure", self.seconds, is_timed=True)
        after, memory = cpu_of_trees(self.roots), self._worker_memory() - before
        left = max(0.0, words * EVERY + began + begun - time.monotonic())
        done: Measured = await self.crowd.ask("count_sent", words, left + BEGIN_SECONDS)
        self.failures += await self._wait_for(streams)
        await self.crowd.ask("leave")
        cores = cores_between(cpu, after, timed.seconds)
        lost = done.lost + done.doubled + done.disordered + done.cut + len(self.failures)
        return [
            Row(
                "until all have begun",
                inf if first.lost else begun,
                "s",
                f"<= {BEGIN_SECONDS:g}",
            ),
            Row("cores of all until then, without the client", to_begin, ""),
            Row("a word's way to its viewer, p50", timed.p50 * 1000, "ms", "<= 5"),
            Row("a word's way to its viewer, p99", timed.p99 * 1000, "ms", "<= 50"),
            Row("a word's way to its viewer, p99.9", timed.p999 * 1000, "ms"),
            Row("words lost, doubled or out of order", lost, "", "<= 0"),
            Row(
                "words of an execution",
                timed.deliveries / timed.seconds / count,
                "/s",
                f">= {0.99 / EVERY:g}",
            ),
            Row("memory of the worker for an execution", memory / count / 1000, "kB", "<= 60"),
            *(Row(f"cores of {name}", value, "") for name, value in cores.items()),
            Row("cores of all", sum(cores.values()), ""),
        ]

    async def measure_waiting(self, count: int) -> list[Row]:
        """Let executions wait for a person: first as many as the worker keeps in memory, then more."""
        self.agent, kept = ASKER, count // PAUSED_PARTS
        used = [self._worker_memory()]
        for part in (kept, count - kept):
            streams = self._sessions(part)
            await self._start(streams, 0)
            await self._wait_for(streams, "paused")
            await asyncio.sleep(SETTLE_SECONDS)
            used.append(self._worker_memory())
        before, full, after = used
        return [
            Row("memory of the worker for a paused execution", (full - before) / kept / 1000, "kB"),
            Row(
                "the same, of more than it keeps in memory",
                (after - full) / (count - kept) / 1000,
                "kB",
                "<= 6",
            ),
        ]

    async def warm_up(self, count: int) -> None:
        """Run some executions, which open connections and import what is missing."""
        streams = self._sessions(min(count, WARM_UP))
        await self._start(streams, 20)
        await self._wait_for(streams)

    async def _start(self, streams: Sequence[UUID], words: int) -> None:
        at_once = asyncio.Semaphore(STARTS_AT_ONCE)

        async def start(stream: UUID) -> None:
            async with at_once:
                await self.client.start(self.agent, f"Type {words} words.", session_id=stream)

        await asyncio.gather(*map(start, streams))

    async def _wait_for(self, streams: Collection[UUID], status: str = "completed") -> list[str]:
        """Wait until all have this status or have ended; return how many have another one."""
        async with asyncio.timeout(120):
            while True:
                with self._database() as connection:
                    found = dict(connection.execute(STATUSES, [[*streams]]).fetchall())
                if sum(found.get(each, 0) for each in {status, *ENDS}) == len(streams):
                    return [f"{number} {each}" for each, number in found.items() if each != status]
                await asyncio.sleep(0.5)

    def fill(self, sessions: int) -> None:
        """Fill the store with what others have left behind."""
        with self._database() as connection:
            connection.execute(FILL.format(sessions=sessions).encode())

    def _sessions(self, number: int) -> list[UUID]:
        with self._database() as connection:
            rows = connection.execute(SESSIONS, {"streams": number, "stored": 0}).fetchall()
        return [row[0] for row in rows]

    def _database(self) -> psycopg.Connection[Any]:
        url = self.settings.require("database_url", "").replace("+psycopg", "")
        return psycopg.connect(url, autocommit=True)

    def _worker_memory(self) -> int:
        return sum(map(memory_of, tree(self.roots["the worker"])))


# Processes.


def environment_of(settings: Settings) -> dict[str, str]:
    """The environment of the processes, in addition to that of this one."""
    return {
        "DATABASE_URL": settings.require("database_url", ""),
        "TEMPORAL_ADDRESS": settings.require("temporal_address", ""),
        "EVERSTEP_TASK_QUEUE": settings.task_queue,
        "EVERSTEP_AUTH_SECRET": settings.require("auth_secret", ""),
        "EVERSTEP_GATEWAY_CONNECTIONS_PER_ADDRESS": "100000",
        "EVERSTEP_GATEWAY_DRAIN_SECONDS": "0",
        "EVERSTEP_LOG_LEVEL": "warning",
        "EVERSTEP_AGENTS": "fleet_agents:AGENTS",
        "PYTHONPATH": os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH")))),
    }


@asynccontextmanager
async def worker_process(processes: int, environment: Mapping[str, str]) -> AsyncGenerator[int]:
    """Run `everstep worker`; yield its id once it works."""
    more = ["--processes", str(processes)] if processes > 1 else []
    started = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "everstep.cli", "worker", *more),
        env={**os.environ, **environment},
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert started.stdout
        async with asyncio.timeout(60):
            for _ in range(processes):
                if b"working on" not in await started.stdout.readline():
                    raise RuntimeError("the worker ended")
        yield started.pid
    finally:
        if started.returncode is None:
            started.terminate()
        await started.wait()


@dataclass(frozen=True)
class Options:
    """What is measured."""

    executions: Sequence[int]
    model: str
    processes: int
    seconds: float
    sessions_filled: int
    paused: int
    cached: int
    fsync: bool


@asynccontextmanager
async def open_bench(options: Options) -> AsyncGenerator[Bench]:
    """Start the servers, the processes and the load."""
    with TemporaryDirectory(prefix="everstep-bench-") as folder:
        async with AsyncExitStack() as stack:
            enter = stack.enter_async_context
            careless = {} if options.fsync else {"fsync": "off", "full_page_writes": "off"}
            pragmas = {} if options.fsync else {"journal_mode": "wal", "synchronous": "off"}
            config = EmbeddedConfig(
                Path(folder), temporal_port=0, ui_port=0, postgres_settings=careless, temporal_pragmas=pragmas
            )
            services: EmbeddedServices = await enter(open_services(config))
            settings = Settings(
                data_dir=Path(folder),
                database_url=services.database_url,
                temporal_address=services.temporal_address,
                task_queue="everstep",
                auth_secret=uuid4().hex,
            )
            await upgrade(settings)
            environment, roots = environment_of(settings), dict[str, int]()
            cached = options.cached or options.paused // PAUSED_PARTS
            if cached:
                environment |= {"EVERSTEP_WORKER_CACHED_EXECUTIONS": str(cached)}
            if options.model == "http":
                roots["the model's server"], port = await enter(process(str(HERE / "typing_server.py")))
                preset = {
                    "driver": "openai-chat",
                    "model": "typing",
                    "base_url": f"http://127.0.0.1:{port}/v1",
                    "api_key_env": None,
                }
                environment |= {
                    "EVERSTEP_PRESETS": json.dumps({"typing": preset}),
                    "EVERSTEP_PRESET": "typing",
                }
            gateway = ("-m", "everstep.cli", "gateway", "--port", "0")
            roots["the gateway"], port = await enter(process(*gateway, **environment))
            roots["the worker"] = await enter(worker_process(options.processes, environment))
            assert services.postgres.pid
            assert services.temporal.pid
            roots |= {"PostgreSQL": services.postgres.pid, "Temporal": services.temporal.pid}
            crowd = await enter(open_load())
            roots["the viewers"] = crowd.pid
            installation = await enter(open_installation(settings, "bench"))
            token = sign_token(settings.require("auth_secret", ""), "viewer", scope=Grant.ALL_SESSIONS)
            agents = {agent.descriptor.name: agent for agent in AGENTS}
            yield Bench(
                settings,
                crowd,
                replace(installation.client, agents=agents),
                Target(roots["the gateway"], port, 0, token),
                MODELS[options.model],
                roots,
                options.seconds,
            )


def print_rows(title: str, rows: Sequence[Row]) -> bool:
    """Print what was measured, before the others are; return whether a target was missed."""
    print(title)
    for row in rows:
        print(f"  {row.name:40}{row.text:>14}{row.target:>14}{MISSED if row.is_missed else '':>14}")
    print(flush=True)
    return any(row.is_missed for row in rows)


def write_table(columns: Mapping[str, Sequence[Row]]) -> None:
    """Print the values of all measurements beside each other, with those that miss a target marked."""
    line("", *columns, "limit")
    for rows in zip(*columns.values(), strict=True):
        texts = (f"{row.text}, {MISSED.lower()}" if row.is_missed else row.text for row in rows)
        line(rows[0].name, *texts, rows[0].target)


def write_changes(columns: Mapping[str, Sequence[Row]]) -> None:
    """Print how much each value changed."""
    line("", *columns, "ratio")
    for old, new in zip(*columns.values(), strict=True):
        line(new.name, old.text, new.text, f"{new.value / old.value:.2f}" if old.value else "")


async def run_bench(options: Options) -> bool:
    """Measure and print; return whether a target was missed at the first number."""
    print(f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores", flush=True)
    measured, is_missed = dict[str, list[Row]](), False
    async with open_bench(options) as bench:
        await bench.warm_up(options.paused or options.executions[0])
        if options.paused:
            rows = await bench.measure_waiting(options.paused)
            title = f"{options.paused} paused executions"
            is_missed = print_rows(title, rows)
            write_table({title: rows})
            return is_missed
        for number, count in enumerate(options.executions):
            title = f"{count} executions"
            measured[title] = rows = await bench.measure(count)
            is_missed |= print_rows(title, rows) and number == 0
            if options.sessions_filled:
                bench.fill(options.sessions_filled)
                filled = f"{options.sessions_filled:,} sessions"
                measured[filled] = await bench.measure(count)
                print_rows(f"{title}, {filled}", measured[filled])
                write_changes(measured)
                return is_missed
    write_table(measured)
    return is_missed


def part_of(options: Options) -> str:
    """Which of the bench's reports the tables belong to; empty for that of one process."""
    if options.paused:
        return "paused"
    if options.sessions_filled:
        return "filled"
    if options.cached:
        return "cached"
    return "processes" if options.processes > 1 else ""


def main() -> None:
    """Measure, print, and exit with 1 if a target was missed."""
    parser = argparse.ArgumentParser(description="How many executions stream at once from one worker.")
    parser.add_argument(
        "--executions", type=int, nargs="+", default=[500], help="one number after the other (500)"
    )
    parser.add_argument("--model", choices=MODELS, default="inside", help="in the worker, or behind HTTP")
    parser.add_argument("--processes", type=int, default=1, help="processes of the worker (1)")
    parser.add_argument("--seconds", type=float, default=20, help="seconds that are measured (20)")
    parser.add_argument(
        "--fill", action="store_true", help="again with 100,000 sessions, a million envelopes"
    )
    parser.add_argument("--sessions", type=int, default=SESSIONS_FILLED, help="sessions of --fill")
    parser.add_argument("--paused", type=int, default=0, help="measure so many paused executions instead")
    parser.add_argument("--cached", type=int, default=0, help="executions that the worker keeps in memory")
    parser.add_argument("--no-fsync", action="store_true", help="do not wait for the disk")
    given = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    options = Options(
        given.executions,
        given.model,
        given.processes,
        given.seconds,
        given.sessions if given.fill else 0,
        given.paused,
        given.cached,
        fsync=not given.no_fsync,
    )
    if part := part_of(options):
        name_part(part)
    sys.exit(asyncio.run(run_bench(options)))


if __name__ == "__main__":
    main()
