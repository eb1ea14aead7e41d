"""Runs in this process: the loop."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from everstep.agent_domain.agents.builder import AgentBuilder
from everstep.agent_domain.agents.drivers import ToolCallingDriver
from everstep.agent_domain.agents.processors import AgentHook
from everstep.agent_domain.agents.spawning import Spawn
from everstep.agent_domain.errors import InvalidInput, ListenerFailed, ModelUnavailable, RateLimited
from everstep.agent_domain.loop.child_end import ChildEnd
from everstep.agent_domain.loop.continuation import ContinuationCriteria, ContinuationDecision
from everstep.agent_domain.loop.error_policy import ErrorHandlingDecision, ErrorPolicy
from everstep.agent_domain.loop.loop import Infer, RunTools, Stop
from everstep.agent_domain.loop.status import AgentStatus, StopReason
from everstep.agent_domain.loop.step_facts import CallNeed, StepType
from everstep.agent_domain.loop.stop_signal import StopSignal
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.messages.cached_context import CachedContext
from everstep.agent_domain.messages.messages import assistant, system, user
from everstep.agent_domain.state.events import (
    AgentFailed,
    AgentFinished,
    AgentStateUpdated,
    AgentStepCompleted,
    AgentStepStarted,
    ContinuationEvaluated,
    Event,
    StreamEventReceived,
    TokenUsageReported,
    ToolCallCompleted,
    ToolCallStarted,
)
from everstep.agent_domain.state.snapshots import SlimAgentStateSerializer, slim_step
from everstep.agent_domain.state.state import AgentState
from everstep.agent_domain.state.steps import AgentStep
from everstep.agent_domain.testing import MockTool, ScenarioStep
from everstep.agent_domain.tools.tools import ToolCall, ToolContext, ToolExecution, ToolOptions
from everstep.local.clock import SystemClock
from everstep.local.runner import LocalRunner
from tests.everstep.local.local_words import (
    AT,
    Heard,
    OwnDriver,
    Script,
    WorkClock,
    a_model,
    a_runner,
    asked,
    calling,
    says,
    scripted,
    soon,
)

Build = Callable[[AgentBuilder], object]

FINAL = ScenarioStep.final
LOOK = MockTool.returning("look", "Looks", "seen")


def look_then_answer(usage: Usage | None = None) -> Any:
    return scripted(ScenarioStep.tool_call("look", response="I look", usage=usage), FINAL("Done"))


def with_look(builder: AgentBuilder) -> object:
    return builder.with_tools([LOOK])


def outcomes_of(state: AgentState) -> list[str | None]:
    return [record.outcome and record.outcome.decision.value for record in state.execution.step_executions]


# The loop.


async def test_steps_are_taken_while_the_evaluation_continues() -> None:
    """4.5.1, 1.1.6: in this process, without Temporal."""
    state = await a_runner(look_then_answer(), with_look).run(asked())
    assert (state.status, state.step_count, state.final_response) == (AgentStatus.COMPLETED, 2, "Done")
    assert [step.step_type for step in state.steps] == [StepType.TOOL_EXECUTION, StepType.FINAL]
    assert outcomes_of(state) == ["request", "stop"]
    assert state.last_continuation_outcome == state.execution.step_executions[1].outcome


async def test_only_the_output_of_steps_enters_the_conversation() -> None:
    """4.5.2, 4.2.1: and usage is counted once per step."""
    driver = look_then_answer(usage=Usage(input=5))
    state = await a_runner(driver, with_look).run(asked("Hello"))
    assert state.messages == (user("Hello"), assistant("I look"), assistant("Done"))
    assert state.usage == Usage(input=5)
    assert state.steps[1].input_messages == (user("Hello"), assistant("I look"))


@pytest.mark.parametrize("limit", [0, 1, 3])
async def test_the_step_limit_is_the_number_of_steps(limit: int) -> None:
    """2.6.1: the evaluation comes before the first step as well."""
    driver = scripted(ScenarioStep.tool_call("look"))
    state = await a_runner(driver, lambda b: b.with_tools([LOOK]).with_max_steps(limit)).run(asked())
    assert (state.step_count, state.status) == (limit, AgentStatus.COMPLETED)
    assert state.last_outcome is not None
    assert state.last_outcome.stop_reason is StopReason.STEPS_LIMIT


async def test_the_iterator_gives_the_state_after_each_step() -> None:
    """4.5.1: the final status is not an extra item."""
    states = [state async for state in a_runner(look_then_answer(), with_look).iterate(asked())]
    assert [state.step_count for state in states] == [1, 2]
    assert [state.status for state in states] == [AgentStatus.IN_PROGRESS, AgentStatus.COMPLETED]


async def test_an_iterator_without_steps_yields_nothing_and_publishes_the_end() -> None:
    """4.5.1, 4.6.1."""
    heard = Heard()
    runner = a_runner(scripted(), lambda b: b.with_max_steps(0), heard=heard)
    assert [state async for state in runner.iterate(asked())] == []
    assert heard.story == ["step 0: STOP (steps_limit)", "AgentFinished"]


async def test_steps_can_be_taken_one_by_one() -> None:
    """4.5.3: until no step follows; then the state does not change."""
    runner = a_runner(look_then_answer(), with_look)
    state = asked()
    assert runner.has_next_step(state)
    first = await runner.next_step(state)
    assert (first.step_count, first.status, runner.has_next_step(first)) == (1, AgentStatus.IN_PROGRESS, True)
    second = await runner.next_step(first)
    assert (second.step_count, second.status) == (2, AgentStatus.COMPLETED)
    assert not runner.has_next_step(second)
    assert await runner.next_step(second) is second


async def test_asking_for_the_next_step_publishes_no_event() -> None:
    """4.5.3."""
    heard, decisions = Heard(), list[object]()
    runner = a_runner(scripted(), heard=heard, on_decision=decisions.append)
    assert runner.has_next_step(asked())
    assert (heard, decisions) == ([], [])


async def test_a_manual_step_that_is_not_allowed_ends_the_run() -> None:
    """4.5.3, 4.6.1."""
    heard = Heard()
    runner = a_runner(scripted(), lambda b: b.with_max_steps(0), heard=heard)
    assert not runner.has_next_step(asked())
    state = await runner.next_step(asked())
    assert (state.status, state.step_count) == (AgentStatus.COMPLETED, 0)
    assert heard.story == ["step 0: STOP (steps_limit)", "AgentFinished"]


async def test_manual_steps_run_and_iterator_make_the_same_decisions() -> None:
    """4.5.1, 4.5.3."""

    async def decisions(how: Callable[[LocalRunner], Any]) -> list[object]:
        taken = list[object]()
        await how(a_runner(look_then_answer(), with_look, on_decision=taken.append))
        return [
            type(decision) for decision in taken if not isinstance(decision, Infer) or decision.number > 1
        ]

    async def by_hand(runner: LocalRunner) -> None:
        state = asked()
        while state.status is AgentStatus.IN_PROGRESS:
            state = await runner.next_step(state)

    async def one_by_one(runner: LocalRunner) -> None:
        assert [state.step_count async for state in runner.iterate(asked())] == [1, 2]

    at_once = await decisions(lambda runner: runner.run(asked()))
    assert at_once == await decisions(one_by_one) == [RunTools, Infer, Stop]
    # In manual mode the second step is decided twice: after the first, and when it is requested.
    assert await decisions(by_hand) == [RunTools, Infer, Infer, Stop]


@pytest.mark.parametrize("how", ["run", "iterator"])
async def test_a_state_that_has_ended_begins_a_new_execution(how: str) -> None:
    """4.1.5: in the same conversation, from step 1."""
    heard = Heard()
    runner = a_runner(scripted(FINAL("one", Usage(input=5)), FINAL("two", Usage(input=3))), heard=heard)
    ended = await runner.run(asked())
    if how == "run":
        state = await runner.run(ended)
    else:
        (state,) = [each async for each in runner.iterate(ended)]
    assert (state.step_count, state.usage) == (1, Usage(input=3))
    assert state.messages == (user("Hello"), assistant("one"), assistant("two"))
    assert state.agent_id == ended.agent_id
    assert state.execution.execution_id not in {None, ended.execution.execution_id}
    assert [event.step_number for event in heard.of(AgentStepStarted)] == [1, 1]


async def test_a_state_in_progress_continues_its_execution() -> None:
    """4.1.5, 4.4.1."""
    first = await a_runner(look_then_answer(), with_look).next_step(asked())
    state = await a_runner(scripted(FINAL("Done"))).run(first)
    assert [record.number for record in state.execution.step_executions] == [1, 2]
    assert state.execution.execution_id == first.execution.execution_id


async def test_a_run_that_may_not_continue_publishes_its_stop() -> None:
    """4.6.1, 7.4.1: the evaluation that stops it is published although it follows no step."""
    first = await a_runner(look_then_answer(), with_look).next_step(asked())
    heard = Heard()
    state = await a_runner(scripted(), lambda b: b.with_max_steps(1), heard=heard).run(first)
    assert (state.step_count, state.status) == (1, AgentStatus.COMPLETED)
    assert heard.story == ["step 1: STOP (steps_limit)", "AgentFinished"]


async def test_an_interrupted_step_is_completed_without_another_model_call() -> None:
    """1.1.3, 4.4: its call gets its one result."""
    runner = a_runner(look_then_answer(), with_look)
    begun = asked().identified(UUID(int=8), UUID(int=9)).with_step_started(AT)
    call = ToolCall("c1", "look")
    step = AgentStep(UUID(int=7), AT, inference_response=calling("look"))
    waiting = AgentState.from_dict(begun.with_current_step(step).to_dict())
    assert [each.id for each in waiting.pending] == ["c1"]
    after = await runner.next_step(waiting)
    assert [(e.call, e.result) for e in after.steps[0].tool_executions] == [(call, "seen")]
    assert after.step_count == 1


async def test_a_paused_state_is_resumed_before_it_runs() -> None:
    """8.4.1, 1.1.6."""
    runner = a_runner(scripted())
    for run in (runner.run, runner.next_step):
        with pytest.raises(InvalidInput, match=r"paused; resume it first: state\.resumed\(now\)"):
            await run(asked().paused())
    assert (await runner.run(asked().paused().resumed(AT))).status is AgentStatus.COMPLETED


async def test_a_processor_can_pause_the_run() -> None:
    """1.1.6: the returned state can be resumed."""
    pausing: list[bool] = [True, False]
    heard = Heard()
    runner = a_runner(
        look_then_answer(),
        lambda b: with_look(b.add_processor(lambda state: state.paused() if pausing.pop(0) else state)),
        heard=heard,
    )
    state = await soon(runner.run(asked()))
    assert (state.is_paused, state.status, state.step_count) == (True, AgentStatus.IN_PROGRESS, 1)
    assert heard.of(AgentFinished) == []
    done = await soon(runner.run(state.resumed(AT)))
    assert (done.step_count, done.status) == (2, AgentStatus.COMPLETED)


async def test_a_paused_iterator_ends_with_the_state_to_resume() -> None:
    """1.1.6."""
    runner = a_runner(look_then_answer(), lambda b: with_look(b.add_processor(AgentState.paused)))
    states = [state async for state in runner.iterate(asked())]
    assert [(state.step_count, state.is_paused) for state in states] == [(1, True)]


class Pausing(AgentHook):
    """Pauses the first step before its calls have run."""

    def __init__(self) -> None:
        self.pauses = [True]

    def before_step(self, state: AgentState) -> AgentState:
        return state.paused() if self.pauses and self.pauses.pop() else state


@pytest.mark.parametrize("how", ["run", "iterator", "by hand"])
async def test_a_run_that_is_paused_within_a_step_returns_its_state(how: str) -> None:
    """1.1.5, 1.1.6: the call waits, also in another process; once resumed it gets its one result."""
    model = Script(calling("look"), "Done")
    runner = a_runner(ToolCallingDriver(model), lambda b: with_look(b.add_hook(Pausing())))
    match how:
        case "run":
            state = await soon(runner.run(asked()))
        case "iterator":
            (state,) = [each async for each in runner.iterate(asked())]
        case _:
            state = await soon(runner.next_step(asked()))
    assert (state.is_paused, state.status, state.step_count) == (True, AgentStatus.IN_PROGRESS, 0)
    assert state.messages == (user("Hello"),)
    stored = AgentState.from_dict(state.to_dict())
    assert (stored.is_paused, [call.id for call in stored.pending]) == (True, ["c1"])
    done = await soon(runner.run(stored.resumed(AT)))
    assert (done.status, done.step_count, model.turn) == (AgentStatus.COMPLETED, 2, 2)
    assert [message.text for message in done.messages if message.is_tool] == ["seen"]


class Speaking(AgentHook):
    """Adds a message before each step, and requests a stop and a pause before the first call."""

    def before_step(self, state: AgentState) -> AgentState:
        return state.heard(user(f"Step {state.next_step_number}"))

    def before_tool(self, state: AgentState, call: ToolCall) -> AgentState:
        signal = StopSignal(StopReason.GUARD, "Enough", source="a hook")
        return state.with_stop_signal(signal).paused() if call.id == "c1" else state


@pytest.mark.parametrize("is_stored", [False, True])
async def test_a_paused_step_continues_and_does_not_begin_again(is_stored: bool) -> None:
    """1.1.5, 4.5.2, 4.6.1: the message that a hook added before it occurs once, and is published once."""
    heard = Heard()
    runner = a_runner(
        a_model(calling("look", "look"), "Done"),
        lambda b: with_look(b.add_hook(Speaking()).with_parallel_tools(False)),
        heard=heard,
    )
    state = await soon(runner.run(asked()))
    state = AgentState.from_dict(state.to_dict()) if is_stored else state
    done = await soon(runner.run(state.resumed(AT)))

    texts = [message.text for message in done.messages]
    assert texts[:5] == ["Hello", "Step 1", "", "seen", "seen"]
    # A stored state has no signals; otherwise the signal waits for the evaluation after the step.
    assert texts[5:] == (["Step 2", "Done"] if is_stored else [])
    assert [each.step_number for each in heard.of(AgentStepStarted)] == ([1, 2] if is_stored else [1])


class Burst(BaseException):
    """A BaseException, like the one that `pytest.fail` raises."""


class Bursting(AgentHook):
    """Raises in one of its methods."""

    def __init__(self, where: str, error: BaseException) -> None:
        self.where = where
        self.error = error

    def before_step(self, state: AgentState) -> AgentState:
        return self._at("before_step", state)

    def before_tool(self, state: AgentState, call: ToolCall) -> AgentState:
        del call
        return self._at("before_tool", state)

    def after_tool(self, state: AgentState, execution: ToolExecution) -> AgentState:
        del execution
        return self._at("after_tool", state)

    def after_step(self, state: AgentState) -> AgentState:
        return self._at("after_step", state)

    def _at(self, where: str, state: AgentState) -> AgentState:
        if where == self.where:
            raise self.error
        return state


@pytest.mark.parametrize("error", [SystemExit("x"), asyncio.CancelledError("x"), Burst("x")], ids=repr)
@pytest.mark.parametrize("where", ["before_step", "before_tool", "after_tool", "after_step"])
async def test_a_base_exception_in_a_hook_fails_the_step(where: str, error: BaseException) -> None:
    """4.5.4: and does not reach the code that runs the agent."""
    driver = a_model(calling("look", "look"), "Done")
    state = await soon(a_runner(driver, lambda b: with_look(b.add_hook(Bursting(where, error)))).run(asked()))

    assert (state.status, state.steps[-1].is_failure) == (AgentStatus.FAILED, True)
    assert state.steps[-1].errors_as_text == f"{type(error).__name__}: x"


class Quitting(MockTool):
    """Raises instead of starting a child."""

    def __init__(self, error: BaseException) -> None:
        super().__init__("hire", options=ToolOptions(need=CallNeed.SUBAGENT))
        self.error = error

    def spawn(self, args: dict[str, Any], context: ToolContext) -> Spawn:
        del args, context
        raise self.error

    def report(self, args: dict[str, Any], end: ChildEnd) -> str:
        del args
        return str(end.response)


@pytest.mark.parametrize("error", [SystemExit("x"), asyncio.CancelledError("x"), Burst("x")], ids=repr)
async def test_any_exception_of_a_tool_that_starts_children_fails_its_call(error: BaseException) -> None:
    """9.6.3, 4.5.4: as in a durable execution."""
    policy = ErrorPolicy.ignore_tool_errors()
    driver = a_model(calling("hire"), "Done")
    runner = a_runner(driver, lambda b: b.with_tools([Quitting(error)]).with_error_policy(policy))
    state = await soon(runner.run(asked()))

    assert state.status is AgentStatus.COMPLETED
    assert [call.text for call in state.steps[0].tool_executions] == ["Error: x"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, GeneratorExit])
async def test_an_interrupt_from_the_keyboard_ends_the_run(error: type[BaseException]) -> None:
    """4.5.4: that is not a failure of the agent."""
    waiting = a_runner(a_model("Done"), lambda b: b.add_hook(Bursting("before_step", error()))).run(asked())
    # In manual mode: a task would end the event loop of this test.
    with pytest.raises(error):
        waiting.send(None)


async def test_tools_get_the_metadata_of_the_start_of_the_step() -> None:
    """9.4.2: changes by hooks of its calls are visible in the next step, as in a durable execution."""
    shown: list[dict[str, Any]] = []

    class Looking(MockTool):
        def call(self, args: dict[str, Any], context: ToolContext) -> Any:
            shown.append(dict(context.metadata))
            return super().call(args, context)

    class Counting(AgentHook):
        def before_tool(self, state: AgentState, call: ToolCall) -> AgentState:
            return state.with_metadata(call.id, True)

    driver = a_model(calling("look", "look"), calling("look"), "Done")
    runner = a_runner(driver, lambda b: b.with_tools([Looking("look")]).add_hook(Counting()))
    await runner.run(asked().with_metadata("own", 1))

    assert shown[:2] == [{"own": 1}] * 2
    assert len(shown[2]) > 1


async def test_a_hook_may_not_end_the_run_between_a_call_and_its_result() -> None:
    """1.1.5: no conversation has a call without a result; a stop signal would wait for it."""

    class Ending(AgentHook):
        def before_step(self, state: AgentState) -> AgentState:
            return replace(state, facts=replace(state.facts, status=AgentStatus.COMPLETED))

    state = await soon(a_runner(look_then_answer(), lambda b: with_look(b.add_hook(Ending()))).run(asked()))
    assert "a step with unanswered calls cannot be followed by Stop" in state.steps[0].errors_as_text
    assert not [message for message in state.messages if message.calls]


def spoken_to(state: AgentState) -> AgentState:
    return state.with_user_message("More")


def begun_anew(_state: AgentState) -> AgentState:
    return asked()


@pytest.mark.parametrize("elsewhere", [spoken_to, begun_anew, AgentState.for_continuation])
@pytest.mark.parametrize("where", ["before_step", "before_tool", "after_tool", "after_step", "a processor"])
async def test_a_state_of_another_execution_is_refused(
    elsewhere: Callable[[AgentState], AgentState], where: str
) -> None:
    """4.3.4: it becomes a failure step whose message says what to change."""

    def build(builder: AgentBuilder) -> object:
        if where == "a processor":
            return with_look(builder.add_processor(elsewhere))
        hook = AgentHook()

        def leaves(state: AgentState, *_about: object) -> AgentState:
            return elsewhere(state)

        setattr(hook, where, leaves)
        return with_look(builder.add_hook(hook))

    state = await soon(a_runner(look_then_answer(), build).run(asked()))
    assert (state.status, state.steps[-1].is_failure) == (AgentStatus.FAILED, True)
    assert "returned a state of another execution" in state.steps[-1].errors_as_text
    assert "with_user_message(..., reset=False)" in state.steps[-1].errors_as_text


async def test_steered_messages_are_processed_once() -> None:
    """8.3.1, 1.1.6: one more step processes them all, and they cause no further step."""
    steering = [True]

    def steers(state: AgentState) -> AgentState:
        if not steering:
            return state
        steering.pop()
        return replace(state, facts=state.facts.steered_by(2)).heard(user("One"), user("Two"))

    driver = scripted(FINAL("Before"), FINAL("After"))
    state = await soon(a_runner(driver, lambda b: b.add_processor(steers)).run(asked()))
    assert (state.status, state.step_count, state.steered) == (AgentStatus.COMPLETED, 2, 0)
    assert state.final_response == "After"


async def test_a_processor_that_always_raises_uses_up_its_retries() -> None:
    """3.4.3, 4.3.4: the interrupted step does not reset the failure count, so the second failure stops."""
    policy = ErrorPolicy.retry_all(2)
    runner = a_runner(
        scripted(), lambda b: b.with_error_policy(policy).with_max_steps(20).add_processor(boom)
    )
    state = await soon(runner.run(asked()))
    assert (state.status, state.step_count) == (AgentStatus.FAILED, 4)
    assert state.trailing_failures == AgentState.from_dict(state.to_dict()).trailing_failures == 2


async def test_an_old_session_may_have_a_next_step() -> None:
    """4.5.3, 2.7: the wall clock counts from the first manual step, not from the session's beginning."""
    clock = WorkClock()
    runner = a_runner(scripted(), lambda b: b.with_timeout(10), clock=clock)
    old = await runner.run(asked())
    clock.works(11)
    again = old.with_user_message("Again")
    assert runner.has_next_step(again)
    assert (await runner.next_step(again)).step_count == 1


