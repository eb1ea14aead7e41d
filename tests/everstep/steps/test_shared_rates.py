"""Waiting for a rate that processes share. The clock moves only while everything waits."""

import asyncio
from collections import Counter

import pytest

from everstep.agent_domain.errors import StoreUnavailable
from everstep.agent_domain.fairness.rate_draws import RateDraw, RateGrant
from everstep.agent_domain.fairness.shares import Claimant
from everstep.steps.shared_rates import LocalRates, SharedRate
from everstep.testing.clock import ManualClock

ANN, BOB = Claimant("acme", "ann"), Claimant("globex", "bob")


class SteppingClock(ManualClock):
    """A clock that moves when something waits, and lets others run."""

    async def sleep(self, seconds: float) -> None:
        self.advance(seconds)
        await asyncio.sleep(0)


def a_rate(store: LocalRates, clock: SteppingClock, per_minute: float) -> SharedRate:
    return SharedRate(store, "calls", per_minute, clock=clock.seconds, sleep=clock.sleep)


async def test_processes_together_take_no_more_than_the_rate() -> None:
    """18.2.12"""
    clock = SteppingClock()
    store = LocalRates(clock.seconds)
    taken = list[float]()

    async def call(rate: SharedRate) -> None:
        await rate.take(ANN, 1)
        taken.append(clock.seconds())

    processes = [a_rate(store, clock, 120) for _ in range(3)]
    await asyncio.gather(*(call(rate) for rate in processes for _ in range(40)))
    # Ten at once, then two a second.
    assert all(taken.index(moment) + 1 <= 10 + 2 * moment + 2 for moment in taken)
    assert len(taken) == 120
    assert taken[-1] <= 60


async def test_a_busy_rate_draws_about_once_a_second() -> None:
    """18.2.12"""
    clock, draws = SteppingClock(), list[RateDraw]()

    class CountedRates(LocalRates):
        async def draw_rate(self, draw: RateDraw) -> RateGrant:
            grant = await super().draw_rate(draw)
            draws.extend([draw] if grant.amount else [])
            return grant

    rate = a_rate(CountedRates(clock.seconds), clock, 60_000)
    for _ in range(100):
        for _ in range(100):
            await rate.take(ANN, 1)
        clock.advance(0.1)
    assert len(draws) <= 15


async def test_a_tenant_with_one_call_does_not_wait_for_the_calls_of_another() -> None:
    """18.2.13"""
    clock = SteppingClock()
    rate = a_rate(LocalRates(clock.seconds), clock, 60)
    order = list[str]()

    async def call(claimant: Claimant) -> None:
        await rate.take(claimant, 1)
        order.append(claimant.tenant)

    flood = [asyncio.create_task(call(ANN)) for _ in range(50)]
    for _ in range(10):
        await asyncio.sleep(0)
    before = len(order)
    await call(BOB)
    assert 0 < before < 50
    assert Counter(order)["acme"] <= before + 2
    for each in flood:
        each.cancel()
    await asyncio.gather(*flood, return_exceptions=True)


async def test_a_call_that_is_cancelled_while_it_waits_takes_nothing() -> None:
    """18.2.12"""
    clock = SteppingClock()
    rate = a_rate(LocalRates(clock.seconds), clock, 6)
    await rate.take(ANN, 1)
    waiting = asyncio.create_task(rate.take(ANN, 1))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    began = clock.seconds()
    await rate.take(BOB, 1)
    assert clock.seconds() - began <= 10.1


async def test_tokens_beyond_the_expected_ones_delay_later_calls_of_all_processes() -> None:
    """18.2.12"""
    clock = SteppingClock()
    store = LocalRates(clock.seconds)
    one, other = a_rate(store, clock, 60_000), a_rate(store, clock, 60_000)
    await one.take(ANN, 100)
    one.correct(60_000 - 100)
    for _ in range(10):
        await asyncio.sleep(0)
    assert one.is_idle
    await other.take(BOB, 100)
    assert clock.seconds() == pytest.approx(55, abs=6)


async def test_a_pause_holds_what_was_drawn_already() -> None:
    """18.2.14"""
    clock = SteppingClock()
    store = LocalRates(clock.seconds)
    rate, other = a_rate(store, clock, 6_000), a_rate(store, clock, 6_000)
    await rate.take(ANN, 1)
    await rate.pause(30)
    await other.take(BOB, 1)
    assert clock.seconds() >= 30
    await rate.take(ANN, 1)


async def test_calls_wait_while_the_store_is_away(caplog: pytest.LogCaptureFixture) -> None:
    """18.2.12"""
    clock, answers = SteppingClock(), [StoreUnavailable("the database is away")] * 3

    class AbsentRates(LocalRates):
        async def draw_rate(self, draw: RateDraw) -> RateGrant:
            if answers:
                raise answers.pop()
            return await super().draw_rate(draw)

    await a_rate(AbsentRates(clock.seconds), clock, 60).take(ANN, 1)
    assert clock.seconds() == 3
    assert "the rate calls is not known at the moment: the database is away" in caplog.text


async def test_a_defect_ends_the_waiting_calls_and_not_the_process() -> None:
    """18.2.12"""

    class BrokenRates(LocalRates):
        async def draw_rate(self, draw: RateDraw) -> RateGrant:
            raise ZeroDivisionError

    clock = SteppingClock()
    rate = a_rate(BrokenRates(), clock, 60)
    with pytest.raises(ZeroDivisionError):
        await asyncio.gather(rate.take(ANN, 1), rate.take(BOB, 1))
    assert rate.is_idle
