"""Schemas of results: what is refused before a model is asked, each with one sentence."""

from typing import Any

import pytest

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.messages.output_schema import MAX_SCHEMA, valid_output_schema

TREE = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"children": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
        }
    },
}


def cyclic() -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object"}
    schema["properties"] = {"again": schema}
    return schema


def nested_in(*keywords: str, leaf: Any) -> dict[str, Any]:
    schema = leaf
    for keyword in reversed(keywords):
        schema = {keyword: [schema] if keyword in ("anyOf", "prefixItems") else schema}
    return schema


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ({}, "the output schema is empty; describe the result"),
        (cyclic(), "nested deeper than 100 levels or contains itself; flatten it"),
        ({"description": "x" * MAX_SCHEMA}, "characters, more than 100000; describe less in it"),
        ({"propertis": {}}, "unknown keyword 'propertis'; .*did you mean 'properties'?"),
        (nested_in("items", "anyOf", leaf={"typ": "string"}), "'typ' at /items/anyOf/0"),
        ({"properties": {"a": {"requird": []}}}, "'requird' at /properties/a"),
        ({"$ref": "https://example.org/s"}, "is not fetched; write it out under '\\$defs'"),
        ({"$ref": "other.json#/a"}, "is not fetched"),
        ({"$ref": 3}, "refers to 3, which is not fetched"),
        ({"$ref": "#/$defs/lost"}, "refers to '#/\\$defs/lost', which is not in it; add it"),
        ({"anyOf": [{"type": "null"}, {"$ref": "#/anyOf/2"}]}, "'#/anyOf/2', which is not in it"),
        ({"$ref": "#"}, "refers to itself at # without an object or a list in between"),
        ({"anyOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"allOf": [{"$ref": "#"}]}}}, "refers to itself"),
        ({"not": {"$ref": "#/not"}}, "refers to itself at #/not"),
    ],
)
def test_a_schema_that_cannot_be_used_is_refused_with_one_sentence(
    schema: dict[str, Any], problem: str
) -> None:
    """9.8.7"""
    with pytest.raises(InvalidInput, match=problem) as refused:
        valid_output_schema(schema)

    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize(
    "schema",
    [
        TREE,
        {"type": "object", "properties": {"self": {"$ref": "#"}}},
        {"properties": {"propertis": {"type": "string"}}, "x-ours": {"whatever": 1}},
        {"enum": [{"typ": 1}], "default": {"typ": 1}, "const": {"typ": 1}},
        {"items": [{"type": "string"}], "definitions": {"a b": {}}, "$ref": "#/definitions/a%20b"},
        {"$defs": {"a/b": {}}, "$ref": "#/$defs/a~1b"},
        {"prefixItems": [{}, {"$ref": "#/prefixItems/0"}]},
    ],
)
def test_other_schemas_are_kept_as_written(schema: dict[str, Any]) -> None:
    """9.8.7: trees, keys that look like keywords, and values."""
    assert valid_output_schema(schema) == schema


def test_keywords_of_generated_schemas_are_not_checked() -> None:
    """9.8.7: a class may add keys of its own."""
    assert valid_output_schema({"ours": 1}, is_written=False) == {"ours": 1}
