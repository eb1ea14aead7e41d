"""Kill the worker in the middle of an agent's work, and watch another one finish it. Needs no keys.

Everything is real: a Temporal server, a PostgreSQL, worker processes, `kill -9`. Only the model is a script.
Every booking and every answer of the model is counted in a file, outside of Everstep, so that you can see
that nothing was done twice.

    python examples/survive.py [--data DIR]
"""

import argparse
import asyncio
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, Process
from collections import Counter
from contextlib import aclosing
from pathlib import Path
from uuid import UUID

from everstep import AgentBuilder, InferenceRequest, InferenceResponse, ToolCallingDriver, ToolContext, tool
from everstep.cli.follow import follow_lines
from everstep.cli.output import execution_lines
from everstep.client.client import Execution
from everstep.inference.scripted import ScenarioModel, Script
from everstep.runtime.data_folder import data_folder
from everstep.runtime.installation import open_local_installation
from everstep.runtime.settings import Settings

COUNTED = "EVERSTEP_DEMO_COUNTED"
"""The environment variable that names the file, for this process and its workers."""

SCRIPT = Script.from_yaml("""
turns:
  - text: I look for a train first.
    calls: [{name: find_train, args: {city: Bergen}}]
  - text: The 8:25 fits. I book it.
    calls: [{name: book_train, args: {train: "8:25"}}]
  - text: Now a room.
    calls: [{name: book_room, args: {hotel: Harbour Inn}}]
  - text: Your trip to Bergen is booked, the 8:25 train and a room at the Harbour Inn.
""")


def count(what: str) -> None:
    """Append a line to a file, which no crash can undo."""
    with Path(os.environ[COUNTED]).open("a", encoding="utf-8") as file:
        file.write(what + "\n")


class CountedModel(ScenarioModel):
    """A scripted model whose answers are counted, as a provider would bill them."""

    async def respond(self, request: InferenceRequest, on_text: object) -> InferenceResponse:
        """Return the scripted answer and count it."""
        response = await super().respond(request, on_text)  # type: ignore[arg-type]
        count(f"model: {response.text}")
        return response


@tool
async def find_train(city: str) -> str:
    """Find a train to a city."""
    await asyncio.sleep(0.5)
    return f"To {city}: 8:25, 12:03"


@tool
async def book_train(train: str, context: ToolContext) -> str:
    """Book a seat on a train."""
    await asyncio.sleep(0.5)
    count(f"booking: train {train} (key {context.tool_call_id[-6:]})")
    return "Seat 42 is yours"


@tool
async def book_room(hotel: str, context: ToolContext) -> str:
    """Book a room. Slow: there is time to kill the worker."""
    await asyncio.sleep(3)
    count(f"booking: room at {hotel} (key {context.tool_call_id[-6:]})")
    return "Room 7 is yours"


agents = [
    AgentBuilder.base()
    .with_name("travel", "Books trips")
    .with_tools([find_train, book_train, book_room])
    .with_driver(ToolCallingDriver(CountedModel(SCRIPT)))
]


async def start_worker(data: Path) -> Process:
    """Start a worker process, like `everstep worker`."""
    here = Path(__file__)
    command = [
        "-m",
        "everstep.cli",
        "--data",
        str(data),
        "--agents",
        f"examples.{here.stem}:agents",
        "worker",
    ]
    return await asyncio.create_subprocess_exec(
        sys.executable, *command, cwd=here.parent.parent, stdout=DEVNULL
    )


async def is_booking_the_room(execution: Execution) -> bool:
    """Whether the slow tool is running."""
    steps = await execution.steps()
    calls = [call for step in steps for call in step.calls]
    return any(call.call.name == "book_room" and call.record is None and call.attempts for call in calls)


async def main(data: Path) -> None:
    """Run the demo."""
    print("Starting PostgreSQL and Temporal ...")
    settings_without_servers = Settings.read(data_dir=data, agents=f"examples.{Path(__file__).stem}:agents")
    async with open_local_installation(settings_without_servers) as (installation, _services):
        settings = installation.settings
        print(f"Temporal UI: {settings.ui_url}\n\nStarting worker A.")
        worker = await start_worker(data)
        try:
            execution = await installation.client.start("travel", "Book me a trip to Bergen")
            worker = await crash_and_recover(execution, worker, data)
            print()
            for line in execution_lines(await execution.get(), settings.ui_url):
                print(line)
            report(execution.id)
            await wait_for_enter(settings)
        finally:
            worker.terminate()
            await worker.wait()


async def crash_and_recover(execution: Execution, worker: Process, data: Path) -> Process:
    """Follow the execution; kill the worker while it books the room, and start another."""
    killing = asyncio.create_task(kill_while_booking(execution, worker, data))
    async with aclosing(follow_lines(execution)) as lines:
        async for line in lines:
            print(line)
    return await killing


async def kill_while_booking(execution: Execution, worker: Process, data: Path) -> Process:
    """Crash the worker at the worst moment: while a tool runs, and its progress is unknown."""
    while not await is_booking_the_room(execution):  # noqa: ASYNC110 -- it happens in another process
        await asyncio.sleep(0.05)
    os.kill(worker.pid, signal.SIGKILL)
    await worker.wait()
    print(f"\n>>> kill -9 {worker.pid}: worker A is gone, in the middle of book_room.")
    print(">>> Starting worker B. Temporal notices the loss within 10 seconds ...\n")
    return await start_worker(data)


def report(execution_id: UUID) -> None:
    """Print what was counted outside of Everstep."""
    print(f"\nCounted outside of Everstep, for execution {execution_id}:")
    counted = Counter(Path(os.environ[COUNTED]).read_text(encoding="utf-8").splitlines())
    for what, times in counted.items():
        print(f"  {times} x {what}")
    if any(times > 1 for times in counted.values()):
        raise SystemExit("Something was done twice!")
    print("Nothing was done twice.")


async def wait_for_enter(settings: Settings) -> None:
    """Leave time for a look at Temporal's UI, if the terminal is interactive."""
    if sys.stdin.isatty():
        print(f"\nHave a look at {settings.ui_url}; Enter stops everything.")
        await asyncio.to_thread(sys.stdin.readline)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Kill a worker, and watch another one finish its work.")
    parser.add_argument(
        "--data", type=Path, help="where the servers keep their data; else outside of this folder"
    )
    given = parser.parse_args()
    folder = data_folder(Settings.read(data_dir=given.data))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "counted.txt").unlink(missing_ok=True)
    os.environ[COUNTED] = str(folder / "counted.txt")
    asyncio.run(main(folder))
