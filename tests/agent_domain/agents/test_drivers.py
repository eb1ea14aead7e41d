"""A driver's step: its requests to the model, and its messages for the conversation."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.agents.drivers import (
    CanUseTools,
    OnText,
    Reply,
    StepDriver,
    ToolCallingDriver,
    new_call_id,
    state_with_reply,
    state_with_results,
    with_call_ids,
)
from everstep.agent_domain.errors import InvalidInput, InvalidModelOutput, ModelError
from everstep.agent_domain.ids import call_id
from everstep.agent_domain.loop.error_policy import ErrorPolicy
from everstep.agent_domain.loop.loop import Decision, RunTools
from everstep.agent_domain.loop.status import AgentStatus
from everstep.agent_domain.loop.step_error import StepError
from everstep.agent_domain.loop.step_facts import CallNeed, StepType
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.messages.cached_context import CachedContext, InferenceRequest
from everstep.agent_domain.messages.messages import (
    Message,
    assistant,
    call_entry,
    system,
    tool_message,
    user,
)
from everstep.agent_domain.state.events import EventBus, StreamEventReceived
from everstep.agent_domain.state.state import AgentState
from everstep.agent_domain.state.steps import InferenceResponse
from everstep.agent_domain.testing import MockTool
from everstep.agent_domain.tools.tools import Toolbox, ToolCall, ToolExecution
from everstep.agent_domain.values import freeze
from tests.agent_domain.scripted_model import (
    AGENT_ID,
    AT,
    EXECUTION_ID,
    ScriptedModel,
    a_call,
    a_state_in_its_first_step,
    calling,
    run,
    runner,
)


def sunny(city: str = "nowhere") -> str:
    return f"sunny in {city}"


WEATHER = MockTool("weather", "Tells the weather", handler=sunny)
FIRST, SECOND = a_call("c1", city="Bonn"), a_call("c2", city="Rome")


def a_driver(*answers: InferenceResponse | str | Exception) -> ToolCallingDriver:
    """A driver whose model gives these answers and which has the tool WEATHER."""
    driver = ToolCallingDriver(ScriptedModel(*answers))
    driver.equip(Toolbox.of([WEATHER]))
    return driver


def asked_with(*calls: ToolCall, text: str = "") -> Message:
    entries = [call_entry(call.id, call.name, call.args) for call in calls]
    return assistant(text, tool_calls=entries)


class EchoingExecutor:
    """Returns the arguments of every call, and counts the calls in the metadata."""

    async def execute_tool(self, call: ToolCall, state: AgentState) -> ToolExecution:
        return ToolExecution(call, call.args)

    async def execute_tools(
        self, calls: Sequence[ToolCall], state: AgentState
    ) -> tuple[AgentState, tuple[ToolExecution, ...]]:
        executions = [await self.execute_tool(call, state) for call in calls]
        return state.with_metadata("executed", len(calls)), tuple(executions)


# Messages of a step.


async def test_a_step_without_calls_outputs_one_assistant_message() -> None:
    """5.4.1, 12.1"""
    state = await run(a_driver("Hello yourself"))

    assert state.messages == (user("Hello"), assistant("Hello yourself"))
    assert state.steps[0].output_messages == (assistant("Hello yourself"),)
    assert state.steps[0].step_type is StepType.FINAL


async def test_a_step_with_calls_outputs_them_and_then_their_results_in_order() -> None:
    """5.4.1, 12.1: the text is kept, and no raw result."""
    state = await run(a_driver(calling(FIRST, SECOND, text="Let me see"), "Done"), [WEATHER])

    assert [message.to_dict() for message in state.messages[1:]] == [
        {
            "role": "assistant",
            "content": "Let me see",
            "metadata": {
                "tool_calls": [
                    {
                        "id": "c1",
                        "type": "function",
                        "function": {"name": "weather", "arguments": '{"city":"Bonn"}'},
                    },
                    {
                        "id": "c2",
                        "type": "function",
                        "function": {"name": "weather", "arguments": '{"city":"Rome"}'},
                    },
                ]
            },
        },
        {
            "role": "tool",
            "content": "sunny in Bonn",
            "metadata": {"tool_call_id": "c1", "tool_name": "weather"},
        },
        {
            "role": "tool",
            "content": "sunny in Rome",
            "metadata": {"tool_call_id": "c2", "tool_name": "weather"},
        },
        {"role": "assistant", "content": "Done"},
    ]
    assert [step.step_type for step in state.steps] == [StepType.TOOL_EXECUTION, StepType.FINAL]


async def test_a_failed_call_gets_a_result_like_any_other() -> None:
    """5.4.1, 5.4.2, 4.3.2: the step is of type error then."""
    state = await run(a_driver(calling(a_call(name="wether"), SECOND)), [WEATHER])

    assert [message.text for message in state.messages[2:]] == [
        "Error: No tool named 'wether'. Choose from: weather",
        "sunny in Rome",
    ]
    assert state.steps[0].step_type is StepType.ERROR


async def test_arguments_that_were_no_object_are_kept_unchanged_in_the_conversation() -> None:
    """5.4.1, 5.4.3"""
    state = await run(a_driver(calling(ToolCall("c1", "weather", malformed='["Bonn"'))), [WEATHER])

    assert state.messages[1].calls[0]["function"]["arguments"] == '["Bonn"'
    assert state.messages[2].text == "Error: Pass the arguments as a JSON object"


async def test_data_that_the_provider_needs_back_stay_with_the_message() -> None:
    """5.4.1: beside the calls, if there are any."""
    items = freeze([{"origin": "a model", "items": [{"sealed": "x"}]}])
    answers = (replace(calling(FIRST), items=items), InferenceResponse("Done", items=items))
    state = await run(a_driver(*answers), [WEATHER])

    _, called, result, answered = state.messages
    assert called.metadata["provider_items"] == items
    assert [call["id"] for call in called.calls] == ["c1"]
    assert set(result.metadata) == {"tool_call_id", "tool_name"}
    assert answered.metadata == {"provider_items": items}


async def test_a_step_without_a_response_has_no_message() -> None:
    """4.3.4: a failed model call leaves no message."""
    state = await run(a_driver(ModelError("credentials")))

    assert state.messages == (user("Hello"),)
    assert state.status is AgentStatus.FAILED
    assert state.steps[0].is_failure


# Answers that cannot be recorded.


@pytest.mark.parametrize(
    ("calls", "said"),
    [
        ([a_call(f"c{number}") for number in range(257)], "has 257 tool calls"),
        ([replace(a_call("c"), name="x" * 32_000)], "names and ids of 32,001 characters"),
    ],
)
def test_an_answer_with_too_many_calls_is_invalid_output(calls: list[ToolCall], said: str) -> None:
    """5.4.6: what the model used for it counts."""
    reply = Reply(replace(calling(*calls), usage=Usage(input=7)))
    with pytest.raises(InvalidModelOutput, match=said) as raised:
        state_with_reply(ToolCallingDriver(), a_state_in_its_first_step(), reply)
    assert raised.value.usage == Usage(input=7)


def test_a_long_finish_reason_is_cut() -> None:
    """5.4.6"""
    reply = Reply(InferenceResponse("Hello", finish_reason="s" * 1000))
    state = state_with_reply(ToolCallingDriver(), a_state_in_its_first_step(), reply)
    assert state.current_step
    assert state.current_step.inference_response == InferenceResponse("Hello", finish_reason="s" * 100)


# Call ids.


def test_a_call_without_an_id_gets_one() -> None:
    """5.4.1, 1.1.3: it follows from execution, step and place, and so is the same at every attempt."""
    state = a_state_in_its_first_step()
    response = with_call_ids(state, calling(a_call(""), a_call("given"), a_call("")))
    ids = [call.id for call in response.tool_calls]

    assert ids == [call_id(EXECUTION_ID, 1, 0), "given", call_id(EXECUTION_ID, 1, 2)]
    assert with_call_ids(state, response) == response
    assert new_call_id(state) == call_id(EXECUTION_ID, 1, 0)


def test_a_repeated_id_stays_with_the_first_call() -> None:
    """1.1.3: every call has its one result, with any id from the model."""
    response = with_call_ids(
        a_state_in_its_first_step(), calling(FIRST, a_call("c1", city="Rome"), a_call("c1", city="Oslo"))
    )

    assert [call.id for call in response.tool_calls] == [
        "c1",
        call_id(EXECUTION_ID, 1, 1),
        call_id(EXECUTION_ID, 1, 2),
    ]
    assert [call.args["city"] for call in response.tool_calls] == ["Bonn", "Rome", "Oslo"]


async def test_an_id_that_an_earlier_step_used_is_given_to_no_other_call() -> None:
    """1.1.3: together with the execution's id it is the key under which a result is recorded."""
    state = await run(a_driver(calling(FIRST), calling(a_call("c1", city="Rome")), "Done"), [WEATHER])
    ids = [call["id"] for message in state.messages for call in message.calls]

    assert ids == ["c1", call_id(EXECUTION_ID, 2, 0)]
    assert [message.answers for message in state.messages if message.is_tool] == ids
    assert state.messages[-2].text == "sunny in Rome"


