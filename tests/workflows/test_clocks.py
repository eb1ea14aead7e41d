"""Stored snapshots have the clocks of their execution, and a restored one continues to count."""

from collections.abc import Mapping
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError

from everstep.activities.failpoints import Failpoint
from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.agents.processors import AgentHook
from everstep.agent_domain.errors import ModelError
from everstep.agent_domain.loop.status import AgentStatus
from everstep.agent_domain.state.snapshots import SlimAgentStateSerializer
from everstep.agent_domain.state.state import CANCELLED_CALL, AgentState
from everstep.agent_domain.testing import MockTool, calls
from everstep.agent_domain.values import format_moment, thaw
from everstep.client.client import Execution
from everstep.local.runner import LocalRunner
from tests.workflows.harness import Office, an_agent, final_result, progress
from tests.workflows.test_debug import Debugging, database, debugging, store
from tests.workflows.test_people import asks, user_input

__all__ = ["database", "debugging", "store"]

pytestmark = pytest.mark.asyncio(loop_scope="module")

SLIM = SlimAgentStateSerializer()


async def slim_snapshots(debugging: Debugging, execution: Execution) -> list[Any]:
    """The stored snapshots, oldest first."""
    return [thaw(row.state) for row in await debugging.snapshots(execution)]


async def clocks(execution: Execution, *, under_way: float = 0.0) -> Mapping[str, Any]:
    """The workflow's clocks."""
    facts = (await progress(execution)).facts
    info = facts.state_info
    assert info.started_at
    return {
        "started_at": format_moment(info.started_at, 0),
        "cumulative_seconds": info.cumulative_execution_seconds + under_way,
        "session_seconds": info.session_execution_seconds + under_way,
        "step_count": facts.step_count,
    }


def without_moment(execution: Mapping[str, Any]) -> Mapping[str, Any]:
    return {key: value for key, value in execution.items() if key != "updated_at"}


def looking(*script: Any, **more: Any) -> DefinitionBuilder:
    return an_agent(
        calls(("look", {})), *(script or ("Done",)), tools=[MockTool("look"), user_input()], **more
    )


async def a_waiting_execution(office: Office) -> Execution:
    """An execution that waits in its second step."""
    execution = await office.start()
    await office.until_waiting(execution)
    return execution


async def test_the_final_snapshot_has_the_clocks_of_the_execution(debugging: Debugging) -> None:
    """2.7.2, 6.2: and the duration of each step."""
    async with debugging.at_work(looking()) as office:
        execution, _ = await office.run()
        (final,) = await slim_snapshots(debugging, execution)
        expected, row = await clocks(execution), await execution.get()

    assert without_moment(final["execution"]) == expected
    assert expected["cumulative_seconds"] > 0
    assert row.started_at
    assert row.completed_at
    assert expected["started_at"] <= final["execution"]["updated_at"] <= format_moment(row.completed_at, 0)
    assert [step["step_number"] for step in final["steps"]] == [1, 2]
    assert all(step["duration_ms"] > 0 for step in final["steps"])
    assert final["current_step"] == final["steps"][-1]


async def test_a_snapshot_of_a_pause_counts_the_step_under_way_and_continues_to_count(
    debugging: Debugging,
) -> None:
    """2.7.2, 6.2, 6.3.7: restored without that step, none of its work is lost."""
    async with debugging.at_work(looking(asks("?"), "Done")) as office:
        execution = await a_waiting_execution(office)
        facts = (await progress(execution)).facts
        expected = await clocks(execution, under_way=facts.seconds_under_way)
        await execution.submit_input("Blue")
        await final_result(execution)
        paused, final = await slim_snapshots(debugging, execution)

    assert facts.seconds_under_way > 0
    assert without_moment(paused["execution"]) == pytest.approx(expected)
    assert [step["step_number"] for step in paused["steps"]] == [1]
    assert (paused["current_step"]["step_number"], paused["current_step"]["duration_ms"]) == (2, None)
    assert final["execution"]["cumulative_seconds"] > paused["execution"]["cumulative_seconds"]

    restored = SLIM.deserialize(paused)
    went_on = await LocalRunner(an_agent("Done").definition()).run(restored)
    assert went_on.state_info.started_at == restored.state_info.started_at
    assert went_on.state_info.cumulative_execution_seconds > expected["cumulative_seconds"]
    assert SLIM.serialize(went_on)["execution"]["started_at"] == expected["started_at"]


