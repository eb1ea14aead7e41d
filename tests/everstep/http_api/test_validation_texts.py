"""The schemas of requests: what they accept as a number, and how they say that a value is of another type."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from everstep.http_api.app import create_app
from everstep.http_api.problems import Refusal, refusal_of_any
from everstep.http_api.schemas.ag_ui_requests import AgUiModel
from everstep.http_api.schemas.openai_requests import OpenAiModel
from everstep.http_api.schemas.text import RequestModel, StrictScalars
from everstep.http_api.schemas.ui_message_requests import UiModel
from everstep.http_api.schemas.webhook_schemas import NewWebhookSent

VALUES: tuple[Any, ...] = ({}, [], True, 7, 2.5, "x", "2", "", None, [True], {"a": True}, [{}], "true", "\0")
JARGON = re.compile(
    r"tuple|dictionary|instance|after validation|valid (string|integer)|bytes|Sequence|NoneType"
)


def each_schema(base: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for kind in base.__subclasses__():
        yield kind
        yield from each_schema(kind)


# The application imports all routes, and so all schemas.
assert create_app
SCHEMAS = {
    kind.__name__: kind
    for base in (RequestModel, AgUiModel, OpenAiModel, UiModel)
    for kind in each_schema(base)
}


def outcome(kind: type[BaseModel], field: str, value: object) -> object:
    """What a field accepts a value as, or its refusal."""
    try:
        model = kind.__pydantic_validator__.validate_assignment(kind.model_construct(), field, value)
    except ValidationError as error:
        return refusal_of_any(error)
    return getattr(model, field)


@pytest.mark.parametrize("name", sorted(SCHEMAS))
def test_a_field_takes_no_other_type_for_a_number_and_refuses_it_in_the_terms_of_json(
    name: str,
) -> None:
    """8.8.5"""
    kind = SCHEMAS[name]
    assert issubclass(kind, StrictScalars)
    for field in kind.model_fields:
        for value in VALUES:
            found = outcome(kind, field, value)
            if isinstance(found, bool | int | float):
                assert isinstance(value, int | float), f"{field}: {value!r}"
                assert isinstance(found, bool) == isinstance(value, bool), f"{field}: {value!r}"
            for fault in found.errors if isinstance(found, Refusal) else ():
                assert not JARGON.search(fault["message"]), fault
                assert "(" not in fault["at"], fault


@pytest.mark.parametrize(
    ("field", "value", "errors"),
    [
        ("events", [], {"events": "it has 0 items; send at least 1"}),
        ("events", ["x"], {"events.0": "Input should be 'execution.completed'"}),
        ("events", "x", {"events": "send a list"}),
        ("url", "", {"url": "it has 0 characters; send at least 1"}),
        ("url", "https://x.example/" + "x" * 2000, {"url": "it has 2018 characters; send at most 2000"}),
    ],
)
def test_each_fault_is_named_once(field: str, value: object, errors: dict[str, str]) -> None:
    """8.8.5: a list is not too short because its items are invalid."""
    found = outcome(NewWebhookSent, field, value)

    assert isinstance(found, Refusal)
    assert [each["at"] for each in found.errors] == list(errors)
    for each in found.errors:
        assert each["message"].startswith(errors[each["at"]])
