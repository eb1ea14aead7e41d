"""Frozen JSON equals the original, and text is written in the agreed forms."""

import copy
import enum
import json
import pickle
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given, strategies as st
from pydantic import BaseModel, ValidationError

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.values import (
    DOCUMENT_DEPTH,
    EMPTY,
    MAX_BITS,
    MAX_DEPTH,
    FrozenDict,
    FrozenList,
    escape_unstorable,
    format_moment,
    format_optional_moment,
    freeze,
    frozen_document,
    frozen_map,
    json_text,
    parse_json,
    parse_moment,
    parse_optional_moment,
    reading,
    thaw,
    truncate,
    valid_text,
)

AT = datetime(2026, 1, 16, 10, 5, 0, 123_999, UTC)

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"))
numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
scalars = st.none() | st.booleans() | numbers | texts
jsons = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4)
)


def deep_list(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


# Frozen values.


@given(jsons)
def test_a_frozen_value_equals_the_original_and_thaws_to_it(value: Any) -> None:
    """0.8: freezing loses nothing."""
    frozen = freeze(value)
    thawed = thaw(frozen)

    assert frozen == value
    assert thawed == value
    assert json_text(thawed) == json_text(frozen) == json_text(value)
    assert not any(isinstance(each, FrozenDict | FrozenList) for each in every_part(thawed))


def every_part(value: Any) -> Iterator[Any]:
    yield value
    inner: Any = value.values() if isinstance(value, dict) else value  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] -- any JSON
    for each in inner if isinstance(value, dict | list) else ():
        yield from every_part(each)


@given(jsons)
def test_a_written_value_reads_back_the_same(value: Any) -> None:
    """0.4"""
    assert parse_json(json_text(value)) == value


@given(jsons)
def test_a_frozen_value_has_a_hash_and_survives_copying_and_pickling(value: Any) -> None:
    frozen = freeze(value)

    assert hash(frozen) == hash(freeze(value))
    for again in (copy.copy(frozen), copy.deepcopy(frozen), pickle.loads(pickle.dumps(frozen))):  # noqa: S301 -- our own data
        assert again == frozen
        assert type(again) is type(frozen)


def test_freezing_includes_nested_values() -> None:
    """0.8"""
    frozen = freeze({"list": [{"a": 1}], "tuple": (1, 2), "map": MappingProxyType({"b": []})})

    assert isinstance(frozen, FrozenDict)
    assert isinstance(frozen["list"], FrozenList)
    assert isinstance(frozen["list"][0], FrozenDict)
    assert frozen["tuple"] == [1, 2]
    assert isinstance(frozen["map"]["b"], FrozenList)


CHANGES_OF_A_MAP: list[Callable[[Any], object]] = [
    lambda m: m.__setitem__("a", 2),
    lambda m: m.__delitem__("a"),
    lambda m: m.__ior__({"b": 2}),
    lambda m: m.clear(),
    lambda m: m.pop("a"),
    lambda m: m.popitem(),
    lambda m: m.setdefault("b", 2),
    lambda m: m.update(b=2),
]
CHANGES_OF_A_LIST: list[Callable[[Any], object]] = [
    lambda entries: entries.__setitem__(0, 2),
    lambda entries: entries.__delitem__(0),
    lambda entries: entries.__iadd__([2]),
    lambda entries: entries.__imul__(2),
    lambda entries: entries.append(2),
    lambda entries: entries.clear(),
    lambda entries: entries.extend([2]),
    lambda entries: entries.insert(0, 2),
    lambda entries: entries.pop(),
    lambda entries: entries.remove(1),
    lambda entries: entries.reverse(),
    lambda entries: entries.sort(),
]


@pytest.mark.parametrize(
    ("value", "change"),
    [({"a": 1}, change) for change in CHANGES_OF_A_MAP] + [([1], change) for change in CHANGES_OF_A_LIST],
)
def test_a_frozen_value_cannot_be_changed(value: Any, change: Callable[[Any], object]) -> None:
    """0.8"""
    frozen = freeze(value)

    with pytest.raises(TypeError, match="make a changed copy instead"):
        change(frozen)

    assert frozen == value


