"""Requests per second of tenants and users."""

from everstep.agent_domain.fairness.request_rates import MAX_BUCKETS, RequestRates
from everstep.agent_domain.fairness.tenant_limits import EVERYONE, LimitBook, TenantLimits

BOOK = LimitBook(
    [
        TenantLimits("acme", requests_per_second=5),
        TenantLimits("acme", "ann", requests_per_second=1),
        TenantLimits("slow", requests_per_second=0.1),
    ]
)


def test_two_seconds_of_a_rate_may_be_used_at_once_and_then_the_rate() -> None:
    """18.2.10"""
    rates = RequestRates()
    assert [rates.take(BOOK, "acme", "bob", 0.0) for _ in range(10)] == [0.0] * 10
    assert rates.take(BOOK, "acme", "bob", 0.0) == 0.2
    assert rates.take(BOOK, "acme", "bob", 0.25) == 0.0
    assert rates.take(BOOK, "acme", "bob", 0.25) > 0


def test_a_user_has_a_rate_within_that_of_the_tenant_and_a_refusal_takes_nothing() -> None:
    """18.2.10"""
    rates = RequestRates()
    assert [rates.take(BOOK, "acme", "ann", 0.0) for _ in range(2)] == [0.0, 0.0]
    assert [rates.take(BOOK, "acme", "ann", 0.0) for _ in range(9)] == [1.0] * 9
    assert [rates.take(BOOK, "acme", "bob", 0.0) for _ in range(8)] == [0.0] * 8
    assert rates.take(BOOK, "acme", "bob", 0.0) > 0


def test_a_rate_below_one_allows_one_request_at_a_time() -> None:
    """18.2.10"""
    rates = RequestRates()
    assert rates.take(BOOK, "slow", "ann", 0.0) == 0.0
    assert rates.take(BOOK, "slow", "ann", 0.0) == 10.0


def test_tenants_without_a_rate_are_not_counted_and_memory_is_bounded() -> None:
    """18.2.10"""
    rates = RequestRates()
    assert not any(rates.take(BOOK, "other", "ann", 0.0) for _ in range(100))
    every = LimitBook([TenantLimits(EVERYONE, EVERYONE, requests_per_second=0.5)])
    for number in range(MAX_BUCKETS + 1):
        rates.take(every, "acme", str(number), 0.0)
    assert rates.take(every, "acme", str(MAX_BUCKETS), 0.0) == 2.0
    assert rates.take(every, "acme", "0", 0.0) == 0.0
