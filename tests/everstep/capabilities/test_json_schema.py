"""Answers to forms are checked by a real validator, which trusts no schema."""

import pytest

from everstep.capabilities.json_schema import check

FORM = {
    "type": "object",
    "properties": {"day": {"type": "string", "format": "date"}, "seats": {"type": "integer", "minimum": 1}},
    "required": ["day"],
}


def test_data_that_fits_has_no_faults() -> None:
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
def test_faults_are_told_with_their_place(data: object, fault: str) -> None:
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
def test_a_schema_that_cannot_be_used_is_told_of(schema: dict[str, str]) -> None:
    told = check(schema, "anything")

    assert told is not None
    assert told.startswith("the schema itself cannot be used: ")


def test_a_schema_that_refers_to_itself_is_answered() -> None:
    assert check({"$ref": "#"}, {}) is None


def test_a_pattern_costs_no_more_than_its_text() -> None:
    """Tried in all ways, this one would take longer than anybody lives."""
    assert check({"pattern": "^(a+)+$"}, "a" * 5_000 + "b") is not None
