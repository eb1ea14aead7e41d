import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from everstep.agent_domain.capabilities.scratchpad import (
    RESERVED_KEYS,
    MetadataPolicy,
    MetadataWrite,
    list_text,
    occupied_keys,
    read_text,
    refusal,
    refusal_text,
    type_name,
)
from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.tools.tools import ToolCall
from everstep.agent_domain.values import frozen_map

POLICY = MetadataPolicy()


def writing(key: str, value: object, taken: list[str] | None = None, policy: MetadataPolicy = POLICY) -> str:
    write = MetadataWrite(key, value)
    reason = refusal(write, taken or [], policy)
    return refusal_text(reason) if reason else write.text


def test_the_defaults_and_the_reserved_keys() -> None:
    """9.4.1: MetadataPolicy and the five keys."""
    assert MetadataPolicy(max_keys=50, max_value_size_bytes=65536) == POLICY
    assert {"tasks", "skills", "self_critic", "self_critic_result", "self_critic_iteration"} == RESERVED_KEYS


@pytest.mark.parametrize("change", [{"max_keys": -1}, {"max_value_size_bytes": 1.5}])
def test_a_meaningless_policy_is_refused(change: dict[str, Any]) -> None:
    """9.4.1: the error gives advice."""
    with pytest.raises(InvalidInput):
        MetadataPolicy(**change)


@pytest.mark.parametrize(
    ("value", "preview"),
    [
        ("blue", "blue"),
        ("ä" * 50, "ä" * 50),
        ("ä" * 51, "ä" * 50 + "..."),
        ([1, {"a": "ü/"}], '[1,{"a":"ü/"}]'),
        (["x" * 200], '["' + "x" * 98 + "..."),
        (True, "true"),
        (None, "null"),
        (1.5, "1.5"),
        (3, "3"),
        ("", ""),
    ],
)
def test_a_write_shows_a_preview(value: object, preview: str) -> None:
    """9.4.2: strings cut to 50, any preview to 100."""
    assert writing("colour", value) == f"Stored 'colour': {preview}"


@pytest.mark.parametrize("key", ["", "  "])
def test_an_empty_key_is_refused(key: str) -> None:
    """9.4.2: `The key is empty`."""
    assert writing(key, 1) == "Error: Metadata not stored: The key is empty"


@pytest.mark.parametrize("key", sorted(RESERVED_KEYS))
def test_a_reserved_key_is_refused(key: str) -> None:
    """9.4.2: reserved."""
    assert writing(key, 1) == f"Error: Metadata not stored: The key '{key}' is reserved, choose another"


def test_a_large_value_is_refused_by_its_bytes() -> None:
    """9.4.2: UTF-8 JSON text, quotes included."""
    policy = MetadataPolicy(max_value_size_bytes=6)
    assert writing("k", "ää", policy=policy) == "Stored 'k': ää"
    assert (
        writing("k", "äää", policy=policy) == "Error: Metadata not stored: The value is larger than 6 bytes"
    )


def test_the_number_of_keys_is_limited_for_new_ones() -> None:
    """9.4.2: new keys; reserved ones do not count, keys written earlier in the step do."""
    policy = MetadataPolicy(max_keys=2)
    assert writing("b", 1, ["a", "tasks", "skills"], policy) == "Stored 'b': 1"
    assert writing("c", 1, ["a", "b"], policy) == "Error: Metadata not stored: Maximum of 2 keys reached"
    assert writing("a", 1, ["a", "b"], policy) == "Stored 'a': 1"
    assert writing("b", 1, ["a", "a"], policy) == "Stored 'b': 1"


def test_reasons_are_checked_in_order() -> None:
    """9.4.2: key, reserved, size, number."""
    policy = MetadataPolicy(max_keys=0, max_value_size_bytes=0)
    assert refusal(MetadataWrite("", 1), [], policy) == "The key is empty"
    assert refusal(MetadataWrite("tasks", 1), [], policy) == "The key 'tasks' is reserved, choose another"
    assert refusal(MetadataWrite("k", 1), [], policy) == "The value is larger than 0 bytes"


