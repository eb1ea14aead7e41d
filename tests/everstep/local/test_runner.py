"""Runs in this process: the loop."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.agents.drivers import ToolCallingDriver
from everstep.agent_domain.agents.processors import AgentHook
from everstep.agent_domain.agents.spawning import Spawn
from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.loop.child_end import ChildEnd
from everstep.agent_domain.loop.error_policy import ErrorPolicy
from everstep.agent_domain.loop.loop import Infer, RunTools, Stop
from everstep.agent_domain.loop.status import AgentStatus, StopReason
from everstep.agent_domain.loop.step_facts import CallNeed, StepType
from everstep.agent_domain.loop.stop_signal import StopSignal
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.messages.messages import assistant, user
from everstep.agent_domain.state.events import (
    AgentFinished,
    AgentStepStarted,
)
from everstep.agent_domain.state.state import AgentState
from everstep.agent_domain.state.steps import AgentStep
from everstep.agent_domain.testing import MockTool, ScenarioStep
from everstep.agent_domain.tools.tools import ToolCall, ToolContext, ToolExecution, ToolOptions
from everstep.local.runner import LocalRunner
from tests.everstep.local.local_words import (
    AT,
    FINAL,
    LOOK,
    EventRecorder,
    Script,
    WorkClock,
    a_call_response,
    a_conversation,
    a_model,
    a_runner,
    a_scripted_driver,
    boom,
    look_then_answer,
    outcomes_of,
    with_look,
    within_timeout,
)

# The loop.


async def test_steps_are_taken_while_the_evaluation_continues() -> None:
    """4.5.1, 1.1.6: in this process, without Temporal."""
    state = await a_runner(look_then_answer(), with_look).run(a_conversation())
    assert (state.status, state.step_count, state.final_response) == (AgentStatus.COMPLETED, 2, "Done")
    assert [step.step_type for step in state.steps] == [StepType.TOOL_EXECUTION, StepType.FINAL]
    assert outcomes_of(state) == ["request", "stop"]
    assert state.last_continuation_outcome == state.execution.step_executions[1].outcome


async def test_only_the_output_of_steps_enters_the_conversation() -> None:
    """4.5.2, 4.2.1: and usage is counted once per step."""
    driver = look_then_answer(usage=Usage(input=5))
    state = await a_runner(driver, with_look).run(a_conversation("Hello"))
    assert state.messages == (user("Hello"), assistant("I look"), assistant("Done"))
    assert state.usage == Usage(input=5)
    assert state.steps[1].input_messages == (user("Hello"), assistant("I look"))


@pytest.mark.parametrize("limit", [0, 1, 3])
async def test_the_step_limit_is_the_number_of_steps(limit: int) -> None:
    """2.6.1: the evaluation comes before the first step as well."""
    driver = a_scripted_driver(ScenarioStep.tool_call("look"))
    state = await a_runner(driver, lambda b: b.with_tools([LOOK]).with_max_steps(limit)).run(a_conversation())
    assert (state.step_count, state.status) == (limit, AgentStatus.COMPLETED)
    assert state.last_outcome is not None
    assert state.last_outcome.stop_reason is StopReason.STEPS_LIMIT


async def test_the_iterator_gives_the_state_after_each_step() -> None:
    """4.5.1: the final status is not an extra item."""
    states = [state async for state in a_runner(look_then_answer(), with_look).iterate(a_conversation())]
    assert [state.step_count for state in states] == [1, 2]
    assert [state.status for state in states] == [AgentStatus.IN_PROGRESS, AgentStatus.COMPLETED]


async def test_an_iterator_without_steps_yields_nothing_and_publishes_the_end() -> None:
    """4.5.1, 4.6.1."""
    heard = EventRecorder()
    runner = a_runner(a_scripted_driver(), lambda b: b.with_max_steps(0), heard=heard)
    assert [state async for state in runner.iterate(a_conversation())] == []
    assert heard.summary == ["step 0: STOP (steps_limit)", "AgentFinished"]


async def test_steps_can_be_taken_one_by_one() -> None:
    """4.5.3: until no step follows; then the state does not change."""
    runner = a_runner(look_then_answer(), with_look)
    state = a_conversation()
    assert runner.has_next_step(state)
    first = await runner.next_step(state)
    assert (first.step_count, first.status, runner.has_next_step(first)) == (1, AgentStatus.IN_PROGRESS, True)
    second = await runner.next_step(first)
    assert (second.step_count, second.status) == (2, AgentStatus.COMPLETED)
    assert not runner.has_next_step(second)
    assert await runner.next_step(second) is second


async def test_asking_for_the_next_step_publishes_no_event() -> None:
    """4.5.3."""
    heard, decisions = EventRecorder(), list[object]()
    runner = a_runner(a_scripted_driver(), heard=heard, on_decision=decisions.append)
    assert runner.has_next_step(a_conversation())
    assert (heard, decisions) == ([], [])


async def test_a_manual_step_that_is_not_allowed_ends_the_run() -> None:
    """4.5.3, 4.6.1."""
    heard = EventRecorder()
    runner = a_runner(a_scripted_driver(), lambda b: b.with_max_steps(0), heard=heard)
    assert not runner.has_next_step(a_conversation())
    state = await runner.next_step(a_conversation())
    assert (state.status, state.step_count) == (AgentStatus.COMPLETED, 0)
    assert heard.summary == ["step 0: STOP (steps_limit)", "AgentFinished"]


async def test_manual_steps_run_and_iterator_make_the_same_decisions() -> None:
    """4.5.1, 4.5.3."""

    async def decisions(how: Callable[[LocalRunner], Any]) -> list[object]:
        taken = list[object]()
        await how(a_runner(look_then_answer(), with_look, on_decision=taken.append))
        return [
            type(decision) for decision in taken if not isinstance(decision, Infer) or decision.number > 1
        ]

    async def by_hand(runner: LocalRunner) -> None:
        state = a_conversation()
        while state.status is AgentStatus.IN_PROGRESS:
            state = await runner.next_step(state)

    async def one_by_one(runner: LocalRunner) -> None:
        assert [state.step_count async for state in runner.iterate(a_conversation())] == [1, 2]

    at_once = await decisions(lambda runner: runner.run(a_conversation()))
    assert at_once == await decisions(one_by_one) == [RunTools, Infer, Stop]
    # In manual mode the second step is decided twice: after the first, and when it is requested.
    assert await decisions(by_hand) == [RunTools, Infer, Infer, Stop]


@pytest.mark.parametrize("how", ["run", "iterator"])
async def test_a_state_that_has_ended_begins_a_new_execution(how: str) -> None:
    """4.1.5: in the same conversation, from step 1."""
    heard = EventRecorder()
    runner = a_runner(
        a_scripted_driver(FINAL("one", Usage(input=5)), FINAL("two", Usage(input=3))), heard=heard
    )
    ended = await runner.run(a_conversation())
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
    first = await a_runner(look_then_answer(), with_look).next_step(a_conversation())
    state = await a_runner(a_scripted_driver(FINAL("Done"))).run(first)
    assert [record.number for record in state.execution.step_executions] == [1, 2]
    assert state.execution.execution_id == first.execution.execution_id


async def test_a_run_that_may_not_continue_publishes_its_stop() -> None:
    """4.6.1, 7.4.1: the evaluation that stops it is published although it follows no step."""
    first = await a_runner(look_then_answer(), with_look).next_step(a_conversation())
    heard = EventRecorder()
    state = await a_runner(a_scripted_driver(), lambda b: b.with_max_steps(1), heard=heard).run(first)
    assert (state.step_count, state.status) == (1, AgentStatus.COMPLETED)
    assert heard.summary == ["step 1: STOP (steps_limit)", "AgentFinished"]


async def test_an_interrupted_step_is_completed_without_another_model_call() -> None:
    """1.1.3, 4.4: its call gets its one result."""
    runner = a_runner(look_then_answer(), with_look)
    begun = a_conversation().identified(UUID(int=8), UUID(int=9)).with_step_started(AT)
    call = ToolCall("c1", "look")
    step = AgentStep(UUID(int=7), AT, inference_response=a_call_response("look"))
    waiting = AgentState.from_dict(begun.with_current_step(step).to_dict())
    assert [each.id for each in waiting.facts.pending] == ["c1"]
    after = await runner.next_step(waiting)
    assert [(e.call, e.result) for e in after.steps[0].tool_executions] == [(call, "seen")]
    assert after.step_count == 1


async def test_a_paused_state_is_resumed_before_it_runs() -> None:
    """8.4.1, 1.1.6."""
    runner = a_runner(a_scripted_driver())
    for run in (runner.run, runner.next_step):
        with pytest.raises(InvalidInput, match=r"paused; resume it first: state\.resumed\(now\)"):
            await run(a_conversation().paused())
    assert (await runner.run(a_conversation().paused().resumed(AT))).status is AgentStatus.COMPLETED


async def test_a_processor_can_pause_the_run() -> None:
    """1.1.6: the returned state can be resumed."""
    pausing: list[bool] = [True, False]
    heard = EventRecorder()
    runner = a_runner(
        look_then_answer(),
        lambda b: with_look(b.add_processor(lambda state: state.paused() if pausing.pop(0) else state)),
        heard=heard,
    )
    state = await within_timeout(runner.run(a_conversation()))
    assert (state.is_paused, state.status, state.step_count) == (True, AgentStatus.IN_PROGRESS, 1)
    assert heard.of(AgentFinished) == []
    done = await within_timeout(runner.run(state.resumed(AT)))
    assert (done.step_count, done.status) == (2, AgentStatus.COMPLETED)


async def test_a_paused_iterator_ends_with_the_state_to_resume() -> None:
    """1.1.6."""
    runner = a_runner(look_then_answer(), lambda b: with_look(b.add_processor(AgentState.paused)))
    states = [state async for state in runner.iterate(a_conversation())]
    assert [(state.step_count, state.is_paused) for state in states] == [(1, True)]


class PausingHook(AgentHook):
    """Pauses the first step before its calls have run."""

    def __init__(self) -> None:
        self.pauses = [True]

    def before_step(self, state: AgentState) -> AgentState:
        return state.paused() if self.pauses and self.pauses.pop() else state


@pytest.mark.parametrize("how", ["run", "iterator", "by hand"])
async def test_a_run_that_is_paused_within_a_step_returns_its_state(how: str) -> None:
    """1.1.5, 1.1.6: the call waits, also in another process; once resumed it gets its one result."""
    model = Script(a_call_response("look"), "Done")
    runner = a_runner(ToolCallingDriver(model), lambda b: with_look(b.add_hook(PausingHook())))
    match how:
        case "run":
            state = await within_timeout(runner.run(a_conversation()))
        case "iterator":
            (state,) = [each async for each in runner.iterate(a_conversation())]
        case _:
            state = await within_timeout(runner.next_step(a_conversation()))
    assert (state.is_paused, state.status, state.step_count) == (True, AgentStatus.IN_PROGRESS, 0)
    assert state.messages == (user("Hello"),)
    stored = AgentState.from_dict(state.to_dict())
    assert (stored.is_paused, [call.id for call in stored.facts.pending]) == (True, ["c1"])
    done = await within_timeout(runner.run(stored.resumed(AT)))
    assert (done.status, done.step_count, model.turn) == (AgentStatus.COMPLETED, 2, 2)
    assert [message.text for message in done.messages if message.is_tool] == ["seen"]


class SpeakingHook(AgentHook):
    """Adds a message before each step, and requests a stop and a pause before the first call."""

    def before_step(self, state: AgentState) -> AgentState:
        return state.heard(user(f"Step {state.facts.next_step_number}"))

    def before_tool(self, state: AgentState, call: ToolCall) -> AgentState:
        signal = StopSignal(StopReason.GUARD, "Enough", source="a hook")
        return state.with_stop_signal(signal).paused() if call.id == "c1" else state


@pytest.mark.parametrize("is_stored", [False, True])
async def test_a_paused_step_continues_and_does_not_begin_again(is_stored: bool) -> None:
    """1.1.5, 4.5.2, 4.6.1: the message that a hook added before it occurs once, and is published once."""
    heard = EventRecorder()
    runner = a_runner(
        a_model(a_call_response("look", "look"), "Done"),
        lambda b: with_look(b.add_hook(SpeakingHook()).with_parallel_tools(False)),
        heard=heard,
    )
    state = await within_timeout(runner.run(a_conversation()))
    state = AgentState.from_dict(state.to_dict()) if is_stored else state
    done = await within_timeout(runner.run(state.resumed(AT)))

    texts = [message.text for message in done.messages]
    assert texts[:5] == ["Hello", "Step 1", "", "seen", "seen"]
    # A stored state has no signals; otherwise the signal waits for the evaluation after the step.
    assert texts[5:] == (["Step 2", "Done"] if is_stored else [])
    assert [each.step_number for each in heard.of(AgentStepStarted)] == ([1, 2] if is_stored else [1])


class Burst(BaseException):
    """A BaseException, like the one that `pytest.fail` raises."""


class RaisingHook(AgentHook):
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
    driver = a_model(a_call_response("look", "look"), "Done")
    state = await within_timeout(
        a_runner(driver, lambda b: with_look(b.add_hook(RaisingHook(where, error)))).run(a_conversation())
    )

    assert (state.status, state.steps[-1].is_failure) == (AgentStatus.FAILED, True)
    name, place = type(error).__name__, where.removesuffix("_tool")
    around_call = f"{name} in a hook {place} the call: x"
    assert state.steps[-1].errors_as_text == (around_call if where.endswith("_tool") else f"{name}: x")


class QuittingTool(MockTool):
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
    driver = a_model(a_call_response("hire"), "Done")
    runner = a_runner(driver, lambda b: b.with_tools([QuittingTool(error)]).with_error_policy(policy))
    state = await within_timeout(runner.run(a_conversation()))

    assert state.status is AgentStatus.COMPLETED
    assert [call.text for call in state.steps[0].tool_executions] == ["Error: x"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, GeneratorExit])
async def test_an_interrupt_from_the_keyboard_ends_the_run(error: type[BaseException]) -> None:
    """4.5.4: that is not a failure of the agent."""

    def interrupt() -> None:
        raise error

    waiting = a_runner(a_model(interrupt)).run(a_conversation())
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

    driver = a_model(a_call_response("look", "look"), a_call_response("look"), "Done")
    runner = a_runner(driver, lambda b: b.with_tools([Looking("look")]).add_hook(Counting()))
    await runner.run(a_conversation().with_metadata("own", 1))

    assert shown[:2] == [{"own": 1}] * 2
    assert len(shown[2]) > 1


async def test_a_hook_may_not_end_the_run_between_a_call_and_its_result() -> None:
    """1.1.5: no conversation has a call without a result; a stop signal would wait for it."""

    class Ending(AgentHook):
        def before_step(self, state: AgentState) -> AgentState:
            return replace(state, facts=replace(state.facts, status=AgentStatus.COMPLETED))

    state = await within_timeout(
        a_runner(look_then_answer(), lambda b: with_look(b.add_hook(Ending()))).run(a_conversation())
    )
    assert "a step with unanswered calls cannot be followed by Stop" in state.steps[0].errors_as_text
    assert not [message for message in state.messages if message.calls]


def state_with_message(state: AgentState) -> AgentState:
    return state.with_user_message("More")


def new_state(_state: AgentState) -> AgentState:
    return a_conversation()


@pytest.mark.parametrize("elsewhere", [state_with_message, new_state, AgentState.for_continuation])
@pytest.mark.parametrize("where", ["before_step", "before_tool", "after_tool", "after_step", "a processor"])
async def test_a_state_of_another_execution_is_refused(
    elsewhere: Callable[[AgentState], AgentState], where: str
) -> None:
    """4.3.4: it becomes a failure step whose message says what to change."""

    def build(builder: DefinitionBuilder) -> object:
        if where == "a processor":
            return with_look(builder.add_processor(elsewhere))
        hook = AgentHook()

        def leaves(state: AgentState, *_about: object) -> AgentState:
            return elsewhere(state)

        setattr(hook, where, leaves)
        return with_look(builder.add_hook(hook))

    state = await within_timeout(a_runner(look_then_answer(), build).run(a_conversation()))
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

    driver = a_scripted_driver(FINAL("Before"), FINAL("After"))
    state = await within_timeout(a_runner(driver, lambda b: b.add_processor(steers)).run(a_conversation()))
    assert (state.status, state.step_count, state.facts.steered) == (AgentStatus.COMPLETED, 2, 0)
    assert state.final_response == "After"


async def test_a_processor_that_always_raises_uses_up_its_retries() -> None:
    """3.4.3, 4.3.4: the interrupted step does not reset the failure count, so the second failure stops."""
    policy = ErrorPolicy.retry_all(2)
    runner = a_runner(
        a_scripted_driver(), lambda b: b.with_error_policy(policy).with_max_steps(20).add_processor(boom)
    )
    state = await within_timeout(runner.run(a_conversation()))
    assert (state.status, state.step_count) == (AgentStatus.FAILED, 4)
    assert state.trailing_failures == AgentState.from_dict(state.to_dict()).trailing_failures == 2


async def test_an_old_session_may_have_a_next_step() -> None:
    """4.5.3, 2.7: the wall clock counts from the first manual step, not from the session's beginning."""
    clock = WorkClock()
    runner = a_runner(a_scripted_driver(), lambda b: b.with_timeout(10), clock=clock)
    old = await runner.run(a_conversation())
    clock.advance(11)
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
        LocalRunner(DefinitionBuilder.base().definition())


