"""Reading what providers send."""

import pytest

from everstep.inference.json_reading import count, record, records


@pytest.mark.parametrize(("value", "read"), [({"a": 1}, {"a": 1}), (None, {}), ([], {}), ("x", {})])
def test_a_map_is_itself_and_all_else_is_empty(value: object, read: object) -> None:
    assert record(value) == read


@pytest.mark.parametrize(
    ("value", "read"), [([{"a": 1}, None], [{"a": 1}, {}]), (None, []), ({"a": 1}, []), ("x", [])]
)
def test_a_list_of_maps_is_itself_and_all_else_is_empty(value: object, read: object) -> None:
    assert records(value) == read


@pytest.mark.parametrize(
    ("counts", "number"),
    [({"a": {"b": 3}}, 3), ({"a": {"b": None}}, 0), ({"a": None}, 0), (None, 0), ({"a": {"b": -3}}, 0)],
)
def test_a_counter_that_is_missing_is_zero(counts: object, number: int) -> None:
    """4.2.1"""
    assert count(counts, "a", "b") == number
