"""Decisions in JSON instead of native tool calls, and the resulting conversation."""

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.agents.drivers import Reply
from everstep.agent_domain.agents.react import (
    RULES,
    CallTool,
    FinalAnswer,
    ReActDriver,
    UnusableReply,
    instructions,
    parse_react_decision,
    react_result_messages,
    usable_args,
)
from everstep.agent_domain.errors import InvalidInput, ModelError
from everstep.agent_domain.ids import call_id
from everstep.agent_domain.loop.error_policy import ErrorPolicy
from everstep.agent_domain.loop.loop import Decision, RunTools
from everstep.agent_domain.loop.status import AgentStatus, StopReason
from everstep.agent_domain.loop.step_error import ErrorType
from everstep.agent_domain.loop.step_facts import StepType
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.messages.cached_context import CachedContext, ResponseFormat
from everstep.agent_domain.messages.messages import Message, assistant, system, user
from everstep.agent_domain.state.events import (
    EventBus,
    StreamEventReceived,
    ToolCallCompleted,
    ToolCallStarted,
)
from everstep.agent_domain.state.state import AgentState
from everstep.agent_domain.state.steps import AgentStep, InferenceResponse
from everstep.agent_domain.testing import MockTool
from everstep.agent_domain.tools.tools import Toolbox, ToolCall, ToolExecution
from everstep.agent_domain.values import FrozenDict, freeze, frozen_map, json_text
from tests.agent_domain.scripted_model import (
    AT,
    EXECUTION_ID,
    ScriptedModel,
    a_call,
    a_state_in_its_first_step,
    run,
    runner,
)

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
}
NAMES = ("weather", "news")
NO_DECISION = assistant("Thought: My reply was not a valid decision")


def report(city: str, days: int = 1) -> dict[str, Any]:
    return {"city": city, "days": days, "sky": "heiter/blau"}


def a_weather() -> MockTool:
    return MockTool("weather", "Tells the weather", report, SCHEMA)


def deciding(**decision: Any) -> str:
    return json.dumps({"thought": "Hm"} | decision)


def a_call_of(tool: str = "weather", **args: Any) -> str:
    return deciding(type="call_tool", tool=tool, args=args)


def answering(answer: str = "Sunny") -> str:
    return deciding(type="final_answer", answer=answer)


CALL = a_call_of(city="Bonn")
ANSWER = answering()


def with_policy(policy: ErrorPolicy, events: EventBus | None = None, **limits: int) -> Any:
    def build(builder: DefinitionBuilder) -> None:
        builder.with_error_policy(policy).with_events(events or EventBus())
        builder.with_max_steps(limits.get("max_steps", 20))

    return build


RETRIES = with_policy(ErrorPolicy.retry_all(5))
IGNORES = with_policy(ErrorPolicy.ignore_tool_errors())


# Reading a decision.


@pytest.mark.parametrize(
    ("text", "decision"),
    [
        (CALL, CallTool("Hm", "weather", {"city": "Bonn"})),
        (ANSWER, FinalAnswer("Sunny")),
        (f"```json\n{ANSWER}\n```", FinalAnswer("Sunny")),
        (f"I have decided:\n{CALL}\nThat is all.", CallTool("Hm", "weather", {"city": "Bonn"})),
        ('{"type":"call_tool","tool":"news","args":{}}', CallTool("", "news", {})),
        ('{"type":"call_tool","tool":"news"}', CallTool("", "news", None)),
        ('{"type":"call_tool","tool":"news","args":[1]}', CallTool("", "news", [1])),
        ('{"type":"final_answer","answer":" ok ","tool":"x","mood":1}', FinalAnswer(" ok ")),
        ('{"type":"final_answer","answer":42}', FinalAnswer("42")),
        ('{"type":"final_answer","answer":{"a":[true]}}', FinalAnswer('{"a":[true]}')),
        ('{"thought":["a"],"type":"call_tool","tool":"news","args":{}}', CallTool('["a"]', "news", {})),
    ],
)
def test_a_decision_is_read_from_the_json_in_a_reply(text: str, decision: object) -> None:
    """12.2: {thought, type, tool, args, answer}; text around the object is ignored."""
    assert parse_react_decision(text, NAMES) == decision


