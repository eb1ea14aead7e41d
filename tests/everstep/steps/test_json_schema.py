"""Answers to forms are validated by a real validator, which does not trust the schema."""

import pytest

from everstep.steps.json_schema import check

FORM = {
    "type": "object",
    "properties": {"day": {"type": "string", "format": "date"}, "seats": {"type": "integer", "minimum": 1}},
    "required": ["day"],
}


def test_valid_data_have_no_errors() -> None:
    """8.5.3"""
    assert check(FORM, {"day": "2026-01-16", "seats": 2}) is None


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        ({}, '"day" is a required property'),
        ({"day": "x", "seats": 0}, "seats: 0 is less than the minimum of 1"),
        ([], '[] is not of type "object"'),
    ],
)
def test_errors_are_reported_with_their_path(data: object, fault: str) -> None:
    """8.5.4"""
    assert check(FORM, data) == fault


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "nonsense"},
        {"$ref": "http://127.0.0.1:1/schema.json"},
        {"$ref": "file:///etc/passwd"},
        {"pattern": "("},
    ],
)
def test_an_invalid_schema_is_reported(schema: dict[str, str]) -> None:
    told = check(schema, "anything")

    assert told is not None
    assert told.startswith("the schema itself cannot be used: ")


def test_a_recursive_schema_is_handled() -> None:
    assert check({"$ref": "#"}, {}) is None


def test_a_pattern_takes_linear_time() -> None:
    """With backtracking, this one would take practically for ever."""
    assert check({"pattern": "^(a+)+$"}, "a" * 5_000 + "b") is not None
