"""The alignment of two sequences, and the differences between two JSON values."""

import json
import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import Match, SequenceMatcher
from itertools import zip_longest
from typing import Any, Final, TypeVar, cast

T = TypeVar("T")

MAX_PART: Final = 100
"""How many items are aligned at once; longer sequences are aligned in parts."""

ABSENT: Final = object()
"""The value of a path that one side does not have."""

_PLAIN_KEY = re.compile(r"[A-Za-z_][\w-]*")


@dataclass(frozen=True, slots=True)
class Difference:
    """A path at which two JSON values differ."""

    path: str
    """Such as `items[0].price`; empty for the value itself."""
    a: Any = ABSENT
    b: Any = ABSENT

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON data; a side that does not have the path has no key."""
        sides = {"a": self.a, "b": self.b}
        return {"path": self.path} | {side: value for side, value in sides.items() if value is not ABSENT}


def differences(a: Any, b: Any, path: str = "") -> tuple[Difference, ...]:
    """Return the paths at which two JSON values differ, in the order of their keys."""
    return tuple(_differences(a, b, path))


def _differences(a: Any, b: Any, path: str) -> Iterator[Difference]:
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        one, other = cast("Mapping[str, Any]", a), cast("Mapping[str, Any]", b)
        for key in dict.fromkeys((*one, *other)):
            yield from _differences(one.get(key, ABSENT), other.get(key, ABSENT), _path_of(path, key))
    elif isinstance(a, list | tuple) and isinstance(b, list | tuple):
        pairs = zip_longest(cast("Sequence[Any]", a), cast("Sequence[Any]", b), fillvalue=ABSENT)
        for index, (one, other) in enumerate(pairs):
            yield from _differences(one, other, f"{path}[{index}]")
    elif not _is_same(a, b):
        yield Difference(path, a, b)


def _is_same(a: Any, b: Any) -> bool:
    # `True == 1` in Python, and not in JSON.
    return isinstance(a, bool) == isinstance(b, bool) and a == b


def _path_of(path: str, key: str) -> str:
    if not _PLAIN_KEY.fullmatch(key):
        return f"{path}[{json.dumps(key, ensure_ascii=False)}]"
    return f"{path}.{key}" if path else key


def align(
    a: Sequence[T], b: Sequence[T], keys: Sequence[Callable[[T], Hashable]], *, pairs_rest: bool = False
) -> list[tuple[T | None, T | None]]:
    """Pair the items of two sequences without changing their order.

    Items with the same first key are paired; between these pairs, items with the same second key; and so on.

    Args:
        a: One sequence.
        b: The other one.
        keys: From the most exact key to the least exact one.
        pairs_rest: Whether items that have no key in common are paired by their order.
    """
    if not keys:
        if pairs_rest:
            return list(zip_longest(a, b))
        return [*((item, None) for item in a), *((None, item) for item in b)]
    key, *rest = keys
    paired, done, other_done = list[tuple[T | None, T | None]](), 0, 0
    for block in _matches([key(item) for item in a], [key(item) for item in b]):
        before, other_before = a[done : block.a], b[other_done : block.b]
        paired += align(before, other_before, rest, pairs_rest=pairs_rest) if before or other_before else []
        done, other_done = block.a + block.size, block.b + block.size
        paired += zip(a[block.a : done], b[block.b : other_done], strict=True)
    return paired


def _matches(a: Sequence[Hashable], b: Sequence[Hashable]) -> Iterator[Match]:
    """Yield the blocks that both sequences have in the same order, and an empty one at the end."""
    for begin, other_begin, end, other_end in _parts(a, b):
        matcher = SequenceMatcher(None, a[begin:end], b[other_begin:other_end], autojunk=False)
        for block in matcher.get_matching_blocks()[:-1]:
            yield Match(begin + block.a, other_begin + block.b, block.size)
    yield Match(len(a), len(b), 0)


def _parts(a: Sequence[Hashable], b: Sequence[Hashable]) -> Iterator[tuple[int, int, int, int]]:
    """Cut two long sequences into parts that are aligned by themselves: the time grows with their cube.

    They are cut behind their common beginning, and then at equal shares.
    """
    begin = 0
    if max(len(a), len(b)) > MAX_PART:
        begin = next(
            (place for place, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
        )
        # Equal items are paired in steps: the matcher's time for them grows with their square.
        for place in range(0, begin, MAX_PART):
            end = min(begin, place + MAX_PART)
            yield place, place, end, end
    left, other_left = len(a) - begin, len(b) - begin
    count = max(1, -(-max(left, other_left) // MAX_PART))
    for part in range(count):
        yield (
            begin + left * part // count,
            begin + other_left * part // count,
            begin + left * (part + 1) // count,
            begin + other_left * (part + 1) // count,
        )
