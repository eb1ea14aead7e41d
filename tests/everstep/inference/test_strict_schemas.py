"""Schemas in the part of the language that providers enforce."""

from dataclasses import replace
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field

from everstep.agent_domain.messages.response_format import as_response_format, output_format
from everstep.inference.anthropic_messages import AnthropicMessages
from everstep.inference.fallback import FallbackModel
from everstep.inference.openai_chat import OpenAIChat
from everstep.inference.presets import Preset
from everstep.inference.scripted import ScenarioModel, Script
from everstep.inference.strict_schemas import json_schema_format, refers_to_itself, strict_schema

STRING = {"type": "string"}


class Seat(BaseModel):
    row: int = Field(ge=1, description="From the front")


class Trip(BaseModel):
    city: str = Field(min_length=2, pattern="^[A-Z]")
    seat: Seat = Field(description="Where")
    kind: Literal["train", "bus"]
    note: str | None = None
    days: int = 1
    stops: list["Trip"] = []


class Open(BaseModel):
    counts: dict[str, int]


def closed(required: list[str] | None = None, **properties: Any) -> dict[str, Any]:
    names = [*properties] if required is None else required
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": False}


def test_a_model_is_written_for_strict_mode() -> None:
    """9.8.5: every key is required and closed, and limits that the mode does not know are described."""
    strict = strict_schema(output_format(Trip).to_dict()["schema"])

    assert strict is not None
    assert strict["required"] == ["city", "seat", "kind", "note", "days", "stops"]
    assert strict["additionalProperties"] is False
    properties = strict["properties"]
    assert properties["city"] == {
        "pattern": "^[A-Z]",
        "title": "City",
        "type": "string",
        "description": "{minLength: 2}",
    }
    assert properties["seat"] == {"anyOf": [{"$ref": "#/$defs/Seat"}], "description": "Where"}
    assert properties["note"] == {"anyOf": [STRING, {"type": "null"}], "title": "Note"}
    assert properties["days"] == {"title": "Days", "type": "integer"}
    assert strict["$defs"]["Seat"]["properties"]["row"]["minimum"] == 1
    assert strict["$defs"]["Trip"]["additionalProperties"] is False


@pytest.mark.parametrize(
    ("schema", "strict"),
    [
        ({"type": "object"}, closed()),
        (closed(a={"oneOf": [STRING, {"type": "null"}]}), closed(a={"anyOf": [STRING, {"type": "null"}]})),
        (closed(a={"allOf": [STRING]}), closed(a=STRING)),
        (
            closed(a={"type": "string", "format": "uri"}),
            closed(a=STRING | {"description": '{format: "uri"}'}),
        ),
        (closed(a={"type": ["string", "null"]}, required=[]), closed(a={"type": ["string", "null"]})),
        (closed(a=STRING, required=[]), None),
        (closed(a={"type": "object", "additionalProperties": STRING}), None),
        (closed(a={"type": "object", "additionalProperties": True}), None),
        (closed(a={}), None),
        (closed(a=True), None),
        (closed(a={"type": "array"}), None),
        (closed(a={"allOf": [STRING, STRING]}), None),
        (closed(a={"if": STRING}), None),
        (closed(a={"patternProperties": {}}), None),
        ({"type": "array", "items": STRING}, None),
    ],
)
def test_what_strict_mode_accepts(schema: dict[str, Any], strict: dict[str, Any] | None) -> None:
    """9.8.5"""
    assert strict_schema(schema) == strict


def test_objects_may_not_be_nested_without_end() -> None:
    """9.8.5: OpenAI accepts ten levels."""
    schema: dict[str, Any] = STRING
    for _ in range(11):
        schema = closed(a=schema)

    assert strict_schema(schema) is None
    assert strict_schema(schema["properties"]["a"]) is not None


def test_a_schema_that_is_not_for_strict_mode_is_sent_without_it() -> None:
    """9.8.5: a result is validated in any case; a format that is not checked is its author's."""
    written = as_response_format({"schema": closed(a={})})
    assert written is not None

    assert json_schema_format(output_format(Open))["strict"] is False
    assert json_schema_format(output_format(Trip))["strict"] is True
    assert json_schema_format(written) == {"name": "schema", "schema": closed(a={}), "strict": True}
    assert json_schema_format(replace(written, strict=False))["strict"] is False


@pytest.mark.parametrize(
    ("schema", "does"),
    [
        (output_format(Trip).schema, True),
        (output_format(Seat).schema, False),
        ({"type": "object", "properties": {"a": {"$ref": "#"}}}, True),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": STRING}}, False),
    ],
)
def test_a_schema_may_refer_to_itself(schema: dict[str, Any], does: bool) -> None:
    assert refers_to_itself(schema) is does


def test_many_references_are_followed_once() -> None:
    """A schema whose references double at each level is checked at once."""
    definitions = {
        f"d{n}": closed(a={"$ref": f"#/$defs/d{n + 1}"}, b={"$ref": f"#/$defs/d{n + 1}"}) for n in range(60)
    }
    schema = {"$ref": "#/$defs/d0", "$defs": definitions | {"d60": STRING}}

    assert not refers_to_itself(schema)
    assert output_format(schema).is_checked


def preset(driver: str, **settings: Any) -> Preset:
    return Preset.read("tested", {"driver": driver, "model": "m"} | settings)


def test_each_provider_says_what_it_enforces() -> None:
    """9.8.5: Anthropic's API refuses trees; a preset says that its server enforces nothing."""
    claude, chat = AnthropicMessages(preset("anthropic"), None), OpenAIChat(preset("openai-chat"), None)
    plain = OpenAIChat(preset("openai-chat", structured_output="tool"), None)
    script = ScenarioModel(Script.of("Hello"))
    seat, tree, open_ = (
        output_format(Seat),
        output_format(Trip),
        output_format({"type": "object", "properties": {"a": {}}}),
    )

    assert [model.has_native_output(seat) for model in (claude, chat, plain, script)] == [
        True,
        True,
        False,
        True,
    ]
    assert [claude.has_native_output(each) for each in (tree, open_)] == [False, False]
    assert chat.has_native_output(tree)
    assert FallbackModel([claude, chat]).has_native_output(seat)
    assert not FallbackModel([chat, plain]).has_native_output(seat)
