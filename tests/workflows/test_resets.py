"""Parents that an operator resets in Temporal while their subagents are running."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

from temporalio.client import Client as TemporalClient

from everstep.activities.subagents import SUBAGENT_IS_RUNNING
from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.loop.status import ExecutionStatus, StopReason
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.testing import says
from everstep.client.client import Execution
from tests.workflows.harness import (
    HeldModel,
    Office,
    at_work,
    eventually,
    failure_of_pending,
    final_result,
    progress,
    reset_execution,
)
from tests.workflows.test_people import asks, user_input
from tests.workflows.test_subagents import (
    a_boss,
    a_hand,
    child_of,
    hires,
    holds_still,
    results,
    statuses_of,
)


async def wait_until_running(execution: Execution) -> None:
    """Wait until its new run waits for the child that the former one started."""

    async def waits() -> bool:
        return await failure_of_pending(execution) == SUBAGENT_IS_RUNNING

    await eventually(waits)


def writes(model: HeldModel) -> Callable[[Office, Execution], Awaitable[object]]:
    """Wait until the model writes."""

    async def wait(office: Office, execution: Execution) -> None:
        del office, execution
        await model.begun.wait()

    return wait


@asynccontextmanager
async def reset_parent(
    temporal: TemporalClient, hand: DefinitionBuilder, wait: Callable[[Office, Execution], Awaitable[object]]
) -> AsyncGenerator[tuple[Office, Execution, Execution]]:
    """A parent that was reset while its child was running, and the child."""
    async with at_work(temporal, a_boss(hires("hand"), "Thanks"), hand) as office:
        execution = await office.start()
        await wait(office, execution)
        child = await child_of(office, execution)
        await reset_execution(execution)
        await wait_until_running(execution)
        yield office, execution, child


async def test_the_end_of_a_child_that_works_is_waited_for(temporal: TemporalClient) -> None:
    """9.6.6: nothing runs twice, one result is recorded, and its usage counts."""
    model = HeldModel(says("Three", Usage(input=5, output=2)))
    async with reset_parent(temporal, a_hand(model=model), writes(model)) as family:
        office, execution, child = family
        assert await statuses_of(execution, child) == [ExecutionStatus.RUNNING] * 2
        model.go_on.set()
        result = await final_result(execution)

        assert await results(execution) == ["[Subagent: hand] Three"]
        assert await office.statuses(child) == ["processing", "completed"]
        kinds = await office.envelope_types(execution)
    assert (kinds.count("agent.tool.started"), kinds.count("agent.tool.completed")) == (1, 1)
    assert (result.stop_reason, result.child_tokens, model.asked) == (StopReason.COMPLETED, 7, 1)


async def test_a_child_that_asks_is_answered(temporal: TemporalClient) -> None:
    """9.6.6, 8.4.1: its question stays open, and the parent is paused for as long as it is."""
    model = HeldModel(asks("?"), "Three", holds=2)
    hand = a_hand(model=model, tools=[user_input()])
    async with reset_parent(temporal, hand, Office.until_waiting) as family:
        office, execution, child = family
        assert await statuses_of(execution, child) == [ExecutionStatus.PAUSED] * 2
        await child.submit_input("Blue")
        await model.begun.wait()
        await office.until_status(execution, ExecutionStatus.RUNNING)
        model.go_on.set()
        await final_result(execution)

        assert await results(execution) == ["[Subagent: hand] Three"]
        assert await results(child) == ["Blue"]
        assert await office.statuses(execution) == ["processing", "paused", "processing", "completed"]


async def test_a_cancel_of_the_parent_reaches_its_child(temporal: TemporalClient) -> None:
    """9.6.6, 8.2.1: the parent ends last."""
    model = HeldModel()
    async with reset_parent(temporal, a_hand(model=model), writes(model)) as family:
        _, execution, child = family
        await execution.workflow.cancel()
        await final_result(execution)

        rows = [await child.get(), await execution.get()]
    assert [row.status for row in rows] == [ExecutionStatus.CANCELLED] * 2
    assert str(rows[0].completed_at) <= str(rows[1].completed_at)
    assert model.was_closed


async def test_a_pause_and_a_resume_of_the_parent_reach_its_child(temporal: TemporalClient) -> None:
    """9.6.6, 9.6.2"""
    model = HeldModel("Three")
    async with reset_parent(temporal, a_hand(model=model), writes(model)) as family:
        _, execution, child = family
        await execution.pause()
        await eventually(lambda: holds_still(child))
        await execution.resume()
        await eventually(lambda: goes_on(child))
        model.go_on.set()
        await final_result(execution)

        assert await results(execution) == ["[Subagent: hand] Three"]


async def goes_on(execution: Execution) -> bool:
    return not (await progress(execution)).facts.is_paused
