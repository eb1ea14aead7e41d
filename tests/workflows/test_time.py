"""Days pass in an instant: which limits count waiting, and which do not."""

import asyncio
from collections.abc import AsyncGenerator
from datetime import timedelta

import pytest
import pytest_asyncio
from temporalio.testing import TimeSkippingConfig, WorkflowEnvironment

from everstep.agent_domain.errors import RateLimited
from everstep.agent_domain.loop.status import AgentStatus, ExecutionStatus, StopReason
from everstep.agent_domain.loop.step_facts import CallNeed
from everstep.agent_domain.testing import MockTool, calls
from everstep.agent_domain.tools.tools import ToolOptions
from everstep.runtime.embedded.temporal_server import temporal_executable
from everstep.runtime.temporal import data_converter
from tests.workflows.harness import an_agent, at_work, events_of, final_result, progress, seconds_between

pytestmark = pytest.mark.asyncio(loop_scope="module")

WEEK = timedelta(days=7)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def time_skipping() -> AsyncGenerator[WorkflowEnvironment]:
    """A server with time skipping: each workflow's clock runs ahead on request."""
    async with await WorkflowEnvironment.start_time_skipping_v2(
        ts_config=TimeSkippingConfig(enabled=False),
        dev_server_existing_path=str(temporal_executable()),
        dev_server_extra_args=["--dynamic-config-value", "frontend.WorkflowTimeSkippingEnabled=true"],
        dev_server_log_level="error",
        data_converter=data_converter(),
    ) as environment:
        yield environment


def user_input(wait_seconds: float | None = None) -> MockTool:
    def nobody(**_args: object) -> str:
        return "nobody said"

    options = ToolOptions(need=CallNeed.INPUT, wait_seconds=wait_seconds)
    return MockTool("user_input", handler=nobody, options=options)


ASKS = calls(("user_input", {"prompt": "Which?"}))


async def test_a_week_of_waiting_counts_neither_as_work_nor_as_delay(
    time_skipping: WorkflowEnvironment,
) -> None:
    """2.7.2, 2.7.3, 8.4.1: neither limit counts it: the wall clock restarts at the answer."""
    wall = an_agent(ASKS, ASKS, "Done", tools=[user_input()]).with_name("wall").with_timeout(300)
    work = an_agent(ASKS, ASKS, "Done", tools=[user_input()]).with_name("work").with_cumulative_timeout(60)
    async with at_work(time_skipping.client, wall, work) as office:
        for agent in ("wall", "work"):
            execution = await office.start(agent=agent)
            for answer in ("Red", "Blue"):
                await office.until_waiting(execution)
                await time_skipping.fast_forward(execution.workflow, WEEK)
                await execution.submit_input(answer)
                await office.until_running_again(execution)
            result = await final_result(execution)
            info = (await progress(execution)).facts.state_info
            events = await events_of(execution)

            assert await office.conversation(execution) == ["Go", "", "Red", "", "Blue", "Done"]
            assert (result.status, result.stop_reason) == (AgentStatus.COMPLETED, StopReason.COMPLETED)
            assert result.steps == 3
            assert 0 < info.cumulative_execution_seconds < 60
            assert info.updated_at
            assert info.started_at
            assert info.updated_at - info.started_at > 2 * WEEK
            assert seconds_between(events[0], events[-1]) > 2 * WEEK.total_seconds()


async def test_a_question_waits_as_long_as_it_may(time_skipping: WorkflowEnvironment) -> None:
    """8.5.5: and not longer: after a week the tool decides."""
    agent = an_agent(ASKS, "Done", tools=[user_input(WEEK.total_seconds())])
    async with at_work(time_skipping.client, agent) as office:
        execution = await office.start()
        await office.until_waiting(execution)
        await time_skipping.fast_forward(execution.workflow, WEEK - timedelta(seconds=30))
        assert (await execution.get()).status is ExecutionStatus.PAUSED
        await time_skipping.fast_forward(execution.workflow, timedelta(minutes=1))
        await final_result(execution)

        assert await office.conversation(execution) == ["Go", "", "nobody said", "Done"]


async def test_back_off_counts_on_the_wall_and_not_as_work(time_skipping: WorkflowEnvironment) -> None:
    """2.7.1: with a wall clock limit there is no further step, with a working time limit there is.

    The provider asks for a wait that fits into the retry budget (3.5.4); chance adds up to a tenth of it.
    """
    busy, works = RateLimited("busy", 600), calls(("work", {}))
    tools = [MockTool("work")]
    agents = [an_agent(busy, works, "Done", tools=tools).with_retry_budget(900) for _ in range(2)]
    wall = agents[0].with_name("wall").with_timeout(300)
    work = agents[1].with_name("work").with_cumulative_timeout(300)
    async with at_work(time_skipping.client, wall, work) as office:
        executions = [await office.start(agent=agent) for agent in ("wall", "work")]
        for execution in executions:
            await time_skipping.fast_forward(execution.workflow, timedelta(seconds=661))
        stopped, done = await asyncio.gather(*map(final_result, executions))

    assert (stopped.stop_reason, stopped.steps) == (StopReason.TIME_LIMIT, 1)
    assert (done.stop_reason, done.steps) == (StopReason.COMPLETED, 2)