def test_ids_need_an_execution() -> None:
    nameless = AgentState.empty().with_step_started(AT)

    with pytest.raises(InvalidInput, match="the state has no execution id yet; call identified"):
        with_call_ids(nameless, calling(a_call("")))


# Requests.


async def test_a_request_holds_the_cached_part_and_the_conversation() -> None:
    """12.1, 5.2.3: tool schemas belong to the cached part."""
    model = ScriptedModel("Done")
    await run(ToolCallingDriver(model), [WEATHER], lambda b: b.with_system_prompt("Be kind"))
    request = model.requests[0]

    assert request.messages == (system("Be kind"), user("Hello"))
    assert request.cached_messages == 1
    assert list(request.tools) == list(Toolbox.of([WEATHER]).schemas)
    assert (request.tool_choice, request.response_format, request.parallel_tool_calls) == (None, None, None)


def test_tools_that_are_cached_already_are_not_replaced() -> None:
    """5.2.3"""
    cached = CachedContext(tools=[{"type": "function", "function": {"name": "other"}}])

    assert a_driver().request(a_state_in_its_first_step().with_cached_context(cached)).tools == cached.tools


async def test_results_without_their_call_are_not_sent() -> None:
    """5.2.5: they stay in the conversation."""
    model = ScriptedModel("Done")
    orphan = tool_message("sunny", "c0", "weather")

    state = await runner(ToolCallingDriver(model)).run(
        AgentState.empty().with_messages([orphan, user("Hello")])
    )

    assert model.requests[0].messages == (user("Hello"),)
    assert state.messages == (orphan, user("Hello"), assistant("Done"))