@pytest.mark.parametrize(
    "text",
    [
        "",
        "  ",
        "Sunny",
        "null",
        '"final_answer"',
        "[1, 2]",
        "}{",
        "{",
        '{"type":"final_answer","answer":"cut o',
        f"{CALL}\n{ANSWER}",
        '{"type":"final_answer","answer":NaN}',
        '{"type":"final_answer","answer":"\\u0000"}',
        '{"type":"final_answer","answer":"\\ud800"}',
        '{"a":' * 5000 + "1" + "}" * 5000,
    ],
)
def test_a_reply_without_exactly_one_json_object_holds_no_decision(text: str) -> None:
    """12.2: decision_extraction"""
    decision = parse_react_decision(text, NAMES)

    assert isinstance(decision, UnusableReply)
    assert decision.stage == "decision_extraction"
    assert decision.message.startswith("Reply with one JSON object that is your decision (the reply")
    assert len(decision.message) < 300


TOOL_MISSING = "A call_tool decision needs a tool"
TOOL_UNKNOWN = "No tool has that name, use one from the catalogue"
ANSWER_MISSING = "A final_answer decision needs an answer"
TYPE_UNKNOWN = "Set type to call_tool or final_answer"
INVALID: list[tuple[dict[str, Any], str]] = [
    ({}, TYPE_UNKNOWN),
    ({"type": None, "tool": "weather", "args": {}}, TYPE_UNKNOWN),
    ({"type": "answer", "answer": "Sunny"}, TYPE_UNKNOWN),
    ({"type": "CALL_TOOL", "tool": "weather", "args": {}}, TYPE_UNKNOWN),
    ({"type": ["call_tool"], "tool": "weather"}, TYPE_UNKNOWN),
    ({"type": "call_tool"}, TOOL_MISSING),
    ({"type": "call_tool", "tool": None, "args": {}}, TOOL_MISSING),
    ({"type": "call_tool", "tool": " ", "args": {}}, TOOL_MISSING),
    ({"type": "call_tool", "answer": "Sunny"}, TOOL_MISSING),
    ({"type": "call_tool", "tool": "wether", "args": {}}, TOOL_UNKNOWN),
    ({"type": "call_tool", "tool": "Weather", "args": {}}, TOOL_UNKNOWN),
    ({"type": "call_tool", "tool": {"name": "weather"}}, TOOL_UNKNOWN),
    ({"type": "final_answer"}, ANSWER_MISSING),
    ({"type": "final_answer", "answer": None, "tool": "weather"}, ANSWER_MISSING),
    ({"type": "final_answer", "answer": "\n"}, ANSWER_MISSING),
]


@pytest.mark.parametrize(("data", "complaint"), INVALID)
def test_an_invalid_decision_gets_advice(data: dict[str, Any], complaint: str) -> None:
    """12.2: decision_validation"""
    assert parse_react_decision(json_text(data), NAMES) == UnusableReply("decision_validation", complaint)


@given(st.text())
def test_any_reply_is_a_decision_or_an_error_message(text: str) -> None:
    """12.2"""
    for written in (text, deciding(type="final_answer", answer=text), "{" + text + "}"):
        assert isinstance(parse_react_decision(written, NAMES), CallTool | FinalAnswer | UnusableReply)


