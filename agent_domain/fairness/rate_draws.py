"""Rates that processes share: token buckets from which each process draws small portions.

A process draws what the call needs that is next, or a second's worth if that is more, and so makes at most
about one draw a second. A call may begin as soon as its need, or a second's worth, is left. What it uses
beyond that makes the level negative, and later calls wait for longer: on average the rate is exact, although
nothing knows in advance how many tokens a call will use.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

BURST_SECONDS: Final = 5.0
"""How much of a rate may be used at once after a pause."""
PORTION_SECONDS: Final = 1.0
"""How much of a rate one draw takes, unless a call needs more."""
MINUTE: Final = 60.0


@dataclass(frozen=True, slots=True)
class RateDraw:
    """A draw from the bucket of a rate."""

    name: str
    per_minute: float
    need: float = 0.0
    """What the next call needs; with 0 only the debt is subtracted."""
    debt: float = 0.0
    """What earlier calls used beyond what was drawn for them."""

    @property
    def per_second(self) -> float:
        """The rate."""
        return self.per_minute / MINUTE

    @property
    def portion(self) -> float:
        """What one draw takes, unless a call needs more."""
        return portion_of(self.per_minute)

    @property
    def capacity(self) -> float:
        """The most that the bucket holds."""
        return max(1.0, self.per_second * BURST_SECONDS)

    @property
    def floor(self) -> float:
        """How much has to be left for the call to begin."""
        return min(self.need, self.portion)


@dataclass(frozen=True, slots=True)
class RateGrant:
    """The result of a draw."""

    amount: float
    """What was drawn; 0 if not enough was left."""
    wait: float = 0.0
    """The seconds until enough is left, if nothing was drawn."""


def portion_of(per_minute: float) -> float:
    """What one draw takes, unless a call needs more: a second's worth, and at least one request."""
    return max(1.0, per_minute / MINUTE * PORTION_SECONDS)


@dataclass(slots=True)
class RateBucket:
    """The bucket of a rate, for a store in memory."""

    level: float
    filled_at: float
    paused_until: float = 0.0

    def draw(self, draw: RateDraw, now: float) -> RateGrant:
        """Draw from the bucket."""
        accrued = draw.per_second * max(0.0, now - self.filled_at)
        self.level = min(draw.capacity, self.level + accrued) - draw.debt
        self.filled_at = max(now, self.filled_at)
        paused = max(0.0, self.paused_until - now)
        if not draw.need:
            return RateGrant(0.0, paused)
        if paused or self.level < draw.floor:
            return RateGrant(0.0, max(paused, (draw.floor - self.level) / draw.per_second))
        amount = max(draw.need, min(draw.portion, self.level))
        self.level -= amount
        return RateGrant(amount)


class RateBuckets:
    """The buckets of one process."""

    def __init__(self) -> None:
        self._buckets = dict[str, RateBucket]()

    def draw(self, draw: RateDraw, now: float) -> RateGrant:
        """Draw from a bucket; one that is not known is full."""
        bucket = self._buckets.setdefault(draw.name, RateBucket(draw.capacity, now))
        return bucket.draw(draw, now)

    def find(self, names: Iterable[str]) -> Mapping[str, RateBucket]:
        """Those of these buckets that are known."""
        return {name: self._buckets[name] for name in names if name in self._buckets}

    def pause(self, name: str, seconds: float, now: float) -> None:
        """Draw nothing from a bucket for some seconds; a longer pause stays."""
        bucket = self._buckets.get(name)
        if bucket is None:
            bucket = self._buckets[name] = RateBucket(0.0, now)
        bucket.paused_until = max(bucket.paused_until, now + seconds)
