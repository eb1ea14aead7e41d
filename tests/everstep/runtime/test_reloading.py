import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from everstep.agent_domain.errors import InvalidInput
from everstep.runtime.agent_process import AgentReport
from everstep.runtime.reloading import Reloader


class FakeProcess:
    """A process of agents that ends when it is told to."""

    def __init__(self, *agents: str) -> None:
        self.report = AgentReport(agents, "demo")
        self.end = asyncio.Event()
        self.may_stop = asyncio.Event()
        self.may_stop.set()
        self.is_stopped = False

    async def wait(self) -> str:
        await self.end.wait()
        return "exited with code 1"

    async def stop(self) -> None:
        await self.may_stop.wait()
        self.is_stopped = True


class Bench:
    """A reloader with scripted processes and changes."""

    def __init__(self, *launched: FakeProcess | InvalidInput) -> None:
        self.first = FakeProcess("clerk")
        self.changes: asyncio.Queue[tuple[Path, ...]] = asyncio.Queue()
        self.lines: asyncio.Queue[str] = asyncio.Queue()
        self.stop = asyncio.Event()
        self._launched = iter(launched)
        self.reloader = Reloader(self.first, self._launch, self._each_change(), self.lines.put_nowait)

    async def _launch(self) -> FakeProcess:
        match next(self._launched):
            case FakeProcess() as process:
                return process
            case error:
                raise error

    async def _each_change(self) -> AsyncGenerator[tuple[Path, ...]]:
        while True:
            yield await self.changes.get()

    async def change(self, *names: str) -> list[str]:
        """The lines of a change."""
        self.changes.put_nowait(tuple(map(Path, names)))
        return [await self.lines.get(), await self.lines.get()]


async def test_a_change_replaces_the_process_and_its_calls_may_finish() -> None:
    """13.6.5"""
    second = FakeProcess("clerk", "cook")
    bench = Bench(second)
    bench.first.may_stop.clear()
    running = asyncio.create_task(bench.reloader.run(bench.stop))

    assert await bench.change("agents.py") == [
        "changed: agents.py; loading the agents again ...",
        "reloaded: clerk, cook",
    ]
    assert bench.reloader.current is second
    assert not bench.first.is_stopped

    bench.stop.set()
    bench.first.may_stop.set()
    await running
    assert bench.first.is_stopped
    assert second.is_stopped


async def test_agents_that_cannot_be_loaded_leave_the_process_alone() -> None:
    """13.6.5"""
    third = FakeProcess("cook")
    bench = Bench(InvalidInput("'(' was never closed (agents.py, line 5)"), third)
    running = asyncio.create_task(bench.reloader.run(bench.stop))

    assert await bench.change("a.py", "b.py", "c.py", "d.py", "e.py") == [
        "changed: a.py, b.py, c.py and 2 more; loading the agents again ...",
        "not reloaded: '(' was never closed (agents.py, line 5)\nThe agents from before the change continue.",
    ]
    assert bench.reloader.current is bench.first
    assert not bench.first.is_stopped

    assert (await bench.change("a.py"))[1] == "reloaded: cook"
    bench.stop.set()
    await running
    assert bench.first.is_stopped
    assert third.is_stopped


async def test_a_process_that_ends_by_itself_ends_everything() -> None:
    """13.6.5"""
    bench = Bench()
    bench.first.end.set()

    with pytest.raises(InvalidInput, match="the process of the agents exited with code 1"):
        await bench.reloader.run(bench.stop)
    assert bench.first.is_stopped
