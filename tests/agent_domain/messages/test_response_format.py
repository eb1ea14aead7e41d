"""The form of answers: from types, from schemas, and from what is stored."""

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.messages.cached_context import CachedContext
from everstep.agent_domain.messages.response_format import ResponseFormat, as_response_format, output_format
from everstep.agent_domain.values import frozen_map


class Trip(BaseModel):
    """A trip."""

    city: str
    stops: "list[Trip]" = []


class Unwritable(BaseModel):
    do: Callable[[int], int]


OBJECT = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def test_a_format_of_a_model_has_its_schema_and_its_name() -> None:
    """5.2.4: with_response_format takes pydantic models, whose answers are not checked."""
    found = as_response_format(Trip)

    assert found is not None
    assert (found.name, found.strict, found.is_checked) == ("Trip", True, False)
    assert found.schema["$defs"]["Trip"]["required"] == ["city"]
    assert CachedContext().with_response_format(Trip).response_format == found
    assert CachedContext().with_response_format(Trip).output is None


def test_a_result_is_an_object_even_of_a_tree() -> None:
    """9.8.4: the root is written out, because providers require an object there."""
    found = output_format(Trip)

    assert (found.schema["type"], found.schema["required"], found.name) == ("object", ["city"], "Trip")
    assert found.schema["properties"]["stops"]["items"] == {"$ref": "#/$defs/Trip"}
    assert (found.max_retries, found.is_checked, found.is_wrapped) == (3, True, False)


@pytest.mark.parametrize("output", [list[int], {"type": "array", "items": {"type": "integer"}}])
def test_a_result_that_is_no_object_is_wrapped_in_one(output: Any) -> None:
    """9.8.4"""
    found = output_format(output)

    assert found.is_wrapped
    assert found.schema["required"] == ["result"]
    assert found.schema["properties"]["result"] == {"type": "array", "items": {"type": "integer"}}
    assert [found.unwrapped(each) for each in ({"result": [1]}, [1], {"a": 1})] == [[1], [1], {"a": 1}]
    assert found.wrapped([1]) == {"result": [1]}


def test_definitions_stay_in_their_place_when_a_result_is_wrapped() -> None:
    """9.8.4: and a reference that would lead elsewhere is refused."""
    found = output_format(
        {"type": "array", "items": {"$ref": "#/$defs/n"}, "$defs": {"n": {"type": "integer"}}}
    )

    assert found.schema["$defs"] == {"n": {"type": "integer"}}
    assert "$defs" not in found.schema["properties"]["result"]
    with pytest.raises(InvalidInput, match="no object and refers to '#'; move what it refers to"):
        output_format({"type": "array", "items": {"$ref": "#"}})


@pytest.mark.parametrize(
    ("output", "name"),
    [
        (OBJECT, "result"),
        ({**OBJECT, "title": "A trip, to Oslo!"}, "A_trip_to_Oslo"),
        ({**OBJECT, "title": "é"}, "result"),
        ({"type": "json_schema", "json_schema": {"name": "trip", "schema": OBJECT}}, "trip"),
        (ResponseFormat(frozen_map(OBJECT), name="trip"), "trip"),
    ],
)
def test_a_schema_may_be_written_in_several_forms(output: Any, name: str) -> None:
    """9.8.4: as JSON schema, or as a response format."""
    found = output_format(output, 0)

    assert (found.name, found.max_retries, found.schema["required"]) == (name, 0, ["city"])


@pytest.mark.parametrize(
    ("output", "retries", "problem"),
    [
        (Unwritable, None, "has no JSON schema: Cannot generate a JsonSchema"),
        (Trip(city="Oslo"), None, "cannot be a schema; pass a pydantic model"),
        ("Trip", None, "'Trip' cannot be a schema"),
        ({"type": "json_schema"}, None, "needs a 'schema'"),
        (OBJECT, -1, "max_retries is -1; pass a whole number of at least 0"),
        (OBJECT, 11, "max_retries is 11; pass at most 10"),
        (OBJECT, True, "max_retries is True"),
    ],
)
def test_what_is_no_result_is_refused_with_one_sentence(output: Any, retries: Any, problem: str) -> None:
    """9.8.7"""
    with pytest.raises(InvalidInput, match=problem) as refused:
        output_format(output, retries)

    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "given", [output_format(OBJECT, 1), output_format(list[int]), as_response_format({"schema": OBJECT})]
)
def test_a_stored_format_is_read_as_it_was(given: ResponseFormat | None) -> None:
    """9.8.4: the cached context of an execution holds it; formats without a check are stored as before."""
    assert given is not None
    stored = CachedContext(response_format=given).to_dict()

    assert CachedContext.from_dict(stored).response_format == given
    assert ("maxRetries" in stored["responseFormat"]) is given.is_checked