@pytest.mark.parametrize(
    ("schema", "args", "kept"),
    [
        (SCHEMA, {"city": "Bonn", "days": 2}, {"city": "Bonn", "days": 2}),
        (SCHEMA, {"mood": 1, "city": "Bonn", "days": None}, {"city": "Bonn"}),
        (SCHEMA, {"city": {"deep": None, "more": 1}}, {"city": {"deep": None, "more": 1}}),
        (SCHEMA, {"city": "", "days": 0}, {"city": "", "days": 0}),
        (SCHEMA | {"additionalProperties": False}, {"mood": 1}, {}),
        (SCHEMA | {"additionalProperties": True}, {"mood": 1, "days": None}, {"mood": 1}),
        (SCHEMA | {"additionalProperties": {"type": "integer"}}, {"mood": 1}, {"mood": 1}),
        ({"type": "object", "properties": {}}, {"mood": 1}, {}),
        ({"$ref": "#/elsewhere"}, {"mood": 1, "days": None}, {"mood": 1}),
    ],
)
def test_unknown_or_null_arguments_are_dropped(
    schema: dict[str, Any], args: dict[str, Any], kept: dict[str, Any]
) -> None:
    """12.2: a tool that takes any has no unknown ones."""
    assert usable_args(frozen_map(args), schema) == kept


# Requests to the model.


async def test_the_request_is_in_json_mode_and_describes_the_tools_in_words() -> None:
    """12.2"""
    model = ScriptedModel(ANSWER)
    await run(ReActDriver(model), [a_weather(), MockTool("news", "Tells the news")], _kind)
    request = model.requests[0]

    assert request.response_format is not None
    assert request.response_format.type == "json_object"
    assert list(request.response_format.schema["properties"]) == ["thought", "type", "tool", "args", "answer"]
    assert (list(request.tools), request.tool_choice, request.parallel_tool_calls) == ([], None, None)
    assert [message.role for message in request.messages] == ["system", "system", "user"]
    assert request.messages[1:] == (system("Be kind"), user("Hello"))
    assert request.cached_messages == 2


def _kind(builder: DefinitionBuilder) -> None:
    builder.with_system_prompt("Be kind")


def test_the_system_prompt_holds_rules_a_catalogue_and_schemas() -> None:
    """12.2: catalogue JSON (name, description), schemas JSON (name, parameters)."""
    prompt = instructions(Toolbox.of([a_weather(), MockTool("news", "Tells the news")]))
    json_lines = [json.loads(line) for line in prompt.splitlines() if line.startswith("[")]

    assert json_lines == [
        [
            {"name": "weather", "description": "Tells the weather"},
            {"name": "news", "description": "Tells the news"},
        ],
        [
            {"name": "weather", "parameters": SCHEMA},
            {"name": "news", "parameters": {"type": "object", "properties": {}}},
        ],
    ]
    for word in ("thought", "call_tool", "final_answer", "tool", "args", "answer", "Observation:"):
        assert word in prompt


def test_a_copied_sample_is_no_decision() -> None:
    """12.2: small models copy samples; each sample is refused with its own error."""
    samples = [line for line in RULES.splitlines() if line.startswith("{")]
    problems = [parse_react_decision(sample, {"weather"}) for sample in samples]

    assert problems == [
        UnusableReply("decision_validation", TOOL_MISSING),
        UnusableReply("decision_validation", ANSWER_MISSING),
    ]
    copied = '{"thought":"","type":"call_tool","tool":"weather","args":{"<PARAMETER>":"<VALUE>"}}'
    decision = parse_react_decision(copied, {"weather"})
    assert isinstance(decision, CallTool)
    assert usable_args(decision.args, SCHEMA) == {}


@pytest.mark.parametrize("answer", ["<b>", "<ANSWER>", "Write <TOOL_NAME> there", "<5>"])
def test_an_answer_in_angle_brackets_is_an_answer(answer: str) -> None:
    """12.2: only the placeholders of the prompt count as none."""
    reply = json.dumps({"thought": "", "type": "final_answer", "answer": answer})

    assert parse_react_decision(reply, ()) == FinalAnswer(answer)