@pytest.mark.parametrize(
    ("name", "args", "taken"),
    [
        ("metadata_write", {"key": "b", "value": None}, ["a", "b"]),
        ("metadata_write", {"key": "a", "value": 1}, ["a", "a"]),
        ("metadata_write", {"key": "b"}, ["a"]),
        ("metadata_write", {"key": 5, "value": 1}, ["a"]),
        ("metadata_write", {"value": 1}, ["a"]),
        ("metadata_write", {"key": "tasks", "value": 1}, ["a"]),
        ("metadata_write", {"key": "b", "value": "x" * 99}, ["a"]),
        ("extract_data", {"store_as": " b "}, ["a", "b"]),
        ("extract_data", {"store_as": None}, ["a"]),
        ("extract_data", {}, ["a"]),
        ("other", {"key": "b", "value": 1}, ["a"]),
    ],
)
def test_keys_that_earlier_calls_of_the_step_write_are_taken(
    name: str, args: dict[str, Any], taken: list[str]
) -> None:
    """9.4.2, 9.8.3: refused calls write nothing."""
    policy = MetadataPolicy(max_keys=2, max_value_size_bytes=50)
    assert occupied_keys({"a": 0}, [ToolCall("c1", name, frozen_map(args))], policy) == taken


def test_earlier_calls_beyond_the_limit_take_no_key() -> None:
    """9.4.2: keys written earlier in the step count."""
    earlier = [ToolCall(key, "metadata_write", frozen_map({"key": key, "value": 1})) for key in "abc"]
    assert occupied_keys({}, earlier, MetadataPolicy(max_keys=2)) == ["a", "b"]


def test_a_key_that_is_not_text_fails() -> None:
    """9.4.2: the model learns the expected form."""
    key: Any = 5
    with pytest.raises(InvalidInput, match="key must be text"):
        MetadataWrite(key, 1)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a\nb", "a\nb"),
        ([1, "ä"], '[1,"ä"]'),
        ({"b": 1, "a": 2}, '{"b":1,"a":2}'),
        (True, "true"),
        (False, "false"),
    ],
)
def test_a_read_shows_the_value(value: object, text: str) -> None:
    """9.4.3: strings raw, lists and maps JSON text."""
    assert read_text("k", {"k": value}) == text


def test_null_is_a_value_that_can_be_read() -> None:
    """9.4.3: `null`."""
    assert read_text("k", {"k": None}) == "null"


def test_a_missing_key_names_the_existing_ones() -> None:
    """9.4.3: missing."""
    assert read_text("x", {"a": 1, "b": 2}) == "Error: Nothing is stored under 'x'. Stored keys: a, b"
    assert read_text("x", {}) == "Error: Nothing is stored under 'x'. There are no keys yet"


def test_the_list_names_keys_and_types() -> None:
    """9.4.4: JSON text, with the length of arrays."""
    values: dict[str, Any] = {"n": None, "b": True, "i": 1, "f": 1.0, "s": "", "a": [1, 2], "e": [], "o": {}}
    listed = json.loads(list_text(frozen_map(values)))
    types = ["null", "boolean", "integer", "float", "string", "array[2]", "array[0]", "object"]
    assert listed == {"count": 8, "keys": [{"key": k, "type": t} for k, t in zip(values, types, strict=True)]}


def test_the_list_is_compact() -> None:
    """9.4.4: {count, keys: [{key, type}]}."""
    assert list_text({"ä": 1}) == '{"count":1,"keys":[{"key":"ä","type":"integer"}]}'


def test_an_empty_list_explains_how_to_fill_it() -> None:
    """9.4.4: empty."""
    assert list_text({}) == "There are no keys yet, metadata_write(key, value) adds one"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=10,
)


@given(st.text(max_size=5), json_values)
def test_the_result_of_a_write_is_always_short(key: str, value: object) -> None:
    """9.4.2: any preview is cut to 100."""
    try:
        write = MetadataWrite(key, value)
    except InvalidInput:
        return
    assert len(write.text) <= len(f"Stored '{key}': ") + 103
    names = {"null", "boolean", "integer", "float", "string", "array", "object"}
    assert type_name(write.value).split("[")[0] in names
