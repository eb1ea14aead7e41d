"""Measures the cost of durability: ten model turns with nine tool calls, against plain Temporal.

Both sides run on the same servers, in turns: Everstep, whose model answers at once and which writes every
step to PostgreSQL, and a workflow with the same 19 activities, which do nothing and store nothing. Each side
has its own worker process with the same settings; the client is this process. Prints medians over the rounds
and their ratios, which are comparable across machines, unlike times. Fails if a ratio misses its target.
A second table compares with the same workflow on a server with the settings that Temporal's command gives it.

    python bench/engine.py [--rounds N] [--concurrent N] [--no-fsync]
"""

import argparse
import asyncio
import multiprocessing
import os
import resource
import statistics
import sys
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from uuid import uuid4

from figures import line, mark, misses
from plain_server import plain_server
from sqlalchemy import event
from temporalio import activity, workflow
from temporalio.client import Client as TemporalClient, WorkflowHandle
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.agents.definition import AgentDefinition
from everstep.agent_domain.agents.drivers import ToolCallingDriver
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.tools.function_tool import tool
from everstep.agent_domain.tools.tools import ToolOptions
from everstep.cli.command import server_loop
from everstep.client.client import Client
from everstep.inference.scripted import ScenarioModel, Script, ScriptedCall, ScriptedTurn
from everstep.runtime.agents import AgentBook
from everstep.runtime.embedded import EmbeddedConfig, open_services
from everstep.runtime.installation import Installation, open_installation, upgrade
from everstep.runtime.settings import Settings
from everstep.runtime.temporal import HEARTBEAT_THROTTLE, STICKY
from everstep.runtime.worker import make_worker

TURNS: Final = 10
CALLS: Final = TURNS - 1

BARE: Final = "bare"
PLAIN: Final = "plain"
"""The bare workflow on a plain server."""
QUICK: Final = "quick"
REGULAR: Final = "regular"
BURST: Final = "burst"

# The baseline.


@dataclass(frozen=True)
class Turn:
    """A turn of the model, or the call that it made."""

    execution_id: str
    number: int


@dataclass(frozen=True)
class Answer:
    """The part of an answer that a workflow needs."""

    call_id: str | None
    tool: str | None
    finish_reason: str
    input_tokens: int
    output_tokens: int


@activity.defn
async def ask(turn: Turn) -> Answer:
    """Answer like the scripted model."""
    if turn.number == TURNS:
        return Answer(None, None, "stop", 100, 20)
    return Answer(f"call-{turn.number}", "look", "tool_calls", 100, 20)


@activity.defn
async def look(turn: Turn) -> str:
    """Look like the tool."""
    return f"seen {turn.number}"


@workflow.defn
class Bare:
    """The same activities and nothing else."""

    @workflow.run
    async def run(self, execution_id: str) -> int:
        """Run the turns; the last one calls nothing."""
        tokens, limit = 0, timedelta(minutes=1)
        for number in range(1, TURNS + 1):
            turn = Turn(execution_id, number)
            answer = await workflow.execute_activity(ask, turn, start_to_close_timeout=limit)
            tokens += answer.input_tokens + answer.output_tokens
            if answer.tool is not None:
                await workflow.execute_activity(look, turn, start_to_close_timeout=limit)
        return tokens


# The measured agents.


def looking_agent(name: str, *, quick: bool) -> AgentDefinition:
    """An agent that looks nine times and reports it."""

    @tool(name="look", options=ToolOptions(quick=quick))
    async def seen(number: int) -> str:
        """Look."""
        return f"seen {number}"

    usage = Usage(100, 20)
    looks = (ScriptedCall(name="look", args={"number": number}) for number in range(1, TURNS))
    turns = (ScriptedTurn(calls=(look,), usage=usage) for look in looks)
    script = Script.of(*turns, ScriptedTurn(text="Seen.", usage=usage))
    builder = DefinitionBuilder.base().with_name(name, "Looks").with_system_prompt("You look at things.")
    builder.with_tools([seen]).with_driver(ToolCallingDriver(ScenarioModel(script)))
    return builder.with_profile("burst" if name == BURST else "regular").definition()


AGENTS: Final = {name: looking_agent(name, quick=name != REGULAR) for name in (QUICK, REGULAR, BURST)}

# Worker processes.