async def test_a_two_phase_driver_with_its_own_use_tools_is_refused() -> None:
    """4.4.4: it would never be called."""

    class Mixed(ToolCallingDriver):
        async def use_tools(self, state: AgentState) -> AgentState:
            return state

    with pytest.raises(InvalidInput, match=r"Mixed\.use_tools would never be called; override infer"):
        a_runner(Mixed(Script("Hello")))


async def test_an_agent_without_a_driver_cannot_run() -> None:
    """11."""
    with pytest.raises(InvalidInput, match=r"no driver; give it one: AgentBuilder\.with_driver"):
        LocalRunner(AgentBuilder.base().definition())


# Events.


async def test_the_events_of_a_run_are_in_order() -> None:
    """4.6.1: steps from 1, tools before the step is completed, usage only where there is some."""
    heard = Heard()
    driver = a_model(calling("look", "look", text="I look", usage=Usage(input=7)), "Done")
    await a_runner(driver, lambda b: with_look(b.with_parallel_tools(False)), heard=heard).run(asked())
    assert heard.story == [
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
    heard = Heard()
    await a_runner(a_model(RuntimeError("boom")), heard=heard).run(asked())
    assert heard.story == [
        "AgentStepStarted 1",
        "AgentStepCompleted 1",
        "step 1: STOP (error)",
        "AgentStateUpdated",
        "AgentFailed",
        "AgentFinished",
    ]


async def test_a_model_response_without_text_streams_nothing() -> None:
    """4.6.1, 7.6.2: so no stream has to be closed."""
    heard = Heard()
    await a_runner(a_model(calling("look"), "Done"), with_look, heard=heard).run(asked())
    assert heard.story[:2] == ["AgentStepStarted 1", "ToolCallStarted c1"]
    assert [(event.step_number, event.attempt) for event in heard.of(StreamEventReceived)] == [(2, 1), (2, 1)]


async def test_every_event_names_its_agent() -> None:
    """4.6.1: agent and parent."""
    heard = Heard()
    asking = replace(asked(), parent_agent_id=UUID(int=77))
    looks = calling("look", text="I look", usage=Usage(input=1))
    driver = a_model(ModelUnavailable("away"), looks, RuntimeError("boom"))
    await a_runner(driver, with_look, heard=heard).run(asking)
    assert {type(event) for event in heard} == set(Event.__subclasses__())
    assert {(event.agent_id, event.parent_agent_id) for event in heard} == {(UUID(int=1), UUID(int=77))}


async def test_a_stream_that_breaks_off_is_not_closed() -> None:
    """4.6.1, 7.6.2: a closing event means that it ended well."""
    heard = Heard()

    class Breaking:
        async def respond(self, request: object, on_text: Callable[[str], None]) -> Any:
            on_text("He")
            on_text("")
            raise RuntimeError("cut")

    driver = a_model("unused")
    driver.model = Breaking()
    await a_runner(driver, heard=heard).run(asked())
    assert heard.story[:3] == ["AgentStepStarted 1", "StreamEventReceived He", "AgentStepCompleted 1"]


async def test_an_exception_after_a_step_has_its_own_step_in_the_events() -> None:
    """4.6.1, 4.3.4: there was no evaluation between the two."""
    heard = Heard()

    def odd(state: AgentState) -> AgentState:
        raise ValueError("odd")

    driver = scripted(FINAL("Done", Usage(input=2)))
    await a_runner(driver, lambda b: b.add_processor(odd), heard=heard).run(asked())
    assert heard.story == [
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
    heard = Heard()
    runner = a_runner(scripted(), lambda b: b.add_continuation_criteria(Raising(raises_at)), heard=heard)
    state = await runner.run(asked())
    end = heard.story.index(before[0])
    assert [story for story in heard.story[end:] if story != "AgentStateUpdated"] == [
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
    assert (state.last_outcome.decision, state.last_outcome.resolved_by) == ("forbid", "Raising")
    assert state.last_outcome.stop_reason is StopReason.ERROR


class Raising:
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
    runner = a_runner(scripted(), lambda b: b.add_continuation_criteria(Raising(raises_at)))
    states = [state async for state in runner.iterate(asked())]
    assert [state.step_count for state in states] == list(range(1, raises_at + 2))
    assert [state.status.is_terminal for state in states] == [False] * raises_at + [True]


async def test_an_exception_after_a_step_is_an_item_of_the_iterator() -> None:
    """4.5.1, 4.3.4."""

    def odd(state: AgentState) -> AgentState:
        raise ValueError("odd")

    runner = a_runner(scripted(), lambda b: b.add_processor(odd))
    states = [state async for state in runner.iterate(asked())]
    assert [(state.step_count, state.steps[-1].is_failure) for state in states] == [(1, False), (2, True)]
    assert [state.status for state in states] == [AgentStatus.IN_PROGRESS, AgentStatus.FAILED]


async def test_the_contents_of_the_events_of_a_step() -> None:
    """4.6.1, 4.2: with times of the runner's clock."""
    clock, heard = WorkClock(), Heard()

    def works() -> Any:
        clock.works(1.5)
        return calling("look", usage=Usage(10, 4, reasoning=1), finish_reason="tool_calls")

    asking = replace(asked(), parent_agent_id=UUID(int=77))
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
    heard = Heard()
    driver = scripted(ScenarioStep.tool_call("missing", response="I look"), FINAL("Done"))
    policy = ErrorPolicy.ignore_tool_errors()
    state = await a_runner(driver, lambda b: with_look(b.with_error_policy(policy)), heard=heard).run(asked())
    first, last = heard.of(ContinuationEvaluated)
    error = "No tool named 'missing'. Choose from: look"
    assert (first.step_number, first.status, first.errors) == (1, AgentStatus.IN_PROGRESS, (error,))
    assert (first.source, first.last_response, first.stop_signal) == ("ToolCallPresenceCheck", "I look", None)
    assert (last.status, last.errors, last.last_response) == (AgentStatus.COMPLETED, (), "Done")
    assert last.outcome == state.last_outcome
    assert heard.of(AgentFinished)[0].errors == (error,)


async def test_the_contents_of_a_failed_run() -> None:
    """4.6.1, 3.7.1."""
    heard = Heard()
    state = await a_runner(a_model(RuntimeError("boom")), heard=heard).run(asked())
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
    driver = scripted(ScenarioStep.tool_call("missing"), FINAL("Done"))

    def fails(state: AgentState) -> AgentState:
        return state.with_stop_signal(signal) if state.step_count > 1 else state

    def build(builder: AgentBuilder) -> object:
        return builder.with_error_policy(ErrorPolicy.ignore_tool_errors()).add_processor(fails)

    heard = Heard()
    await a_runner(driver, build, heard=heard).run(asked())
    assert heard.of(AgentFailed)[0].exception == told
    assert heard.of(ContinuationEvaluated)[-1].stop_signal == signal


# Exceptions.


def boom(*_args: object) -> Any:
    raise ValueError("boom")


def a_hook(method: str) -> AgentHook:
    """A hook that raises in one of its methods."""
    hook = AgentHook()
    setattr(hook, method, boom)
    return hook


async def boom_later(_state: AgentState) -> AgentState:
    raise ValueError("boom")


ESCAPES: list[tuple[str, Any, Build, int, str]] = [
    ("the driver", a_model(boom), with_look, 1, "boom"),
    ("the driver, later", a_model(calling("look"), boom), with_look, 2, "boom"),
    ("a driver of one's own", OwnDriver(boom), with_look, 1, "boom"),
    (
        "a tool that throws",
        a_model(calling("missing")),
        lambda b: with_look(b.with_throw_on_tool_failure()),
        1,
        "missing: No tool named 'missing'. Choose from: look",
    ),
    ("before_step", look_then_answer(), lambda b: with_look(b.add_hook(a_hook("before_step"))), 1, "boom"),
    ("before_tool", look_then_answer(), lambda b: with_look(b.add_hook(a_hook("before_tool"))), 1, "boom"),
    ("after_tool", look_then_answer(), lambda b: with_look(b.add_hook(a_hook("after_tool"))), 1, "boom"),
    ("after_step", look_then_answer(), lambda b: with_look(b.add_hook(a_hook("after_step"))), 2, "boom"),
    ("a processor", look_then_answer(), lambda b: with_look(b.add_processor(boom)), 2, "boom"),
    ("a coroutine", look_then_answer(), lambda b: with_look(b.add_processor(boom_later)), 2, "boom"),
    (
        "a criterion",
        look_then_answer(),
        lambda b: with_look(b.add_continuation_criteria(ContinuationCriteria.when(boom))),
        1,
        "boom",
    ),
]


@pytest.mark.parametrize(
    ("driver", "build", "number", "text"), [row[1:] for row in ESCAPES], ids=[r[0] for r in ESCAPES]
)
async def test_an_exception_that_escapes_is_a_failure_step(
    driver: Any, build: Build, number: int, text: str
) -> None:
    """4.3.4, 4.5.4, 2.2.7: under its own number; the run fails, because the policy does not ignore it."""
    state = await soon(a_runner(driver, build).run(asked()))
    assert (state.status, state.step_count) == (AgentStatus.FAILED, number)
    failure = state.execution.step_executions[-1]
    assert (failure.number, failure.step.is_failure) == (number, True)
    assert [step.is_failure for step in state.steps[:-1]] == [False] * (number - 1)
    assert (failure.step.step_type, failure.step.usage) == (StepType.ERROR, Usage())
    assert (failure.step.output_messages, failure.step.input_messages) == ((), state.messages)
    assert failure.step.errors_as_text == text


async def test_a_failed_tool_call_raises_no_exception() -> None:
    """4.3.4, 5.4.3: the model reads it, and the error policy evaluates it."""
    driver = a_model(calling("look"), "Done")
    look = MockTool("look", handler=boom)
    policy = ErrorPolicy.ignore_tool_errors()
    state = await a_runner(driver, lambda b: b.with_tools([look]).with_error_policy(policy)).run(asked())
    assert (state.status, state.step_count) == (AgentStatus.COMPLETED, 2)
    assert not state.steps[0].is_failure
    assert state.messages[2].text == "Error: boom"


async def test_the_run_continues_after_a_retry() -> None:
    """4.5.4, 2.5.3: in progress, under the next number."""
    driver = a_model(RateLimited("slow down"), "Done")
    retries = ErrorPolicy.retry_all(2)
    runner = a_runner(driver, lambda b: b.with_error_policy(retries).with_max_retries(1))
    states = [state async for state in runner.iterate(asked())]
    assert [state.status for state in states] == [AgentStatus.IN_PROGRESS, AgentStatus.COMPLETED]
    assert [step.is_failure for step in states[1].steps] == [True, False]
    assert outcomes_of(states[1]) == ["request", "stop"]


async def test_an_ignored_exception_requests_no_further_step() -> None:
    """4.5.4, 2.5.3, 3.7.1."""
    policy = replace(ErrorPolicy(), on_model_error=ErrorHandlingDecision.IGNORE)
    state = await a_runner(a_model(boom), lambda b: b.with_error_policy(policy)).run(asked())
    assert (state.status, state.step_count) == (AgentStatus.COMPLETED, 1)


async def test_after_an_ignored_exception_the_run_continues_where_there_is_work() -> None:
    """4.5.4."""
    policy = replace(ErrorPolicy(), on_model_error=ErrorHandlingDecision.IGNORE)
    more = ContinuationCriteria.when(
        lambda state: ContinuationDecision.REQUEST if state.step_count < 2 else ContinuationDecision.ALLOW
    )
    runner = a_runner(
        a_model(boom, "Done"), lambda b: b.with_error_policy(policy).add_continuation_criteria(more)
    )
    states = [state async for state in runner.iterate(asked())]
    assert [state.status for state in states] == [AgentStatus.IN_PROGRESS, AgentStatus.COMPLETED]


async def test_a_run_fails_when_its_retries_are_used_up() -> None:
    """3.3.1, 4.5.4."""
    state = await a_runner(a_model(boom), lambda b: b.with_error_policy(ErrorPolicy.retry_all(3))).run(
        asked()
    )
    assert (state.status, state.step_count) == (AgentStatus.FAILED, 3)


class Forgetful(AgentHook):
    def before_step(self, state: AgentState) -> Any:
        del state


def forgets(state: AgentState) -> Any:
    del state


FORGETFUL: list[tuple[Build, str]] = [
    (lambda b: b.add_processor(forgets), "forgets returned NoneType"),
    (lambda b: b.add_hook(Forgetful()), "Forgetful returned NoneType"),
    (lambda b: b.with_driver(OwnDriver(forgets)), "OwnDriver returned NoneType"),
]


@pytest.mark.parametrize(("build", "who"), FORGETFUL)
async def test_a_hook_or_processor_that_returns_no_state_is_named(build: Build, who: str) -> None:
    """4.3.4: instead of an attribute error elsewhere."""
    state = await a_runner(scripted(), build).run(asked())
    assert state.steps[-1].errors_as_text == f"{who}; return the state to go on with"


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
        await runner.run(asked())
    assert isinstance(failed.value.__cause__, ValueError)


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

    driver = scripted(FINAL("Done", Usage(input=3)))
    runner = a_runner(driver, lambda b: b.add_processor(first).add_processor(second))
    state = await runner.run(asked())
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

    runner = a_runner(a_model(calling("look"), "Done"), lambda b: with_look(b.add_hook(Noting())))
    state = await runner.run(asked())
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
    state = await runner.run(asked())
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

    state = await a_runner(scripted(FINAL("one"), FINAL("two")), lambda b: b.add_processor(more)).run(asked())
    assert (state.step_count, state.final_response) == (2, "two")
    assert outcomes_of(state) == ["request", "stop"]


async def test_the_cached_context_is_applied_where_the_state_has_none() -> None:
    """5.2.2: kept during the run, no part of the conversation, applied again by a new execution."""

    def with_prompt(builder: AgentBuilder) -> object:
        return builder.with_system_prompt("Be brief")

    state = await a_runner(scripted(), with_prompt).run(asked())
    assert state.cached_context.messages == (system("Be brief"),)
    assert state.messages == (user("Hello"), assistant("ok"))
    own = CachedContext((system("Be long"),))
    kept = await a_runner(scripted(), with_prompt).run(asked().with_cached_context(own))
    assert kept.cached_context == own
    again = await a_runner(scripted(), with_prompt).run(kept)
    assert again.cached_context.messages == (system("Be brief"),)


# Custom drivers.


async def test_a_custom_driver_runs_the_whole_step() -> None:
    """4.4.4: the step that it sets is recorded like any other."""
    state = await a_runner(OwnDriver(says("Done", own_usage=Usage(output=2)))).run(asked())
    assert (state.final_response, state.usage, state.step_count) == ("Done", Usage(output=2), 1)


async def test_the_time_of_a_custom_driver_is_work() -> None:
    """2.7.1."""
    clock = WorkClock()

    def slowly(state: AgentState) -> AgentState:
        clock.works(2.0)
        return says("Done")(state)

    state = await a_runner(OwnDriver(slowly), clock=clock).run(asked())
    assert state.execution.step_executions[0].processing_seconds == 2.0
    assert state.state_info.cumulative_execution_seconds == 2.0


def unchanged(state: AgentState) -> AgentState:
    return state


def half_done(state: AgentState) -> AgentState:
    step = AgentStep(state.new_step_id(), AT, inference_response=calling("look"))
    return state.with_current_step(step)


@pytest.mark.parametrize(
    ("acts", "complaint"),
    [
        ([unchanged], "OwnDriver.use_tools returned a state without a new step"),
        ([says("one"), unchanged], "OwnDriver.use_tools returned a state without a new step"),
        ([half_done], "OwnDriver.use_tools left tool calls without a result"),
    ],
)
async def test_a_driver_that_does_not_complete_its_step_fails(acts: list[Any], complaint: str) -> None:
    """4.4.4: it is a failure step, and not an endless loop."""
    more = ContinuationCriteria.when(
        lambda state: ContinuationDecision.REQUEST if state.step_count < 2 else ContinuationDecision.ALLOW
    )
    runner = a_runner(OwnDriver(*acts), lambda b: with_look(b.add_continuation_criteria(more)))
    state = await soon(runner.run(asked()))
    assert (state.status, state.step_count) == (AgentStatus.FAILED, len(acts))
    assert complaint in state.steps[-1].errors_as_text


async def test_a_two_phase_driver_can_be_used_without_an_executor() -> None:
    """4.4.4: the runner gives it an executor."""
    driver = look_then_answer()
    runner = a_runner(driver, with_look)
    begun = asked().identified(UUID(int=8), UUID(int=9)).with_step_started(AT)
    state = await runner.driver.use_tools(begun)
    assert [execution.result for execution in state.steps[0].tool_executions] == ["seen"]


# Calls that need a person or a subagent.


@pytest.mark.parametrize("need", [CallNeed.INPUT, CallNeed.APPROVAL])
async def test_calls_that_wait_for_people_fail_in_this_process(need: CallNeed) -> None:
    """1.1.6: with a clear text and both tool events; the tool is not called."""
    heard = Heard()
    ask = MockTool("ask", options=ToolOptions(need=need))
    runner = a_runner(a_model(calling("look", "ask")), lambda b: with_look(b.with_tools([ask])), heard=heard)
    state = await soon(runner.run(asked()))
    text = "Waiting for people needs the durable runtime, this run is in-process"
    assert state.status is AgentStatus.FAILED
    assert [message.text for message in state.messages if message.is_tool] == ["seen", f"Error: {text}"]
    assert ask.calls == []
    assert [story for story in heard.story if story.endswith("c2")] == [
        "ToolCallStarted c2",
        "ToolCallCompleted c2",
    ]


async def test_a_call_that_needs_approval_fails_in_this_process() -> None:
    """1.1.6, 8.6.1: each call that needs it, and no other."""
    rules = [{"tool": "look", "args": {"at": "secret*"}, "approval": "always"}]
    look = MockTool.returning("look", "Looks", "seen")

    def scenario(at: str) -> Any:
        return scripted(ScenarioStep.tool_call("look", {"at": at}), FINAL("Done"))

    def build(builder: AgentBuilder) -> object:
        return builder.with_tools([look]).with_approval("look", rules)

    allowed = await a_runner(scenario("sky"), build).run(asked())
    refused = await a_runner(scenario("secrets"), build).run(asked())
    assert (allowed.status, refused.status) == (AgentStatus.COMPLETED, AgentStatus.FAILED)
    assert "needs the durable runtime" in refused.steps[0].errors_as_text
    assert look.calls == [{"at": "sky"}]


async def test_subagent_calls_run_like_tools_in_this_process() -> None:
    """1.1.6."""
    child = MockTool("child", handler=lambda: "grown", options=ToolOptions(need=CallNeed.SUBAGENT))
    state = await a_runner(a_model(calling("child"), "Done"), lambda b: b.with_tools([child])).run(asked())
    assert [execution.result for execution in state.steps[0].tool_executions] == ["grown"]


# Clocks.


async def test_processing_seconds_are_inference_tools_and_processors() -> None:
    """2.7.1, 2.7.4: waiting in between does not count."""
    clock = WorkClock()

    def thinks() -> Any:
        clock.works(1.25)
        return calling("look")

    def looks() -> str:
        clock.works(0.5)
        return "seen"

    def processes(state: AgentState) -> AgentState:
        clock.works(0.125)
        return state

    look = MockTool("look", handler=looks)
    runner = a_runner(
        a_model(thinks, "Done"),
        lambda b: b.with_tools([look]).add_processor(processes).with_max_steps(1),
        clock=clock,
    )
    state = await runner.run(asked())
    clock.works(3600)
    (record,) = state.execution.step_executions
    assert record.processing_seconds == record.duration == 1.875
    assert state.state_info.cumulative_execution_seconds == 1.875
    assert state.state_info.session_execution_seconds == 1.875


async def test_the_time_of_failed_steps_is_work() -> None:
    """2.7: each second once, also where an exception split one step in two."""
    clock = WorkClock()

    def fails() -> Any:
        clock.works(2.0)
        raise ValueError("boom")

    state = await a_runner(a_model(fails), clock=clock).run(asked())
    assert state.steps[0].seconds == state.state_info.cumulative_execution_seconds == 2.0

    def thinks() -> Any:
        clock.works(1.0)
        return "Done"

    def processes(_state: AgentState) -> AgentState:
        clock.works(0.5)
        raise ValueError("boom")

    state = await a_runner(a_model(thinks), lambda b: b.add_processor(processes), clock=clock).run(asked())
    assert [step.seconds for step in state.steps] == [1.0, 0.5]
    assert state.state_info.cumulative_execution_seconds == 1.5


async def test_work_is_summed_over_executions_and_the_wall_clock_restarts() -> None:
    """2.7, 2.7.2."""
    clock = WorkClock()

    def thinks() -> Any:
        clock.works(4.0)
        return "Done"

    runner = a_runner(a_model(thinks), clock=clock)
    first = await runner.run(asked())
    clock.works(1000)
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
        clock.works(6.0)
        return calling("look")

    runner = a_runner(a_model(thinks), lambda b: with_look(b.with_timeout(10)), clock=clock)
    state = asked().at(AT)
    clock.works(500)
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
    runner = a_runner(scripted(ScenarioStep.tool_call("look")), with_look, clock=clock)
    first = await runner.next_step(asked())
    clock.works(5)
    second = await runner.next_step(first)
    assert first.execution_started_at == second.execution_started_at == AT
    entered = [state async for state in a_runner(scripted(), clock=clock).iterate(second)][-1]
    assert entered.execution_started_at == clock.now()


async def test_the_start_is_not_restored_so_the_wall_clock_starts_at_the_first_manual_step() -> None:
    """2.7, 6.3.7."""
    clock = WorkClock()
    runner = a_runner(scripted(ScenarioStep.tool_call("look")), with_look, clock=clock)
    first = AgentState.from_dict((await runner.next_step(asked())).to_dict())
    clock.works(5)
    assert (await runner.next_step(first)).execution_started_at == clock.now()


def test_the_system_clock_is_in_utc_and_never_runs_backwards() -> None:
    """2.7, 0.5."""
    clock = SystemClock()
    offset = clock.now().utcoffset()
    assert offset is not None
    assert offset.total_seconds() == 0
    assert clock.seconds() <= clock.seconds()


# Concurrency.


async def test_one_runner_runs_many_conversations_concurrently() -> None:
    """4.4.1: a run keeps everything in its state."""
    arrived = asyncio.Barrier(3)

    async def looks() -> str:
        await arrived.wait()
        return "seen"

    class Echo:
        async def respond(self, request: Any, on_text: object) -> Any:
            last = request.messages[-1]
            return calling("look") if last.is_user else calling(text=f"{request.messages[0].text}!")

    driver = a_model("unused")
    driver.model = Echo()
    runner = a_runner(driver, lambda b: b.with_tools([MockTool("look", handler=looks)]))
    states = await soon(asyncio.gather(*(runner.run(asked(text)) for text in ("a", "b", "c"))))
    assert [state.final_response for state in states] == ["a!", "b!", "c!"]
    assert len({state.agent_id for state in states}) == 3


async def test_a_cancelled_run_ends() -> None:
    """8.2.1: cancelling is no failure step."""
    reached = asyncio.Event()

    async def waits() -> None:
        reached.set()
        await asyncio.Event().wait()

    runner = a_runner(a_model(calling("look")), lambda b: b.with_tools([MockTool("look", handler=waits)]))
    running = asyncio.create_task(runner.run(asked()))
    await soon(reached.wait())
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await soon(running)
