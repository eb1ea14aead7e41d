"""What model calls used: tokens in five disjoint counters, each counted once, and what they cost."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.values import FrozenDict, frozen_map

NO_COST: Final = Decimal(0)


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens that model calls used. `input` excludes cached tokens, `output` excludes reasoning.

    The cost is computed when a call ends, with the prices of that time. It does not count in comparisons.
    """

    input: int = 0
    output: int = 0
    cache_write: int = 0
    cache_read: int = 0
    reasoning: int = 0
    priced_tokens: int = field(default=0, compare=False)
    """How many of the tokens have a known cost."""
    known_cost_usd: Decimal = field(default=NO_COST, compare=False)
    """What those tokens cost, in US dollars."""
    uncounted_calls: int = field(default=0, compare=False)
    """Calls whose provider counted no tokens, so that their cost is unknown."""

    def __post_init__(self) -> None:
        counters = (
            self.input,
            self.output,
            self.cache_write,
            self.cache_read,
            self.reasoning,
            self.priced_tokens,
            self.uncounted_calls,
        )
        # Each step makes a dozen of these values, and nearly all are valid.
        if set(map(type, counters)) != {int} or min(counters) < 0:
            for name in (*_OWN_COUNTERS, "priced_tokens", "uncounted_calls"):
                _count(name, getattr(self, name))

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
            self.priced_tokens + other.priced_tokens,
            self.known_cost_usd + other.known_cost_usd,
            self.uncounted_calls + other.uncounted_calls,
        )

    @property
    def cost_usd(self) -> Decimal | None:
        """What all of it cost, in US dollars; None if the cost of a part is unknown."""
        is_known = self.priced_tokens == self.total and not self.uncounted_calls
        return self.known_cost_usd if is_known else None

    def with_cost(self, cost_usd: Decimal | None) -> "Usage":
        """A copy of the usage of one call, with what it cost; None for an unknown cost."""
        if not self.total:
            return replace(self, uncounted_calls=1)
        if cost_usd is None:
            return self
        return replace(self, priced_tokens=self.total, known_cost_usd=cost_usd)

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

    def to_dict(self) -> dict[str, Any]:
        """All five counters, and the cost if it is known, without loss."""
        cost = {"priced_tokens": self.priced_tokens, "uncounted_calls": self.uncounted_calls}
        known = {"known_cost_usd": str(self.known_cost_usd)} if self.priced_tokens else {}
        return {
            "input": self.input,
            "output": self.output,
            "cache_write": self.cache_write,
            "cache_read": self.cache_read,
            "reasoning": self.reasoning,
            **{key: count for key, count in cost.items() if count},
            **known,
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
        counted = cls(_first(counts, "input", "prompt"), output, write, read, reasoning)
        return replace(
            counted,
            priced_tokens=_first(counts, "priced_tokens"),
            known_cost_usd=parse_usd(counts.get("known_cost_usd", "0")),
            uncounted_calls=_first(counts, "uncounted_calls"),
        )


def take_usage(error: BaseException) -> Usage:
    """Take the usage of a model call that failed after it was charged from its error, to count it once."""
    usage: object = getattr(error, "usage", None)
    if not isinstance(usage, Usage):
        return Usage()
    error.usage = None  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    return usage


def sum_costs(one: Decimal | None, other: Decimal | None) -> Decimal | None:
    """The sum of two costs; None if one of them is unknown."""
    return None if one is None or other is None else one + other


def usd_number(cost_usd: Decimal | None) -> float | None:
    """A cost as a JSON number; null if it is unknown."""
    return None if cost_usd is None else float(cost_usd)


def parse_usd(value: object) -> Decimal:
    """Read an amount in US dollars, from a number or its text.

    Raises:
        InvalidInput: It is no amount.
    """
    try:
        amount = Decimal(str(value))
    except InvalidOperation:
        amount = Decimal("nan")
    if isinstance(value, bool) or not amount.is_finite() or amount < 0:
        raise InvalidInput(f"a cost is an amount of US dollars, and not {value!r}")
    return amount


_OWN_COUNTERS = ("input", "output", "cache_write", "cache_read", "reasoning")
_CACHE = frozenset({"cache_write", "cacheWrite", "cache_read", "cacheRead"})
_COUNTERS = _CACHE | {"input", "prompt", "output", "completion", "cached", "reasoning"}


def _first(counts: FrozenDict, *names: str) -> int:
    return next((_count(name, counts[name]) for name in names if name in counts), 0)


def _count(name: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise InvalidInput(f"usage counts whole tokens; {name} is {value!r}, pass 0 or more")
    return value
