"""Compares both ways of events from workers to gateways: direct connections, and NATS.

For each bus a gateway runs as a process, a writer with the bus of a worker as another one, and viewers as a
third; NATS is a server of its own. The buses take turns with the same load. Printed are medians over the
rounds: the time from the publication of a word to its viewer, and the CPU time of all processes for a word.
Fails if a word is lost, doubled or out of order.

    python bench/buses.py [--rounds N] [--quick]
"""

import argparse
import asyncio
import socket
import statistics
import sys
from collections import defaultdict
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from uuid import UUID, uuid4

import psycopg
from bus_writer import Written, in_process
from crowd import Measured, Target, cpu_of
from figures import line
from gateway import ENVELOPES, SESSIONS, LoadProcess, open_load, process

from everstep.http_api.callers import Grant
from everstep.http_api.tokens import sign_token
from everstep.runtime.embedded import EmbeddedConfig, open_services
from everstep.runtime.installation import upgrade
from everstep.runtime.settings import Settings

DIRECT: Final = "direct"
NATS: Final = "nats"
BUSES: Final = (DIRECT, NATS)
STREAMS: Final = 500
"""Each has one viewer."""
RATES: Final = (2_000, 10_000)
"""Words in a second, of all streams together."""
SECONDS: Final = 5.0
START_SECONDS: Final = 20.0


