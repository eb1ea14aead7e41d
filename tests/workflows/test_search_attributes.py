"""Search attributes of executions in Temporal: status, owner, and stop reason."""

from collections.abc import Mapping
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio
from temporalio.client import Client as TemporalClient
from temporalio.service import RPCError, RPCStatusCode

from everstep.agent_domain.testing import MockTool, calls
from everstep.client.client import Execution
from everstep.runtime.embedded.search_attributes import register
from everstep.runtime.temporal import SEARCH_ATTRIBUTES
from tests.workflows.harness import Office, an_agent, at_work, events_of, eventually, final_result, of_type
from tests.workflows.test_people import asks, user_input
from tests.workflows.test_subagents import a_boss, a_hand, child_of, hires


@pytest_asyncio.fixture(autouse=True)
async def search_attributes(temporal: TemporalClient) -> None:
    """A server set up by `everstep up` and `everstep db upgrade`; a second run changes nothing."""
    for _ in range(2):
        await register(temporal, SEARCH_ATTRIBUTES)


async def find_workflows(office: Office, query: str) -> set[str]:
    ours = f"TaskQueue = '{office.settings.task_queue}' AND {query}"
    return {workflow.id async for workflow in office.temporal.list_workflows(ours)}


async def until_visible(office: Office, query: str, *executions: Execution) -> None:
    """Wait until a query finds exactly these; the server needs a moment."""
    wanted = {execution.workflow.id for execution in executions}

    async def is_so() -> bool:
        return await find_workflows(office, query) == wanted

    await eventually(is_so)


async def attributes_of(execution: Execution) -> Mapping[str, object]:
    described: Any = await execution.workflow.describe()
    pairs = described.typed_search_attributes.search_attributes
    return {pair.key.name: pair.value for pair in pairs if pair.key.name in SEARCH_ATTRIBUTES}


async def test_an_execution_is_found_by_its_status(temporal: TemporalClient) -> None:
    """1.2.1, 8.2.1: while it runs, while it waits, and once it has ended."""
    agent = an_agent(asks("?"), "Done", tools=[user_input()])
    async with at_work(temporal, agent) as office:
        office.search_attributes = True
        session = uuid4()
        execution = await office.start(session_id=session)
        await office.until_waiting(execution)
        await until_visible(office, "EverstepStatus = 'paused'", execution)
        await until_visible(office, "EverstepStatus = 'running'")
        await execution.submit_input("Blue")
        await final_result(execution)
        await until_visible(office, "EverstepStopReason = 'completed'", execution)
        await until_visible(office, f"EverstepSession = '{session}'", execution)

        assert await attributes_of(execution) == {
            "EverstepTenant": "default",
            "EverstepAgent": "agent",
            "EverstepStatus": "completed",
            "EverstepStopReason": "completed",
            "EverstepSession": str(session),
        }


async def test_only_changes_are_sent(temporal: TemporalClient) -> None:
    """1.1.4: each update costs an event."""
    agent = an_agent(calls(("look", {})), "Done", tools=[MockTool("look")])
    async with at_work(temporal, agent) as office:
        office.search_attributes = True
        execution, _ = await office.run()

    assert len(of_type(await events_of(execution), "UPSERT_WORKFLOW_SEARCH_ATTRIBUTES")) == 1


async def test_a_server_without_the_attributes_gets_none(temporal: TemporalClient) -> None:
    """1.1.4: unless the settings say that it has them."""
    async with at_work(temporal, an_agent("Done")) as office:
        execution, _ = await office.run()

        assert await attributes_of(execution) == {}
    assert of_type(await events_of(execution), "UPSERT_WORKFLOW_SEARCH_ATTRIBUTES") == []


async def test_children_are_found_too(temporal: TemporalClient) -> None:
    """9.6.2: under their own agent, in the session of their parent."""
    async with at_work(temporal, a_boss(hires("hand"), "Thanks"), a_hand("Three")) as office:
        office.search_attributes = True
        session = uuid4()
        execution, _ = await office.run(session_id=session)
        child = await child_of(office, execution)
        await until_visible(office, f"EverstepSession = '{session}'", execution, child)
        await until_visible(office, "EverstepAgent = 'hand' AND EverstepStatus = 'completed'", child)


async def test_search_attributes_that_the_server_has_forgotten_for_a_moment_are_set(
    temporal: TemporalClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """15.6.6: one that starts while its database is away knows them when they are listed."""
    start_workflow, refusals = TemporalClient.start_workflow, 1

    async def refuse_once(client: TemporalClient, *args: Any, **given: Any) -> Any:
        nonlocal refusals
        if refusals:
            refusals -= 1
            text = "no mapping defined for search attribute EverstepAgent"
            raise RPCError(text, RPCStatusCode.INVALID_ARGUMENT, b"")
        return await start_workflow(client, *args, **given)

    monkeypatch.setattr(TemporalClient, "start_workflow", refuse_once)
    async with at_work(temporal, an_agent("Done")) as office:
        office.search_attributes = True
        execution, _ = await office.run()
        assert refusals == 0
        assert (await attributes_of(execution))["EverstepAgent"] == "agent"
