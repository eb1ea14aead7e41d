"""Measures the gateway's cost and latency: many viewers, many streams, text as it is written.

`everstep gateway` runs as a separate process on a real PostgreSQL. It is compared with a relay on
`websockets` that has no table, no resumption and no checks (bench/relay.py). Both are loaded by the same
process (bench/crowd.py) with the same envelopes, in turns. Server and load have a core each if there are two.
The path of text from a worker to viewers is compared with one bare hop between two processes. Prints medians
over the rounds and their ratios, and fails if one misses its target, or if anything is lost, doubled or out
of order.

    python bench/gateway.py [--rounds N] [--only SCENARIO] [--quick]
"""

import argparse
import asyncio
import multiprocessing
import os
import re
import resource
import sys
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Any, Final, TypeAlias
from uuid import UUID, uuid4

import psycopg
from crowd import Measured, Target, in_process, memory_of
from figures import line, mark
from gateway_table import EVERSTEP, RELAY, SIDES, Samples, print_ratios
from psycopg import sql
from typist import EVERY, TYPIST, Typist, typing, working

from everstep.agent_domain.stream.gateways import GATEWAY_EXPIRY_SECONDS
from everstep.client.client import Client
from everstep.http_api.callers import Grant
from everstep.http_api.tokens import sign_token
from everstep.runtime.embedded import EmbeddedConfig, open_services
from everstep.runtime.installation import open_installation, upgrade
from everstep.runtime.settings import Settings
from everstep.store.engine import create_engine
from everstep.store.gateways import PostgresGateways
from everstep.store.tables import metadata

HERE: Final = Path(__file__).parent

VIEWERS, STREAMS = 1000, 100
BYTES: Final = 500
RATES: Final = (2000, 6000)
"""Envelopes per second; each is delivered to ten viewers."""
WINDOW: Final = 256
"""Envelopes in flight if there is no rate."""
IDLE, IDLE_STREAMS = 10_000, 1000
STORED: Final = 300
"""Envelopes that each returning viewer receives."""
SLOW, SLOW_AMONG, SLOW_STREAMS = 20, 100, 10
SLOW_BYTES: Final = 2000

EXECUTIONS, READERS = 100, 300

# Processes.


@asynccontextmanager
async def process(*command: str, **environment: str) -> AsyncGenerator[tuple[int, int]]:
    """Run a Python process that first prints the URL at which it listens; yield its id and the port."""
    given, pipe = {**os.environ, **environment}, asyncio.subprocess.PIPE
    with TemporaryFile() as log:
        started = await asyncio.create_subprocess_exec(
            sys.executable, *command, env=given, stdout=pipe, stderr=log
        )
        try:
            assert started.stdout
            async with asyncio.timeout(60):
                line_read = (await started.stdout.readline()).decode()
            if match := re.search(r"ws://\S+:(\d+)", line_read):
                yield started.pid, int(match[1])
            if not match or started.returncode is not None:
                log.seek(0)
                raise RuntimeError(f"{' '.join(command)} ended: {log.read().decode()}")
        finally:
            with suppress(ProcessLookupError):
                started.terminate()
            await started.wait()


@dataclass(frozen=True)
class LoadProcess:
    """A part of the load, in a separate process."""

    pipe: Connection
    pid: int

    async def ask(self, what: str, *args: Any, **given: Any) -> Any:
        """Run a command of the process and return its result."""
        self.pipe.send((what, args, given))
        answer = await asyncio.to_thread(self.pipe.recv)
        if isinstance(answer, Exception):
            raise answer
        return answer


@asynccontextmanager
async def open_load(run: Callable[[Connection], None] = in_process) -> AsyncGenerator[LoadProcess]:
    """Start the process of the crowd, or another one; stop it at the end."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    started = context.Process(target=run, args=(theirs,), daemon=True)
    started.start()
    theirs.close()
    try:
        assert started.pid
        yield LoadProcess(ours, started.pid)
    finally:
        ours.close()
        await asyncio.to_thread(started.join)


# Measuring.

SESSIONS: Final = """
    WITH made AS (
        INSERT INTO agent_sessions (id, tenant_id, user_id)
        SELECT gen_random_uuid(), 'default', 'user ' || i FROM generate_series(1, %(streams)s) AS i
        RETURNING id
    )
    INSERT INTO agent_streams (stream_id, tenant_id, head)
    SELECT id, 'default', %(stored)s FROM made
    RETURNING stream_id
"""

ENVELOPES: Final = """
    INSERT INTO agent_envelopes (stream_id, seq, tenant_id, id, type, execution_id, payload)
    SELECT stream_id, seq, 'default', gen_random_uuid(), 'agent.tool.completed', stream_id,
           json_build_object('call_id', 'call_1', 'result',
                             '#' || lpad(seq::text, 10, '0') || repeat('0', 19) || repeat('.', 180))
      FROM agent_streams, generate_series(1, head) AS seq
     WHERE stream_id = ANY (%(streams)s)
