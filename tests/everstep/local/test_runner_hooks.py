"""Processors, hooks and custom drivers of a run in this process."""

from typing import Any
from uuid import UUID

import pytest

from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.agents.processors import AgentHook
from everstep.agent_domain.loop.continuation import ContinuationCriteria, ContinuationDecision
from everstep.agent_domain.loop.status import AgentStatus, StopReason
from everstep.agent_domain.loop.stop_signal import StopSignal
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.messages.cached_context import CachedContext
from everstep.agent_domain.messages.messages import assistant, system, user
from everstep.agent_domain.state.events import (
    ContinuationEvaluated,
)
from everstep.agent_domain.state.state import AgentState
from everstep.agent_domain.state.steps import AgentStep
from everstep.agent_domain.tools.tools import ToolCall, ToolExecution
from tests.everstep.local.local_words import (
    AT,
    FINAL,
    OwnDriver,
    WorkClock,
    a_call_response,
    a_conversation,
    a_model,
    a_runner,
    a_scripted_driver,
    look_then_answer,
    outcomes_of,
    step_with_text,
    with_look,
    within_timeout,
)

# Processors, hooks and signals.


async def test_processors_run_in_their_order_on_the_new_step() -> None:
    """4.5.2: with its messages and its usage; their changes are evaluated and recorded."""
    seen: list[object] = []

    def first(state: AgentState) -> AgentState:
        assert state.current_step is not None
        seen.append((state.messages[-1].text, state.usage, state.step_count, state.current_step.display_text))
        return state.with_metadata("first", True)

    async def second(state: AgentState) -> AgentState:
        seen.append(dict(state.metadata))
        return state

    driver = a_scripted_driver(FINAL("Done", Usage(input=3)))
    runner = a_runner(driver, lambda b: b.add_processor(first).add_processor(second))
    state = await runner.run(a_conversation())
    assert seen == [("Done", Usage(input=3), 1, "Done"), {"first": True}]
    assert state.metadata == {"first": True}


async def test_hooks_are_called_around_steps_and_tool_calls() -> None:
    """2.4.1, 4.4.4: their changes are merged into the state."""
    called: list[str] = []

    class Noting(AgentHook):
        def before_step(self, state: AgentState) -> AgentState:
            called.append("before_step")
            assert state.execution.hook_context == {}
            return state.with_hook_context({"note": 1})

        def before_tool(self, state: AgentState, call: ToolCall) -> AgentState:
            called.append(f"before {call.name}")
            return state.with_metadata("before", call.id)

        def after_tool(self, state: AgentState, execution: ToolExecution) -> AgentState:
            called.append(f"after {execution.call.name}: {execution.text}")
            return state.with_metadata("after", execution.result)

        def after_step(self, state: AgentState) -> AgentState:
            called.append("after_step")
            assert state.execution.hook_context == {"note": 1}
            return state

    runner = a_runner(a_model(a_call_response("look"), "Done"), lambda b: with_look(b.add_hook(Noting())))
    state = await runner.run(a_conversation())
    assert called[:4] == ["before_step", "before look", "after look: seen", "after_step"]
    assert called[4:] == ["before_step", "after_step"]
    assert state.metadata == {"before": "c1", "after": "seen"}
    assert state.execution.hook_context is None


async def test_a_stop_signal_of_a_hook_stops_the_run_and_is_recorded() -> None:
    """2.4.1, 2.4.2, 4.4.3."""
    signal = StopSignal(StopReason.USER_REQUESTED, "enough", source="hook")

    class Stopping(AgentHook):
        def after_tool(self, state: AgentState, execution: ToolExecution) -> AgentState:
            return state.with_stop_signal(signal)

    runner = a_runner(look_then_answer(), lambda b: with_look(b.add_hook(Stopping())))
    heard = list[ContinuationEvaluated]()
    runner.events.on_event(ContinuationEvaluated, heard.append)
    state = await runner.run(a_conversation())
    assert (state.step_count, state.status) == (1, AgentStatus.COMPLETED)
    assert state.last_outcome is not None
    assert (heard[-1].source, heard[-1].resolved_by, heard[-1].stop_signal) == ("hook", "StopSignal", signal)
    assert (state.last_outcome.resolved_by, state.last_outcome.stop_reason) == (
        "StopSignal",
        "user_requested",
    )
    assert state.execution.step_executions[0].stop_signal == signal


