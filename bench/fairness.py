"""Measures how long a tenant waits for its first token while another one floods the workers.

A worker runs in its own process, with the settings that it has by default. One tenant starts slow executions,
20 at once, whose model takes longer than the measurement. Before, while they begin and after that, another
tenant and another user of the flooding tenant run executions in turns. Their time to the first token is
measured from the request until the worker hands on the first piece of text, and compared with their time
before. Prints the p50 and p95 of both; ratios are comparable across machines. Fails if a p95 misses its
target.

    python bench/fairness.py [--flood N] [--runs N] [--places N] [--no-fsync]
"""

import argparse
import asyncio
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from fairness_agents import MODELS, QUICK, SLOW
from figures import line, mark, misses

from everstep.client.client import Client
from everstep.runtime.embedded import EmbeddedConfig, open_services
from everstep.runtime.installation import open_installation, upgrade
from everstep.runtime.settings import Settings

FLOODING, QUIET = "flooding", "quiet"
TARGET: Final = "<= 2.00"
AT_ONCE: Final = 20
PAUSE: Final = 0.05
WARM_UP: Final = 10
STILL_SECONDS: Final = 3.0
"""If no execution has begun for so long, the others wait for places."""


async def serve(settings: Settings, pipe: Connection) -> None:
    """Run a worker until the other process closes the pipe."""
    over = asyncio.Event()
    asyncio.get_running_loop().add_reader(pipe.fileno(), over.set)
    for model in MODELS.values():
        model.pipe = pipe
    async with (
        open_installation(settings, "bench worker", is_linked=True) as installation,
        installation.open_worker() as work,
    ):
        pipe.send(("ready", 0.0))
        working = asyncio.create_task(work(asyncio.Event()))
        await asyncio.wait([working, asyncio.create_task(over.wait())], return_when=asyncio.FIRST_COMPLETED)
        # What it runs is never reported, and its servers end as well.
        os._exit(1 if working.done() else 0)


def run_worker(settings: Settings, pipe: Connection) -> None:
    """The worker process."""
    asyncio.run(serve(settings, pipe))


@dataclass
class FirstTokens:
    """The times of first tokens, as the worker sends them."""

    pipe: Connection
    waiting: dict[str, asyncio.Future[float]]
    others: int = 0
    """The executions that have begun and that nothing waits for."""
    last_other: float = 0.0
    """When the last one of them began."""

    def read(self) -> None:
        """Read what has arrived."""
        while self.pipe.poll():
            text, moment = self.pipe.recv()
            if future := self.waiting.pop(text, None):
                future.set_result(moment)
            else:
                self.others, self.last_other = self.others + 1, moment

    def after(self, text: str) -> asyncio.Future[float]:
        """The time of the first token of the answer to this message."""
        self.waiting[text] = asyncio.get_running_loop().create_future()
        return self.waiting[text]