async def test_the_slim_snapshot_of_an_in_process_pause_counts_the_same_way() -> None:
    """2.7.2, 6.2"""

    class Pausing(AgentHook):
        def before_tool(self, state: AgentState, call: Any) -> AgentState:
            del call
            return state.paused()

    paused = await LocalRunner(looking().add_hook(Pausing()).definition()).run(
        AgentState.empty().with_messages("Go")
    )
    step = paused.current_step
    assert step
    info, written = paused.state_info, SLIM.serialize(paused)["execution"]
    under_way = step.seconds if paused.facts.pending else 0.0
    assert written["cumulative_seconds"] == info.cumulative_execution_seconds + under_way
    assert written["session_seconds"] == info.session_execution_seconds + under_way


async def test_the_snapshots_of_debug_mode_have_the_clocks_of_their_moment(debugging: Debugging) -> None:
    """2.7.2, 8.1.3: the sum of the working times of its steps, processors included."""

    def look_closely(state: AgentState) -> AgentState:
        return state.with_metadata("seen", sum(range(100_000)))

    agent = looking(asks("?"), "Done").add_processor(look_closely)
    async with debugging.at_work(agent) as office:
        execution = await office.start(debug=True)
        await office.until_waiting(execution)
        await execution.submit_input("Blue")
        await final_result(execution)
        expected = (await progress(execution)).facts.state_info
        kept = [AgentState.from_dict(row.state) for row in await debugging.snapshots(execution)]

    infos = [state.state_info for state in kept]
    assert {info.started_at for info in infos} == {expected.started_at}
    assert infos[-1].cumulative_execution_seconds == expected.cumulative_execution_seconds
    for state in kept:
        worked = sum(record.processing_seconds for record in state.execution.step_executions)
        assert state.state_info.cumulative_execution_seconds == pytest.approx(worked, abs=2e-3)
        assert state.state_info.session_execution_seconds == state.state_info.cumulative_execution_seconds
    moments = [info.updated_at for info in infos if info.updated_at]
    assert moments == sorted(moments)
    assert len(moments) == len(kept)


@pytest.mark.parametrize("is_lost", [True, False])
async def test_a_step_that_only_the_workflow_knows_is_in_the_snapshot(
    debugging: Debugging, is_lost: bool
) -> None:
    """4.3.4, 6.2: with its duration, like one that an activity recorded."""

    def breaks(point: Failpoint) -> None:
        if is_lost and point is Failpoint.INFER_BEFORE_MODEL:
            raise ApplicationError("no", non_retryable=True)

    agent = an_agent(ModelError("no"))
    async with debugging.at_work(agent, strike=breaks) as office:
        execution, _ = await office.run()
        (final,) = await slim_snapshots(debugging, execution)

    assert final["status"] == AgentStatus.FAILED
    assert [(step["step_number"], step["type"], step["errors"]) for step in final["steps"]] == [
        (1, "error", 1)
    ]
    assert final["steps"][0]["duration_ms"] >= 0


async def test_a_cancelled_execution_has_its_clocks_and_no_open_call(debugging: Debugging) -> None:
    """1.1.5, 2.7.2, 6.2"""
    async with debugging.at_work(looking(asks("?"))) as office:
        execution = await a_waiting_execution(office)
        await execution.cancel()
        await final_result(execution)
        *_, final = await slim_snapshots(debugging, execution)
        expected = await clocks(execution)

    assert without_moment(final["execution"]) == expected
    assert [step["step_number"] for step in final["steps"]] == [1, 2]
    assert final["messages"][-1]["content"] == CANCELLED_CALL
