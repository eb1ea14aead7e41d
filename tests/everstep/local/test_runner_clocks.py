"""Work time and the wall clock of a run in this process."""

from typing import Any

import pytest

from everstep.agent_domain.loop.status import StopReason
from everstep.agent_domain.state.state import AgentState
from everstep.agent_domain.testing import MockTool, ScenarioStep
from everstep.local.clock import SystemClock
from tests.everstep.local.local_words import (
    AT,
    WorkClock,
    a_call_response,
    a_conversation,
    a_model,
    a_runner,
    a_scripted_driver,
    with_look,
)


async def test_processing_seconds_are_inference_tools_and_processors() -> None:
    """2.7.1, 2.7.4: waiting in between does not count."""
    clock = WorkClock()

    def thinks() -> Any:
        clock.advance(1.25)
        return a_call_response("look")

    def looks() -> str:
        clock.advance(0.5)
        return "seen"

    def processes(state: AgentState) -> AgentState:
        clock.advance(0.125)
        return state

    look = MockTool("look", handler=looks)
    runner = a_runner(
        a_model(thinks, "Done"),
        lambda b: b.with_tools([look]).add_processor(processes).with_max_steps(1),
        clock=clock,
    )
    state = await runner.run(a_conversation())
    clock.advance(3600)
    (record,) = state.execution.step_executions
    assert record.processing_seconds == record.duration == 1.875
    assert state.state_info.cumulative_execution_seconds == 1.875
    assert state.state_info.session_execution_seconds == 1.875


async def test_the_time_of_failed_steps_is_work() -> None:
    """2.7: each second once, also where an exception split one step in two."""
    clock = WorkClock()

    def fails() -> Any:
        clock.advance(2.0)
        raise ValueError("boom")

    state = await a_runner(a_model(fails), clock=clock).run(a_conversation())
    assert state.steps[0].seconds == state.state_info.cumulative_execution_seconds == 2.0

    def thinks() -> Any:
        clock.advance(1.0)
        return "Done"

    def processes(_state: AgentState) -> AgentState:
        clock.advance(0.5)
        raise ValueError("boom")

    state = await a_runner(a_model(thinks), lambda b: b.add_processor(processes), clock=clock).run(
        a_conversation()
    )
    assert [step.seconds for step in state.steps] == [1.0, 0.5]
    assert state.state_info.cumulative_execution_seconds == 1.5


async def test_work_is_summed_over_executions_and_the_wall_clock_restarts() -> None:
    """2.7, 2.7.2."""
    clock = WorkClock()

    def thinks() -> Any:
        clock.advance(4.0)
        return "Done"

    runner = a_runner(a_model(thinks), clock=clock)
    first = await runner.run(a_conversation())
    clock.advance(1000)
    second = await runner.run(first.with_user_message("And now?"))
    assert first.state_info.started_at == second.state_info.started_at == AT
    assert second.state_info.cumulative_execution_seconds == 4.0
    assert second.state_info.session_execution_seconds == 8.0
    assert second.execution_started_at is not None
    assert (second.execution_started_at - AT).total_seconds() == 1004.0
    assert second.elapsed_seconds == 4.0


@pytest.mark.parametrize("how", ["run", "iterator", "by hand"])
async def test_the_wall_clock_stops_a_run_at_a_step_boundary(how: str) -> None:
    """2.5, 2.7: elapsed since the entry of the run, or its first manual step."""
    clock = WorkClock()

    def thinks() -> Any:
        clock.advance(6.0)
        return a_call_response("look")

    runner = a_runner(a_model(thinks), lambda b: with_look(b.with_timeout(10)), clock=clock)
    state = a_conversation().at(AT)
    clock.advance(500)
    match how:
        case "run":
            state = await runner.run(state)
        case "iterator":
            state = [each async for each in runner.iterate(state)][-1]
        case _:
            while not state.status.is_terminal:
                state = await runner.next_step(state)
    assert state.step_count == 2
    assert state.last_outcome is not None
    assert state.last_outcome.stop_reason is StopReason.TIME_LIMIT


async def test_each_run_restarts_the_wall_clock_but_only_the_first_manual_step_does() -> None:
    """2.7."""
    clock = WorkClock()
    runner = a_runner(a_scripted_driver(ScenarioStep.tool_call("look")), with_look, clock=clock)
    first = await runner.next_step(a_conversation())
    clock.advance(5)
    second = await runner.next_step(first)
    assert first.execution_started_at == second.execution_started_at == AT
    entered = [state async for state in a_runner(a_scripted_driver(), clock=clock).iterate(second)][-1]
    assert entered.execution_started_at == clock.now()


async def test_the_start_is_not_restored_so_the_wall_clock_starts_at_the_first_manual_step() -> None:
    """2.7, 6.3.7."""
    clock = WorkClock()
    runner = a_runner(a_scripted_driver(ScenarioStep.tool_call("look")), with_look, clock=clock)
    first = AgentState.from_dict((await runner.next_step(a_conversation())).to_dict())
    clock.advance(5)
    assert (await runner.next_step(first)).execution_started_at == clock.now()


def test_the_system_clock_is_in_utc_and_never_runs_backwards() -> None:
    """2.7, 0.5."""
    clock = SystemClock()
    offset = clock.now().utcoffset()
    assert offset is not None
    assert offset.total_seconds() == 0
    assert clock.seconds() <= clock.seconds()