@asynccontextmanager
async def worker_process(settings: Settings) -> AsyncGenerator[FirstTokens]:
    """Run a worker in its own process."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=run_worker, args=(settings, theirs), daemon=True)
    process.start()
    theirs.close()
    await asyncio.to_thread(ours.recv)
    tokens, loop = FirstTokens(ours, {}), asyncio.get_running_loop()
    loop.add_reader(ours.fileno(), tokens.read)
    try:
        yield tokens
    finally:
        loop.remove_reader(ours.fileno())
        ours.close()
        await asyncio.to_thread(process.join)


@dataclass
class Situation:
    """The seconds until the first tokens of the other tenant, and of the other user."""

    of_tenant: list[float]
    of_user: list[float]


@dataclass
class Bench:
    """The measurement, on running servers."""

    client: Client
    tokens: FirstTokens
    count: int = 0

    async def first_token(self, agent: str, tenant: str, user: str) -> float:
        """Start an execution; return the seconds until its first token."""
        self.count += 1
        text = f"question {self.count}"
        token = self.tokens.after(text)
        began = time.monotonic()
        client = replace(self.client, tenant_id=tenant)
        await client.start(agent, text, user_id=user)
        return await token - began

    async def measure(self, is_over: Callable[[int], bool]) -> Situation:
        """Run executions of the other tenant and the other user in turns; the argument is their number."""
        situation = Situation([], [])
        while not is_over(len(situation.of_user)):
            situation.of_tenant.append(await self.first_token(QUICK, QUIET, "bob"))
            await asyncio.sleep(PAUSE)
            situation.of_user.append(await self.first_token(QUICK, FLOODING, "eve"))
            await asyncio.sleep(PAUSE)
        return situation

    async def flood(self, number: int) -> float:
        """Start slow executions, some at a time; return the seconds that it took."""
        began, starting = time.monotonic(), asyncio.Semaphore(AT_ONCE)

        async def start() -> None:
            async with starting:
                self.count += 1
                client = replace(self.client, tenant_id=FLOODING)
                await client.start(SLOW, f"question {self.count}", user_id="ann")

        await asyncio.gather(*(start() for _ in range(number)))
        return time.monotonic() - began


def p95(seconds: Sequence[float]) -> float:
    """The 95th percentile."""
    return statistics.quantiles(seconds, n=20)[-1]


def report(name: str, seconds: Sequence[float], alone: Sequence[float]) -> bool:
    """Print a line; return whether the target was missed."""
    ratio = p95(seconds) / p95(alone)
    is_missed = seconds is not alone and misses(ratio, TARGET)
    times = (f"{value * 1000:.0f} ms" for value in (statistics.median(seconds), p95(seconds)))
    compared = ("", "") if seconds is alone else (f"{ratio:.2f}", TARGET)
    line(name, *times, *compared, mark(is_missed))
    return is_missed


async def measure(bench: Bench, flood: int, runs: int) -> bool:
    """Measure alone, while the flood arrives, and behind it."""
    await bench.measure(lambda number: number >= WARM_UP)
    alone = await bench.measure(lambda number: number >= runs)
    began = time.monotonic()
    flooding = asyncio.create_task(bench.flood(flood))

    def has_begun(number: int) -> bool:
        # The last ones wait for places of the worker, which one tenant cannot all have.
        is_still = time.monotonic() - bench.tokens.last_other > STILL_SECONDS
        return flooding.done() and number > 0 and (bench.tokens.others >= flood or is_still)

    during = await bench.measure(has_begun)
    accepted, begun = await flooding, bench.tokens.others
    behind = await bench.measure(lambda number: number >= runs)
    line("", "p50", "p95", "ratio", "target")
    missed = [
        report(f"{who}, {when}", seconds, base)
        for who, name in (("another tenant", "of_tenant"), ("another user of the tenant", "of_user"))
        for when, seconds, base in (
            ("alone", getattr(alone, name), getattr(alone, name)),
            (f"while {flood} begin", getattr(during, name), getattr(alone, name)),
            ("behind them", getattr(behind, name), getattr(alone, name)),
        )
    ]
    line("", "executions", "seconds")
    line("slow executions accepted", str(flood), f"{accepted:.1f}")
    line("slow executions begun", str(begun), f"{bench.tokens.last_other - began:.1f}")
    return any(missed)


async def main(flood: int, runs: int, places: int | None, *, fsync: bool) -> bool:
    """Start the servers and the worker, and measure."""
    with TemporaryDirectory(prefix="everstep-bench-") as folder:
        careless = {} if fsync else {"fsync": "off", "full_page_writes": "off"}
        pragmas = {} if fsync else {"journal_mode": "wal", "synchronous": "off"}
        config = EmbeddedConfig(
            Path(folder), temporal_port=0, ui_port=0, postgres_settings=careless, temporal_pragmas=pragmas
        )
        async with open_services(config) as services:
            settings = Settings.read(
                data_dir=Path(folder),
                database_url=services.database_url,
                temporal_address=services.temporal_address,
                worker_activities=places,
                agents="fairness_agents:AGENTS",
            )
            await upgrade(settings)
            async with worker_process(settings) as tokens, open_installation(settings, "bench") as here:
                return await measure(Bench(here.client, tokens), flood, runs)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--flood", type=int, default=1000, help="slow executions (1000)")
    parser.add_argument("--runs", type=int, default=100, help="executions measured in each situation (100)")
    parser.add_argument("--places", type=int, help="worker_activities of the worker; its default")
    parser.add_argument("--no-fsync", action="store_true", help="do not wait for the disk")
    given = parser.parse_args()
    sys.exit(asyncio.run(main(given.flood, given.runs, given.places, fsync=not given.no_fsync)))
