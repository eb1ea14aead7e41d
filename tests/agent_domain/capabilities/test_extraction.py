import sys
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, strategies as st
from pydantic import BaseModel, field_serializer
from typing_extensions import TypedDict

from everstep.agent_domain.capabilities.extraction import (
    Nothing,
    SchemaDefinition,
    SchemaRegistry,
    StructuredOutputPolicy,
    argument_problem,
    extraction_error,
    extraction_text,
    nothing_found_reason,
    retry_count,
)
from everstep.agent_domain.errors import InvalidInput, UnknownName


class Person(BaseModel):
    name: str
    age: int | None = None
    friends: list["Person"] = []


@dataclass
class Place:
    city: str


class Thing(TypedDict):
    kind: str


class NoSchema:
    pass


class Caller(BaseModel):
    back: Callable[[], int]


@dataclass
class Unfinished:
    other: "Nowhere"  # type: ignore[name-defined] # noqa: F821


class Broken(BaseModel):
    name: str

    @field_serializer("name")
    def write_name(self, name: str) -> str:
        raise ValueError(name)


POLICY = StructuredOutputPolicy()
REGISTRY = SchemaRegistry({"person": Person, "place": SchemaDefinition(Place, "Where", max_retries=1)})


def test_the_defaults_of_the_policy() -> None:
    """9.8.1: StructuredOutputPolicy."""
    assert (POLICY.max_retries, POLICY.use_maybe) == (3, True)
    assert (POLICY.llm_preset, POLICY.model, POLICY.output_mode, POLICY.system_prompt) == (None,) * 4


def test_a_bare_class_is_shorthand() -> None:
    """9.8.1: a bare class is shorthand."""
    assert REGISTRY.get("person") == SchemaDefinition(Person)
    assert REGISTRY.get("place").description == "Where"
    assert REGISTRY.names == ("person", "place")


def test_classes_that_cannot_be_a_schema_are_refused() -> None:
    """9.8.1: at definition, not at the first call."""
    with pytest.raises(InvalidInput, match=r"NoSchema.* cannot be a schema; pass a pydantic model"):
        SchemaDefinition(NoSchema)


@pytest.mark.parametrize("schema", [{"type": "object"}, 3, None, "Person", [], print])
def test_an_object_that_is_no_type_is_refused_when_it_is_registered(schema: Any) -> None:
    """9.8.1"""
    with pytest.raises(InvalidInput, match=r"cannot be a schema; pass a pydantic model"):
        SchemaRegistry().register("person", schema)


def test_an_unreadable_typed_dict_names_the_readable_alternative() -> None:
    """9.8.1: TypedDicts are schemas, before Python 3.12 only those of typing_extensions."""

    class Theirs(typing.TypedDict):
        name: str

    if sys.version_info >= (3, 12):
        assert SchemaDefinition(Theirs).answer_schema(use_maybe=False)["required"] == ["name"]
        return
    with pytest.raises(InvalidInput, match="take TypedDict from typing_extensions"):
        SchemaDefinition(Theirs)


@pytest.mark.parametrize(
    "build", [lambda: SchemaDefinition(Person, max_retries=-1), lambda: StructuredOutputPolicy(-1)]
)
def test_negative_retries_are_refused(build: Any) -> None:
    """9.8.1: the error gives advice."""
    with pytest.raises(InvalidInput, match="max_retries is -1; pass a whole number of at least 0"):
        build()


def test_a_schema_needs_a_name() -> None:
    """9.8.1: an enum of registered names."""
    with pytest.raises(InvalidInput, match="blank name"):
        SchemaRegistry({" ": Person})


@pytest.mark.parametrize(
    ("call", "schema", "count"), [(5, 1, 5), (0, 1, 0), (None, 1, 1), (None, 0, 0), (None, None, 3)]
)
def test_retries_are_of_the_call_else_the_schema_else_the_policy(
    call: int | None, schema: int | None, count: int
) -> None:
    """9.8.1: precedence."""
    assert retry_count(call, SchemaDefinition(Person, max_retries=schema), POLICY) == count


@pytest.mark.parametrize("call", [-1, "3", 1.5, True])
def test_meaningless_retries_fail(call: object) -> None:
    """9.8.1: the model learns the expected form."""
    with pytest.raises(InvalidInput, match="max_retries"):
        retry_count(call, SchemaDefinition(Person), POLICY)


def test_the_request_is_for_the_class_or_for_nothing() -> None:
    """9.8.1: use_maybe wraps the schema and keeps its references."""
    definition = SchemaDefinition(Person)
    assert definition.answer_schema(use_maybe=False)["$defs"]["Person"]["required"] == ["name"]
    maybe = definition.answer_schema(use_maybe=True)
    assert set(maybe["properties"]) == {"value", "detail"}
    assert maybe["$defs"]["Person"]["properties"]["friends"]["items"] == {"$ref": "#/$defs/Person"}


def test_an_answer_becomes_json() -> None:
    """9.8.1: of any kind of class."""
    assert SchemaDefinition(Person).read({"name": "Ada", "age": "36"}, use_maybe=False) == {
        "name": "Ada",
        "age": 36,
        "friends": [],
    }
    assert SchemaDefinition(Place).read({"value": {"city": "Ulm"}}, use_maybe=True) == {"city": "Ulm"}
    assert SchemaDefinition(Thing).read({"kind": "x"}, use_maybe=False) == {"kind": "x"}


