"""Compares the ways from workers to gateways: direct links and NATS.

One worker streams text of a hundred executions at 20 words a second each, and a gateway relays it to viewers.
Both ways take turns on the same servers. Prints the latency from the writing of a word to its viewers, and
the CPU of each process, as medians over the rounds.

    PYTHONPATH=. python bench/bus.py [--rounds N] [--seconds N]
"""

import argparse
import asyncio
import multiprocessing
import os
import resource
import sys
from collections import defaultdict
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Final
from uuid import uuid4

from crowd import Measured, cpu_of
from gateway import EVERSTEP, EXECUTIONS, READERS, Bench, open_crowd
from typist import EVERY, TYPIST, Typist, typing, working

from everstep.client.client import Client
from everstep.runtime.embedded import EmbeddedConfig, open_services
from everstep.runtime.installation import open_installation, upgrade
from everstep.runtime.settings import Settings
from tests.nats_server import NatsServer, open_nats

BUSES: Final = ("direct", "nats")


async def measure(bench: "BusBench", bus: str, nats: NatsServer, seconds: float) -> dict[str, float]:
    """Stream over a bus."""
    variables = {"EVERSTEP_BUS": bus, "EVERSTEP_NATS_URL": nats.url}
    settings = bench.settings.model_copy(update={"bus": bus, "nats_url": nats.url})
    folder = Path(settings.require("data_dir", "")) / uuid4().hex
    folder.mkdir()
    words = int((seconds + 4) / EVERY)
    model = Typist(words, folder / "go")
    os.environ.update(variables)
    async with bench.open_server(EVERSTEP) as target, working(settings, model):
        (worker,) = [each.pid for each in multiprocessing.active_children() if each.pid != bench.crowd_pid]
        streams = bench.streams(EXECUTIONS)
        await bench.crowd.ask("join", target, streams, READERS)
        steps = bench.step_count()
        async with open_installation(settings) as installation:
            agents = {TYPIST: typing(model)}
            client = Client(installation.temporal, installation.store, agents, task_queue=EVERSTEP)
            await asyncio.gather(*(client.start(TYPIST, "Type.", session_id=each) for each in streams))
            async with asyncio.timeout(60):
                while bench.step_count() < steps + EXECUTIONS:  # noqa: ASYNC110 -- another process writes
                    await asyncio.sleep(0.1)
        model.go.touch()
        await bench.crowd.ask("count_sent", 10)
        pids = {"the worker": worker, "NATS": nats.pid}
        before = {name: cpu_of(pid or 0) for name, pid in pids.items()}
        done: Measured = await bench.crowd.ask("measure", seconds, is_timed=True)
        used = {name: (cpu_of(pid or 0) - before[name]) / done.seconds for name, pid in pids.items()}
        faults: Measured = await bench.crowd.ask("count_sent", words)
        await bench.crowd.ask("leave")
    if not faults.is_faultless:
        sys.exit(f"{bus}: {faults}")
    times = {"p50": done.p50 * 1000, "p99": done.p99 * 1000, "p99.9": done.p999 * 1000}
    cpus = {f"CPU of {name}": value * 100 for name, value in used.items()}
    rate = done.deliveries / done.seconds
    cpus["CPU of the gateway"] = done.cpu / done.seconds * 100
    return {"words to viewers in a second": rate, **times, **cpus}


class BusBench(Bench):
    """The parts of the gateway's bench that are used here."""

    crowd_pid: int | None = None

    async def _find_gateway(self) -> tuple[str, int]:
        """Return nothing: the worker pushes, and not the crowd."""
        return "", 0

    def step_count(self) -> int:
        """How many steps have begun."""
        with self.database() as connection:
            row = connection.execute("SELECT count(*) FROM agent_steps").fetchone()
        assert row
        return int(row[0])


async def run_bench(rounds: int, seconds: float) -> None:
    """Measure on separate servers, and print medians."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    samples = defaultdict[str, dict[str, list[float]]](lambda: defaultdict(list))
    with TemporaryDirectory(prefix="everstep-bench-") as folder:
        async with AsyncExitStack() as stack:
            config = EmbeddedConfig(Path(folder), temporal_port=0, ui_port=0)
            services = await stack.enter_async_context(open_services(config))
            settings = Settings(
                data_dir=Path(folder),
                database_url=services.database_url,
                temporal_address=services.temporal_address,
                task_queue=EVERSTEP,
                auth_secret=uuid4().hex,
            )
            await upgrade(settings)
            nats = await stack.enter_async_context(open_nats())
            bench = BusBench(settings, await stack.enter_async_context(open_crowd()), 1, is_quick=False)
            (crowd,) = multiprocessing.active_children()
            bench.crowd_pid = crowd.pid
            for number in range(rounds):
                for bus in BUSES if number % 2 == 0 else reversed(BUSES):
                    for name, value in (await measure(bench, bus, nats, seconds)).items():
                        samples[name][bus].append(value)
    print(f"{'':32}" + "".join(f"{bus:>12}" for bus in BUSES))
    for name, found in samples.items():
        unit = " %" if name.startswith("CPU") else " ms" if name.startswith("p") else "   "
        print(f"{name:32}" + "".join(f"{median(found[bus]):>9.1f}{unit}" for bus in BUSES))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Direct links and NATS, from a worker to viewers.")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=5.0)
    arguments = parser.parse_args()
    asyncio.run(run_bench(arguments.rounds, arguments.seconds))


if __name__ == "__main__":
    main()