async def test_settings_of_the_agent_that_do_not_concern_decisions_are_left_out() -> None:
    """12.2: cached tools and formats belong to native calls and to plain answers."""
    model = ScriptedModel(ANSWER)
    cached = CachedContext(
        tools=[{"type": "function"}], tool_choice="required", response_format=ResponseFormat(FrozenDict())
    )
    await run(ReActDriver(model), [a_weather()], lambda b: b.with_cached_context(cached))
    request = model.requests[0]

    assert (list(request.tools), request.tool_choice) == ([], None)
    assert request.response_format is not None
    assert request.response_format.name == "decision"


# Calls.


async def test_a_call_appears_as_thought_action_and_observation() -> None:
    """12.2"""
    tool = a_weather()
    model = ScriptedModel(a_call_of(city="Bonn", days=2), ANSWER)

    state = await run(ReActDriver(model), [tool])

    assert [message.to_dict() for message in state.messages] == [
        {"role": "user", "content": "Hello"},
        {
            "role": "assistant",
            "content": 'Thought: Hm\nAction: weather\nAction Input: {"city":"Bonn","days":2}',
        },
        {"role": "user", "content": 'Observation: {"city":"Bonn","days":2,"sky":"heiter/blau"}'},
        {"role": "assistant", "content": "Sunny"},
    ]
    assert tool.calls == [{"city": "Bonn", "days": 2}]
    assert [step.step_type for step in state.steps] == [StepType.TOOL_EXECUTION, StepType.FINAL]
    assert state.status is AgentStatus.COMPLETED
    assert state.final_response == "Sunny"


@pytest.mark.parametrize(
    ("result", "observation"),
    [
        ("sunny", 'Observation: "sunny"'),
        (None, "Observation: null"),
        (True, "Observation: true"),
        ([1, "ä"], 'Observation: [1,"ä"]'),
        ({}, "Observation: {}"),
    ],
)
async def test_an_observation_is_json_text(result: object, observation: str) -> None:
    """12.2"""
    tool = MockTool.returning("weather", "Tells the weather", result)

    state = await run(ReActDriver(ScriptedModel(a_call_of(), ANSWER)), [tool])

    assert state.messages[2] == user(observation)


async def test_a_call_passes_the_loop_like_any_other() -> None:
    """12.2, 12.1, 4.6.1: decided, run by the executor, and reported with both events."""
    events, received, decided = EventBus(), list[object](), list[Decision]()
    events.on_event(ToolCallStarted, received.append)
    events.on_event(ToolCallCompleted, received.append)
    agent = runner(ReActDriver(ScriptedModel(CALL, ANSWER)), [a_weather()], lambda b: b.with_events(events))
    agent.on_decision = decided.append

    state = await agent.run(AgentState.empty().with_messages("Hello"))

    run_tools = [each for each in decided if isinstance(each, RunTools)]
    assert [[call.name for call in each.calls] for each in run_tools] == [["weather"]]
    assert [type(event) for event in received] == [ToolCallStarted, ToolCallCompleted]
    call = a_call(call_id(EXECUTION_ID, 1, 0), city="Bonn")
    assert state.steps[0].tool_calls == (call,)
    assert state.steps[0].inference_response == InferenceResponse("Hm", (call,))


async def test_meaningless_arguments_reach_neither_tool_nor_conversation() -> None:
    """12.2: unknown argument keys and nulls are dropped."""
    tool = a_weather()
    model = ScriptedModel(a_call_of(mood="calm", city="Bonn", days=None), ANSWER)

    state = await run(ReActDriver(model), [tool])

    assert tool.calls == [{"city": "Bonn"}]
    assert state.messages[1].text == 'Thought: Hm\nAction: weather\nAction Input: {"city":"Bonn"}'


def failing(**_args: Any) -> Any:
    raise RuntimeError("the station is closed")


