"""What capabilities cost, each against the least that does the same.

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
from tempfile import TemporaryDirectory
from typing import Final

from agent_domain.capabilities.bash import ExecutionPolicy
from everstep.capabilities.bash import checks, profile
from everstep.capabilities.bash.sandbox import Sandbox, launch_for

WARM_UP: Final = 5
"""Rounds that are not counted."""


def p95(values: Sequence[float]) -> float:
    """What one in twenty is above."""
    return sorted(values)[int(len(values) * 0.95)]


def line(name: str, *columns: str) -> None:
    """One line of the table."""
    print(f"{name:50}" + "".join(f"{column:>14}" for column in columns), flush=True)


def compared(name: str, bare: Sequence[float], ours: Sequence[float], limit: float) -> bool:
    """Print both and their ratio; whether it is too high."""
    ratio = statistics.median(ours) / statistics.median(bare)
    values = (f"{statistics.median(v) * 1000:.2f}/{p95(v) * 1000:.2f}" for v in (bare, ours))
    line(name, *values, f"{ratio:.2f}", f"<= {limit:.2f}", "MISSED" if ratio > limit else "")
    return ratio > limit


async def sandbox(rounds: int) -> bool:
    """`true` in the sandbox, against bubblewrap with the same arguments, in turns."""
    took: tuple[list[float], list[float]] = ([], [])
    with TemporaryDirectory(prefix="everstep-bench-") as folder:
        ours = Sandbox(ExecutionPolicy.for_bash(folder))
        await checks.require(ours.policy)
        for number in range(rounds + WARM_UP):
            for seconds, work in zip(took, (bare_true, true), strict=True):
                taken = await work(ours)
                if number >= WARM_UP:
                    seconds.append(taken)
    return compared("true in the sandbox, ms (median/p95)", *took, 1.3)


async def true(ours: Sandbox) -> float:
    """As the tool runs it: with limits, watched, and until nothing of it is left; how long it takes."""
    began = time.perf_counter()
    assert (await ours.run("true")).exit_code == 0
    return time.perf_counter() - began


async def bare_true(ours: Sandbox) -> float:
    """What it is compared with; its arguments are there already."""
    descriptors = list[int]()

    def descriptor(content: bytes) -> int:
        reading, writing = os.pipe()
        os.write(writing, content)
        os.close(writing)
        descriptors.append(reading)
        return reading

    policy = ours.found()
    words = launch_for(policy).words(policy, descriptor)
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
        for each in descriptors:
            os.close(each)


ROWS: Final[Mapping[str, Callable[[int], Awaitable[bool]]]] = {"sandbox": sandbox}


async def benched(rounds: int, rows: Sequence[str]) -> bool:
    """One row after the other; whether a target was missed."""
    line("", "bare", "everstep", "ratio", "target")
    return any([await ROWS[row](rounds) for row in rows])


def main() -> None:
    """Measure, print, and exit with 1 if a target was missed."""
    parser = argparse.ArgumentParser(description="What capabilities cost, as ratios.")
    parser.add_argument("--rounds", type=int, default=100, help="how often each is done (100)")
    parser.add_argument("--only", choices=ROWS, action="append", help="this row; may be repeated")
    given = parser.parse_args()
    sys.exit(asyncio.run(benched(given.rounds, given.only or list(ROWS))))


if __name__ == "__main__":
    main()
