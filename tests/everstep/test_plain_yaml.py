"""Untrusted YAML."""

import pytest

from everstep.plain_yaml import MAX_YAML, load_yaml


def test_yaml_gives_plain_values() -> None:
    """9.5.1, 10.1.2."""
    assert load_yaml("a: [1, true, null, x]\nb: {c: 1.5}") == {"a": [1, True, None, "x"], "b": {"c": 1.5}}
    assert load_yaml("") is None


def test_yaml_aliases_are_refused() -> None:
    """9.5.1, 10.1.2: a few lines of them can stand for a billion values."""
    with pytest.raises(ValueError, match="aliases are not supported"):
        load_yaml("a: &x [1]\nb: *x")


@pytest.mark.parametrize("text", ["a: 1\nb: 2\na: 3", "x: {a: 1, b: 2, 'a': 3}", "[{a: 1, a: 1}]"])
def test_a_duplicate_key_is_refused(text: str) -> None:
    """9.5.1, 10.1.2: otherwise the last would count, and people would read the first."""
    with pytest.raises(ValueError, match=r"the key 'a' is there twice\n  in .*, line \d"):
        load_yaml(text)
    assert load_yaml("a: {a: 1}\nb: {a: 1}") == {"a": {"a": 1}, "b": {"a": 1}}


BROKEN_YAML = [
    "[",
    "a: b: c",
    "\x00",
    "--- a\n--- b",
    "? [a]\n: b",
    "2026-13-40",
    "!!python/name:os.system x",
]
WRONG_TAGS = ["!!int ''", "!!bool x", "!!timestamp x", "!!float x"]
TOO_MUCH_YAML = ["1" * 5000, "1:" * 5000 + "1.5", "[" * 5000, "a" * (MAX_YAML + 1)]


@pytest.mark.parametrize("text", BROKEN_YAML + WRONG_TAGS + TOO_MUCH_YAML)
def test_invalid_yaml_is_a_value_error(text: str) -> None:
    """9.5.1, 10.1.2."""
    with pytest.raises(ValueError, match=r"\w"):
        load_yaml(text)