def test_an_answer_may_be_that_nothing_was_found() -> None:
    """9.8.2: nothing found."""
    nothing = SchemaDefinition(Person).read({"value": None, "detail": "only places"}, use_maybe=True)
    assert nothing == Nothing("only places")
    assert nothing_found_reason("person", nothing) == "The input holds no person: only places"
    assert nothing_found_reason("person", Nothing()) == "The input holds no person: the model found nothing"


@pytest.mark.parametrize(
    ("answer", "detail"),
    [
        ({"age": 3}, "name: Field required"),
        ({"name": "A", "friends": [{"name": 1}]}, "friends.0.name: Input should be a valid string"),
        ([], "Input should be an object"),
        ({"name": float("nan")}, "the answer.name is nan"),
    ],
)
def test_an_answer_that_does_not_fit_names_the_place(answer: object, detail: str) -> None:
    """9.8.2: or the extraction error."""
    with pytest.raises(InvalidInput) as refused:
        SchemaDefinition(Person).read(answer, use_maybe=False)
    assert str(refused.value).startswith(detail)


def test_only_the_first_of_many_errors_are_shown() -> None:
    """9.8.2: they are enough for the model to correct its answer, without the cost of a page."""
    answer = {"name": "Ada", "friends": [{"name": 1}] * 500}
    with pytest.raises(InvalidInput) as refused:
        SchemaDefinition(Person).read(answer, use_maybe=False)
    assert str(refused.value).startswith("friends.0.name: Input should be a valid string; friends.1.name")
    assert str(refused.value).endswith("; and 490 more")


def test_classes_without_a_json_schema_are_refused() -> None:
    """9.8.1: at definition, not at the first call."""
    with pytest.raises(InvalidInput, match=r"Caller.* has no JSON schema"):
        SchemaDefinition(Caller)
    with pytest.raises(InvalidInput, match=r"Unfinished.* is not fully defined"):
        SchemaDefinition(Unfinished)


def test_examples_are_json() -> None:
    """9.8.1: objects of the class are accepted; anything else is refused at definition."""
    definition = SchemaDefinition(Person, examples=[Person(name="Bo"), {"name": "Ada"}])  # type: ignore[arg-type]
    assert definition.examples == ({"name": "Bo", "age": None, "friends": []}, {"name": "Ada"})
    with pytest.raises(InvalidInput, match=r"example #1 cannot be written as JSON"):
        SchemaDefinition(Person, examples=(object(),))


@pytest.mark.parametrize("mode", [None, "json_schema", "json_object", "text"])
def test_an_output_mode_is_one_of_three(mode: str | None) -> None:
    """9.8.1: output_mode"""
    assert StructuredOutputPolicy(output_mode=mode).output_mode == mode
    with pytest.raises(
        InvalidInput, match="output_mode is 'tools'; use one of: json_schema, json_object, text"
    ):
        StructuredOutputPolicy(output_mode="tools")


def test_a_class_that_cannot_be_written_is_an_extraction_error() -> None:
    """9.8.2: or the extraction error."""
    with pytest.raises(InvalidInput, match="Ada"):
        SchemaDefinition(Broken).read({"name": "Ada"}, use_maybe=False)


def test_the_result_shows_the_data() -> None:
    """9.8.2: JSON text cut to 200."""
    assert extraction_text("person", {"name": "Ädä"}) == 'Extracted person: {"name":"Ädä"}'
    assert extraction_text("person", {"a": 1}, "who") == "Extracted person into 'who': {\"a\":1}"
    assert extraction_text("x", "a" * 198) == f'Extracted x: "{"a" * 198}"'
    assert extraction_text("x", "a" * 199) == f'Extracted x: "{"a" * 199}...'


def test_the_error_texts() -> None:
    """9.8.2: in the order of the arguments."""
    names = REGISTRY.names
    assert argument_problem(" ", "", names) == "Error: Nothing extracted (): The input is empty"
    assert argument_problem("Ada", " ", names) == "Error: Nothing extracted (): The schema name is empty"
    assert argument_problem("Ada", "x", names) == (
        "Error: Nothing extracted (x): No schema named 'x'. Choose from: person, place"
    )
    assert argument_problem("Ada", "person", names) is None
    assert extraction_error("person", "name: Field required") == (
        "Error: Nothing extracted (person): name: Field required"
    )


def test_an_unknown_schema_raises() -> None:
    """9.8.3: `SchemaRegistry.get(unknown)`."""
    with pytest.raises(UnknownName) as unknown:
        REGISTRY.get("x")
    assert str(unknown.value) == "No schema named 'x'. Choose from: person, place"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["name", "age", "friends", "value", "detail"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(json_values, st.booleans())
def test_any_answer_of_the_model_is_data_or_refused(answer: object, use_maybe: bool) -> None:
    """9.8.2: nothing but InvalidInput."""
    try:
        data = SchemaDefinition(Person).read(answer, use_maybe)
    except InvalidInput:
        return
    assert data == Nothing(data.detail) if isinstance(data, Nothing) else "name" in data