class Traffic:
    """Counts how often each method of a store waited for the database, and its transactions.

    It reads libpq's own trace: the server ends every answer with `ReadyForQuery`, which says whether a
    transaction is still open.
    """

    def __init__(self, installation: Installation, trace: Path) -> None:
        self.store = installation.store
        self.trace = trace
        self.counted: Counter[tuple[str, str]] = Counter()
        file = os.open(trace, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

        @event.listens_for(self.store.engine.sync_engine, "connect")
        def on_connect(connection: Any, _record: object) -> None:  # pyright: ignore[reportUnusedFunction] -- called by SQLAlchemy
            connection.driver_connection.pgconn.trace(file)

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        """The store's method, wrapped."""
        method = getattr(self.store, name)

        async def wrapper(*args: Any, **given: Any) -> Any:
            began = self._answers()
            result = await method(*args, **given)
            for kind, number in self._answers().items():
                self.counted[name, kind] += number - began[kind]
            return result

        return wrapper

    def _answers(self) -> dict[str, int]:
        answers = [line for line in self.trace.read_text().splitlines() if "\tReadyForQuery" in line]
        return {"round trips": len(answers), "transactions": sum(line.endswith("I") for line in answers)}


@asynccontextmanager
async def bare_worker(settings: Settings) -> AsyncGenerator[dict[str, Callable[[], object]]]:
    """A worker with the same settings, except those for activities that it does not have."""
    async with Worker(
        await TemporalClient.connect(settings.require("temporal_address", "")),
        task_queue=BARE,
        workflows=[Bare],
        activities=[ask, look],
        workflow_runner=UnsandboxedWorkflowRunner(),
        sticky_queue_schedule_to_start_timeout=STICKY,
        max_heartbeat_throttle_interval=HEARTBEAT_THROTTLE,
        default_heartbeat_throttle_interval=HEARTBEAT_THROTTLE,
    ):
        yield {}


@asynccontextmanager
async def everstep_worker(settings: Settings) -> AsyncGenerator[dict[str, Callable[[], object]]]:
    """The product's worker."""
    async with open_installation(settings) as installation:
        book = AgentBook(AGENTS.values(), installation.models)
        async with make_worker(installation.temporal, installation.store, book, settings):
            yield {}


@asynccontextmanager
async def watched_worker(settings: Settings) -> AsyncGenerator[dict[str, Callable[[], object]]]:
    """The product's worker, on a store that is watched."""
    async with open_installation(settings) as installation:
        assert settings.data_dir
        traffic: Any = Traffic(installation, settings.data_dir / f"{settings.task_queue}.trace")
        book = AgentBook(AGENTS.values(), installation.models)
        async with make_worker(installation.temporal, traffic, book, settings):
            yield {"traffic": lambda: traffic.counted, "forget": traffic.counted.clear}


def cpu_seconds() -> float:
    """The CPU time that this process has used."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def serve(kind: str, settings: Settings, pipe: Connection) -> None:
    """Work, and answer questions, until the pipe is closed."""
    workers = {BARE: bare_worker, "everstep": everstep_worker, "watched": watched_worker}
    async with workers[kind](settings) as more:
        answers = {"ready": lambda: None, "cpu": cpu_seconds, **more}
        over = asyncio.Event()

        def answer() -> None:
            try:
                pipe.send(answers[pipe.recv()]())
            except EOFError:
                over.set()

        asyncio.get_running_loop().add_reader(pipe.fileno(), answer)
        await over.wait()
        asyncio.get_running_loop().remove_reader(pipe.fileno())


def in_process(kind: str, settings: Settings, pipe: Connection) -> None:
    """The worker process: Everstep's, like `everstep worker`, on the event loop of servers."""
    with asyncio.Runner(loop_factory=None if kind == BARE else server_loop) as runner:
        runner.run(serve(kind, settings, pipe))


@dataclass(frozen=True)
class WorkerProcess:
    """A worker in its own process, which answers questions."""

    pipe: Connection

    async def ask(self, question: str) -> Any:
        """Ask for `cpu`, `traffic`, `forget`, or whether it is `ready`."""
        self.pipe.send(question)
        return await asyncio.to_thread(self.pipe.recv)


@asynccontextmanager
async def worker_process(kind: str, settings: Settings) -> AsyncGenerator[WorkerProcess]:
    """Start a worker and wait until it is ready; stop it at the end."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=in_process, args=(kind, settings, theirs), daemon=True)
    process.start()
    theirs.close()
    worker = WorkerProcess(ours)
    try:
        await worker.ask("ready")
        yield worker
    finally:
        ours.close()
        await asyncio.to_thread(process.join)


# Measuring.


@dataclass(frozen=True)
class Side:
    """A system that executes, and its process."""

    name: str
    worker: WorkerProcess
    start: Callable[[], Coroutine[Any, Any, WorkflowHandle[Any, Any]]]
    samples: dict[str, list[float]] = field(default_factory=dict[str, list[float]])

    async def execute(self) -> None:
        """Run one execution to its end."""
        handle = await self.start()
        await handle.result()

    async def in_a_row(self, executions: int) -> None:
        """Run executions one after the other."""
        began, cpu = time.perf_counter(), await self.worker.ask("cpu")
        for _ in range(executions):
            await self.execute()
        self._note("seconds", (time.perf_counter() - began) / executions)
        self._note("cpu in a row", (await self.worker.ask("cpu") - cpu) / executions / TURNS)

    async def at_once(self, executions: int) -> None:
        """Run all executions at the same time."""
        began, cpu = time.perf_counter(), await self.worker.ask("cpu")
        await asyncio.gather(*(self.execute() for _ in range(executions)))
        self._note("per second", executions / (time.perf_counter() - began))
        self._note("cpu at once", (await self.worker.ask("cpu") - cpu) / executions / TURNS)

    async def history(self) -> None:
        """Measure how much history Temporal stores for an execution."""
        handle = await self.start()
        await handle.result()
        info = (await handle.describe()).raw_description.workflow_execution_info
        self._note("history bytes", info.history_size_bytes)
        self._note("history events", info.history_length)

    def _note(self, what: str, value: float) -> None:
        self.samples.setdefault(what, []).append(value)


@dataclass(frozen=True)
class Row:
    """A line of the table: a ratio with an upper or a lower limit."""

    name: str
    what: str
    side: str
    target: str
    unit: str = ""
    scale: float = 1.0


ROWS: Final = (
    Row("one after the other, nine quick tools", "seconds", QUICK, "<= 0.65", "ms", 1000),
    Row("one after the other, nine regular tools", "seconds", REGULAR, "<= 1.10", "ms", 1000),
    Row("one after the other, burst profile", "seconds", BURST, "<= 0.45", "ms", 1000),
    Row("at once, quick tools, executions per second", "per second", QUICK, ">= 1.30", "/s"),
    Row("at once, regular tools, executions per second", "per second", REGULAR, ">= 1.00", "/s"),
    Row("at once, burst profile, executions per second", "per second", BURST, "", "/s"),
    Row("history, burst profile", "history bytes", BURST, "", "B"),
    Row("history, quick tools", "history bytes", QUICK, "<= 0.65", "B"),
    Row("history, regular tools", "history bytes", REGULAR, "", "B"),
    Row("history events, quick tools", "history events", QUICK, ""),
    Row("history events, regular tools", "history events", REGULAR, ""),
    Row("worker CPU per turn, one after the other, quick", "cpu in a row", QUICK, "<= 1.20", "ms", 1000),
    Row("worker CPU per turn, one after the other, burst", "cpu in a row", BURST, "", "ms", 1000),
    Row("worker CPU per turn, at once, burst", "cpu at once", BURST, "", "ms", 1000),
    Row("worker CPU per turn, one after the other, regular", "cpu in a row", REGULAR, "", "ms", 1000),
    Row("worker CPU per turn, at once, quick tools", "cpu at once", QUICK, "<= 1.20", "ms", 1000),
    Row("worker CPU per turn, at once, regular tools", "cpu at once", REGULAR, "", "ms", 1000),
)


SPEEDS: Final = [replace(row, target="") for row in ROWS if row.what in {"seconds", "per second"}]


def print_ratios(sides: Mapping[str, Side], *, bare_side: str = BARE, table: Iterable[Row] = ROWS) -> bool:
    """Print the comparison with the bare workflow; return whether a target was missed."""
    missed = False
    line("", bare_side, "everstep", "ratio", "target")
    for row in table:
        bare, ours = sides[bare_side].samples[row.what], sides[row.side].samples[row.what]
        # Per round: other load on the machine changes from round to round.
        ratio = statistics.median(our / their for our, their in zip(ours, bare, strict=True))
        values = (f"{statistics.median(v) * row.scale:,.1f} {row.unit:2}" for v in (bare, ours))
        wrong = misses(ratio, row.target)
        missed |= wrong
        line(row.name, *values, f"{ratio:.2f}", row.target, mark(wrong))
    return missed


METHODS: Final = {
    "an inference": (TURNS, ("preview_step", "begin_step", "record_reply", "note_partial", "note_failure")),
    "a tool call": (CALLS, ("preview_call", "reserve_call", "record_call")),
}


def print_traffic(name: str, counted: Mapping[tuple[str, str], int]) -> bool:
    """Print the database traffic of one execution; return whether a target was missed."""
    missed = False
    for what, (number, methods) in METHODS.items():
        for kind, target in (("transactions", "<= 2.00"), ("round trips", "")):
            per = sum(counted[method, kind] for method in methods) / number
            wrong = misses(per, target)
            missed |= wrong
            line(f"{kind} for {what}, {name} tools", "", f"{per:.2f}", "", target, mark(wrong))
    return missed


@dataclass(frozen=True)
class Bench:
    """All measurements, on running servers."""

    settings: Settings
    plain_address: str
    rounds: int
    concurrent: int

    async def run(self) -> bool:
        """Measure and print; return whether a target was missed."""
        async with AsyncExitStack() as stack:
            installation = await stack.enter_async_context(open_installation(self.settings))
            bare = await stack.enter_async_context(worker_process(BARE, self.settings))
            ours = await stack.enter_async_context(worker_process("everstep", self.settings))
            elsewhere = self.settings.model_copy(update={"temporal_address": self.plain_address})
            plain = await stack.enter_async_context(worker_process(BARE, elsewhere))
            sides = [
                Side(BARE, bare, self._bare(installation.temporal)),
                Side(PLAIN, plain, self._bare(await TemporalClient.connect(self.plain_address))),
            ]
            sides += [Side(name, ours, self._everstep(installation, name)) for name in AGENTS]
            await self._measure(sides)
            by_name = {side.name: side for side in sides}
            missed = print_ratios(by_name)
        missed |= await self._watch()
        print_ratios(by_name, bare_side=PLAIN, table=SPEEDS)
        return missed

    async def _measure(self, sides: Iterable[Side]) -> None:
        """In turns; another side begins each round."""
        order = list(sides)
        for side in order:
            # Not measured: first connections and first imports.
            await asyncio.gather(*(side.execute() for _ in range(self.concurrent)))
            await side.history()
            side.samples["history bytes"] *= self.rounds
            side.samples["history events"] *= self.rounds
        for _ in range(self.rounds):
            for side in order:
                await side.in_a_row(5)
            for side in order:
                await side.at_once(self.concurrent)
            order.append(order.pop(0))

    async def _watch(self) -> bool:
        """Count the database traffic of one execution, after another one that opened the connections."""
        settings = self.settings.model_copy(update={"task_queue": "watched"})
        missed = False
        async with open_installation(settings) as installation, worker_process("watched", settings) as worker:
            for name in AGENTS:
                side = Side(name, worker, self._everstep(installation, name))
                await side.execute()
                await worker.ask("forget")
                await side.execute()
                missed |= print_traffic(name, await worker.ask("traffic"))
        return missed

    def _bare(self, temporal: TemporalClient) -> Callable[[], Coroutine[Any, Any, WorkflowHandle[Any, Any]]]:
        async def start() -> WorkflowHandle[Any, Any]:
            name = str(uuid4())
            return await temporal.start_workflow(Bare.run, name, id=f"bare/{name}", task_queue=BARE)

        return start

    def _everstep(
        self, installation: Installation, agent: str
    ) -> Callable[[], Coroutine[Any, Any, WorkflowHandle[Any, Any]]]:
        queue = installation.settings.task_queue
        client = Client(installation.temporal, installation.store, AGENTS, task_queue=queue)

        async def start() -> WorkflowHandle[Any, Any]:
            return (await client.start(agent, "Look around.")).workflow

        return start


async def run_bench(rounds: int, concurrent: int, *, fsync: bool) -> bool:
    """Measure on separate servers; return whether a target was missed."""
    postgres = {} if fsync else {"fsync": "off"}
    with TemporaryDirectory(prefix="everstep-bench-") as folder:
        config = EmbeddedConfig(Path(folder), temporal_port=0, ui_port=0, postgres_settings=postgres)
        async with open_services(config) as services:
            settings = Settings(
                data_dir=Path(folder),
                database_url=services.database_url,
                temporal_address=services.temporal_address,
                task_queue="everstep",
            )
            await upgrade(settings)
            async with plain_server(Path(folder)) as plain_address:
                return await Bench(settings, plain_address, rounds, concurrent).run()


def main() -> None:
    """Measure, print, and exit with 1 if a target was missed."""
    parser = argparse.ArgumentParser(description="What durability costs, as ratios to Temporal alone.")
    parser.add_argument("--rounds", type=int, default=7, help="rounds in which both sides take turns (7)")
    parser.add_argument("--concurrent", type=int, default=50, help="executions at once (50)")
    parser.add_argument(
        "--no-fsync", action="store_true", help="PostgreSQL does not wait for the disk, as on a fast one"
    )
    arguments = parser.parse_args()
    sys.exit(asyncio.run(run_bench(arguments.rounds, arguments.concurrent, fsync=not arguments.no_fsync)))


if __name__ == "__main__":
    main()
