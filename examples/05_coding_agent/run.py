"""A coding agent makes failing tests pass, and has a subagent review its change.

Starts its own servers and a worker, lets the agent work on a copy of the project, and shows the changes.
Needs bubblewrap, and no keys: without one the model is a script.

    python examples/05_coding_agent/run.py [--data DIR] [TASK]
"""

import argparse
import asyncio
import difflib
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path

from everstep.agent_domain.capabilities.bash import ExecutionPolicy
from everstep.agent_domain.errors import EverstepError
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.capabilities.bash.sandbox import Sandbox
from everstep.cli.follow import follow_lines
from everstep.cli.output import execution_lines
from everstep.runtime.data_folder import data_folder
from everstep.runtime.installation import Installation, open_local_installation
from everstep.runtime.settings import Settings

HERE = Path(__file__).parent.resolve()
PROJECT, WORKSPACE = HERE / "project", HERE / "workspace"
TASK = "make the tests pass"


async def main(data: Path, task: str) -> None:
    """Start servers and a worker, run the agent, and show the result."""
    # So that everstep.toml is found; the agents' paths in it are relative to this folder.
    os.chdir(HERE)
    shutil.rmtree(WORKSPACE, ignore_errors=True)
    shutil.copytree(PROJECT, WORKSPACE)
    print("Starting PostgreSQL and Temporal ...", flush=True)
    async with open_local_installation(Settings.read(data_dir=data), temporal_port=0, ui_port=0) as (
        installation,
        _services,
    ):
        print(f"Temporal UI: {installation.settings.ui_url}\n")
        stop = asyncio.Event()
        worker = asyncio.create_task(installation.work(stop))
        try:
            await follow_agent(installation, task)
        finally:
            stop.set()
            await worker


async def follow_agent(installation: Installation, task: str) -> None:
    """Follow the agent to its end, and show its changes."""
    execution = await installation.client.start("coder", task)
    async with aclosing(follow_lines(execution)) as lines:
        async for line in lines:
            print(line, flush=True)
    row = await execution.get()
    print("\n" + "\n".join(execution_lines(row, installation.settings.ui_url)))
    print("\nWhat it changed:\n\n" + "".join(changes()))
    print(f"\nAfter {row.step_count} steps the tests {await verdict()}.")
    wait_for_enter(installation.settings.ui_url)
    if row.status is not ExecutionStatus.COMPLETED:
        raise SystemExit(f"The execution {row.status}.")


def changes() -> Iterator[str]:
    """The difference between the project and the copy."""
    paths = {path.relative_to(root) for root in (PROJECT, WORKSPACE) for path in root.rglob("*.py")}
    for path in sorted(paths):
        before, after = (lines_of(root / path) for root in (PROJECT, WORKSPACE))
        yield from difflib.unified_diff(before, after, f"project/{path}", f"workspace/{path}")


def lines_of(path: Path) -> list[str]:
    """The lines of a file; none if it does not exist."""
    return path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []


async def verdict() -> str:
    """Run the tests once more, in a sandbox as well: the agent wrote the code."""
    result = await Sandbox(ExecutionPolicy.for_bash(WORKSPACE)).run("python3 -m unittest")
    return "pass" if result.exit_code == 0 else f"fail:\n{result.stderr}"


def wait_for_enter(ui_url: str | None) -> None:
    """Leave time for a look at Temporal's UI, if the terminal is interactive."""
    if sys.stdin.isatty():
        print(f"\nHave a look at {ui_url}; Enter stops everything.")
        sys.stdin.readline()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A coding agent makes failing tests pass.")
    parser.add_argument("task", nargs="?", default=TASK, help=f"the task of the agent ({TASK})")
    parser.add_argument(
        "--data", type=Path, help="where the servers keep their data; else outside of this folder"
    )
    given = parser.parse_args()
    folder = data_folder(Settings.read(data_dir=given.data))
    try:
        asyncio.run(main(folder, given.task))
    except EverstepError as error:
        raise SystemExit(f"Error: {error}") from None
