"""The events of a run in this process, and its listeners."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.errors import ListenerFailed, ModelUnavailable
from everstep.agent_domain.loop.continuation import ContinuationDecision
from everstep.agent_domain.loop.error_policy import ErrorPolicy
from everstep.agent_domain.loop.status import AgentStatus, StopReason
from everstep.agent_domain.loop.stop_signal import StopSignal
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.state.events import (
    AgentFailed,
    AgentFinished,
    AgentStateUpdated,
    AgentStepCompleted,
    AgentStepStarted,
    ContinuationEvaluated,
    ConversationCompacted,
    Event,
    StreamEventReceived,
    TokenUsageReported,
    ToolCallCompleted,
    ToolCallProgressed,
    ToolCallStarted,
)
from everstep.agent_domain.state.snapshots import SlimAgentStateSerializer, slim_step
from everstep.agent_domain.state.state import AgentState
from everstep.agent_domain.testing import ScenarioStep
from tests.everstep.local.local_words import (
    AT,
    FINAL,
    EventRecorder,
    WorkClock,
    a_call_response,
    a_conversation,
    a_model,
    a_runner,
    a_scripted_driver,
    boom,
    look_then_answer,
    with_look,
)

# Events.


async def test_the_events_of_a_run_are_in_order() -> None:
    """4.6.1: steps from 1, tools before the step is completed, usage only where there is some."""
    heard = EventRecorder()
    driver = a_model(a_call_response("look", "look", text="I look", usage=Usage(input=7)), "Done")
    await a_runner(driver, lambda b: with_look(b.with_parallel_tools(False)), heard=heard).run(
        a_conversation()
    )
    assert heard.summary == [
        "AgentStepStarted 1",
        "StreamEventReceived I look",
        "StreamEventReceived closed",
        "ToolCallStarted c1",
        "ToolCallCompleted c1",
        "ToolCallStarted c2",
        "ToolCallCompleted c2",
        "AgentStepCompleted 1",
        "TokenUsageReported",
        "step 1: CONTINUE (requested by ToolCallPresenceCheck)",
        "AgentStateUpdated",
        "AgentStepStarted 2",
        "StreamEventReceived Done",
        "StreamEventReceived closed",
        "AgentStepCompleted 2",
        "step 2: STOP (completed)",
        "AgentStateUpdated",
        "AgentFinished",
    ]


async def test_a_failed_run_publishes_its_failure_once_before_its_end() -> None:
    """4.6.1: failure steps have the events of a step."""
    heard = EventRecorder()
    await a_runner(a_model(RuntimeError("boom")), heard=heard).run(a_conversation())
    assert heard.summary == [
        "AgentStepStarted 1",
        "AgentStepCompleted 1",
        "step 1: STOP (error)",
        "AgentStateUpdated",
        "AgentFailed",
        "AgentFinished",
    ]


async def test_a_model_response_without_text_streams_nothing() -> None:
    """4.6.1, 7.6.2: so no stream has to be closed."""
    heard = EventRecorder()
    await a_runner(a_model(a_call_response("look"), "Done"), with_look, heard=heard).run(a_conversation())
    assert heard.summary[:2] == ["AgentStepStarted 1", "ToolCallStarted c1"]
    assert [(event.step_number, event.attempt) for event in heard.of(StreamEventReceived)] == [(2, 1), (2, 1)]


async def test_every_event_names_its_agent() -> None:
    """4.6.1: agent and parent."""
    heard = EventRecorder()
    asking = replace(a_conversation(), parent_agent_id=UUID(int=77))
    looks = a_call_response("look", text="I look", usage=Usage(input=1))
    driver = a_model(ModelUnavailable("away"), looks, RuntimeError("boom"))
    await a_runner(driver, with_look, heard=heard).run(asking)
    # A compaction needs a model with a window, and progress a tool that reports it.
    others = {ConversationCompacted, ToolCallProgressed}
    assert {type(event) for event in heard} == {*Event.__subclasses__()} - others
    assert {(event.agent_id, event.parent_agent_id) for event in heard} == {(UUID(int=1), UUID(int=77))}


async def test_a_stream_that_breaks_off_is_not_closed() -> None:
    """4.6.1, 7.6.2: a closing event means that it ended well."""
    heard = EventRecorder()

    class Breaking:
        async def respond(self, request: object, on_text: Callable[[str], None]) -> Any:
            on_text("He")
            on_text("")
            raise RuntimeError("cut")

    driver = a_model("unused")
    driver.model = Breaking()
    await a_runner(driver, heard=heard).run(a_conversation())
    assert heard.summary[:3] == ["AgentStepStarted 1", "StreamEventReceived He", "AgentStepCompleted 1"]


async def test_an_exception_after_a_step_has_its_own_step_in_the_events() -> None:
    """4.6.1, 4.3.4: there was no evaluation between the two."""
    heard = EventRecorder()

    def odd(state: AgentState) -> AgentState:
        raise ValueError("odd")

    driver = a_scripted_driver(FINAL("Done", Usage(input=2)))
    await a_runner(driver, lambda b: b.add_processor(odd), heard=heard).run(a_conversation())
    assert heard.summary == [
        "AgentStepStarted 1",
        "StreamEventReceived Done",
        "StreamEventReceived closed",
        "AgentStepCompleted 1",
        "TokenUsageReported",
        "AgentStateUpdated",
        "AgentStepStarted 2",
        "AgentStepCompleted 2",
        "step 2: STOP (error)",
        "AgentStateUpdated",
        "AgentFailed",
        "AgentFinished",
    ]


@pytest.mark.parametrize(
    ("raises_at", "before", "failure"), [(0, ["step 0: STOP (error)"], 1), (1, ["step 1: STOP (error)"], 2)]
)
async def test_a_criterion_that_raises_ends_the_run_with_a_failure_step(
    raises_at: int, before: list[str], failure: int
) -> None:
    """2.2.7, 4.6.1: outcome forbid, resolved by that criterion, stop reason error."""
    heard = EventRecorder()
    runner = a_runner(
        a_scripted_driver(), lambda b: b.add_continuation_criteria(RaisingCriterion(raises_at)), heard=heard
    )
    state = await runner.run(a_conversation())
    end = heard.summary.index(before[0])
    assert [story for story in heard.summary[end:] if story != "AgentStateUpdated"] == [
        *before,
        f"AgentStepStarted {failure}",
        f"AgentStepCompleted {failure}",
        f"step {failure}: STOP (error)",
        "AgentFailed",
        "AgentFinished",
    ]
    assert [event.step_count for event in heard.of(AgentStateUpdated)] == list(range(1, failure + 1))
    assert (state.status, state.step_count) == (AgentStatus.FAILED, failure)
    assert state.steps[-1].is_failure
    assert state.steps[-1].errors_as_text == "odd"
    assert state.last_outcome is not None
    assert (state.last_outcome.decision, state.last_outcome.resolved_by) == ("forbid", "RaisingCriterion")
    assert state.last_outcome.stop_reason is StopReason.ERROR


class RaisingCriterion:
    """A criterion that raises after this many steps."""

    def __init__(self, at: int) -> None:
        self.at = at

    def decide(self, state: AgentState) -> ContinuationDecision:
        if state.step_count >= self.at:
            raise ValueError("odd")
        return ContinuationDecision.ALLOW


@pytest.mark.parametrize("raises_at", [0, 1])
async def test_a_failure_step_of_a_criterion_is_an_item_of_the_iterator(raises_at: int) -> None:
    """4.5.1, 2.2.7: the state after each step, also after a failure step."""
    runner = a_runner(a_scripted_driver(), lambda b: b.add_continuation_criteria(RaisingCriterion(raises_at)))
    states = [state async for state in runner.iterate(a_conversation())]
    assert [state.step_count for state in states] == list(range(1, raises_at + 2))
    assert [state.status.is_terminal for state in states] == [False] * raises_at + [True]


async def test_an_exception_after_a_step_is_an_item_of_the_iterator() -> None:
    """4.5.1, 4.3.4."""

    def odd(state: AgentState) -> AgentState:
        raise ValueError("odd")

    runner = a_runner(a_scripted_driver(), lambda b: b.add_processor(odd))
    states = [state async for state in runner.iterate(a_conversation())]
    assert [(state.step_count, state.steps[-1].is_failure) for state in states] == [(1, False), (2, True)]
    assert [state.status for state in states] == [AgentStatus.IN_PROGRESS, AgentStatus.FAILED]


async def test_the_contents_of_the_events_of_a_step() -> None:
    """4.6.1, 4.2: with times of the runner's clock."""
    clock, heard = WorkClock(), EventRecorder()

    def works() -> Any:
        clock.advance(1.5)
        return a_call_response("look", usage=Usage(10, 4, reasoning=1), finish_reason="tool_calls")

    asking = replace(a_conversation(), parent_agent_id=UUID(int=77))
    runner = a_runner(a_model(works, "Done"), with_look, clock=clock, heard=heard)
    state = await runner.run(asking)
    who: dict[str, Any] = {"agent_id": UUID(int=1), "parent_agent_id": UUID(int=77)}
    assert heard.of(AgentStepStarted)[0] == AgentStepStarted(
        at=AT, **who, step_number=1, message_count=1, available_tools=("look",)
    )
    assert heard.of(AgentStepStarted)[1].message_count == 3
    end = clock.now()
    assert heard.of(AgentStepCompleted)[0] == AgentStepCompleted(
        at=end,
        **who,
        step_number=1,
        has_tool_calls=True,
        error_count=0,
        error_messages=(),
        usage=Usage(10, 4, reasoning=1),
        finish_reason="tool_calls",
        duration_ms=1500.0,
        completed_at=end,
        continuation=state.execution.step_executions[0].outcome,
    )
    assert [event.to_dict()["context"] for event in heard.of(TokenUsageReported)] == [
        {"step": 1, "hasToolCalls": True}
    ]
    updated = heard.of(AgentStateUpdated)[1]
    before_the_end = replace(state, facts=replace(state.facts, status=AgentStatus.IN_PROGRESS))
    assert (updated.step_count, updated.status) == (2, AgentStatus.IN_PROGRESS)
    assert updated.state == SlimAgentStateSerializer().serialize(before_the_end)
    assert updated.step == slim_step(state.execution.step_executions[1])
    assert heard.of(AgentFinished) == [
        AgentFinished(
            at=end,
            **who,
            status=AgentStatus.COMPLETED,
            total_steps=2,
            total_usage=state.usage,
            stop_reason=StopReason.COMPLETED,
        )
    ]