"""


@dataclass
class Bench:
    """All measurements, on running servers."""

    settings: Settings
    crowd: LoadProcess
    rounds: int
    is_quick: bool
    samples: Samples = field(default_factory=lambda: defaultdict(list))
    is_missed: bool = False

    @property
    def cores(self) -> list[int]:
        """The cores that this process may use."""
        return sorted(os.sched_getaffinity(0))

    async def run(self, scenarios: Iterable[str]) -> bool:
        """Measure and print; return whether a target was missed."""
        names = set(scenarios)
        compared = {name: each for name, each in self._comparisons().items() if name in names}
        await self.crowd.ask("pin", {self.cores[-1]})
        for number in range(self.rounds):
            for name, (scenario, options) in compared.items():
                # Filling memory takes long, and gives the same result each time.
                if number and name == "idle":
                    continue
                for side in SIDES if number % 2 == 0 else reversed(SIDES):
                    await self._on(side, name, scenario, options)
        if compared:
            self.is_missed |= print_ratios(self.samples)
        if "chunks" in names:
            await self.crowd.ask("pin", set(self.cores))
            await self.chunks()
        return self.is_missed

    def _comparisons(self) -> dict[str, tuple["Scenario", tuple[str, ...]]]:
        return {
            "fanout": (self.fanout, ()),
            "idle": (self.idle, ()),
            "replay": (self.replay, ("--keep", str(STORED))),
            "slow": (self.slow, ()),
        }

    async def _on(self, side: str, name: str, scenario: "Scenario", options: tuple[str, ...]) -> None:
        async with self.open_server(side, *options) as target:
            os.sched_setaffinity(target.pid, {self.cores[0]})
            for measured in await scenario(side, target):
                self._check(f"{name}, {side}", measured, is_ours=side == EVERSTEP)
            await self.crowd.ask("leave")

    def _check(self, name: str, measured: Measured, *, is_ours: bool = True) -> None:
        if not measured.is_faultless:
            faults = f"{measured.lost} lost, {measured.doubled} doubled, {measured.disordered} out of order"
            cut = f"{measured.cut} connections lost"
            print(f"{name}: {faults}, {cut}", "  MISSED" if is_ours else "", flush=True)
            self.is_missed |= is_ours

    def _note(self, name: str, side: str, value: float) -> None:
        self.samples[name, side].append(value)

    # Servers.

    @asynccontextmanager
    async def open_server(self, side: str, *options: str) -> AsyncGenerator[Target]:
        """Run a server of this kind in its own process."""
        if side == RELAY:
            async with process(str(HERE / "relay.py"), *options) as (pid, port):
                yield Target(pid, port, port)
            return
        secret = self.settings.require("auth_secret", "")
        environment = {
            "DATABASE_URL": self.settings.require("database_url", ""),
            "TEMPORAL_ADDRESS": self.settings.require("temporal_address", ""),
            "EVERSTEP_AUTH_SECRET": secret,
            "EVERSTEP_GATEWAY_CONNECTIONS_PER_ADDRESS": "100000",
            "EVERSTEP_GATEWAY_DRAIN_SECONDS": "0",
        }
        async with process("-m", "everstep.cli", "gateway", "--port", "0", **environment) as (pid, port):
            token = sign_token(secret, "viewer", scope=Grant.ALL_SESSIONS)
            epoch, link_port = await self._find_gateway()
            yield Target(pid, port, link_port, token, self.settings.gateway_secret or "", epoch)

    async def _find_gateway(self) -> tuple[str, int]:
        """The epoch, and the URL for pushes: from the table in which gateways register."""
        engine = create_engine(self.settings.require("database_url", ""))
        try:
            epoch, [(_, url)] = await PostgresGateways(engine).active_gateways(GATEWAY_EXPIRY_SECONDS)
            return epoch, int(url.rpartition(":")[2])
        finally:
            await engine.dispose()

    def database(self) -> psycopg.Connection[Any]:
        """A connection to the tables."""
        url = self.settings.require("database_url", "").replace("+psycopg", "")
        return psycopg.connect(url, autocommit=True)

    def streams(self, number: int, stored: int = 0) -> list[UUID]:
        """Create sessions, with stored envelopes."""
        with self.database() as connection:
            rows = connection.execute(SESSIONS, {"streams": number, "stored": stored}).fetchall()
            streams = [row[0] for row in rows]
            if stored:
                connection.execute(ENVELOPES, {"streams": streams})
                connection.execute("ANALYZE agent_envelopes")
        return streams

    # Scenarios, on one side.

    async def fanout(self, side: str, target: Target) -> list[Measured]:
        """A thousand viewers, ten per stream, at several rates and at full speed."""
        await self.crowd.ask("join", target, self.streams(STREAMS), VIEWERS)
        seconds = 1.0 if self.is_quick else 2.5
        speeds = {
            "20,000/s": {"rate": 2000},
            "60,000/s": {"rate": 6000},
            "without a pause": {"window": WINDOW},
        }
        all_of_it = list[Measured]()
        for name, speed in speeds.items():
            done: Measured = await self.crowd.ask("publish", BYTES, seconds, **speed)
            self._note(f"CPU of a delivery, {name}", side, done.cpu / done.deliveries)
            self._note(f"deliveries in a second of CPU, {name}", side, done.deliveries / done.cpu)
            if "window" in speed:
                self._note(f"deliveries in a second, {name}", side, done.deliveries / done.seconds)
                self._note(f"core of the load, {name}", side, done.own_cpu / done.seconds)
            elif not all_of_it:
                self._note(f"latency, {name}, p50", side, done.p50)
                self._note(f"latency, {name}, p99", side, done.p99)
                self._note(f"latency, {name}, p99.9", side, done.p999)
            all_of_it.append(done)
        return all_of_it

    async def idle(self, side: str, target: Target) -> list[Measured]:
        """Ten thousand idle viewers."""
        most = int(resource.getrlimit(resource.RLIMIT_NOFILE)[1] * 0.9) - 100
        viewers = 1000 if self.is_quick else min(IDLE, most)
        if viewers < IDLE:
            print(f"idle: {viewers:,} connections and not {IDLE:,}", flush=True)
        before = memory_of(target.pid)
        came: Measured = await self.crowd.ask("join", target, self.streams(IDLE_STREAMS), viewers)
        await asyncio.sleep(1 if self.is_quick else 4)
        self._note("idle: memory of a connection", side, (memory_of(target.pid) - before) / viewers)
        self._note("idle: CPU to connect and subscribe", side, came.cpu / viewers)
        done: Measured = await self.crowd.ask("measure", 2 if self.is_quick else 5)
        self._note("idle: CPU of all", side, done.cpu / done.seconds)
        return [done]

    async def replay(self, side: str, target: Target) -> list[Measured]:
        """A thousand viewers return at once and missed everything; the relay has it in memory."""
        if side == RELAY:
            streams = [uuid4() for _ in range(STREAMS)]
            await self.crowd.ask("push_each", target, streams, BYTES, STORED)
            await self.crowd.ask("leave")
        else:
            streams = self.streams(STREAMS, STORED)
        came: Measured = await self.crowd.ask("join", target, streams, VIEWERS, is_back=True)
        done: Measured = await self.crowd.ask("count_sent", STORED)
        self._note("back: time until all is replayed", side, came.seconds + done.seconds)
        self._note("back: CPU until all is replayed", side, came.cpu + done.cpu)
        return [done]

    async def slow(self, side: str, target: Target) -> list[Measured]:
        """One in five viewers stops reading."""
        await self.crowd.ask("join", target, self.streams(SLOW_STREAMS), SLOW_AMONG)
        # Until the buffer of each stream is full.
        first: Measured = await self.crowd.ask("publish", SLOW_BYTES, 3.0, rate=RATES[0])
        before = memory_of(target.pid)
        await self.crowd.ask("stop_reading", SLOW)
        peaks = asyncio.create_task(peak(target.pid))
        done: Measured = await self.crowd.ask(
            "publish", SLOW_BYTES, 2.0 if self.is_quick else 4.0, rate=RATES[0]
        )
        peaks.cancel()
        most = max(await peaks, memory_of(target.pid))
        self._note("slow readers: latency of the others, p50", side, done.p50)
        self._note("slow readers: latency of the others, p99", side, done.p99)
        self._note("slow readers: memory for each", side, max(0, most - before) / SLOW)
        return [first, done]

    # From a worker to viewers.

    async def chunks(self) -> None:
        """Streamed text, next to one bare hop; and how much of it is stored."""
        seconds = 2 if self.is_quick else 8
        # Some words before, and some after the measured ones.
        words = int((seconds + 4) / EVERY)
        floor = await self._hop(seconds, words)
        assert self.settings.data_dir
        model = Typist(words, self.settings.data_dir / "go")
        async with self.open_server(EVERSTEP) as target, working(self.settings, model):
            streams = self.streams(EXECUTIONS)
            await self.crowd.ask("join", target, streams, READERS)
            async with open_installation(self.settings) as installation:
                agents = {TYPIST: typing(model)}
                client = Client(installation.temporal, installation.store, agents, task_queue=EVERSTEP)
                await asyncio.gather(*(client.start(TYPIST, "Type.", session_id=each) for each in streams))
                await self._wait_for_begin()
            model.go.touch()
            self._check("chunks, the first", await self.crowd.ask("count_sent", 10))
            before = self._rows(*metadata.tables)
            done: Measured = await self.crowd.ask("measure", seconds, is_timed=True)
            rows = self._rows(*metadata.tables) - before
            self._check("chunks", await self.crowd.ask("count_sent", words))
            await self.crowd.ask("leave")
        tokens = done.deliveries / (READERS / EXECUTIONS)
        self._print_chunks(floor, done, rows / tokens, tokens / done.seconds)

    async def _wait_for_begin(self) -> None:
        """Wait until each has begun, and the load of that is over."""
        async with asyncio.timeout(60):
            while self._rows("agent_steps") < EXECUTIONS:  # noqa: ASYNC110 -- another process writes
                await asyncio.sleep(0.1)
        await asyncio.sleep(1)

    async def _hop(self, seconds: float, words: int) -> Measured:
        """Measure from the process that writes to the viewer."""
        options = ("--every", str(EVERY), "--times", str(words))
        async with self.open_server(RELAY, *options) as target:
            await self.crowd.ask("join", target, [uuid4() for _ in range(EXECUTIONS)], READERS)
            await self.crowd.ask("count_sent", 10)
            done: Measured = await self.crowd.ask("measure", seconds, is_timed=True)
            await self.crowd.ask("leave")
            return done

    def _rows(self, *names: str) -> int:
        with self.database() as connection:
            tables = [sql.SQL("(SELECT count(*) FROM {})").format(sql.Identifier(name)) for name in names]
            row = connection.execute(sql.SQL("SELECT {}").format(sql.SQL(" + ").join(tables))).fetchone()
            assert row
            return row[0]

    def _print_chunks(self, floor: Measured, ours: Measured, rows: float, rate: float) -> None:
        line(
            f"from a worker to {READERS} viewers, {rate:,.0f} words/s", "one hop", EVERSTEP, "more", "target"
        )
        for name, limit in (("p50", 1.0), ("p99", 5.0), ("p999", None)):
            values = [getattr(each, name) * 1000 for each in (floor, ours)]
            more = values[1] - values[0]
            wrong = limit is not None and more > limit
            self.is_missed |= wrong
            target = "" if limit is None else f"<= {limit:.2f} ms"
            columns = (*(f"{value:.2f} ms" for value in values), f"{more:.2f} ms", target)
            line(f"a word's way to a viewer, {name}", *columns, mark(wrong))
        self.is_missed |= rows > 0
        line("rows written for a word", "", f"{rows:.4f}", "", "0", mark(bool(rows)))


Scenario: TypeAlias = Callable[[str, Target], Coroutine[Any, Any, list[Measured]]]


async def peak(pid: int) -> int:
    """The most memory that a process holds until this is cancelled."""
    most = 0
    try:
        while True:
            most = max(most, memory_of(pid))
            await asyncio.sleep(0.1)
    except asyncio.CancelledError:
        return most


async def run_bench(rounds: int, scenarios: Iterable[str], *, is_quick: bool) -> bool:
    """Measure on separate servers; return whether a target was missed."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with TemporaryDirectory(prefix="everstep-bench-") as folder:
        config = EmbeddedConfig(Path(folder), temporal_port=0, ui_port=0)
        async with AsyncExitStack() as stack:
            services = await stack.enter_async_context(open_services(config))
            settings = Settings(
                data_dir=Path(folder),
                database_url=services.database_url,
                temporal_address=services.temporal_address,
                task_queue=EVERSTEP,
                auth_secret=uuid4().hex,
            )
            await upgrade(settings)
            crowd = await stack.enter_async_context(open_load())
            return await Bench(settings, crowd, rounds, is_quick).run(scenarios)


SCENARIOS: Final = ("fanout", "idle", "replay", "slow", "chunks")


def main() -> None:
    """Measure, print, and exit with 1 if a target was missed."""
    parser = argparse.ArgumentParser(description="What the gateway costs, as ratios to a bare relay.")
    parser.add_argument("--rounds", type=int, default=2, help="rounds in which both sides take turns (2)")
    parser.add_argument("--only", choices=SCENARIOS, action="append", help="this scenario; may be repeated")
    parser.add_argument("--quick", action="store_true", help="one round, a moment for each: does it run?")
    arguments = parser.parse_args()
    rounds = 1 if arguments.quick else arguments.rounds
    sys.exit(asyncio.run(run_bench(rounds, arguments.only or SCENARIOS, is_quick=arguments.quick)))


if __name__ == "__main__":
    main()
