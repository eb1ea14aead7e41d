"""A service that starts an agent, answers the agent's question, and gets the result.

The service uses the agent through a client; a worker runs it. Here both are in one process, with their own
servers, so that this runs anywhere without keys.

    python examples/03_service.py [--data DIR]
"""

import argparse
import asyncio
from pathlib import Path

from everstep import AgentBuilder, ToolCallingDriver, UseUserInput
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.client.client import Client, Execution
from everstep.inference.scripted import ScenarioModel, Script
from everstep.runtime.data_folder import data_folder
from everstep.runtime.installation import open_local_installation
from everstep.runtime.settings import Settings

SCRIPT = Script.from_yaml("""
turns:
  - text: I need to know the day.
    calls: [{name: user_input, args: {prompt: "Which day suits you?", choices: [Monday, Friday]}}]
  - text: The meeting is arranged.
""")

agents = [
    AgentBuilder.base()
    .with_name("secretary", "Arranges meetings")
    .with_capability(UseUserInput())
    .with_driver(ToolCallingDriver(ScenarioModel(SCRIPT)))
]


async def question_of(execution: Execution) -> str:
    """Wait for the agent's question."""
    while (await execution.get()).status is not ExecutionStatus.PAUSED:  # noqa: ASYNC110 -- it pauses elsewhere
        await asyncio.sleep(0.05)
    (request,) = await execution.requests()
    return request.request["prompt"]


async def serve(client: Client) -> None:
    """The code of the service."""
    execution = await client.start("secretary", "Arrange a meeting with Ada")
    print(f"The agent asks: {await question_of(execution)}")
    print(f"It is {(await execution.get()).status}, and holds no worker.")
    await execution.submit_input("Friday")
    await execution.result()
    row = await execution.get()
    print(f"It {row.status} after {row.step_count} steps: {row.output and row.output['response']}")


async def main(data: Path) -> None:
    """Start servers and a worker, and run the service."""
    settings = Settings.read(data_dir=data, agents=f"examples.{Path(__file__).stem}:agents")
    async with open_local_installation(settings, temporal_port=0, ui_port=0) as (installation, _services):
        stop = asyncio.Event()
        worker = asyncio.create_task(installation.work(stop))
        try:
            await serve(installation.client)
        finally:
            stop.set()
            await worker


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Start an agent, answer its question, get the result.")
    parser.add_argument(
        "--data", type=Path, help="where the servers keep their data; else outside of this folder"
    )
    folder = data_folder(Settings.read(data_dir=parser.parse_args().data))
    asyncio.run(main(folder))