def test_a_map_with_more_entries_is_another_map() -> None:
    """0.8"""
    before = freeze({"a": 1, "b": 1})
    after = before.merged({"b": [2], "c": 3})

    assert before == {"a": 1, "b": 1}
    assert after == {"a": 1, "b": [2], "c": 3}
    assert isinstance(after["b"], FrozenList)


def test_a_frozen_map_is_reused() -> None:
    given_map = freeze({"a": 1})

    assert frozen_map(given_map) is given_map
    assert frozen_map({"a": 1}) == given_map
    assert frozen_map(EMPTY) is EMPTY


def test_members_of_enumerations_become_their_values() -> None:
    class Colour(str, enum.Enum):  # noqa: UP042 -- str() of a StrEnum is its value anyway
        RED = "red"

    frozen = freeze({Colour.RED: Colour.RED})

    assert json_text(frozen) == '{"red":"red"}'
    assert type(frozen["red"]) is str


# Invalid JSON.


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        (float("nan"), "data is nan, which JSON cannot hold; use null or text"),
        ({"a": [0.0, float("-inf")]}, r"data\.a\[1\] is -inf, which JSON cannot hold"),
        ({"a": {"b": object()}}, r"data\.a\.b is of type object; use text, a number, true, false, null"),
        ({1, 2}, "data is of type set"),
        (b"bytes", "data is of type bytes"),
        (AT, "data is of type datetime"),
        ({"a": {1: "one"}}, r"data\.a has the key 1; keys must be text"),
        ({None: "none"}, "data has the key None; keys must be text"),
        ({"a": ["\x00"]}, r"data\.a\[0\] contains a NUL character; remove it"),
        ({"a\x00": 1}, "a key of data contains a NUL character"),
        (["\ud800"], r"data\[0\] contains half of a surrogate pair; send valid Unicode"),
        ({"\udfff": 1}, "a key of data contains half of a surrogate pair"),
        (1 << MAX_BITS, "data is a number of thousands of digits"),
        ([-(10**5000)], r"data\[0\] is a number of thousands of digits"),
    ],
)
def test_invalid_json_is_refused_with_its_place(value: object, complaint: str) -> None:
    with pytest.raises(InvalidInput, match=complaint):
        freeze(value, "data")


@given(texts, st.sampled_from(["\x00", *map(chr, range(0xD800, 0xE000, 7))]), texts)
def test_text_that_no_store_can_hold_is_refused(before: str, bad: str, after: str) -> None:
    for value in (before + bad + after, [before + bad + after], {before + bad + after: 1}):
        with pytest.raises(InvalidInput):
            freeze(value)
    with pytest.raises(InvalidInput):
        valid_text(before + bad + after, "text")


def test_the_largest_number_can_be_written() -> None:
    largest = (1 << MAX_BITS) - 1

    assert parse_json(json_text(freeze([largest, -largest]))) == [largest, -largest]


def test_too_deep_json_is_refused() -> None:
    deepest = deep_list(MAX_DEPTH)

    assert freeze(deepest) == deepest
    with pytest.raises(InvalidInput, match=r"data(\[0\])+ is nested deeper than 100 levels; flatten it"):
        freeze(deep_list(MAX_DEPTH + 1), "data")
    with pytest.raises(InvalidInput, match="nested deeper"):
        parse_json("[" * 101 + "]" * 101)


def test_json_that_contains_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)

    with pytest.raises(InvalidInput, match="nested deeper"):
        freeze(endless)


def test_the_written_form_of_values_may_be_deeper_than_a_value() -> None:
    """4.1.7: so that a value of the permitted depth can be read back from inside a state."""
    document = {"a": deep_list(MAX_DEPTH + DOCUMENT_DEPTH - 1)}

    assert frozen_document(document, "the state") == document
    assert isinstance(frozen_document(document, "the state")["a"], FrozenList)
    assert frozen_document(frozen_map({"a": [1]}), "the state") == {"a": [1]}
    with pytest.raises(InvalidInput, match="nested deeper"):
        frozen_document({"a": document}, "the state")
    with pytest.raises(InvalidInput, match="the state must be a map, not list"):
        frozen_document([document], "the state")