async def test_a_processor_can_request_one_more_step() -> None:
    """2.4.1: cleared when that step starts."""
    once = [True, False]

    def more(state: AgentState) -> AgentState:
        return state.with_continuation_requested() if once.pop(0) else state

    state = await a_runner(
        a_scripted_driver(FINAL("one"), FINAL("two")), lambda b: b.add_processor(more)
    ).run(a_conversation())
    assert (state.step_count, state.final_response) == (2, "two")
    assert outcomes_of(state) == ["request", "stop"]


async def test_the_cached_context_is_applied_where_the_state_has_none() -> None:
    """5.2.2: kept during the run, no part of the conversation, applied again by a new execution."""

    def with_prompt(builder: DefinitionBuilder) -> object:
        return builder.with_system_prompt("Be brief")

    state = await a_runner(a_scripted_driver(), with_prompt).run(a_conversation())
    assert state.cached_context.messages == (system("Be brief"),)
    assert state.messages == (user("Hello"), assistant("ok"))
    own = CachedContext((system("Be long"),))
    kept = await a_runner(a_scripted_driver(), with_prompt).run(a_conversation().with_cached_context(own))
    assert kept.cached_context == own
    again = await a_runner(a_scripted_driver(), with_prompt).run(kept)
    assert again.cached_context.messages == (system("Be brief"),)


# Custom drivers.


async def test_a_custom_driver_runs_the_whole_step() -> None:
    """4.4.4: the step that it sets is recorded like any other."""
    state = await a_runner(OwnDriver(step_with_text("Done", own_usage=Usage(output=2)))).run(a_conversation())
    assert (state.final_response, state.usage, state.step_count) == ("Done", Usage(output=2), 1)


async def test_the_time_of_a_custom_driver_is_work() -> None:
    """2.7.1."""
    clock = WorkClock()

    def slowly(state: AgentState) -> AgentState:
        clock.advance(2.0)
        return step_with_text("Done")(state)

    state = await a_runner(OwnDriver(slowly), clock=clock).run(a_conversation())
    assert state.execution.step_executions[0].processing_seconds == 2.0
    assert state.state_info.cumulative_execution_seconds == 2.0


def return_unchanged(state: AgentState) -> AgentState:
    return state


def leave_calls_open(state: AgentState) -> AgentState:
    step = AgentStep(state.new_step_id(), AT, inference_response=a_call_response("look"))
    return state.with_current_step(step)


@pytest.mark.parametrize(
    ("acts", "complaint"),
    [
        ([return_unchanged], "OwnDriver.use_tools returned a state without a new step"),
        (
            [step_with_text("one"), return_unchanged],
            "OwnDriver.use_tools returned a state without a new step",
        ),
        ([leave_calls_open], "OwnDriver.use_tools left tool calls without a result"),
    ],
)
async def test_a_driver_that_does_not_complete_its_step_fails(acts: list[Any], complaint: str) -> None:
    """4.4.4: it is a failure step, and not an endless loop."""
    more = ContinuationCriteria.when(
        lambda state: ContinuationDecision.REQUEST if state.step_count < 2 else ContinuationDecision.ALLOW
    )
    runner = a_runner(OwnDriver(*acts), lambda b: with_look(b.add_continuation_criteria(more)))
    state = await within_timeout(runner.run(a_conversation()))
    assert (state.status, state.step_count) == (AgentStatus.FAILED, len(acts))
    assert complaint in state.steps[-1].errors_as_text


async def test_a_two_phase_driver_can_be_used_without_an_executor() -> None:
    """4.4.4: the runner gives it an executor."""
    driver = look_then_answer()
    runner = a_runner(driver, with_look)
    begun = a_conversation().identified(UUID(int=8), UUID(int=9)).with_step_started(AT)
    state = await runner.driver.use_tools(begun)
    assert [execution.result for execution in state.steps[0].tool_executions] == ["seen"]
