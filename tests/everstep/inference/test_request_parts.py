"""Parts of a request, in whatever form they were given."""

from typing import Any

import pytest

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.messages.messages import assistant, call_entry
from everstep.inference.request_parts import FunctionSchema, ToolChoice, cache_key, called_with
from tests.everstep.inference.asking import WEATHER, asking


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
def test_a_choice_is_understood_in_the_words_of_all(given: Any, choice: ToolChoice | None) -> None:
    """5.2.3"""
    assert ToolChoice.parse(given) == choice


@pytest.mark.parametrize("given", [{"type": "function"}, {"mode": "auto"}, {"type": "tool", "name": 3}])
def test_a_choice_that_is_none_is_refused(given: Any) -> None:
    with pytest.raises(InvalidInput, match="use auto, none, required or the name of a tool"):
        ToolChoice.parse(given)


def test_a_schema_is_a_function_or_the_providers_own() -> None:
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
def test_arguments_go_back_as_an_object(arguments: str, sent: Any) -> None:
    assert called_with(call_entry("c1", "x", arguments)) == sent


def test_a_cache_key_depends_on_what_is_cached_and_on_nothing_else() -> None:
    """5.2.3"""
    key = cache_key(asking("Hello", system="Be brief", tools=(WEATHER,)))

    assert key == cache_key(asking("Bye", assistant("Hi"), system="Be brief", tools=(WEATHER,)))
    assert key != cache_key(asking("Hello", system="Be brief"))
    assert key != cache_key(asking("Hello", tools=(WEATHER,)))
    assert cache_key(asking("Hello")) is None
