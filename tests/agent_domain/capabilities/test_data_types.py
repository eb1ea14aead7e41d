"""Types of structured data."""

from typing import Any

import pytest
from pydantic import BaseModel, field_validator

from everstep.agent_domain.capabilities.data_types import json_schema_of, parse_answer, read_data, value_of
from everstep.agent_domain.errors import InvalidInput


class Person(BaseModel):
    name: str
    age: int = 3

    @field_validator("name")
    @classmethod
    def _named(cls, name: str) -> str:
        if not name:
            raise ValueError("a person has a name")
        return name


class Undefined(BaseModel):
    other: "Missing"  # type: ignore[name-defined]  # noqa: F821 -- this is what the test is about


def test_data_have_the_defaults_of_their_type() -> None:
    """9.8.4"""
    assert read_data(Person, {"name": "Ada", "age": "36"}) == {"name": "Ada", "age": 36}
    assert read_data(Person, {"name": "Ada"}) == {"name": "Ada", "age": 3}
    assert value_of(Person, {"name": "Ada"}) == Person(name="Ada")


@pytest.mark.parametrize("read", [read_data, value_of])
def test_data_that_do_not_fit_are_refused_in_a_sentence(read: Any) -> None:
    """9.8.5: validators of a class are asked, too."""
    with pytest.raises(InvalidInput, match="name: Value error, a person has a name"):
        read(Person, {"name": ""})


@pytest.mark.parametrize("type_", [None, "Person", 3, Undefined, object()])
def test_what_is_no_type_has_no_schema(type_: Any) -> None:
    """9.8.7"""
    with pytest.raises(InvalidInput) as refused:
        json_schema_of(type_)

    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("text", ['{"a": 1}', ' {"a":1}\n', '```json\n{"a": 1}\n```', '```\n{"a": 1}\n```'])
def test_an_answer_may_have_a_code_fence(text: str) -> None:
    """9.8.5"""
    assert parse_answer(text) == {"a": 1}


def test_other_text_is_no_answer() -> None:
    """9.8.5"""
    with pytest.raises(InvalidInput, match="the answer is not valid JSON"):
        parse_answer("Here it is")