# Calls that need a person or a subagent.


@pytest.mark.parametrize("need", [CallNeed.INPUT, CallNeed.APPROVAL])
async def test_calls_that_wait_for_people_fail_in_this_process(need: CallNeed) -> None:
    """1.1.6: with a clear text and both tool events; the tool is not called."""
    heard = EventRecorder()
    ask = MockTool("ask", options=ToolOptions(need=need))
    runner = a_runner(
        a_model(a_call_response("look", "ask")), lambda b: with_look(b.with_tools([ask])), heard=heard
    )
    state = await within_timeout(runner.run(a_conversation()))
    text = "Waiting for people needs the durable runtime, this run is in-process"
    assert state.status is AgentStatus.FAILED
    assert [message.text for message in state.messages if message.is_tool] == ["seen", f"Error: {text}"]
    assert ask.calls == []
    assert [story for story in heard.summary if story.endswith("c2")] == [
        "ToolCallStarted c2",
        "ToolCallCompleted c2",
    ]


async def test_a_call_that_needs_approval_fails_in_this_process() -> None:
    """1.1.6, 8.6.1: each call that needs it, and no other."""
    rules = [{"tool": "look", "args": {"at": "secret*"}, "approval": "always"}]
    look = MockTool.returning("look", "Looks", "seen")

    def scenario(at: str) -> Any:
        return a_scripted_driver(ScenarioStep.tool_call("look", {"at": at}), FINAL("Done"))

    def build(builder: DefinitionBuilder) -> object:
        return builder.with_tools([look]).with_approval("look", rules)

    allowed = await a_runner(scenario("sky"), build).run(a_conversation())
    refused = await a_runner(scenario("secrets"), build).run(a_conversation())
    assert (allowed.status, refused.status) == (AgentStatus.COMPLETED, AgentStatus.FAILED)
    assert "needs the durable runtime" in refused.steps[0].errors_as_text
    assert look.calls == [{"at": "sky"}]


