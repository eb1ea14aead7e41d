"""Doubles for tests and demos."""

from typing import Any
from uuid import UUID

import pytest

from everstep.agent_domain.agents.drivers import Model, Reply, state_with_reply
from everstep.agent_domain.errors import InvalidInput, RateLimited
from everstep.agent_domain.loop.criteria import ErrorPolicyCriterion, ToolCallPresenceCheck
from everstep.agent_domain.loop.error_policy import ErrorPolicy
from everstep.agent_domain.loop.step_facts import StepType
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.messages.cached_context import InferenceRequest
from everstep.agent_domain.messages.messages import Messages, assistant, user
from everstep.agent_domain.state.state import AgentState
from everstep.agent_domain.state.steps import AgentStep, InferenceResponse
from everstep.agent_domain.testing import (
    DeterministicAgentDriver,
    MockTool,
    ScenarioStep,
    ScriptedModel,
    calls,
    says,
)
from everstep.agent_domain.tools.tools import Tool, ToolCall, ToolContext, ToolExecution, ToolOptions
from tests.agent_domain.state_words import AT, a_state

BEGUN = a_state("Hello").with_step_started(AT)
USED = Usage(input=9, output=2)


async def play(*steps: ScenarioStep, streamed: list[str] | None = None) -> AgentState:
    """The state after the first of these steps, before its calls run."""
    driver = DeterministicAgentDriver.from_steps(*steps)
    texts: list[str] = [] if streamed is None else streamed
    reply = await driver.infer(BEGUN, texts.append)
    return state_with_reply(driver, BEGUN, reply)


def step_of(state: AgentState) -> AgentStep:
    assert state.current_step is not None
    return state.current_step


async def texts_of(driver: DeterministicAgentDriver, steps: int) -> list[str]:
    replies: list[Reply] = [await driver.infer(BEGUN) for _ in range(steps)]
    return [reply.response.text for reply in replies]


@pytest.mark.parametrize(
    ("scenario", "step_type"),
    [
        (ScenarioStep.final("Hi", USED), StepType.FINAL),
        (ScenarioStep.tool("Hi", USED), StepType.TOOL_EXECUTION),
        (ScenarioStep.error("Hi", USED), StepType.ERROR),
        (ScenarioStep.tool_call("look", {}, "Hi", USED), StepType.TOOL_EXECUTION),
        (ScenarioStep.tool_call("look", {}, "Hi", USED, execute_tools=False), StepType.TOOL_EXECUTION),
    ],
)
async def test_a_scenario_step_has_its_type_its_text_and_its_usage(
    scenario: ScenarioStep, step_type: StepType
) -> None:
    """12.3."""
    streamed: list[str] = []
    step = step_of(await play(scenario, streamed=streamed))
    assert (step.step_type, step.usage, streamed) == (step_type, USED, ["Hi"])
    driver = DeterministicAgentDriver()
    assert driver.outputs(step) == (assistant("Hi"),)


@pytest.mark.parametrize(
    "scenario",
    [ScenarioStep.final(""), ScenarioStep.tool(""), ScenarioStep.error(""), ScenarioStep.tool_call("a")],
)
async def test_a_scenario_step_without_a_usage_uses_nothing(scenario: ScenarioStep) -> None:
    """12.3."""
    streamed: list[str] = []
    assert step_of(await play(scenario, streamed=streamed)).usage == Usage()
    assert streamed == []


@pytest.mark.parametrize(
    ("scenario", "goes_on"),
    [
        (ScenarioStep.final("Hi"), False),
        (ScenarioStep.tool("Hi"), False),
        (ScenarioStep.tool_call("look", execute_tools=False), True),
    ],
)
async def test_only_a_step_with_calls_is_followed_by_another(scenario: ScenarioStep, goes_on: bool) -> None:
    """12.3: a `tool` step has none, so the loop stops."""
    state = await play(scenario)
    decision = ToolCallPresenceCheck(ErrorPolicy()).decide(state)
    assert decision == ("request" if goes_on else "stop")


async def test_an_error_step_carries_its_text_as_an_error() -> None:
    """12.3: for the error policy it is one of the model."""
    state = await play(ScenarioStep.error("boom"))
    assert step_of(state).errors_as_text == "boom"
    assert state.messages == (user("Hello"), assistant("boom"))
    assert ErrorPolicyCriterion().explain(state).reason.startswith("Model error stops the run")


async def test_a_call_has_an_id_and_waits_for_the_executor() -> None:
    """12.3."""
    state = await play(ScenarioStep.tool_call("look", {"at": "x"}, "I look"))
    (call,) = step_of(state).pending_calls
    assert (call.name, call.args, bool(call.id)) == ("look", {"at": "x"}, True)
    assert state.messages == (user("Hello"),)
    done = state.with_current_step(step_of(state).observed([ToolExecution(call, "seen")]))
    assert step_of(done).step_type is StepType.TOOL_EXECUTION


