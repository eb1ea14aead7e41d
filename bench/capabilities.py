"""Measures the cost of capabilities, each against a minimal implementation.

Prints medians, p95 and their ratios, and fails if a ratio misses its target.

    python bench/capabilities.py [--rounds N] [--only ROW]
"""

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final
from uuid import uuid4

from figures import line, mark

from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.agents.definition import AgentDefinition
from everstep.agent_domain.agents.drivers import ToolCallingDriver
from everstep.agent_domain.capabilities.bash import ExecutionPolicy
from everstep.agent_domain.capabilities.files import MAX_LINE_CHARS, MAX_LINES
from everstep.agent_domain.tools.function_tool import tool
from everstep.agent_domain.tools.tools import ToolContext
from everstep.capabilities.bash import profile, self_test
from everstep.capabilities.bash.protected_mounts import build_guard
from everstep.capabilities.bash.sandbox import Sandbox, launch_for, places_of
from everstep.capabilities.files import ReadFileTool
from everstep.capabilities.protection import current
from everstep.client.client import Client
from everstep.inference.scripted import ScenarioModel, Script, ScriptedCall, ScriptedTurn
from everstep.runtime.agents import AgentBook
from everstep.runtime.embedded import EmbeddedConfig, open_services
from everstep.runtime.installation import open_installation, upgrade
from everstep.runtime.settings import Settings
from everstep.runtime.worker import make_worker

WARM_UP: Final = 5
"""Rounds that are not counted."""


def p95(values: Sequence[float]) -> float:
    """The value that one in twenty exceeds."""
    return sorted(values)[int(len(values) * 0.95)]


def print_comparison(name: str, bare: Sequence[float], ours: Sequence[float], limit: float) -> bool:
    """Print both and their ratio; return whether it is too high."""
    ratio = statistics.median(ours) / statistics.median(bare)
    values = (f"{statistics.median(v) * 1000:.2f}/{p95(v) * 1000:.2f}" for v in (bare, ours))
    line(name, *values, f"{ratio:.2f}", f"<= {limit:.2f}", mark(ratio > limit))
    return ratio > limit


async def sandbox(rounds: int) -> bool:
    """`true` in the sandbox, against bubblewrap with the same arguments, in turns."""
    took: tuple[list[float], list[float]] = ([], [])
    with TemporaryDirectory(prefix="everstep-bench-") as folder:
        ours = Sandbox(ExecutionPolicy.for_bash(folder))
        await self_test.require(ours.policy)
        for number in range(rounds + WARM_UP):
            for seconds, work in zip(took, (bare_true, true), strict=True):
                elapsed = await work(ours)
                if number >= WARM_UP:
                    seconds.append(elapsed)
    return print_comparison("true in the sandbox, ms (median/p95)", *took, 1.3)


async def true(ours: Sandbox) -> float:
    """Time `true` as the tool runs it: with limits, watched, and until all its processes have ended."""
    began = time.perf_counter()
    assert (await ours.run("true")).exit_code == 0
    return time.perf_counter() - began


async def bare_true(ours: Sandbox) -> float:
    """Time the baseline; its arguments are prepared."""
    descriptors = list[int]()

    def descriptor(content: bytes) -> int:
        reading, writing = os.pipe()
        os.write(writing, content)
        os.close(writing)
        descriptors.append(reading)
        return reading

    policy = ours.resolved_policy()
    guard = build_guard(policy, current())
    words = launch_for(policy, places_of(policy)).words(policy, guard, descriptor)
    environment = profile.environment(policy, os.environ)
    try:
        began = time.perf_counter()
        subprocess.run(  # noqa: S603, ASYNC221 -- nothing else is at work
            [*words, "true"],
            check=True,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            pass_fds=descriptors,
            env=environment,
            cwd="/",
        )
        return time.perf_counter() - began
    finally:
        guard.release()
        for each in descriptors:
            os.close(each)