async def test_a_failed_tool_is_an_observation_and_the_step_still_a_tool_execution() -> None:
    """12.2: its errors stay, so the policy decides about them."""
    model = ScriptedModel(a_call_of(), ANSWER)

    state = await run(ReActDriver(model), [MockTool("weather", handler=failing)], RETRIES)
    step = state.steps[0]

    assert state.messages[2] == user("Observation: Error: the station is closed")
    assert step.step_type is StepType.TOOL_EXECUTION
    assert [(error.message, error.tool_name) for error in step.errors] == [
        ("the station is closed", "weather")
    ]
    assert state.messages[-1] == assistant("Sunny")


async def test_a_failed_tool_stops_the_run_where_errors_do() -> None:
    """12.2, 3.4.2: the error is one of type tool."""
    state = await run(ReActDriver(ScriptedModel(a_call_of())), [MockTool("weather", handler=failing)])

    assert state.error_context.type is ErrorType.TOOL
    assert state.last_outcome is not None
    assert state.last_outcome.stop_reason is StopReason.ERROR
    assert state.status is AgentStatus.FAILED


ARGS_ARRAY = "Pass args as a JSON object keyed by parameter name, not as an array"
ARGS_MISSING = "A call_tool decision needs args"


@pytest.mark.parametrize(
    ("args", "given_args", "complaint"),
    [
        ({"args": ["Bonn", 2]}, '["Bonn",2]', ARGS_ARRAY),
        ({"args": []}, "[]", ARGS_ARRAY),
        ({}, "null", ARGS_MISSING),
        ({"args": None}, "null", ARGS_MISSING),
        ({"args": "Bonn"}, '"Bonn"', ARGS_MISSING),
        ({"args": {}}, "{}", "Required arguments are missing: city"),
        ({"args": {"days": 2}}, '{"days":2}', "Required arguments are missing: city"),
        ({"args": {"city": None}}, "{}", "Required arguments are missing: city"),
    ],
)
async def test_a_call_with_invalid_arguments_is_refused_without_calling_the_tool(
    args: dict[str, Any], given_args: str, complaint: str
) -> None:
    """12.2: that error is the observation, and the step one with a failed call."""
    tool = a_weather()
    model = ScriptedModel(deciding(type="call_tool", tool="weather", **args), ANSWER)

    state = await run(ReActDriver(model), [tool], RETRIES)
    step = state.steps[0]

    assert tool.calls == []
    assert state.messages[1:3] == (
        assistant(f"Thought: Hm\nAction: weather\nAction Input: {given_args}"),
        user(f"Observation: Error: {complaint}"),
    )
    assert step.step_type is StepType.TOOL_EXECUTION
    assert [call.name for call in step.tool_calls] == ["weather"]
    assert [(error.message, error.type, error.tool_name) for error in step.errors] == [
        (complaint, None, "weather")
    ]
    assert state.messages[-1] == assistant("Sunny")
    assert len(model.requests) == 2


# Replies without a decision.

INVALID_REPLY = deciding(type="call_tool", tool="wether", args={})


@pytest.mark.parametrize(
    ("reply", "stage", "complaint"),
    [
        (
            "Sunny!",
            "decision_extraction",
            "Reply with one JSON object that is your decision (the reply holds no JSON object)",
        ),
        *((json_text(data), "decision_validation", complaint) for data, complaint in INVALID),
    ],
)
async def test_a_reply_without_a_decision_is_a_failed_pseudo_execution(
    reply: str, stage: str, complaint: str
) -> None:
    """12.2: step type error, error type validation; the model reads the error."""
    state = await run(ReActDriver(ScriptedModel(reply), max_retries=0), [a_weather()])
    step = state.steps[0]

    assert state.messages == (user("Hello"), NO_DECISION, user(f"Observation: Error: {complaint}"))
    assert step.step_type is StepType.ERROR
    assert [(e.call.name, e.error and e.error.message) for e in step.tool_executions] == [(stage, complaint)]
    assert [(error.type, error.exception) for error in step.errors] == [
        (ErrorType.VALIDATION, "InvalidModelOutput")
    ]
    assert not step.has_tool_calls
    assert not step.is_failure
    assert state.error_context.type is ErrorType.VALIDATION
    assert state.error_context.tool_name == stage


