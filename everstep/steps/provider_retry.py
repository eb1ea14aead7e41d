"""Retries model calls within one process."""

import logging
import random
import time
from collections.abc import Awaitable, Callable
from typing import TypeAlias, TypeVar

from everstep.agent_domain.errors import RETRYABLE
from everstep.agent_domain.loop.retries import GiveUp, RetryBudget, delay_text

T = TypeVar("T")

LOGGER = logging.getLogger(__name__)

Sleep: TypeAlias = Callable[[float], Awaitable[object]]
OnPause: TypeAlias = Callable[[str, Exception, float], object]
"""Called with the sentence to show during the pause, the error, and the seconds."""


def log_pause(sentence: str, error: Exception, seconds: float) -> None:
    """Log a pause before the next try."""
    del seconds
    LOGGER.warning("%s: %s", sentence, error)


def add_reason(error: Exception, reason: str) -> None:
    """Add to the error why it is not retried, once."""
    if reason and reason not in getattr(error, "__notes__", ()):
        error.add_note(reason)


async def retry_within(
    budget: RetryBudget,
    ask: Callable[[], Awaitable[T]],
    sleep: Sleep,
    on_pause: OnPause,
    *,
    clock: Callable[[], float] = time.monotonic,
    may_repeat: Callable[[], bool] = lambda: True,
) -> T:
    """Call `ask`, and retry it while the budget lasts.

    Args:
        budget: How long, and how often.
        ask: Makes the model call.
        sleep: Waits between tries; returns at once for scripted models.
        on_pause: Called before each pause.
        clock: A monotonic clock, in seconds.
        may_repeat: Whether the call may be repeated; False once a listener has received a part of the reply.

    Returns:
        The result of `ask`.
    """
    failures, since, waited = 0, 0.0, 0.0
    while True:
        try:
            return await ask()
        except RETRYABLE as error:
            failures += 1
            since = since if failures > 1 else clock()
            # A sleep that returns at once uses up the budget as well.
            spent = max(clock() - since, waited)
            next_try = budget.after(error, failures, spent, random.random())  # noqa: S311 -- jitter
            if isinstance(next_try, GiveUp):
                add_reason(error, next_try.reason)
                raise
            if not may_repeat():
                raise
            seconds = next_try.seconds
            on_pause(delay_text(error, seconds), error, seconds)
        waited += seconds
        await sleep(seconds)