class Noted(BaseModel):
    """A model that travels through a workflow's history."""

    notes: FrozenDict
    tags: FrozenList = FrozenList()


def test_fields_of_models_are_frozen_as_well() -> None:
    """0.8"""
    noted = Noted.model_validate({"notes": {"a": [1, {"b": None}]}, "tags": [["x"]]})

    assert noted == Noted.model_validate_json(noted.model_dump_json())
    assert isinstance(noted.notes, FrozenDict)
    assert isinstance(noted.notes["a"], FrozenList)
    assert isinstance(noted.tags[0], FrozenList)
    refused: list[Any] = [{"notes": []}, {"notes": {"a": "\x00"}}, {"notes": {}, "tags": [float("nan")]}]
    for wrong in refused:
        with pytest.raises(ValidationError):
            Noted.model_validate(wrong)


@pytest.mark.parametrize(
    ("text", "stored"),
    [("Grüße 🙂", "Grüße 🙂"), ("a\x00b", "a\\x00b"), ("a\ud800b", "a\\ud800b"), ("", "")],
)
def test_foreign_text_is_made_storable(text: str, stored: str) -> None:
    assert escape_unstorable(text) == stored
    assert valid_text(escape_unstorable(text), "text") == stored


@pytest.mark.parametrize("value", [None, 1, "text", [("a", 1)], object()])
def test_a_map_must_be_a_map(value: object) -> None:
    with pytest.raises(InvalidInput, match=f"metadata must be a map, not {type(value).__name__}"):
        frozen_map(value, "metadata")


@pytest.mark.parametrize("value", [None, 1, b"text", ["text"]])
def test_text_must_be_text(value: object) -> None:
    with pytest.raises(InvalidInput, match=f"the name must be text, not {type(value).__name__}"):
        valid_text(value, "the name")


@pytest.mark.parametrize(
    "text",
    ["", "{", "{'a':1}", "[1,]", "NaN", "1 2", "[" * 100_000, '"\\ud800"', '{"a":"\\u0000"}', "9" * 5000],
)
def test_invalid_json_text_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"^the reply"):
        parse_json(text, "the reply")


# JSON text.


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"b": 1, "a": [1, 2.5, None, True, False]}, '{"b":1,"a":[1,2.5,null,true,false]}'),
        ("Grüße/日本 🙂", '"Grüße/日本 🙂"'),
        ('quote " backslash \\ newline \n', '"quote \\" backslash \\\\ newline \\n"'),
        ({}, "{}"),
        ([], "[]"),
    ],
)
def test_json_text_is_compact_and_leaves_characters_readable(value: object, text: str) -> None:
    """0.4: no spaces, keys in order, neither non-ASCII nor slashes escaped."""
    assert json_text(value) == text
    assert json_text(freeze(value)) == text
    assert json.loads(text) == value


# Lengths.


@pytest.mark.parametrize(
    ("text", "length", "expected"),
    [
        ("abc", 3, "abc"),
        ("abc", 4, "abc"),
        ("abcd", 3, "abc..."),
        ("日本語", 2, "日本..."),
        ("🙂🙂", 2, "🙂🙂"),
        ("🙂🙂🙂", 2, "🙂🙂..."),
        ("e\u0301e", 2, "e\u0301..."),
        ("", 0, ""),
        ("a", 0, "..."),
    ],
)
def test_a_cut_counts_characters_and_is_marked(text: str, length: int, expected: str) -> None:
    """0.3: a character is a code point; longer than n gives n characters and three dots."""
    assert truncate(text, length) == expected


@given(st.text(), st.integers(0, 20))
def test_a_cut_text_is_at_most_three_characters_longer_than_asked(text: str, length: int) -> None:
    """0.3"""
    assert truncate(text, length) == (text if len(text) <= length else text[:length] + "...")
    assert len(truncate(text, length)) <= max(length + 3, len(text) if len(text) <= length else 0)


