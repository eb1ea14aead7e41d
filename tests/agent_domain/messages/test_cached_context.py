"""A request's parts, and the part that stays the same."""

from typing import Any

import pytest
from hypothesis import given, strategies as st

from everstep.agent_domain.agents.drivers import ToolCallingDriver
from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.messages.cached_context import (
    CachedContext,
    InferenceRequest,
    ResponseFormat,
    as_response_format,
    without_orphans,
)
from everstep.agent_domain.messages.messages import (
    Message,
    assistant,
    call_entry,
    system,
    tool_message,
    user,
)
from everstep.agent_domain.state.snapshots import SlimAgentStateSerializer, SlimSerializationConfig
from everstep.agent_domain.state.state import AgentState
from everstep.agent_domain.values import FrozenDict, frozen_map
from tests.agent_domain.scripted_model import ScriptedModel, a_call, calling, runner

SCHEMA = frozen_map({"type": "object", "properties": {"city": {"type": "string"}}})
FORMAT = ResponseFormat(SCHEMA)
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "weather"}}
OTHER_TOOL: dict[str, Any] = {"type": "function", "function": {"name": "news"}}
ASKED = (user("Hi"),)


# The cached part.


@pytest.mark.parametrize(
    "context",
    [
        CachedContext(messages=(system("Be kind"),)),
        CachedContext(tools=[TOOL]),
        CachedContext(tool_choice="required"),
        CachedContext(response_format=FORMAT),
    ],
)
def test_a_context_is_empty_only_if_all_of_it_is(context: CachedContext) -> None:
    """5.2.1"""
    assert not context.is_empty
    assert CachedContext().is_empty
    assert CachedContext(messages=(), tools=[], tool_choice="", response_format=None).is_empty


@pytest.mark.parametrize("blank", ["", " ", "\n\t"])
def test_a_blank_system_prompt_is_ignored(blank: str) -> None:
    """5.2.1"""
    assert CachedContext().with_system_prompt(blank).is_empty


def test_a_system_prompt_is_trimmed_and_precedes_the_cached_messages() -> None:
    """5.2.1"""
    context = CachedContext(messages=(user("Example"),)).with_system_prompt("  Be kind \n")

    assert context.messages == (system("Be kind"), user("Example"))
    assert context.with_system_prompt("Be brief").messages[:2] == (system("Be brief"), system("Be kind"))


def test_an_identical_system_prompt_is_not_repeated() -> None:
    """5.2.1: at any position; only another system prompt counts as identical."""
    context = CachedContext(messages=(user("Example"), system("Be kind")))

    assert context.with_system_prompt(" Be kind").messages == context.messages
    assert context.with_system_prompt("Example").messages[0] == system("Example")


def test_a_response_format_replaces_nothing_but_the_format() -> None:
    """5.2.1"""
    context = CachedContext((system("Be kind"),), [TOOL], "required", ResponseFormat(SCHEMA, name="old"))
    changed = context.with_response_format(FORMAT)

    assert changed == CachedContext((system("Be kind"),), [TOOL], "required", FORMAT)
    assert context.response_format == ResponseFormat(SCHEMA, name="old")
    assert changed.with_response_format(None).response_format is None


def test_a_context_does_not_change_with_the_objects_that_it_was_made_from() -> None:
    """0.8"""
    tool: dict[str, Any] = {"function": {"name": "weather"}}
    schema: dict[str, Any] = {"type": "object"}
    context = CachedContext(["Hi"], [tool], {"name": "weather"}, {"schema": schema})  # pyright: ignore[reportArgumentType] -- what users write
    tool["function"]["name"] = "news"
    schema["type"] = "array"

    assert context.messages == ASKED
    assert context.tools == [{"function": {"name": "weather"}}]
    assert context.tool_choice == {"name": "weather"}
    assert context.response_format == ResponseFormat(frozen_map({"type": "object"}))


@pytest.mark.parametrize(
    "context",
    [CachedContext(), CachedContext((system("Be kind"), user("Hi")), [TOOL], {"name": "weather"}, FORMAT)],  # pyright: ignore[reportArgumentType] -- what users write
)
def test_a_context_reads_back_as_it_was_written(context: CachedContext) -> None:
    """4.1.7"""
    assert CachedContext.from_dict(context.to_dict()) == context
    assert CachedContext.from_dict(None).is_empty


