"""Requests per second of tenants and users: token buckets of one process."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from everstep.agent_domain.fairness.tenant_limits import LimitBook

BURST_SECONDS: Final = 2.0
"""How much of a rate may be used at once after a pause."""
MAX_BUCKETS: Final = 10_000
"""A bucket that was not used for the longest time is forgotten, and begins full again."""


@dataclass(slots=True)
class TokenBucket:
    """What is left of a rate."""

    amount: float
    filled_at: float

    def fill(self, rate: float, now: float) -> None:
        """Add what has accrued."""
        self.amount = min(burst_of(rate), self.amount + rate * max(0.0, now - self.filled_at))
        self.filled_at = now

    def wait(self, rate: float) -> float:
        """The seconds until one request is left; 0 if it is now."""
        return max(0.0, (1 - self.amount) / rate)


def burst_of(rate: float) -> float:
    """The most requests at once."""
    return max(1.0, rate * BURST_SECONDS)


class RequestRates:
    """The buckets of tenants and users with a limit."""

    def __init__(self) -> None:
        self._buckets = OrderedDict[tuple[str, str | None], TokenBucket]()

    def take(self, book: LimitBook, tenant_id: str, user_id: str, now: float) -> float:
        """Take one request from the buckets of a tenant and of its user.

        Returns:
            0 if it was taken; otherwise nothing was, and the seconds until one is left.
        """
        tenant, user = book.tenant(tenant_id), book.user(tenant_id, user_id)
        limits = (((tenant_id, None), tenant), ((tenant_id, user_id), user))
        rates = [
            (name, each.requests_per_second) for name, each in limits if each and each.requests_per_second
        ]
        buckets = [(self._bucket(name, rate, now), rate) for name, rate in rates]
        wait = max((bucket.wait(rate) for bucket, rate in buckets), default=0.0)
        if not wait:
            for bucket, _ in buckets:
                bucket.amount -= 1
        return wait

    def _bucket(self, name: tuple[str, str | None], rate: float, now: float) -> TokenBucket:
        bucket = self._buckets.setdefault(name, TokenBucket(burst_of(rate), now))
        self._buckets.move_to_end(name)
        bucket.fill(rate, now)
        while len(self._buckets) > MAX_BUCKETS:
            self._buckets.popitem(last=False)
        return bucket
