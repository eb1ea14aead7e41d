"""Measures what a budget costs: executions that share one budget of their tenant, against the same without.

Both agents are the same, with a model that answers at once, so that reserving is as large a part of a step
as it can be. They run on the same servers and the same worker, in turns, 200 executions at once. Prints the
median throughput of both and of their ratio, which is comparable across machines. Fails if the ratio misses
its target, or if the budget does not have exactly what was used.

    python bench/budgets.py [--rounds N] [--concurrent N] [--no-fsync]
"""

import argparse
import asyncio
import multiprocessing
import statistics
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from figures import line, mark

from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.agents.definition import AgentDefinition
from everstep.agent_domain.agents.drivers import ToolCallingDriver
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.tools.function_tool import tool
from everstep.agent_domain.tools.tools import ToolOptions
from everstep.client.client import Client
from everstep.inference.scripted import ScenarioModel, Script, ScriptedCall, ScriptedTurn
from everstep.runtime.agents import AgentBook
from everstep.runtime.embedded import EmbeddedConfig, open_services
from everstep.runtime.installation import Installation, open_installation, upgrade
from everstep.runtime.settings import Settings
from everstep.runtime.worker import make_worker

TURNS: Final = 4
USAGE: Final = Usage(100, 20)
LIMIT: Final = 10**11
FREE, LIMITED = "free", "limited"
TARGET: Final = 0.9


@tool(name="look", options=ToolOptions(quick=True))
async def look(number: int) -> str:
    """Look."""
    return f"seen {number}"


def looking_agent(name: str) -> AgentDefinition:
    """An agent that looks three times and reports it, with or without a budget of its tenant."""
    looks = (ScriptedCall(name="look", args={"number": number}) for number in range(1, TURNS))
    turns = (ScriptedTurn(calls=(call,), usage=USAGE) for call in looks)
    model = ScenarioModel(Script.of(*turns, ScriptedTurn(text="Seen.", usage=USAGE)))
    builder = DefinitionBuilder.base().with_name(name, "Looks").with_driver(ToolCallingDriver(model))
    if name == LIMITED:
        builder.with_budget(tokens=LIMIT, scope="tenant")
    return builder.with_tools([look]).definition()


AGENTS: Final = {name: looking_agent(name) for name in (FREE, LIMITED)}


async def serve(settings: Settings, pipe: Connection) -> None:
    """Run a worker until the other process closes the pipe."""
    over = asyncio.Event()
    asyncio.get_running_loop().add_reader(pipe.fileno(), over.set)
    async with open_installation(settings, "bench worker") as installation:
        book = AgentBook(AGENTS.values(), installation.models)
        async with make_worker(installation.temporal, installation.store, book, settings):
            pipe.send("ready")
            await over.wait()
    asyncio.get_running_loop().remove_reader(pipe.fileno())


def run_worker(settings: Settings, pipe: Connection) -> None:
    """The worker process."""
    asyncio.run(serve(settings, pipe))


@asynccontextmanager
async def worker_process(settings: Settings) -> AsyncGenerator[None]:
    """Run a worker in its own process."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=run_worker, args=(settings, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        await asyncio.to_thread(ours.recv)
        yield
    finally:
        ours.close()
        await asyncio.to_thread(process.join)


@dataclass
class Bench:
    """The measurement, on running servers."""

    client: Client
    concurrent: int
    rates: dict[str, list[float]] = field(default_factory=lambda: {FREE: [], LIMITED: []})
    executions: int = 0

    async def measure(self, rounds: int) -> None:
        """In turns; another side begins each round. The first round is not counted."""
        order = [FREE, LIMITED]
        for number in range(rounds + 1):
            for name in order:
                rate = await self._run_at_once(name)
                if number:
                    self.rates[name].append(rate)
                print(f"round {number} of {rounds}: {name:8}{rate:8.1f} /s", flush=True)
            order.reverse()

    async def _run_at_once(self, name: str) -> float:
        began = time.perf_counter()
        await asyncio.gather(*(self._run(name) for _ in range(self.concurrent)))
        self.executions += self.concurrent * (name == LIMITED)
        return self.concurrent / (time.perf_counter() - began)

    async def _run(self, name: str) -> None:
        execution = await self.client.start(name, "Look around.")
        await execution.workflow.result()

    async def is_exact(self) -> bool:
        """Whether the budget has exactly what the executions used."""
        execution = await self.client.start(LIMITED, "Look around.")
        await execution.workflow.result()
        (account,) = await execution.budgets()
        used = (self.executions + 1) * TURNS * USAGE.total
        print(f"spent {account.spent:,} of {used:,} tokens used, {account.reserved} reserved")
        return account.spent == used and account.reserved == 0


def report(rates: dict[str, list[float]], concurrent: int) -> bool:
    """Print the table; return whether the target was missed."""
    # Per round: other load on the machine changes from round to round.
    ratio = statistics.median(ours / free for ours, free in zip(rates[LIMITED], rates[FREE], strict=True))
    without, within = (f"{statistics.median(rates[name]):.1f} /s" for name in (FREE, LIMITED))
    is_missed = ratio < TARGET
    name, target = f"{concurrent} executions at once", f">= {TARGET}"
    line("", "without", "budget", "ratio", "target")
    line(name, without, within, f"{ratio:.2f}", target, mark(is_missed))
    return is_missed


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
            async with worker_process(settings), open_installation(settings) as installation:
                bench = Bench(make_client(installation), concurrent)
                await bench.measure(rounds)
                is_missed = report(bench.rates, concurrent)
                return not await bench.is_exact() or is_missed


def make_client(installation: Installation) -> Client:
    """A client that starts these agents."""
    return Client(
        installation.temporal, installation.store, AGENTS, task_queue=installation.settings.task_queue
    )


def main() -> None:
    """Measure, print, and exit with 1 if a target was missed."""
    parser = argparse.ArgumentParser(description="What a shared budget costs, as a ratio of throughput.")
    parser.add_argument("--rounds", type=int, default=3, help="rounds in which both sides take turns (3)")
    parser.add_argument("--concurrent", type=int, default=200, help="executions at once (200)")
    parser.add_argument(
        "--no-fsync", action="store_true", help="PostgreSQL does not wait for the disk, as on a fast one"
    )
    arguments = parser.parse_args()
    sys.exit(asyncio.run(run_bench(arguments.rounds, arguments.concurrent, fsync=not arguments.no_fsync)))


if __name__ == "__main__":
    main()
