"""The tokens per minute of tenants and users."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest
from temporalio.common import Priority
from temporalio.testing import ActivityEnvironment

from everstep.activities import token_limits
from everstep.activities.token_limits import TokenLimits
from everstep.activities.worker_places import Places, WorkerPlaces
from everstep.agent_domain.fairness.fairness_keys import fairness_key
from everstep.agent_domain.fairness.shares import Claimant
from everstep.agent_domain.fairness.tenant_limits import LARGEST_LIMIT, LimitBook, TenantLimits, TokenTerms
from everstep.steps import shared_rates
from everstep.steps.shared_rates import LocalRates

ANN = Claimant("acme", fairness_key("acme", "ann"))
BOB = Claimant("acme", fairness_key("acme", "bob"))
EVE = Claimant("globex", fairness_key("globex", "eve"))
BOOK = LimitBook(
    [TenantLimits("acme", tokens_per_minute=6000), TenantLimits("acme", "ann", tokens_per_minute=600)]
)


async def must_wait(limits: TokenLimits, claimant: Claimant) -> bool:
    try:
        async with asyncio.timeout(0.02):
            await limits.wait(claimant)
    except TimeoutError:
        return True
    return False


async def test_what_a_call_used_delays_the_next_one_of_the_user_and_of_the_tenant() -> None:
    """18.2.15: in all workers, and for no one else."""
    store = LocalRates()
    worker, other = TokenLimits(store, BOOK.token_terms), TokenLimits(store, BOOK.token_terms)
    await worker.wait(ANN)
    worker.count(ANN, 100, is_model_call=True)
    assert await must_wait(worker, ANN)
    assert not await must_wait(worker, BOB)
    worker.count(BOB, 60_000, is_model_call=True)
    assert await must_wait(worker, BOB)
    assert not await must_wait(worker, EVE)
    assert await must_wait(other, BOB)


async def test_a_call_that_waits_for_tokens_holds_no_place() -> None:
    """18.2.15"""
    places = WorkerPlaces(Places(10), Places(LARGEST_LIMIT), TokenLimits(terms=BOOK.token_terms))
    environment = ActivityEnvironment()
    environment.info = replace(environment.info, priority=Priority(fairness_key=ANN.user))

    async def call() -> None:
        async with places.model_place("acme") as (count_tokens, _):
            count_tokens(10_000)

    await environment.run(call)
    waiting = asyncio.ensure_future(environment.run(call))
    await asyncio.sleep(0.02)
    assert (places.places.held, places.model_calls.held, waiting.done()) == (0, 0, False)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_a_removed_limit_and_forgotten_users_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """18.2.15"""
    monkeypatch.setattr(token_limits, "MAX_RATES", 5)
    book = LimitBook([TenantLimits("*", "*", tokens_per_minute=LARGEST_LIMIT)])

    def terms(claimant: Claimant) -> TokenTerms:
        return book.token_terms(claimant)

    limits = TokenLimits(terms=terms)
    for number in range(20):
        await limits.wait(Claimant("acme", f"user {number}"))
    assert limits.count_of_rates <= 5
    limits.count(ANN, 10**12)
    book = LimitBook()
    assert not await must_wait(limits, ANN)


@pytest.mark.parametrize("change", [(), (TenantLimits("acme", tokens_per_minute=60_000_000),)])
async def test_a_raised_or_removed_limit_applies_to_calls_that_wait(
    monkeypatch: pytest.MonkeyPatch, change: Sequence[TenantLimits]
) -> None:
    """18.2.15"""
    monkeypatch.setattr(shared_rates, "LONGEST_PAUSE", 0.01)
    book = LimitBook([TenantLimits("acme", tokens_per_minute=1)])
    limits = TokenLimits(terms=lambda claimant: book.token_terms(claimant))  # noqa: PLW0108 -- the book changes
    await limits.wait(ANN)
    limits.count(ANN, 1000, is_model_call=True)
    waiting = [asyncio.ensure_future(limits.wait(each)) for each in (ANN, BOB)]
    assert await must_wait(limits, BOB)
    assert not any(each.done() for each in waiting)
    book = LimitBook(change)
    async with asyncio.timeout(5):
        await asyncio.gather(*waiting)
