"""The buckets of rates."""

from dataclasses import replace

from everstep.agent_domain.fairness.rate_draws import RateBuckets, RateDraw, RateGrant

ONE_A_SECOND = RateDraw("preset/fast/requests", 60.0, need=1.0)
TOKENS = RateDraw("preset/fast/tokens", 60_000.0, need=500.0)


def test_five_seconds_of_a_rate_may_be_used_at_once_and_then_the_rate() -> None:
    """18.2.12"""
    buckets = RateBuckets()
    drawn = [buckets.draw(ONE_A_SECOND, 100.0) for _ in range(6)]
    assert drawn == [RateGrant(1.0)] * 5 + [RateGrant(0.0, wait=1.0)]
    assert buckets.draw(ONE_A_SECOND, 100.5) == RateGrant(0.0, wait=0.5)
    assert buckets.draw(ONE_A_SECOND, 101.0) == RateGrant(1.0)


def test_a_draw_takes_a_portion_of_a_second_if_a_call_needs_less() -> None:
    """18.2.12"""
    buckets = RateBuckets()
    assert buckets.draw(TOKENS, 0.0) == RateGrant(1000.0)


def test_a_call_larger_than_a_portion_begins_with_a_portion_and_leaves_a_debt() -> None:
    """18.2.12"""
    buckets = RateBuckets()
    assert buckets.draw(replace(TOKENS, need=20_000.0), 0.0) == RateGrant(20_000.0)
    # 5,000 were there, 15,000 are owed.
    assert buckets.draw(TOKENS, 0.0) == RateGrant(0.0, wait=15.5)
    assert buckets.draw(TOKENS, 15.5).amount >= 500.0


def test_what_calls_used_beyond_their_draws_is_subtracted_also_if_nothing_can_be_drawn() -> None:
    """18.2.12"""
    buckets = RateBuckets()
    assert buckets.draw(replace(TOKENS, need=0.0, debt=9_000.0), 0.0) == RateGrant(0.0)
    assert buckets.draw(replace(TOKENS, debt=1_000.0), 0.0) == RateGrant(0.0, wait=5.5)
    assert buckets.draw(TOKENS, 0.0) == RateGrant(0.0, wait=5.5)


def test_a_pause_ends_all_draws_and_a_shorter_one_does_not_end_it() -> None:
    """18.2.14"""
    buckets = RateBuckets()
    buckets.pause(TOKENS.name, 30.0, 0.0)
    buckets.pause(TOKENS.name, 5.0, 0.0)
    assert buckets.draw(TOKENS, 0.0) == RateGrant(0.0, wait=30.0)
    assert buckets.draw(TOKENS, 30.0).amount > 0


def test_a_clock_that_steps_back_takes_nothing_away() -> None:
    """18.2.12"""
    buckets = RateBuckets()
    buckets.draw(ONE_A_SECOND, 100.0)
    assert buckets.draw(ONE_A_SECOND, 50.0) == RateGrant(1.0)
    assert buckets.draw(ONE_A_SECOND, 100.0) == RateGrant(1.0)