# The leak guard.


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ('{"city":"Bonn"}', ""),
        ('```json\n{ "city": "Bonn" }\n```', ""),
        ('Reading {"city":"Bonn"}', 'Reading {"city":"Bonn"}'),
        ('{"city":"Oslo"}', '{"city":"Oslo"}'),
    ],
)
async def test_text_that_only_repeats_arguments_does_not_enter_the_conversation(text: str, kept: str) -> None:
    """5.5.2"""
    state = await run(a_driver(calling(FIRST, text=text), "Done"), [WEATHER])

    assert state.messages[1] == asked_with(FIRST, text=kept)
    assert state.steps[0].inference_response == calling(FIRST, text=kept)

    streamed = list[str]()
    driver = a_driver(calling(FIRST, text=text))
    await driver.infer(AgentState.empty().with_messages(user("Go")), streamed.append)
    assert "".join(streamed) == kept


async def test_a_json_reply_is_streamed_at_once_where_there_are_no_tools() -> None:
    """5.5.2: there can be no arguments."""

    class Writer:
        async def respond(self, request: InferenceRequest, on_text: OnText) -> InferenceResponse:
            del request
            on_text('{"city":')
            assert streamed == ['{"city":']
            on_text('"Bonn"}')
            return InferenceResponse('{"city":"Bonn"}')

    streamed = list[str]()
    driver = ToolCallingDriver(Writer())
    await driver.infer(AgentState.empty().with_messages(user("Go")), streamed.append)
    assert "".join(streamed) == '{"city":"Bonn"}'