async def test_a_retry_policy_leads_to_another_step() -> None:
    """12.2, 2.5.3: although no tool was called; the model sees its failure."""
    model = ScriptedModel(INVALID_REPLY, "Sunny!", CALL, ANSWER)

    state = await run(ReActDriver(model, max_retries=0), [a_weather()], RETRIES)

    assert [step.step_type for step in state.steps] == [
        StepType.ERROR,
        StepType.ERROR,
        StepType.TOOL_EXECUTION,
        StepType.FINAL,
    ]
    assert model.requests[1].messages[-2:] == (NO_DECISION, user(f"Observation: Error: {TOOL_UNKNOWN}"))
    assert state.status is AgentStatus.COMPLETED
    assert state.final_response == "Sunny"


async def test_the_default_policy_stops() -> None:
    """12.2, 3.2"""
    model = ScriptedModel(INVALID_REPLY)

    state = await run(ReActDriver(model), [a_weather()])

    assert (state.step_count, state.status) == (1, AgentStatus.FAILED)
    assert state.last_outcome is not None
    assert state.last_outcome.stop_reason is StopReason.ERROR
    assert state.last_outcome.resolved_by == "ErrorPolicyCriterion"


async def test_retries_end_at_the_limit_of_the_policy() -> None:
    """12.2, 3.3.1: the n-th failure in a row stops."""
    model = ScriptedModel(*[INVALID_REPLY] * 5)

    state = await run(ReActDriver(model), [a_weather()], with_policy(ErrorPolicy.retry_all(3)))

    assert (state.step_count, state.status) == (3, AgentStatus.FAILED)
    assert len(model.requests) == 3


async def test_an_ignored_error_requests_no_further_step() -> None:
    """12.2, 2.5.3: nothing was called, so nothing is left to do."""
    state = await run(ReActDriver(ScriptedModel(INVALID_REPLY)), [a_weather()], IGNORES)

    assert (state.step_count, state.status) == (1, AgentStatus.COMPLETED)


async def test_a_pseudo_execution_has_no_events() -> None:
    """12.2, 4.6.1: no tool was called."""
    events, received = EventBus(), list[object]()
    events.on_event(ToolCallStarted, received.append)
    events.on_event(ToolCallCompleted, received.append)

    await run(ReActDriver(ScriptedModel(INVALID_REPLY)), [a_weather()], with_policy(ErrorPolicy(), events))

    assert received == []


# Retries within the step.


async def test_an_unreadable_reply_is_retried_within_the_step() -> None:
    """12.2, 4.2.1: all attempts are one step with the usage of all, and only the last reply is kept."""
    model = ScriptedModel(
        InferenceResponse("Hm, sunny?", usage=Usage(10, 1)),
        InferenceResponse("{", usage=Usage(20, 2)),
        InferenceResponse(ANSWER, usage=Usage(30, 3), finish_reason="stop"),
    )

    state = await run(ReActDriver(model), [a_weather()])

    assert state.messages == (user("Hello"), assistant("Sunny"))
    assert state.steps[0].usage == state.usage == Usage(60, 6)
    assert state.steps[0].finish_reason == "stop"
    for number, request in enumerate(model.requests):
        assert len(request.messages) == 2 + 2 * number
        assert request.messages[:2] == model.requests[0].messages
        assert request.response_format == model.requests[0].response_format
    said: list[Message] = list(model.requests[2].messages[2:])
    assert said[0] == said[2] == NO_DECISION
    assert all(each.text.startswith("Observation: Error: Reply with one JSON object") for each in said[1::2])