@asynccontextmanager
async def open_nats() -> AsyncGenerator[tuple[int, str]]:
    """Run a server; yield its process id and its URL."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    nowhere, program = asyncio.subprocess.DEVNULL, Path(sys.executable).with_name("nats-server")
    started = await asyncio.create_subprocess_exec(
        program, "--addr", "127.0.0.1", "--port", str(port), stdout=nowhere, stderr=nowhere
    )
    try:
        async with asyncio.timeout(START_SECONDS):
            while True:
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                except OSError:
                    await asyncio.sleep(0.01)
                else:
                    writer.close()
                    break
        yield started.pid, f"nats://127.0.0.1:{port}"
    finally:
        started.kill()
        await started.wait()


@dataclass
class Bench:
    """The measurements, on running servers."""

    settings: dict[str, Settings]
    """The settings for each bus."""
    nats_pid: int
    crowd: LoadProcess
    writer: LoadProcess
    seconds: float
    samples: defaultdict[tuple[str, str], list[float]] = field(default_factory=lambda: defaultdict(list))
    is_missed: bool = False

    async def run(self, rounds: int) -> bool:
        """Measure and print; return whether a word was lost."""
        for number in range(rounds):
            for bus in BUSES if number % 2 == 0 else reversed(BUSES):
                await self._measure(bus)
        self._print()
        return self.is_missed

    async def _measure(self, bus: str) -> None:
        settings = self.settings[bus]
        async with self._open_gateway(settings) as target:
            streams = self._create_sessions()
            await self.crowd.ask("join", target, streams, STREAMS)
            await self.writer.ask("open", settings, streams)
            for rate in RATES:
                before = cpu_of(self.nats_pid)
                measured, written = await asyncio.gather(
                    self.crowd.ask("measure", self.seconds + 0.2, is_timed=True),
                    self.writer.ask("write", rate, self.seconds),
                )
                server = cpu_of(self.nats_pid) - before
                missing: Measured = await self.crowd.ask("count_sent", written.per_stream, 10)
                self._check(f"{rate:,} words/s, {bus}", missing)
                self._note(bus, rate, measured, written, server)
            await self.writer.ask("close")
            await self.crowd.ask("leave")

    def _check(self, name: str, done: Measured) -> None:
        if not done.is_faultless:
            faults = f"{done.lost} lost, {done.doubled} doubled, {done.disordered} out of order"
            print(f"{name}: {faults}, {done.cut} connections lost  MISSED", flush=True)
            self.is_missed = True

    def _note(self, bus: str, rate: int, measured: Measured, written: Written, server: float) -> None:
        parts = {"writer": written.cpu, "gateway": measured.cpu, "NATS": server if bus == NATS else 0.0}
        values = {
            "latency, p50": measured.p50 * 1000,
            "latency, p99": measured.p99 * 1000,
            **{f"CPU of a word, {name}": cpu / written.words * 1e6 for name, cpu in parts.items()},
            "CPU of a word, together": sum(parts.values()) / written.words * 1e6,
            "words in a second of CPU": written.words / sum(parts.values()),
            "words in a second": written.words / written.seconds,
        }
        for name, value in values.items():
            self.samples[f"{rate:,} words/s: {name}", bus].append(value)

    def _print(self) -> None:
        line("", *BUSES, "ratio")
        for name in dict.fromkeys(name for name, _ in self.samples):
            direct, nats = (self.samples[name, bus] for bus in BUSES)
            unit = "ms" if "latency" in name else "us" if "CPU of" in name else ""
            shown = [f"{statistics.median(each):,.{2 * (unit == 'ms')}f} {unit}" for each in (direct, nats)]
            # Per round: other load on the machine changes from round to round.
            pairs = [(one, other) for one, other in zip(direct, nats, strict=True) if one]
            ratio = f"{statistics.median(other / one for one, other in pairs):.2f}" if pairs else ""
            line(name, *shown, ratio)

    @asynccontextmanager
    async def _open_gateway(self, settings: Settings) -> AsyncGenerator[Target]:
        secret = settings.require("auth_secret", "")
        environment = {
            "DATABASE_URL": settings.require("database_url", ""),
            "TEMPORAL_ADDRESS": settings.require("temporal_address", ""),
            "EVERSTEP_AUTH_SECRET": secret,
            "EVERSTEP_BUS": settings.bus,
            "EVERSTEP_NATS_URL": settings.nats_url or "",
            "EVERSTEP_GATEWAY_DRAIN_SECONDS": "0",
        }
        async with process("-m", "everstep.cli", "gateway", "--port", "0", **environment) as (pid, port):
            yield Target(pid, port, 0, sign_token(secret, "viewer", scope=Grant.ALL_SESSIONS))

    def _create_sessions(self) -> list[UUID]:
        url = self.settings[DIRECT].require("database_url", "").replace("+psycopg", "")
        with psycopg.connect(url, autocommit=True) as connection:
            rows = connection.execute(SESSIONS, {"streams": STREAMS, "stored": 1}).fetchall()
            streams = [row[0] for row in rows]
            connection.execute(ENVELOPES, {"streams": streams})
        return streams


async def run_bench(rounds: int, seconds: float) -> bool:
    """Measure on separate servers; return whether a word was lost."""
    with TemporaryDirectory(prefix="everstep-bench-") as folder:
        async with AsyncExitStack() as stack:
            config = EmbeddedConfig(Path(folder), temporal_port=0, ui_port=0)
            services = await stack.enter_async_context(open_services(config))
            nats_pid, nats_url = await stack.enter_async_context(open_nats())
            given: dict[str, Any] = {
                "data_dir": Path(folder),
                "database_url": services.database_url,
                "temporal_address": services.temporal_address,
                "auth_secret": uuid4().hex,
            }
            settings = {
                DIRECT: Settings(**given),
                NATS: Settings(**given, bus=NATS, nats_url=nats_url),
            }
            await upgrade(settings[DIRECT])
            crowd = await stack.enter_async_context(open_load())
            writer = await stack.enter_async_context(open_load(in_process))
            return await Bench(settings, nats_pid, crowd, writer, seconds).run(rounds)


def main() -> None:
    """Measure, print, and exit with 1 if a word was lost."""
    parser = argparse.ArgumentParser(description="What a word costs on both ways from workers to gateways.")
    parser.add_argument("--rounds", type=int, default=3, help="rounds in which both take turns (3)")
    parser.add_argument("--quick", action="store_true", help="one round, a moment for each: does it run?")
    arguments = parser.parse_args()
    rounds, seconds = (1, 1.0) if arguments.quick else (arguments.rounds, SECONDS)
    sys.exit(asyncio.run(run_bench(rounds, seconds)))


if __name__ == "__main__":
    main()
