"""Retries model calls within one process."""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from typing import Protocol, Self, TypeAlias, TypeVar, runtime_checkable

from everstep.agent_domain.agents.plan import ExecutionPlan
from everstep.agent_domain.errors import RETRYABLE
from everstep.agent_domain.loop.retries import GiveUp, IsScripted, RetryBudget, budget_of, delay_text
from everstep.agent_domain.loop.usage import Usage, take_usage

T = TypeVar("T")

LOGGER = logging.getLogger(__name__)

Sleep: TypeAlias = Callable[[float], Awaitable[object]]
OnPause: TypeAlias = Callable[[str, Exception, float], object]
"""Called with the sentence to show during the pause, the error, and the seconds."""


@runtime_checkable
class CanBeCharged(Protocol):
    """A result of a model call that can count what failed attempts used."""

    def charged(self, usage: Usage) -> Self:
        """A copy that also counts this usage."""
        ...


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
        The result of `ask`. It counts what failed attempts used; if all fail, the error does.
    """
    failures, since, waited, used = 0, 0.0, 0.0, Usage()
    while True:
        try:
            result = await ask()
            return result.charged(used) if failures and isinstance(result, CanBeCharged) else result
        except RETRYABLE as error:
            failures += 1
            used += take_usage(error)
            since = since if failures > 1 else clock()
            # A sleep that returns at once uses up the budget as well.
            spent = max(clock() - since, waited)
            next_try = budget.after(error, failures, spent, random.random())  # noqa: S311 -- jitter
            if isinstance(next_try, GiveUp):
                add_reason(error, next_try.reason)
            if isinstance(next_try, GiveUp) or not may_repeat():
                error.usage = used
                raise
            seconds = next_try.seconds
            on_pause(delay_text(error, seconds), error, seconds)
        waited += seconds
        await sleep(seconds)


class ModelRetry:
    """Retries model calls within the budget of the agent, its model's preset, or the default.

    Args:
        plan: The agent's plan.
        default_seconds: The budget where neither the agent nor the preset sets one.
        sleep: Waits between tries; not called for a scripted model, which does not recover by waiting.
        clock: A monotonic clock, in seconds.
    """

    def __init__(
        self,
        plan: ExecutionPlan,
        default_seconds: float,
        *,
        sleep: Sleep = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.plan = plan
        self.default_seconds = default_seconds
        self.sleep = sleep
        self.clock = clock

    async def retry(
        self,
        model: object,
        ask: Callable[[], Awaitable[T]],
        on_pause: OnPause,
        may_repeat: Callable[[], bool] = lambda: True,
    ) -> T:
        """Call `ask`, which uses this model, and retry it within the budget."""
        budget = budget_of(self.plan.retry_seconds, model, self.default_seconds, self.plan.model_attempts)
        is_scripted = isinstance(model, IsScripted) and model.is_scripted
        sleep = _no_sleep if is_scripted else self.sleep
        return await retry_within(budget, ask, sleep, on_pause, clock=self.clock, may_repeat=may_repeat)


async def _no_sleep(_seconds: float) -> None:
    """Return at once."""
