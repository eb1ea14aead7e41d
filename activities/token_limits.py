"""The tokens per minute of tenants and users, over all workers.

How many tokens a model call uses is known afterwards. So a call waits only while earlier ones have used more
than the limit allows, and what it uses delays later ones: the limit is exact on average. Waiting calls of a
tenant are served fairly by user. Tenants without limits cost nothing.
"""

from collections.abc import Callable
from typing import Final

from everstep.agent_domain.fairness.shares import Claimant
from everstep.agent_domain.fairness.tenant_limits import TokenTerms, tenant_tokens_name, user_tokens_name
from everstep.agent_domain.storage.rate_store import RateStore
from everstep.steps.shared_rates import LocalRates, SharedRate

MAX_RATES: Final = 10_000
"""Rates of tenants and users that wait for nothing are forgotten beyond this number."""

FindTokenTerms = Callable[[Claimant], TokenTerms]


def no_token_terms(claimant: Claimant) -> TokenTerms:
    """Limit nothing."""
    del claimant
    return TokenTerms()


class TokenLimits:
    """The tokens per minute, as this worker uses them."""

    def __init__(self, store: RateStore | None = None, terms: FindTokenTerms = no_token_terms) -> None:
        self._store = LocalRates() if store is None else store
        self._terms = terms
        self._rates = dict[str, SharedRate]()

    @property
    def count_of_rates(self) -> int:
        """How many tenants and users this worker remembers."""
        return len(self._rates)

    async def wait(self, claimant: Claimant) -> None:
        """Wait until the limits allow another call."""
        for rate in self._rates_of(claimant):
            await rate.take(claimant, 1)

    def count(self, claimant: Claimant, tokens: int, *, is_model_call: bool = False) -> None:
        """Note how many tokens an activity has used; a model call has taken one of them."""
        for rate in self._rates_of(claimant):
            rate.correct(tokens - is_model_call)

    def _rates_of(self, claimant: Claimant) -> list[SharedRate]:
        def limit_of_user() -> float | None:
            return self._terms(claimant).user

        def limit_of_tenant() -> float | None:
            return self._terms(claimant).tenant

        limits = {
            user_tokens_name(claimant.user): limit_of_user,
            tenant_tokens_name(claimant.tenant): limit_of_tenant,
        }
        return [rate for name, limit in limits.items() if (rate := self._rate(name, limit))]

    def _rate(self, name: str, limit: Callable[[], float | None]) -> SharedRate | None:
        per_minute = limit()
        if per_minute is None:
            return None
        rate = self._rates.get(name)
        if rate is None:
            if len(self._rates) >= MAX_RATES:
                self._rates = {each: used for each, used in self._rates.items() if not used.is_idle}
            rate = self._rates[name] = SharedRate(self._store, name, per_minute, current_rate=limit)
        rate.per_minute = per_minute
        return rate