async def test_a_json_reply_is_kept() -> None:
    """5.5.2: without calls there is nothing to repeat."""
    assert (await run(a_driver('{"city":"Bonn"}'))).messages[-1].text == '{"city":"Bonn"}'


# Parallel or sequential calls.


async def test_calls_of_one_response_run_at_the_same_time() -> None:
    """5.4.1: their results are in the order of the response."""
    meeting, done = asyncio.Barrier(2), list[str]()
    first_may_end = asyncio.Event()

    async def meet(city: str) -> str:
        await meeting.wait()
        if city == "Bonn":
            await first_may_end.wait()
        first_may_end.set()
        done.append(city)
        return city

    tool, decided = MockTool("weather", handler=meet), list[Decision]()
    agent = runner(a_driver(calling(FIRST, SECOND), "Done"), [tool])
    agent.on_decision = decided.append
    state = await agent.run(AgentState.empty().with_messages("Hello"))

    assert done == ["Rome", "Bonn"]
    assert [message.text for message in state.messages if message.is_tool] == ["Bonn", "Rome"]
    assert [len(each.calls) for each in decided if isinstance(each, RunTools)] == [2]


async def test_without_parallel_tools_calls_run_one_after_the_other() -> None:
    """5.4.1, 5.2.3: in response order, and the request forbids parallel calls."""
    model, running, log = ScriptedModel(calling(FIRST, SECOND), "Done"), set[str](), list[str]()

    async def alone(city: str) -> str:
        assert not running
        running.add(city)
        await asyncio.get_running_loop().run_in_executor(None, log.append, city)
        running.remove(city)
        return city

    state = await run(
        ToolCallingDriver(model),
        [MockTool("weather", handler=alone)],
        lambda builder: builder.with_parallel_tools(False),
    )

    assert log == ["Bonn", "Rome"]
    assert [message.text for message in state.messages if message.is_tool] == ["Bonn", "Rome"]
    assert [request.parallel_tool_calls for request in model.requests] == [False, False]


async def test_a_failure_does_not_keep_the_other_calls_from_running() -> None:
    """5.4.1: with and without parallel tools every call has its result."""

    def one_at_a_time(builder: DefinitionBuilder) -> None:
        builder.with_parallel_tools(False)

    for build in (None, one_at_a_time):
        driver = a_driver(calling(a_call("c0", name="wether"), FIRST))
        state = await run(driver, [WEATHER], build)
        assert [message.answers for message in state.messages if message.is_tool] == ["c0", "c1"]


# Streaming.


async def test_the_models_text_is_streamed_as_it_is_written() -> None:
    """4.6.1: a stream with text ends with a complete event."""
    events, received = EventBus(), list[StreamEventReceived]()
    events.on_event(StreamEventReceived, received.append)

    await run(a_driver("Hello yourself"), build=lambda builder: builder.with_events(events))

    assert [(event.content, event.is_complete) for event in received] == [
        ("Hello yourself", False),
        ("", True),
    ]


async def test_a_listener_is_optional() -> None:
    reply = await a_driver("Hello yourself").infer(a_state_in_its_first_step())

    assert reply == Reply(InferenceResponse("Hello yourself"))


# Whole steps, for drivers with an executor.


async def test_a_step_driver_can_carry_out_a_whole_step() -> None:
    """4.4.4: changes made while the tools ran are kept, and the step is the current one."""
    driver = a_driver(calling(FIRST, SECOND))
    driver.executor = EchoingExecutor()

    state = await driver.use_tools(a_state_in_its_first_step())

    assert isinstance(driver, CanUseTools)
    assert state.metadata == {"executed": 2}
    assert state.current_step is not None
    assert [e.text for e in state.current_step.tool_executions] == ['{"city":"Bonn"}', '{"city":"Rome"}']
    assert state.messages[1:] == (
        asked_with(FIRST, SECOND),
        tool_message('{"city":"Bonn"}', "c1", "weather"),
        tool_message('{"city":"Rome"}', "c2", "weather"),
    )