async def test_subagent_calls_run_like_tools_in_this_process() -> None:
    """1.1.6."""
    child = MockTool("child", handler=lambda: "grown", options=ToolOptions(need=CallNeed.SUBAGENT))
    state = await a_runner(a_model(a_call_response("child"), "Done"), lambda b: b.with_tools([child])).run(
        a_conversation()
    )
    assert [execution.result for execution in state.steps[0].tool_executions] == ["grown"]


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
            return (
                a_call_response("look")
                if last.is_user
                else a_call_response(text=f"{request.messages[0].text}!")
            )

    driver = a_model("unused")
    driver.model = Echo()
    runner = a_runner(driver, lambda b: b.with_tools([MockTool("look", handler=looks)]))
    states = await within_timeout(
        asyncio.gather(*(runner.run(a_conversation(text)) for text in ("a", "b", "c")))
    )
    assert [state.final_response for state in states] == ["a!", "b!", "c!"]
    assert len({state.agent_id for state in states}) == 3


async def test_a_cancelled_run_ends() -> None:
    """8.2.1: cancelling is no failure step."""
    reached = asyncio.Event()

    async def waits() -> None:
        reached.set()
        await asyncio.Event().wait()

    runner = a_runner(
        a_model(a_call_response("look")), lambda b: b.with_tools([MockTool("look", handler=waits)])
    )
    running = asyncio.create_task(runner.run(a_conversation()))
    await within_timeout(reached.wait())
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await within_timeout(running)