@pytest.mark.parametrize(
    ("parts", "complaint"),
    [
        ({"tools": [object()]}, r"tools\[0\] is of type object"),
        ({"tool_choice": {1: 2}}, "tool_choice has the key 1"),
        ({"messages": {"content": "Hi"}}, "wrap the map in a list"),
        ({"response_format": "json"}, "response format must be a map, not str"),
    ],
)
def test_a_context_with_invalid_content_is_refused(parts: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InvalidInput, match=complaint):
        CachedContext(**parts)


# Response formats.


@pytest.mark.parametrize(
    "given_format",
    [
        {"type": "json_schema", "schema": SCHEMA},
        {"schema": SCHEMA},
        {"type": "json_schema", "schema": SCHEMA, "name": "schema", "strict": True},
        {"type": "json_schema", "json_schema": {"schema": SCHEMA}},
        {"type": "json_schema", "json_schema": {"schema": SCHEMA, "name": "schema", "strict": True}},
    ],
)
def test_a_format_is_strict_and_named_schema_by_default(given_format: dict[str, Any]) -> None:
    """5.2.4: flat, or nested under json_schema."""
    assert as_response_format(given_format) == FORMAT
    assert FORMAT.to_dict() == {"type": "json_schema", "schema": SCHEMA, "name": "schema", "strict": True}


@pytest.mark.parametrize("nested", [True, False])
def test_a_format_keeps_its_settings(nested: bool) -> None:
    """5.2.4"""
    inner = {"schema": SCHEMA, "name": "weather", "strict": False}
    written = {"type": "json_schema"} | ({"json_schema": inner} if nested else inner)

    assert ResponseFormat.from_dict(written) == ResponseFormat(SCHEMA, "json_schema", "weather", strict=False)


def test_a_format_without_a_schema_is_one_that_needs_none() -> None:
    """5.2.4"""
    assert ResponseFormat.from_dict({"type": "json_object"}) == ResponseFormat(FrozenDict(), "json_object")
    assert as_response_format({}) is as_response_format(None) is None
    assert as_response_format(FORMAT) is FORMAT
    for incomplete in (
        {"type": "json_schema"},
        {"type": "json_schema", "json_schema": {"name": "a"}},
        {"name": "a"},
    ):
        with pytest.raises(InvalidInput, match="needs a 'schema'"):
            ResponseFormat.from_dict(incomplete)


@given(st.booleans(), st.sampled_from(["schema", "weather"]), st.sampled_from(["json_schema", "json_object"]))
def test_a_format_reads_back_as_it_was_written(strict: bool, name: str, kind: str) -> None:
    """5.2.4"""
    response_format = ResponseFormat(SCHEMA, kind, name, strict)

    assert ResponseFormat.from_dict(response_format.to_dict()) == response_format


# Requests.


def test_a_request_is_the_cached_messages_and_then_the_conversation() -> None:
    """5.2.3"""
    request = InferenceRequest.compile(ASKED, CachedContext((system("Be kind"), user("Example"))))

    assert request.messages == (system("Be kind"), user("Example"), user("Hi"))
    assert request.cached_messages == 2
    assert InferenceRequest.compile(ASKED).messages == ASKED


def test_the_settings_of_a_request_win() -> None:
    """5.2.3"""
    cached = CachedContext((system("Be kind"),), [TOOL], "required", ResponseFormat(SCHEMA, name="old"))
    own = CachedContext((system("Be brief"),), [OTHER_TOOL], "none", FORMAT)
    request = InferenceRequest.compile(ASKED, cached, own)

    assert request.messages == (system("Be kind"), system("Be brief"), user("Hi"))
    assert (request.tools, request.tool_choice, request.response_format) == ([OTHER_TOOL], "none", FORMAT)


def test_the_cached_part_fills_what_a_request_leaves_empty() -> None:
    """5.2.3"""
    cached = CachedContext((), [TOOL], "required", FORMAT)
    request = InferenceRequest.compile(ASKED, cached, CachedContext(tools=[OTHER_TOOL]))

    assert (request.tools, request.tool_choice, request.response_format) == ([OTHER_TOOL], "required", FORMAT)
    assert InferenceRequest.compile(ASKED, cached).tools == [TOOL]