@pytest.mark.parametrize("max_retries", [0, 1, 2, 3])
async def test_it_is_retried_up_to_a_limit_and_then_recorded_as_failed(max_retries: int) -> None:
    """12.2"""
    model = ScriptedModel(*[InferenceResponse("Sunny!", usage=Usage(1, 1))] * 9)

    state = await run(ReActDriver(model, max_retries), [a_weather()])

    assert len(model.requests) == max_retries + 1
    assert state.usage == Usage(max_retries + 1, max_retries + 1)
    assert [e.call.name for e in state.steps[0].tool_executions] == ["decision_extraction"]
    assert len(state.messages) == 3


async def test_a_readable_reply_is_not_retried() -> None:
    """12.2: the policy decides whether an invalid decision is retried."""
    model = ScriptedModel("Sunny!", INVALID_REPLY)

    state = await run(ReActDriver(model), [a_weather()])

    assert len(model.requests) == 2
    assert [e.call.name for e in state.steps[0].tool_executions] == ["decision_validation"]


async def test_two_retries_are_the_default() -> None:
    """12.2"""
    driver = ReActDriver(ScriptedModel())

    assert (driver.max_retries, driver.final_via_inference) == (2, False)
    for wrong in (-1, True, 1.5, "2", None):
        with pytest.raises(InvalidInput, match=r"max_retries is .*; pass a whole number of at least 0"):
            ReActDriver(ScriptedModel(), wrong)  # pyright: ignore[reportArgumentType] -- the point of the test


async def test_a_failing_model_gives_no_decision() -> None:
    """12.2, 4.3.4: it is a failure step."""
    state = await run(ReActDriver(ScriptedModel(ModelError("credentials"))), [a_weather()])

    assert state.steps[0].is_failure
    assert state.messages == (user("Hello"),)


# Answers.


async def test_the_answer_may_be_written_by_a_second_plain_call() -> None:
    """12.2: it replaces that of the decision, and its request does not mention decisions."""
    model = ScriptedModel(
        CALL,
        InferenceResponse(answering("draft"), usage=Usage(10, 1)),
        InferenceResponse("It is sunny.", usage=Usage(20, 2), finish_reason="length"),
    )
    wanted = ResponseFormat(frozen_map({"type": "object"}))

    def build(builder: DefinitionBuilder) -> None:
        builder.with_system_prompt("Be kind").with_response_format(wanted)

    state = await run(ReActDriver(model, final_via_inference=True), [a_weather()], build)
    plain = model.requests[-1]

    assert state.messages[-1] == assistant("It is sunny.")
    assert len(model.requests) == 3
    assert (state.steps[-1].usage, state.steps[-1].finish_reason) == (Usage(30, 3), "length")
    assert state.steps[-1].step_type is StepType.FINAL
    assert plain.messages[0] == system("Be kind")
    assert plain.messages[1].is_system
    assert plain.messages[2:] == state.messages[:-1]
    assert not any("call_tool" in message.text for message in plain.messages)
    assert (plain.response_format, list(plain.tools)) == (wanted, [])


@pytest.mark.parametrize("silence", ["", " \n"])
async def test_an_empty_second_reply_leaves_the_answer_of_the_decision(silence: str) -> None:
    """12.2"""
    model = ScriptedModel(ANSWER, silence)

    state = await run(ReActDriver(model, final_via_inference=True))

    assert state.messages[-1] == assistant("Sunny")


@pytest.mark.parametrize(
    ("final_via_inference", "replies", "streamed"),
    [
        (False, ["{", CALL, ANSWER], "Sunny"),
        (True, ["{", CALL, ANSWER, "It is sunny."], "It is sunny."),
        (True, ["{", CALL, ANSWER, ""], "Sunny"),
    ],
)
async def test_only_the_answer_is_streamed(
    final_via_inference: bool, replies: list[str], streamed: str
) -> None:
    """5.5.1: arguments of tools never appear in deltas, and decisions consist of them."""
    events, received = EventBus(), list[StreamEventReceived]()
    events.on_event(StreamEventReceived, received.append)
    driver = ReActDriver(ScriptedModel(*replies), final_via_inference=final_via_inference)

    await run(driver, [a_weather()], with_policy(ErrorPolicy(), events))

    assert [(event.step_number, event.content) for event in received] == [(2, streamed), (2, "")]


