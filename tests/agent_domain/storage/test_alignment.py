"""How sequences are aligned, and where JSON values differ."""

import json
from time import process_time
from typing import Any

import pytest
from hypothesis import given, strategies as st

from everstep.agent_domain.storage.alignment import align, differences

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text("ab. ", max_size=2),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("ab. ", max_size=2), inner, max_size=3)
    ),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("a", "b", "found"),
    [
        ({"order": 1, "euros": 20}, {"order": 1, "euros": 25}, [("euros", 20, 25)]),
        ({"items": [{"n": 1}, 2]}, {"items": [{"n": 3}, 2]}, [("items[0].n", 1, 3)]),
        ({"a b": "x"}, {"a b": "y"}, [('["a b"]', "x", "y")]),
        ({"n": 1}, {"n": True}, [("n", 1, True)]),
        ({"n": None}, {"n": None}, []),
        (1, [1], [("", 1, [1])]),
    ],
)
def test_the_places_that_differ(a: Any, b: Any, found: list[tuple[str, Any, Any]]) -> None:
    """15.4.2"""
    assert [(each.path, each.a, each.b) for each in differences(a, b)] == found


def test_a_place_that_one_side_lacks_has_no_value_there() -> None:
    """15.4.2: null is a value."""
    found = differences({"kept": None, "gone": 1}, {"kept": None, "new": [None]})

    assert [each.to_dict() for each in found] == [{"path": "gone", "a": 1}, {"path": "new", "b": [None]}]


@given(JSON, JSON)
def test_equal_values_differ_nowhere_and_others_somewhere(a: Any, b: Any) -> None:
    """15.4.2: JSON knows no order of keys."""
    assert differences(a, a) == ()
    assert bool(differences(a, b)) == (json.dumps(a, sort_keys=True) != json.dumps(b, sort_keys=True))
    assert {each.path for each in differences(a, b)} == {each.path for each in differences(b, a)}


def aligned(a: str, b: str, *, pairs_rest: bool = False) -> str:
    pairs = align(a, b, (str, str.lower), pairs_rest=pairs_rest)
    return " ".join(f"{left or '-'}{right or '-'}" for left, right in pairs)


@pytest.mark.parametrize(
    ("a", "b", "pairs"),
    [
        ("abc", "abc", "aa bb cc"),
        ("abc", "ac", "aa b- cc"),
        ("ac", "abc", "aa -b cc"),
        ("abc", "aBc", "aa bB cc"),
        ("abc", "xBc", "a- -x bB cc"),
        ("", "ab", "-a -b"),
    ],
)
def test_items_are_paired_by_the_most_exact_key_first(a: str, b: str, pairs: str) -> None:
    """15.4.2"""
    assert aligned(a, b) == pairs


def test_items_without_a_common_key_are_paired_by_order_on_request() -> None:
    """15.4.2"""
    assert aligned("axyb", "azb", pairs_rest=True) == "aa xz y- bb"


@given(st.text("abcABC", max_size=12), st.text("abcABC", max_size=12), st.booleans())
def test_every_item_is_paired_once_and_in_order(a: str, b: str, pairs_rest: bool) -> None:
    """15.4.2"""
    pairs = align(a, b, (str, str.lower), pairs_rest=pairs_rest)

    assert "".join(left for left, _ in pairs if left) == a
    assert "".join(right for _, right in pairs if right) == b
    assert (None, None) not in pairs


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (["x"] * 5000, ["x"] * 5000),
        (["x", "y"] * 2500, ["y", "x", "x"] * 1600),
        (["x"] * 5000, ["y"] * 5000),
        (["x"] * 5000, []),
        ([*range(5000)], [*range(1, 5001)]),
    ],
)
def test_long_sequences_are_aligned_in_parts(a: list[Any], b: list[Any]) -> None:
    """15.4.2: the time grows with their length."""
    before = process_time()
    pairs = align(a, b, (str, str), pairs_rest=True)
    assert process_time() - before < 2
    assert [left for left, _ in pairs if left is not None] == a
    assert [right for _, right in pairs if right is not None] == b


@given(st.lists(st.sampled_from("xyz"), max_size=250), st.lists(st.sampled_from("xyz"), max_size=250))
def test_an_alignment_keeps_the_order_of_both_sides(a: list[str], b: list[str]) -> None:
    """15.4.2"""
    pairs = align(a, b, (str,))
    assert [left for left, _ in pairs if left is not None] == a
    assert [right for _, right in pairs if right is not None] == b
    assert all(left == right for left, right in pairs if left is not None and right is not None)
    same = align(a, a, (str,))
    assert same == [(each, each) for each in a]
