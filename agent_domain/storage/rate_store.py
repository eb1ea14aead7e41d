"""The port to the rates that all processes share."""

from typing import Protocol

from everstep.agent_domain.fairness.rate_draws import RateDraw, RateGrant


class RateStore(Protocol):
    """Stores the buckets of rates. Every method is one transaction."""

    async def draw_rate(self, draw: RateDraw) -> RateGrant:
        """Draw from the bucket of a rate; one that is not known is full."""
        ...

    async def pause_rate(self, name: str, seconds: float) -> None:
        """Draw nothing from a bucket for some seconds, in any process; a longer pause stays."""
        ...