async def test_a_step_without_calls_needs_no_executor() -> None:
    state = await a_driver("Hello yourself").use_tools(a_state_in_its_first_step())

    assert state.messages[-1] == assistant("Hello yourself")
    assert state.step_count == 1


async def test_calls_need_an_executor() -> None:
    with pytest.raises(InvalidInput, match="this driver has no executor for its tool calls"):
        await a_driver(calling(FIRST)).use_tools(a_state_in_its_first_step())


# The two phases.


def test_a_step_joins_the_conversation_when_its_last_call_has_its_result() -> None:
    """4.5.2, 1.1.5: until then it is under way, and its output is empty."""
    driver = a_driver()
    asked = state_with_reply(driver, a_state_in_its_first_step(), Reply(calling(FIRST, SECOND)), seconds=1.0)
    once = state_with_results(driver, asked, [ToolExecution(SECOND, "rain")], seconds=0.5)
    twice = state_with_results(
        driver, once, [ToolExecution(SECOND, "snow"), ToolExecution(FIRST, "sun")], seconds=0.25
    )

    assert [call.id for call in asked.facts.pending] == ["c1", "c2"]
    assert [call.id for call in once.facts.pending] == ["c1"]
    assert asked.messages == once.messages == (user("Hello"),)
    assert twice.messages == (
        user("Hello"),
        asked_with(FIRST, SECOND),
        tool_message("sun", "c1", "weather"),
        tool_message("rain", "c2", "weather"),
    )
    assert twice.state_info.cumulative_execution_seconds == 1.75
    assert (asked.step_count, once.step_count, twice.step_count) == (0, 0, 1)


def test_a_call_waits_for_its_need() -> None:
    state = state_with_reply(
        a_driver(),
        a_state_in_its_first_step(),
        Reply(calling(FIRST, SECOND)),
        need_of=lambda call: CallNeed.APPROVAL if call.args["city"] == "Rome" else CallNeed.RUN,
    )

    assert [call.need for call in state.facts.pending] == [CallNeed.RUN, CallNeed.APPROVAL]


def test_a_step_holds_the_request_and_the_reply() -> None:
    """4.3.1"""
    error = StepError("odd")
    reply = Reply(InferenceResponse("Hi", finish_reason="stop"), StepType.ERROR, (error,))
    step = state_with_reply(a_driver(), a_state_in_its_first_step("Hello"), reply, seconds=2.0).current_step

    assert step is not None
    assert (step.created_at, step.input_messages) == (AT, (user("Hello"),))
    assert (step.step_type, step.errors, step.finish_reason) == (StepType.ERROR, (error,), "stop")
    assert step.seconds == 2.0


def test_phases_come_in_order() -> None:
    fresh = AgentState.empty().identified(AGENT_ID, EXECUTION_ID)

    with pytest.raises(InvalidInput, match=r"the step has not begun; call with_step_started\(at\) first"):
        state_with_reply(a_driver(), fresh, Reply(InferenceResponse("Hi")))
    with pytest.raises(InvalidInput, match="there is no step whose calls could be answered"):
        state_with_results(a_driver(), fresh, [])


def test_a_driver_takes_over_the_agents_tools() -> None:
    driver = a_driver()
    before: list[Any] = [StepDriver.tools.names, StepDriver.parallel_tools]
    driver.equip(Toolbox.of([MockTool("news")]), parallel_tools=False)

    assert driver.tools.names == ("news",)
    assert driver.parallel_tools is False
    assert [StepDriver.tools.names, StepDriver.parallel_tools] == before == [(), True]


async def test_a_model_error_is_retried_when_the_policy_says_so() -> None:
    """4.5.4, 12.1"""
    driver = a_driver(ModelError("overloaded"), "Hello yourself")

    state = await run(driver, build=lambda b: b.with_error_policy(ErrorPolicy.retry_all()))

    assert [step.step_type for step in state.steps] == [StepType.ERROR, StepType.FINAL]
    assert state.status is AgentStatus.COMPLETED