async def test_the_contents_of_an_evaluation() -> None:
    """4.6.1: the source, the status after it, the errors of the step and the last message."""
    heard = EventRecorder()
    driver = a_scripted_driver(ScenarioStep.tool_call("missing", response="I look"), FINAL("Done"))
    policy = ErrorPolicy.ignore_tool_errors()
    state = await a_runner(driver, lambda b: with_look(b.with_error_policy(policy)), heard=heard).run(
        a_conversation()
    )
    first, last = heard.of(ContinuationEvaluated)
    error = "No tool named 'missing'. Choose from: look"
    assert (first.step_number, first.status, first.errors) == (1, AgentStatus.IN_PROGRESS, (error,))
    assert (first.source, first.last_response, first.stop_signal) == ("ToolCallPresenceCheck", "I look", None)
    assert (last.status, last.errors, last.last_response) == (AgentStatus.COMPLETED, (), "Done")
    assert last.outcome == state.last_outcome
    assert heard.of(AgentFinished)[0].errors == (error,)


async def test_the_contents_of_a_failed_run() -> None:
    """4.6.1, 3.7.1."""
    heard = EventRecorder()
    state = await a_runner(a_model(RuntimeError("boom")), heard=heard).run(a_conversation())
    (failed,) = heard.of(AgentFailed)
    assert (failed.exception, failed.errors, failed.status) == ("boom", ("boom",), AgentStatus.FAILED)
    assert (failed.steps_completed, failed.total_usage) == (1, Usage())
    assert heard.of(ContinuationEvaluated)[0].status is AgentStatus.FAILED
    assert heard.of(AgentStepCompleted)[0].error_messages == ("boom",)
    assert heard.of(AgentFinished)[0].stop_reason is StopReason.ERROR
    assert state.status is AgentStatus.FAILED


