"""Parts of a request, in every form that they may have."""

from typing import Any

import pytest

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.messages.messages import assistant, call_entry
from everstep.inference.request_parts import (
    FunctionSchema,
    ToolChoice,
    cache_key,
    call_arguments,
    with_accepted_names,
)
from tests.everstep.inference.asking import WEATHER, a_request


@pytest.mark.parametrize(
    ("name", "sent"),
    [
        ("weather", "weather"),
        ("functions.weather", "functions_weather"),
        ("rm -rf / \u202e", "rm_-rf____"),
        ("", "_"),
        ("x" * 1000, "x" * 64),
    ],
)
def test_an_unknown_tool_is_sent_back_under_a_name_that_providers_accept(name: str, sent: str) -> None:
    """5.4.5: what is signed with the other name is not sent."""
    call = assistant("", tool_calls=[call_entry("1", name, {"a": 1})], provider_items=[{"origin": "x"}])
    request = a_request(call, tools=(WEATHER,))

    (message,) = with_accepted_names(request).messages

    assert [call["function"] for call in message.calls] == [{"name": sent, "arguments": '{"a":1}'}]
    assert ("provider_items" in message.metadata) == (name == sent)


@pytest.mark.parametrize(
    ("given", "choice"),
    [
        (None, None),
        ("", None),
        ({}, None),
        ("auto", ToolChoice("auto")),
        ("none", ToolChoice("none")),
        ("required", ToolChoice("required")),
        ("any", ToolChoice("required")),
        ("weather", ToolChoice("required", "weather")),
        ({"type": "auto"}, ToolChoice("auto")),
        ({"type": "any"}, ToolChoice("required")),
        ({"type": "tool", "name": "weather"}, ToolChoice("required", "weather")),
        ({"type": "function", "name": "weather"}, ToolChoice("required", "weather")),
        ({"type": "function", "function": {"name": "weather"}}, ToolChoice("required", "weather")),
    ],
)
def test_a_tool_choice_is_read_in_the_format_of_every_provider(given: Any, choice: ToolChoice | None) -> None:
    """5.2.3"""
    assert ToolChoice.parse(given) == choice


@pytest.mark.parametrize("given", [{"type": "function"}, {"mode": "auto"}, {"type": "tool", "name": 3}])
def test_an_invalid_tool_choice_is_refused(given: Any) -> None:
    with pytest.raises(InvalidInput, match="use auto, none, required or the name of a tool"):
        ToolChoice.parse(given)


def test_a_tool_definition_is_a_function_or_a_provider_tool() -> None:
    assert FunctionSchema.of({"type": "web_search"}) is None
    assert FunctionSchema.of({"type": "function"}) is None
    assert FunctionSchema.of({"type": "function", "function": {"name": "x"}}) == FunctionSchema(
        "x", "", {"type": "object", "properties": {}}
    )


@pytest.mark.parametrize(
    ("arguments", "sent"),
    [
        ('{"a":1}', {"a": 1}),
        ("", {}),
        ("nonsense", {"INVALID_JSON": "nonsense"}),
        ("[1]", {"INVALID_JSON": "[1]"}),
    ],
)
def test_arguments_are_sent_back_as_an_object(arguments: str, sent: Any) -> None:
    assert call_arguments(call_entry("c1", "x", arguments)) == sent


def test_a_cache_key_depends_on_the_cached_part_only() -> None:
    """5.2.3"""
    key = cache_key(a_request("Hello", system="Be brief", tools=(WEATHER,)))

    assert key == cache_key(a_request("Bye", assistant("Hi"), system="Be brief", tools=(WEATHER,)))
    assert key != cache_key(a_request("Hello", system="Be brief"))
    assert key != cache_key(a_request("Hello", tools=(WEATHER,)))
    assert cache_key(a_request("Hello")) is None
