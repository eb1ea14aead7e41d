"""The retry budget of model calls that failed in transport, and the delay before the next attempt.

A budget is a time, counted from the first failure: unavailable providers recover after a while, and neither
a number of attempts nor a table of pauses expresses how long to wait for that. Pauses grow, with jitter, so
that many executions that failed together do not retry together. The delay that the provider requests is the
minimum.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from everstep.agent_domain.errors import ModelTimeout, RateLimited, UnreadableAnswer

DURABLE_SECONDS = 300.0
"""The budget of a durable execution that sets none."""

LOCAL_SECONDS = 30.0
"""The budget of a run in this process, whose caller waits for the result."""

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
SHORTEST_PAUSE = 0.001
"""Pauses are whole milliseconds. Less than one left is nothing left: a pause of 0 s would not use it up."""

JITTER = 0.5
"""The random share of a pause."""

MAX_UNREADABLE_ATTEMPTS = 3
"""The maximum number of attempts if the answers do not have the form of the API."""


@runtime_checkable
class HasRetryBudget(Protocol):
    """A model whose settings include a retry budget."""

    @property
    def retry_seconds(self) -> float | None:
        """The budget in seconds, or None if it is not configured."""
        ...


@runtime_checkable
class IsScripted(Protocol):
    """A model that needs no time to recover: runs in this process retry it immediately."""

    is_scripted: bool


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait before the next attempt."""

    seconds: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Make no further attempt."""

    reason: str
    """The reason, to be appended to the error text; empty if there is nothing to add."""


@dataclass(frozen=True, slots=True)
class RetryBudget:
    """The total time, and optionally the number of attempts, that a model call may take."""

    seconds: float = DURABLE_SECONDS
    attempts: int | None = None

    def after(self, error: Exception, failures: int, spent: float, chance: float) -> Pause | GiveUp:
        """Decide what follows a failed attempt.

        Args:
            error: The error, one of `errors.RETRYABLE`.
            failures: The number of failed attempts, including this one.
            spent: Seconds since the first of them failed.
            chance: A random number from 0 to 1, drawn for this pause.
        """
        if self.attempts is not None and failures >= self.attempts:
            return GiveUp("")
        if isinstance(error, UnreadableAnswer) and failures >= MAX_UNREADABLE_ATTEMPTS:
            return GiveUp("")
        left = self.seconds - spent
        requested: float = getattr(error, "retry_after", None) or 0.0
        if left < SHORTEST_PAUSE:
            tries = "1 try" if failures == 1 else f"{failures} tries"
            return GiveUp(f"Given up after {tries}: the retry budget of {self.seconds:g} s is used up")
        if requested > left:
            return GiveUp(
                f"The provider asks to wait {requested:g} s, more than the {left:.3g} s "
                f"that the retry budget of {self.seconds:g} s leaves"
            )
        grown = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(failures - 1, 16))
        drawn = grown * (1 - JITTER + JITTER * chance)
        spread = requested * (1 + JITTER * chance / 5)
        return Pause(round(min(left, max(drawn, spread)), 3))


def budget_of(
    agent_seconds: float | None, model: object, default: float, attempts: int | None
) -> RetryBudget:
    """The budget of the agent, else of its model's preset, else the default."""
    configured = (each for each in (agent_seconds, retry_seconds_of(model)) if each is not None)
    return RetryBudget(next(configured, default), attempts)


def retry_seconds_of(model: object) -> float | None:
    """The budget in a model's settings, if there is one."""
    return model.retry_seconds if isinstance(model, HasRetryBudget) else None


def outage_text(error: Exception) -> str:
    """Describe the failure for viewers, without addresses and without text of the provider."""
    match error:
        case RateLimited():
            return "provider asks to slow down"
        case ModelTimeout():
            return "provider did not answer in time"
        case UnreadableAnswer():
            return "provider sent no readable answer"
        case _:
            return "provider unavailable"


def delay_text(error: Exception, seconds: float) -> str:
    """The text that viewers see during the pause."""
    return f"{outage_text(error)}, next attempt in {max(round(seconds), 1)} s"
