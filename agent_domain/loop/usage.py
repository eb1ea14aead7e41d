"""Tokens in five disjoint counters: each token is counted once."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.values import FrozenDict, frozen_map


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens that model calls used. `input` excludes cached tokens, `output` excludes reasoning."""

    input: int = 0
    output: int = 0
    cache_write: int = 0
    cache_read: int = 0
    reasoning: int = 0

    def __post_init__(self) -> None:
        for counter in fields(self):
            _count(counter.name, getattr(self, counter.name))

    @property
    def total(self) -> int:
        """All tokens."""
        return self.input + self.output + self.cache_write + self.cache_read + self.reasoning

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            self.input + other.input,
            self.output + other.output,
            self.cache_write + other.cache_write,
            self.cache_read + other.cache_read,
            self.reasoning + other.reasoning,
        )

    @property
    def cached(self) -> int:
        """Tokens written to or read from a cache."""
        return self.cache_write + self.cache_read

    def to_wire(self) -> dict[str, int]:
        """The form in envelopes and snapshots, in which `completion` includes reasoning."""
        return {
            "prompt": self.input,
            "completion": self.output + self.reasoning,
            "total": self.total,
            "cached": self.cached,
            "reasoning": self.reasoning,
        }

    def to_breakdown(self) -> dict[str, int]:
        """The form in the database: disjoint counters and their sum."""
        return {
            "input": self.input,
            "output": self.output,
            "cached": self.cached,
            "reasoning": self.reasoning,
            "total": self.total,
        }

    def to_dict(self) -> dict[str, int]:
        """All five counters, without loss."""
        return {
            "input": self.input,
            "output": self.output,
            "cache_write": self.cache_write,
            "cache_read": self.cache_read,
            "reasoning": self.reasoning,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any] | None) -> "Usage":
        """Read any of the JSON forms; the total is recomputed, a total alone counts as input."""
        given = frozen_map(data or {}, "usage")
        if given.get("token_breakdown"):
            given = frozen_map(given["token_breakdown"], "token_breakdown")
        counts = FrozenDict({key: value for key, value in given.items() if value is not None})
        if not counts.keys() & _COUNTERS:
            return cls(input=_first(counts, "total", "token_usage"))
        reasoning = _first(counts, "reasoning")
        contained = max(0, _first(counts, "completion") - reasoning)
        output = _first(counts, "output") if "output" in counts else contained
        write = _first(counts, "cache_write", "cacheWrite")
        read = _first(counts, "cache_read", "cacheRead")
        if not counts.keys() & _CACHE:
            read = _first(counts, "cached")
        return cls(_first(counts, "input", "prompt"), output, write, read, reasoning)


_CACHE = frozenset({"cache_write", "cacheWrite", "cache_read", "cacheRead"})
_COUNTERS = _CACHE | {"input", "prompt", "output", "completion", "cached", "reasoning"}


def _first(counts: FrozenDict, *names: str) -> int:
    return next((_count(name, counts[name]) for name in names if name in counts), 0)


def _count(name: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise InvalidInput(f"usage counts whole tokens; {name} is {value!r}, pass 0 or more")
    return value
