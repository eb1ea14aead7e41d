"""The times and limits of a model call's retries."""

from itertools import count

import pytest
from hypothesis import example, given, strategies as st

from everstep.agent_domain.errors import ModelTimeout, ModelUnavailable, RateLimited, UnreadableAnswer
from everstep.agent_domain.loop.retries import (
    DURABLE_SECONDS,
    FIRST_PAUSE,
    LONGEST_PAUSE,
    GiveUp,
    Pause,
    RetryBudget,
    budget_of,
    delay_text,
)

AWAY = ModelUnavailable("503")


class Preset:
    def __init__(self, seconds: float | None) -> None:
        self.retry_seconds = seconds


def pauses(budget: RetryBudget, error: Exception, chance: float = 0.5) -> list[float]:
    """The pauses of an outage in which each attempt fails at once."""
    waited = list[float]()
    for failures in count(1):
        follows = budget.after(error, failures, sum(waited), chance)
        if isinstance(follows, GiveUp):
            return waited
        waited.append(follows.seconds)
    raise AssertionError


@pytest.mark.parametrize("chance", [0, 0.5, 1])
def test_pauses_grow_until_the_budget_is_used_up(chance: float) -> None:
    """3.5.4: five minutes by default; the last attempt is at their end."""
    waited = pauses(RetryBudget(), AWAY, chance)

    assert waited[0] <= FIRST_PAUSE
    assert waited[:5] == sorted(waited[:5])
    assert max(waited) <= LONGEST_PAUSE
    assert sum(waited) == pytest.approx(DURABLE_SECONDS, abs=0.01)
    assert len(waited) >= 10


def test_random_jitter_spreads_simultaneous_failures() -> None:
    """3.5.4"""
    drawn = {RetryBudget().after(AWAY, 5, 0, chance / 10) for chance in range(11)}

    assert len(drawn) == 11
    assert all(isinstance(each, Pause) and 8 <= each.seconds <= 16 for each in drawn)


@given(asked=st.floats(0, 299), failures=st.integers(1, 50), chance=st.floats(0, 1), spent=st.floats(0, 300))
@example(asked=0, failures=9, chance=0.5, spent=299.9996)
def test_the_wait_of_the_provider_is_the_minimum(
    asked: float, failures: int, chance: float, spent: float
) -> None:
    """3.5.4: and no wait ends after the budget."""
    follows = RetryBudget().after(RateLimited("busy", asked), failures, spent, chance)

    if isinstance(follows, Pause):
        assert asked - 0.001 <= follows.seconds <= DURABLE_SECONDS - spent + 0.001
        # A pause of 0 s would use up nothing of the budget, and retry without an end.
        assert follows.seconds > 0
    else:
        assert spent > DURABLE_SECONDS - 0.001 or asked > DURABLE_SECONDS - spent


def test_a_wait_that_does_not_fit_into_the_budget_ends_the_step_at_once() -> None:
    """3.5.4: and reports it."""
    follows = RetryBudget(60).after(RateLimited("busy", 600), 1, 0, 0.5)

    assert follows == GiveUp(
        "The provider asks to wait 600 s, more than the 60 s that the retry budget of 60 s leaves"
    )


@pytest.mark.parametrize("attempts", [1, 2, 5])
def test_a_number_of_attempts_limits_them_where_it_is_given(attempts: int) -> None:
    """3.5.1"""
    assert len(pauses(RetryBudget(attempts=attempts), AWAY)) == attempts - 1


def test_a_budget_of_zero_is_one_attempt() -> None:
    """3.5.4"""
    assert RetryBudget(0).after(AWAY, 1, 0, 0) == GiveUp(
        "Given up after 1 try: the retry budget of 0 s is used up"
    )


def test_an_unreadable_reply_is_requested_three_times() -> None:
    """3.5.3: for any length of the budget."""
    assert len(pauses(RetryBudget(), UnreadableAnswer("<html>"))) == 2


def test_the_setting_of_the_agent_precedes_the_preset_and_that_the_default() -> None:
    """3.5.4"""
    assert budget_of(7, Preset(5), 300, None) == RetryBudget(7)
    assert budget_of(0, Preset(5), 300, None) == RetryBudget(0)
    assert budget_of(None, Preset(5), 300, 3) == RetryBudget(5, 3)
    assert budget_of(None, Preset(None), 300, None) == RetryBudget(300)
    assert budget_of(None, object(), 30, None) == RetryBudget(30)


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (AWAY, "provider unavailable, next attempt in 12 s"),
        (RateLimited("10.0.0.3 is busy"), "provider asks to slow down, next attempt in 12 s"),
        (ModelTimeout("no answer"), "provider did not answer in time, next attempt in 12 s"),
        (UnreadableAnswer("<html>"), "provider sent no readable answer, next attempt in 12 s"),
    ],
)
def test_the_shown_error_contains_nothing_from_the_provider(error: Exception, sentence: str) -> None:
    """3.5.5"""
    assert delay_text(error, 12.3) == sentence