async def test_a_call_that_is_not_run_is_shown_all_the_same() -> None:
    """12.3: execute_tools False; only the text is in the output."""
    state = await play(ScenarioStep.tool_call("look", {"at": "x"}, "I look", execute_tools=False))
    step = step_of(state)
    assert (len(step.tool_calls), step.tool_executions, step.is_complete) == (1, (), True)
    assert step.tool_calls[0].id
    assert state.messages == (user("Hello"), assistant("I look"))


async def test_a_driver_plays_one_entry_a_step_and_repeats_the_last() -> None:
    """12.3."""
    assert await texts_of(DeterministicAgentDriver.from_responses("one", "two"), 4) == [
        "one",
        "two",
        "two",
        "two",
    ]
    steps = [ScenarioStep.tool("one"), ScenarioStep.tool("two"), ScenarioStep.final("three")]
    assert await texts_of(DeterministicAgentDriver.from_steps(*steps), 4) == ["one", "two", "three", "three"]


async def test_the_default_answer_is_ok() -> None:
    """12.3."""
    for driver in (DeterministicAgentDriver.from_responses(), DeterministicAgentDriver.from_steps()):
        assert await texts_of(driver, 2) == ["ok", "ok"]
        assert (await driver.infer(BEGUN)).own_type is StepType.FINAL


async def test_responses_are_final_steps() -> None:
    """12.3."""
    reply = await DeterministicAgentDriver.from_responses("Hi").infer(BEGUN)
    assert reply.own_type is StepType.FINAL


def test_a_step_without_a_response_has_an_empty_text() -> None:
    """12.3."""
    outputs: Messages = DeterministicAgentDriver().outputs(AgentStep(UUID(int=1), AT))
    assert outputs == (assistant(""),)


def test_arguments_that_json_cannot_hold_are_refused() -> None:
    """5.4.3."""
    odd: Any = {"at": {1, 2}}
    with pytest.raises(InvalidInput, match="of type set"):
        ScenarioStep.tool_call("look", odd)


# Scripted models.


async def test_a_scripted_model_answers_by_its_script() -> None:
    """The last entry repeats."""
    model = ScriptedModel("one", calls(("look", {"at": "x"}), text="I look", usage=USED), says("two", USED))
    port: Model = model
    request, streamed = InferenceRequest((user("Hello"),)), list[str]()
    answers = [await port.respond(request, streamed.append) for _ in range(4)]
    assert answers == [
        InferenceResponse("one", (), "stop"),
        InferenceResponse(
            "I look", (ToolCall("", "look", answers[1].tool_calls[0].args),), "tool_calls", USED
        ),
        InferenceResponse("two", (), "stop", USED),
        InferenceResponse("two", (), "stop", USED),
    ]
    assert answers[1].tool_calls[0].args == {"at": "x"}
    assert streamed == ["one", "I look", "two", "two"]
    assert model.requests == [request] * 4


async def test_a_scripted_model_raises_by_its_script_and_answers_ok_without_one() -> None:
    request, streamed = InferenceRequest(()), list[str]()
    with pytest.raises(RateLimited, match="slow down"):
        await ScriptedModel(RateLimited("slow down")).respond(request, streamed.append)
    assert await ScriptedModel().respond(request, streamed.append) == says("ok")
    assert (await ScriptedModel(calls()).respond(request, streamed.append)).text == ""
    assert streamed == ["ok"]


# Tools.

CONTEXT = ToolContext(UUID(int=1), "c1", 1)


def test_a_mock_tool_returns_the_result_of_its_handler() -> None:
    """12.4: and keeps the arguments."""
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}

    def adds(a: int) -> int:
        return a + 1

    tool = MockTool("add", "Adds one", adds, schema)
    assert isinstance(tool, Tool)
    assert (tool.name, tool.description, tool.schema) == ("add", "Adds one", schema)
    assert tool.call({"a": 1}, CONTEXT) == 2
    assert tool.calls == [{"a": 1}]


def test_a_mock_tool_returns_a_value() -> None:
    """12.4: without parameters, for any arguments."""
    tool = MockTool.returning("look", "Looks", [1, 2])
    assert (tool.name, tool.description) == ("look", "Looks")
    assert tool.schema == {"type": "object", "properties": {}}
    assert tool.call({}, CONTEXT) == tool.call({"at": "x"}, CONTEXT) == [1, 2]
    assert tool.calls == [{}, {"at": "x"}]


def test_a_mock_tool_needs_only_a_name() -> None:
    """12.4."""
    tool = MockTool("look")
    assert tool.call({}, CONTEXT) is None
    assert tool.options == ToolOptions()
    assert MockTool("look", options=ToolOptions(quick=True)).options.quick


def test_an_exception_of_a_handler_fails_the_call() -> None:
    """12.4: it reaches the executor, which turns it into a failure."""

    def raises() -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        MockTool("look", "Looks", raises).call({}, CONTEXT)


@pytest.mark.parametrize("name", ["", "two words", "x" * 65])
def test_a_mock_tool_has_a_name_that_providers_accept(name: str) -> None:
    with pytest.raises(InvalidInput, match="is not a tool name; use 1 to 64 letters, digits, _ or -"):
        MockTool(name)