async def test_provider_data_of_a_dropped_reply_are_not_sent_back() -> None:
    """12.2: providers require their reasoning beside the very message that it led to."""
    response = InferenceResponse(CALL, (a_call(),), items=freeze([{"type": "reasoning"}]))

    reply = await driver_of(response).infer(a_state_in_its_first_step())

    assert list(reply.response.items) == []
    assert [call.id for call in reply.response.tool_calls] == [call_id(EXECUTION_ID, 1, 0)]


def driver_of(response: InferenceResponse) -> ReActDriver:
    driver = ReActDriver(ScriptedModel(response))
    driver.equip(Toolbox.of([a_weather()]))
    return driver


async def test_a_listener_is_optional() -> None:
    assert await driver_of(InferenceResponse(ANSWER)).infer(a_state_in_its_first_step()) == Reply(
        InferenceResponse("Sunny")
    )


# Other cases.


async def test_the_messages_of_a_step_follow_from_the_step_alone() -> None:
    """12.2, 1.1.2: also after it was written and read."""
    model = ScriptedModel(CALL, deciding(type="call_tool", tool="weather", args=[1]), INVALID_REPLY, ANSWER)

    driver = ReActDriver(model)
    state = await run(driver, [a_weather()], RETRIES)

    assert len(state.steps) == 4
    for step in state.steps:
        again = AgentStep.from_dict(json.loads(json.dumps(step.to_dict())))
        assert driver.outputs(again) == driver.outputs(step) == step.output_messages
        assert again.facts(1) == step.facts(1)


@pytest.mark.parametrize(
    ("note", "text", "observation"),
    [
        ("", "", 'Observation: {"a":1}'),
        ("", "one", 'Observation: "one"'),
        ("[Arguments edited by user: {}]\n", "", 'Observation: [Arguments edited by user: {}]\n{"a":1}'),
    ],
)
def test_an_observation_has_the_text_of_its_result(note: str, text: str, observation: str) -> None:
    """12.2, 8.6.2: a tool's text for the model, and that people changed the arguments."""
    execution = ToolExecution(ToolCall("c1", "weather"), frozen_map({"a": 1}), note=note, told=text)
    assert react_result_messages(execution) == (user(observation),)


def test_a_step_without_a_response_has_no_message() -> None:
    """4.3.4"""
    step = AgentStep(EXECUTION_ID, AT)

    assert ReActDriver(ScriptedModel(ANSWER)).outputs(step) == (assistant(""),)


async def test_a_call_that_was_cut_short_gets_its_result() -> None:
    """1.1.5: no stored conversation has a call without one."""
    driver = driver_of(InferenceResponse(CALL))
    state = a_state_in_its_first_step()
    reply = await driver.infer(state)
    step = AgentStep(EXECUTION_ID, AT, inference_response=reply.response, own_type=reply.own_type)
    ended = state.with_current_step(step).abandoned(AT, driver.outputs)

    assert "Error: Cancelled before it finished" in ended.messages[-1].text
    assert ended.messages[-1].text.startswith("Observation: ")


async def test_the_builder_equips_a_copy() -> None:
    """12.2: two agents never share tools."""
    driver = ReActDriver(ScriptedModel(ANSWER, ANSWER), max_retries=1, final_via_inference=True)
    made = runner(driver, [a_weather()]).driver

    assert isinstance(made, ReActDriver)
    assert made is not driver
    assert made.tools.names == ("weather",)
    assert (made.max_retries, made.final_via_inference) == (1, True)
    assert driver.tools.names == ()