# Times.


@pytest.mark.parametrize(
    ("digits", "text"),
    [(3, "2026-01-16T10:05:00.123Z"), (6, "2026-01-16T10:05:00.123999Z"), (0, "2026-01-16T10:05:00Z")],
)
def test_times_are_utc_with_the_digits_of_the_form(digits: int, text: str) -> None:
    """0.5: envelopes 3, stored messages 6, snapshots none; further digits are dropped, not rounded."""
    assert format_moment(AT, digits) == text


@pytest.mark.parametrize(
    ("at", "text"),
    [
        (datetime(2026, 1, 16, 10, 5, tzinfo=UTC), "2026-01-16T10:05:00.000Z"),
        (datetime(2026, 1, 16, 10, 5, 0, 1, UTC), "2026-01-16T10:05:00.000Z"),
        (datetime(2026, 1, 1, 1, tzinfo=timezone(timedelta(hours=2))), "2025-12-31T23:00:00.000Z"),
    ],
)
def test_digits_are_shown_even_when_they_are_zero(at: datetime, text: str) -> None:
    """0.5"""
    assert format_moment(at, 3) == text


def test_a_time_without_a_zone_is_invalid() -> None:
    """0.5"""
    with pytest.raises(InvalidInput, match="2026-01-16T10:05:00 has no time zone; pass an aware datetime"):
        format_moment(datetime(2026, 1, 16, 10, 5), 3)  # noqa: DTZ001 -- the point of the test


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("2026-01-16T10:05:00.123999Z", AT),
        ("2026-01-16T12:05:00.123999+02:00", AT),
        ("2026-01-16T10:05:00.123999", AT),
        ("2026-01-16T10:05:00Z", AT.replace(microsecond=0)),
    ],
)
def test_a_time_is_read_as_utc(text: str, at: datetime) -> None:
    """0.5"""
    assert parse_moment(text) == at
    assert parse_moment(text).tzinfo is UTC
    assert parse_optional_moment(text) == at


@pytest.mark.parametrize("text", ["", "yesterday", "2026-13-01T00:00:00Z", "0001-01-01T00:00:00+05:00"])
def test_an_invalid_time_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="startedAt is not an ISO 8601 date and time"):
        parse_moment(text, "startedAt")


def test_a_time_is_text() -> None:
    with pytest.raises(InvalidInput, match="startedAt must be text, not int"):
        parse_moment(1768557900, "startedAt")


@given(st.datetimes(timezones=st.just(UTC)))
def test_a_time_with_all_its_digits_reads_back_as_the_same(at: datetime) -> None:
    """0.5"""
    assert parse_moment(format_moment(at, 6)) == at
    assert parse_optional_moment(format_optional_moment(at)) == at


def test_an_absent_time_is_written_and_read_as_none() -> None:
    assert format_optional_moment(None) is None
    assert parse_optional_moment(None) is None


# Reading.


def test_an_error_in_reading_names_the_data() -> None:
    def read(data: Any) -> object:
        with reading("the snapshot"):
            return data["steps"][0].upper()

    assert read({"steps": ["one"]}) == "ONE"
    broken: list[Any] = [{}, {"steps": []}, {"steps": [1]}, {"steps": None}, None]
    for data in broken:
        with pytest.raises(InvalidInput, match="the snapshot cannot be read: ") as caught:
            read(data)
        assert caught.value.__cause__ is not None


def test_an_error_about_data_keeps_its_text() -> None:
    with (
        pytest.raises(InvalidInput, match="the snapshot cannot be read: status is 'odd'"),
        reading("the snapshot"),
    ):
        raise InvalidInput("status is 'odd'")


def test_other_exceptions_pass_through_reading() -> None:
    with pytest.raises(RuntimeError), reading("the snapshot"):
        raise RuntimeError


def test_a_number_that_is_too_large_cannot_be_read() -> None:
    with (
        pytest.raises(InvalidInput, match="the snapshot cannot be read: OverflowError"),
        reading("the snapshot"),
    ):
        float(10**400)