async def read(rounds: int) -> bool:
    """`read_file` of 2,000 lines, against `open`, in turns."""
    took: tuple[list[float], list[float]] = ([], [])
    with TemporaryDirectory(prefix="everstep-bench-") as folder:
        name = "source.py"
        text = "".join(
            f"    value_{number} = compute(value_{number - 1}, {number})\n" for number in range(MAX_LINES)
        )
        (Path(folder) / name).write_text(text)
        shown, context = ReadFileTool(folder), ToolContext(uuid4(), "call", 1)
        works = (lambda: plainly_read(f"{folder}/{name}"), lambda: shown.call({"path": name}, context))
        assert works[0]() == works[1]()
        for number in range(rounds + WARM_UP):
            for seconds, work in zip(took, works, strict=True):
                began = time.perf_counter()
                work()
                if number >= WARM_UP:
                    seconds.append(time.perf_counter() - began)
    return print_comparison("read_file of 2,000 lines, ms (median/p95)", *took, 2)


def plainly_read(path: str) -> str:
    """The whole file with line numbers, as the model reads it, without any checks."""
    with open(path, encoding="utf-8") as file:
        lines = file.read().removesuffix("\n").split("\n")
    return "\n".join(f"{number:>6}\t{line[:MAX_LINE_CHARS]}" for number, line in enumerate(lines, 1))


TOGETHER: Final = 10
CALL_SECONDS: Final = 0.1


def waiting_agent(name: str, calls: int) -> AgentDefinition:
    """An agent that makes a number of calls at once."""

    @tool
    async def wait(number: int) -> str:
        """Wait."""
        await asyncio.sleep(CALL_SECONDS)
        return f"waited {number}"

    scripted_calls = tuple(ScriptedCall(name="wait", args={"number": number}) for number in range(calls))
    script = Script.of(ScriptedTurn(calls=scripted_calls), "Done.")
    builder = DefinitionBuilder.base().with_name(name, "Waits").with_tools([wait])
    return builder.with_driver(ToolCallingDriver(ScenarioModel(script))).definition()


async def calls(rounds: int) -> bool:
    """A durable step with ten calls of 100 ms, against a step with one, in turns."""
    agents = {name: waiting_agent(name, number) for name, number in (("one", 1), ("ten", TOGETHER))}
    with TemporaryDirectory(prefix="everstep-bench-") as folder:
        config = EmbeddedConfig(Path(folder), temporal_port=0, ui_port=0)
        async with open_services(config) as services:
            settings = Settings(
                data_dir=Path(folder),
                database_url=services.database_url,
                temporal_address=services.temporal_address,
            )
            await upgrade(settings)
            async with open_installation(settings) as installation:
                client = Client(
                    installation.temporal, installation.store, agents, task_queue=settings.task_queue
                )
                book = AgentBook(agents.values(), installation.models)
                async with make_worker(installation.temporal, installation.store, book, settings):
                    took = [[await step_of(client, name) for name in agents] for _ in range(rounds + WARM_UP)]
    one, ten = zip(*took[WARM_UP:], strict=True)
    return print_comparison("a step, 1 and 10 calls of 100 ms, ms (median/p95)", one, ten, 1.6)


async def step_of(client: Client, agent: str) -> float:
    """The recorded seconds of an execution's first step."""
    execution = await client.start(agent, "Wait.")
    await execution.result()
    first, *_ = await execution.steps()
    assert first.duration_ms is not None
    return first.duration_ms / 1000


ROWS: Final[Mapping[str, Callable[[int], Awaitable[bool]]]] = {
    "sandbox": sandbox,
    "read": read,
    "calls": calls,
}


async def run_bench(rounds: int, rows: Sequence[str]) -> bool:
    """Measure one row after the other; return whether a target was missed."""
    line("", "bare", "everstep", "ratio", "target")
    return any([await ROWS[row](rounds) for row in rows])


def main() -> None:
    """Measure, print, and exit with 1 if a target was missed."""
    parser = argparse.ArgumentParser(description="What capabilities cost, as ratios.")
    parser.add_argument("--rounds", type=int, default=100, help="how often each is done (100)")
    parser.add_argument("--only", choices=ROWS, action="append", help="this row; may be repeated")
    arguments = parser.parse_args()
    sys.exit(asyncio.run(run_bench(arguments.rounds, arguments.only or list(ROWS))))


if __name__ == "__main__":
    main()
