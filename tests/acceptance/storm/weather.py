"""The faults and their moments, drawn from the seed."""

import asyncio
import os
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from time import monotonic
from typing import TYPE_CHECKING

from everstep.runtime.embedded import EmbeddedServices
from tests.acceptance.chaos import Role
from tests.acceptance.storm.relays import Relay

if TYPE_CHECKING:
    from collections.abc import Generator

    from tests.acceptance.storm.scene import Scene

Fault = Callable[[], Coroutine[object, object, None]]
Option = tuple[float, str, Fault]
"""How likely a fault is, its name, and the fault."""


class Weather(ABC):
    """Faults of an installation, one after the other and often several at once."""

    def __init__(self, scene: "Scene", dice: Random) -> None:
        self.scene = scene
        self.dice = dice

    async def run(self) -> None:
        """Run every fault at its random moment; returns when all are over."""
        measure = self.scene.measure
        moments = sorted(self.dice.uniform(0.05, 0.9) * measure.seconds for _ in range(measure.faults))
        async with asyncio.TaskGroup() as tasks:
            for moment in moments:
                what, fault = self._draw()
                await asyncio.sleep(max(0.0, self.scene.began + moment - monotonic()))
                self.scene.note(what)
                tasks.create_task(fault())

    def _draw(self) -> tuple[str, Fault]:
        """Draw the next fault with its name."""
        options = self.options()
        (chosen,) = self.dice.choices(options, [weight for weight, _, _ in options])
        return chosen[1], chosen[2]

    @abstractmethod
    def options(self) -> list[Option]:
        """The faults of which one is drawn."""

    def options_of(self, role: Role) -> list[Option]:
        """The faults of a process."""
        brief, long = self.dice.uniform(0.2, 3), self.dice.uniform(3, 14)
        return [
            (0.30, f"{role.name} is killed", lambda: role.crash(brief)),
            (0.12, f"{role.name} freezes for {long:.1f} s", lambda: self._freeze(role, long)),
            (0.08, f"{role.name} is told to stop", role.drain),
        ]

    async def _freeze(self, role: Role, seconds: float) -> None:
        async with role.busy:
            process = role.lives[-1]
            if process.code is None:
                with pause_processes([process.pid]):
                    await asyncio.sleep(seconds)


class LocalWeather(Weather):
    """Faults of an installation on this machine: processes, servers, and the links to the servers."""

    def __init__(
        self, scene: "Scene", dice: Random, services: EmbeddedServices, database: Relay, temporal: Relay
    ) -> None:
        super().__init__(scene, dice)
        self._services = services
        self._relays = database, temporal
        self._servers = asyncio.Lock()

    def options(self) -> list[Option]:
        dice = self.dice
        role, relay = dice.choice(self.scene.roles), dice.choice(self._relays)
        brief, long = dice.uniform(0.2, 3), dice.uniform(3, 14)
        return [
            *self.options_of(role),
            (0.15, f"{relay.name} is cut", lambda: self._cut(relay)),
            (0.15, f"{relay.name} is silent for {long:.1f} s", lambda: relay.fall_silent(long)),
            (0.07, "PostgreSQL is killed", self._kill_postgres),
            (0.05, f"PostgreSQL freezes for {brief:.1f} s", lambda: self._freeze_postgres(brief)),
            (0.04, "Temporal is killed", self._kill_temporal),
            (0.04, f"Temporal freezes for {brief:.1f} s", lambda: self._freeze_temporal(brief)),
        ]

    async def _cut(self, relay: Relay) -> None:
        relay.cut()

    async def _kill_postgres(self) -> None:
        async with self._servers:
            await self._services.postgres.kill()
            await self._services.postgres.start()

    async def _kill_temporal(self) -> None:
        async with self._servers:
            await self._services.temporal.kill()
            await self._services.temporal.start()

    async def _freeze_postgres(self, seconds: float) -> None:
        async with self._servers:
            pid = self._services.postgres.pid
            with pause_processes(processes_below(pid) if pid else []):
                await asyncio.sleep(seconds)

    async def _freeze_temporal(self, seconds: float) -> None:
        async with self._servers:
            pid = self._services.temporal.pid
            with pause_processes(processes_below(pid) if pid else []):
                await asyncio.sleep(seconds)


@contextmanager
def pause_processes(pids: list[int]) -> "Generator[None]":
    """Stop processes for the time of the block; they continue in any case."""
    try:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in reversed(pids):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def processes_below(pid: int) -> list[int]:
    """A process and its descendants, itself first."""
    found = [pid]
    for each in found:
        with suppress(OSError):
            for task in Path(f"/proc/{each}/task").iterdir():
                found += map(int, (task / "children").read_text().split())
    return found
