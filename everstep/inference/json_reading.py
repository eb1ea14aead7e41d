"""Reads provider data in which null or a missing value may stand for an empty list or map."""

from collections.abc import Mapping
from typing import Any, TypeAlias, cast

Json: TypeAlias = dict[str, Any]


def record(value: object) -> Json:
    """The map, or an empty one."""
    return cast("Json", value) if isinstance(value, dict) else {}


def records(value: object) -> list[Json]:
    """The maps of a list; an empty list if it is no list."""
    return [record(entry) for entry in cast("list[object]", value)] if isinstance(value, list) else []


MAX_COUNT = 10**12
"""An answer has fewer tokens, and sums of counters up to this size fit the store."""


def count(counts: object, *path: str) -> int:
    """A counter at a path of the reported usage; 0 if it is missing."""
    for key in path:
        counts = cast("Mapping[str, object]", counts).get(key) if isinstance(counts, Mapping) else None
    return min(max(0, counts), MAX_COUNT) if isinstance(counts, int) else 0