def test_without_tools_there_is_nothing_to_choose() -> None:
    """5.2.3"""
    context = CachedContext(tool_choice="required")

    assert InferenceRequest.compile(ASKED, context).tool_choice is None
    assert InferenceRequest.compile(ASKED, own=context).tool_choice is None


@pytest.mark.parametrize(
    ("tools", "parallel", "sent"),
    [([TOOL], False, False), ([TOOL], True, None), ([], False, None), ([], True, None)],
)
def test_parallel_tool_calls_are_refused_only_where_there_are_tools(
    tools: list[dict[str, Any]], parallel: bool, sent: bool | None
) -> None:
    """5.2.3: `parallel_tool_calls: false` is sent only with tools."""
    request = InferenceRequest.compile(ASKED, CachedContext(tools=tools), parallel_tools=parallel)

    assert request.parallel_tool_calls is sent


# Orphans.

CALLING = assistant("", tool_calls=[call_entry("c1", "weather", {})])
RESULT = tool_message("sunny", "c1", "weather")
ORPHAN = tool_message("rain", "c0", "weather")


@pytest.mark.parametrize(
    ("conversation", "sent"),
    [
        ((ORPHAN, user("Hi")), (user("Hi"),)),
        ((ORPHAN, ORPHAN, CALLING, RESULT), (CALLING, RESULT)),
        ((ORPHAN,), ()),
        ((), ()),
        ((user("Hi"), CALLING, RESULT), (user("Hi"), CALLING, RESULT)),
        ((user("Hi"), ORPHAN), (user("Hi"), ORPHAN)),
        ((Message.from_dict({"role": "tool", "content": "loose"}), user("Hi")), (user("Hi"),)),
    ],
)
def test_results_whose_call_was_cut_off_are_not_sent(
    conversation: tuple[Message, ...], sent: tuple[Message, ...]
) -> None:
    """5.2.5: leading ones only."""
    assert without_orphans(conversation) == sent
    assert InferenceRequest.compile(conversation).messages == sent


# In a run.

CONTEXT = CachedContext((system("Be kind"),))


async def test_the_context_is_applied_when_a_step_starts_and_kept_for_the_run() -> None:
    """5.2.2: never part of the conversation, nor of any slim snapshot."""
    model = ScriptedModel(calling(a_call()), "It is sunny")
    agent = runner(ToolCallingDriver(model), build=lambda b: b.with_cached_context(CONTEXT))

    states = [state async for state in agent.iterate(AgentState.empty().with_messages("Hi"))]

    assert [request.messages[0] for request in model.requests] == [system("Be kind")] * len(states)
    for state in states:
        assert state.cached_context == CONTEXT
        assert not any(message.is_system for message in state.messages)
        slim = SlimAgentStateSerializer(SlimSerializationConfig.unlimited()).serialize(state)
        assert "Be kind" not in str(slim)


async def test_a_state_with_its_own_context_keeps_it() -> None:
    """5.2.2"""
    model = ScriptedModel("Hello")
    own = CachedContext((system("Be brief"),))
    agent = runner(ToolCallingDriver(model), build=lambda b: b.with_cached_context(CONTEXT))

    ended = await agent.run(AgentState.empty().with_cached_context(own).with_messages("Hi"))

    assert ended.cached_context == own
    assert model.requests[0].messages == (system("Be brief"), user("Hi"))


async def test_a_new_execution_begins_without_the_context_of_the_last() -> None:
    """5.2.2: it takes that of the agent that runs it."""
    first = runner(ToolCallingDriver(ScriptedModel("Hello")), build=lambda b: b.with_cached_context(CONTEXT))
    ended = await first.run(AgentState.empty().with_messages("Hi"))
    assert ended.with_user_message("More").cached_context.is_empty
    assert ended.with_user_message("More", reset=False).cached_context == CONTEXT

    model = ScriptedModel("Hello again")
    second = runner(ToolCallingDriver(model), build=lambda b: b.with_system_prompt("Be brief"))
    await second.run(ended.with_user_message("More"))

    assert model.requests[0].messages[0] == system("Be brief")