@pytest.mark.parametrize(
    ("message", "told"), [("disk full", "disk full"), ("", "StopSignal forbids another step")]
)
async def test_a_run_that_fails_without_an_error_has_a_reason(message: str, told: str) -> None:
    """4.6.1, 2.4.2: that of the deciding vote, not an error that the policy ignored in an earlier step."""
    signal = StopSignal(StopReason.ERROR, message)
    driver = a_scripted_driver(ScenarioStep.tool_call("missing"), FINAL("Done"))

    def fails(state: AgentState) -> AgentState:
        return state.with_stop_signal(signal) if state.step_count > 1 else state

    def build(builder: DefinitionBuilder) -> object:
        return builder.with_error_policy(ErrorPolicy.ignore_tool_errors()).add_processor(fails)

    heard = EventRecorder()
    await a_runner(driver, build, heard=heard).run(a_conversation())
    assert heard.of(AgentFailed)[0].exception == told
    assert heard.of(ContinuationEvaluated)[-1].stop_signal == signal


# Listeners.


@pytest.mark.parametrize(
    "event",
    [
        AgentStepStarted,
        StreamEventReceived,
        ToolCallStarted,
        ToolCallCompleted,
        AgentStepCompleted,
        TokenUsageReported,
        ContinuationEvaluated,
        AgentStateUpdated,
        AgentFinished,
    ],
)
async def test_a_listener_that_raises_is_no_error_of_the_agent(event: type[Event]) -> None:
    """4.6.3: the run ends as it would without that listener."""
    runner = a_runner(look_then_answer(usage=Usage(input=1)), with_look)
    runner.events.on_event(event, boom)
    with pytest.raises(ListenerFailed, match=event.__name__) as failed:
        await runner.run(a_conversation())
    assert isinstance(failed.value.__cause__, ValueError)
