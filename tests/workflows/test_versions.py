"""New versions of a worker: running executions stay on their build, new ones use the current build.

The commands are those of docs/upgrades.md, run with the program that they name.
"""

import asyncio
from typing import Any
from uuid import uuid4

import pytest
from temporalio.client import Client as TemporalClient

from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.testing import MockTool
from everstep.client.client import Execution
from everstep.inference.scripted import ScenarioModel, Script, ScriptedCall, ScriptedTurn
from everstep.runtime.agents import AgentBook
from everstep.runtime.embedded.temporal_server import temporal_executable
from everstep.runtime.worker import make_worker
from everstep.runtime.worker_builds import list_builds, set_current_build
from tests.workflows.harness import NoModels, Office, an_agent, an_office, eventually, final_result
from tests.workflows.test_people import user_input
from tests.workflows.test_subagents import Hire, child_of

BUILT = uuid4().hex[:8]


def agents(build: str) -> tuple[DefinitionBuilder, DefinitionBuilder]:
    """The agents of this build: one that asks and then delegates, and its subagent."""
    asking = ScriptedTurn(calls=(ScriptedCall(name="user_input", args={"prompt": "?"}),))
    hiring = ScriptedTurn(calls=(ScriptedCall(name="hire", args={"who": "hand"}),))
    model = ScenarioModel(Script.of(asking, hiring, f"Done by {build}"))
    boss = an_agent(model=model, tools=[user_input(), Hire()])
    return boss.with_name("boss"), an_agent(f"I am {build}", tools=[MockTool("look")]).with_name("hand")


def worker(office: Office, build: str) -> Any:
    """A worker process of a build."""
    settings = office.settings.model_copy(update={"build_id": build})
    book = AgentBook([agent.definition() for agent in agents(build)], NoModels())
    return make_worker(office.temporal, office.port, book, settings)


async def temporal_says(office: Office, *command: str) -> tuple[int, str]:
    """Run a command of the `temporal` program; returns its exit code and output."""
    address = office.temporal.service_client.config.target_host
    process = await asyncio.create_subprocess_exec(
        temporal_executable(),
        *command,
        "--address",
        address,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await process.communicate()
    return process.returncode or 0, said.decode()


async def make_current(office: Office, build: str) -> None:
    """An operator's `everstep builds set-current`, while the workers of a build start."""
    await set_current_build(office.temporal, build, wait_seconds=60, ignores_missing_queues=True)


async def said_last(office: Office, execution: Execution) -> str:
    return (await office.conversation(execution))[-1]


async def test_an_execution_stays_on_the_build_that_it_began_on(temporal: TemporalClient) -> None:
    """1.1.1, 1.1.2: with its children, while new ones begin on the current build."""
    a, b = f"{BUILT}-a", f"{BUILT}-b"
    office = an_office(temporal, *agents("nobody"))
    async with worker(office, a):
        await make_current(office, a)
        first = await office.start()
        await office.until_waiting(first)
        async with worker(office, b):
            await make_current(office, b)
            second = await office.start()
            await office.until_waiting(second)
            for execution in (first, second):
                await execution.submit_input("Blue")
                await final_result(execution)

            assert await said_last(office, first) == f"Done by {a}"
            assert await said_last(office, await child_of(office, first)) == f"I am {a}"
            assert await said_last(office, second) == f"Done by {b}"
            assert await said_last(office, await child_of(office, second)) == f"I am {b}"


async def test_an_execution_can_be_moved_to_another_build(temporal: TemporalClient) -> None:
    """1.1.1: where the workers of its own build are gone for good."""
    c, d = f"{BUILT}-c", f"{BUILT}-d"
    office = an_office(temporal, *agents("nobody"))
    async with worker(office, c):
        await make_current(office, c)
        execution = await office.start()
        await office.until_waiting(execution)
    async with worker(office, d):
        await make_current(office, d)

        async def is_moved() -> bool:
            # Refused until the server knows that this build serves the queue.
            code, _ = await temporal_says(
                office,
                *("workflow", "update-options", "--workflow-id", execution.workflow.id),
                *("--versioning-override-behavior", "pinned"),
                *("--versioning-override-deployment-name", "everstep", "--versioning-override-build-id", d),
            )
            return code == 0

        await eventually(is_moved)
        await execution.submit_input("Blue")
        await final_result(execution)

        assert await said_last(office, execution) == f"Done by {d}"


async def test_builds_are_listed_until_they_are_drained(temporal: TemporalClient) -> None:
    """1.1.1, 18.5.8: stopping its workers too early leaves executions waiting."""
    e, f = f"{BUILT}-e", f"{BUILT}-f"
    office = an_office(temporal, *agents("nobody"))
    async with worker(office, e), worker(office, f):
        await make_current(office, e)
        execution = await office.start()
        await office.until_waiting(execution)
        await make_current(office, f)
        listed = {build.build_id: build.status for build in await list_builds(temporal)}
        await execution.cancel()

        assert {e: "draining", f: "current"}.items() <= listed.items()


async def test_a_build_without_workers_does_not_become_current(temporal: TemporalClient) -> None:
    """18.5.8: new executions would wait for them."""
    with pytest.raises(InvalidInput, match="start workers with EVERSTEP_BUILD_ID=nowhere"):
        await set_current_build(temporal, "nowhere")
