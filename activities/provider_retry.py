"""Trying a model call again within the process that makes it."""

import random
import time
from collections.abc import Awaitable, Callable
from typing import TypeAlias, TypeVar

from everstep.agent_domain.errors import RETRYABLE
from everstep.agent_domain.loop.retries import GiveUp, RetryBudget, announced

T = TypeVar("T")

Sleep: TypeAlias = Callable[[float], Awaitable[object]]
OnPause: TypeAlias = Callable[[str, Exception, float], object]
"""Takes the sentence that is shown while it waits, what went wrong, and the seconds."""


def explain(error: Exception, reason: str) -> None:
    """Add why there is no further try, once."""
    if reason and reason not in getattr(error, "__notes__", ()):
        error.add_note(reason)


async def within(
    budget: RetryBudget,
    ask: Callable[[], Awaitable[T]],
    sleep: Sleep,
    on_pause: OnPause,
    *,
    clock: Callable[[], float] = time.monotonic,
    may_repeat: Callable[[], bool] = lambda: True,
) -> T:
    """What `ask` returns, tried again while the budget lasts.

    Args:
        budget: How long, and how often.
        ask: The call.
        sleep: Waits; a model that needs no waiting has one that returns at once.
        on_pause: Called before each wait.
        clock: Seconds that never go back.
        may_repeat: Whether the call may be made again: not once a listener heard a part of the answer.
    """
    failures, since, waited = 0, 0.0, 0.0
    while True:
        try:
            return await ask()
        except RETRYABLE as error:
            failures += 1
            since = since if failures > 1 else clock()
            # A sleep that returns at once uses the budget up all the same.
            spent = max(clock() - since, waited)
            follows = budget.after(error, failures, spent, random.random())  # noqa: S311 -- jitter
            if isinstance(follows, GiveUp):
                explain(error, follows.reason)
                raise
            if not may_repeat():
                raise
            seconds = follows.seconds
            on_pause(announced(error, seconds), error, seconds)
        waited += seconds
        await sleep(seconds)
