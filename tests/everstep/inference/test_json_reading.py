"""Reading untyped JSON of providers."""

import pytest

from everstep.inference.json_reading import count, record, records


@pytest.mark.parametrize(("value", "read"), [({"a": 1}, {"a": 1}), (None, {}), ([], {}), ("x", {})])
def test_any_value_other_than_a_map_reads_as_an_empty_map(value: object, read: object) -> None:
    assert record(value) == read


@pytest.mark.parametrize(
    ("value", "read"), [([{"a": 1}, None], [{"a": 1}, {}]), (None, []), ({"a": 1}, []), ("x", [])]
)
def test_any_value_other_than_a_list_of_maps_reads_as_an_empty_list(value: object, read: object) -> None:
    assert records(value) == read


@pytest.mark.parametrize(
    ("counts", "number"),
    [({"a": {"b": 3}}, 3), ({"a": {"b": None}}, 0), ({"a": None}, 0), (None, 0), ({"a": {"b": -3}}, 0)],
)
def test_a_missing_counter_is_zero(counts: object, number: int) -> None:
    """4.2.1"""
    assert count(counts, "a", "b") == number
