"""How long a model call that failed in transport is tried again, and when the next try is.

A budget is a time, counted from the first failure: providers that are away for a while come back, and neither
a number of tries nor a table of pauses says how long that is worth waiting for. Pauses grow, with jitter, so
that the many executions that failed together do not come back together. What the provider asks to wait is the
least.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from everstep.agent_domain.errors import ModelTimeout, RateLimited, UnreadableAnswer

DURABLE_SECONDS = 300.0
"""The budget of a durable execution that sets none."""

LOCAL_SECONDS = 30.0
"""The same of a run in this process, whose caller waits."""

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
JITTER = 0.5
"""The share of a pause that chance decides."""

MOST_UNREADABLE = 3
"""Tries in all where what came back was no answer of the API."""


@runtime_checkable
class HasRetryBudget(Protocol):
    """A model whose settings say how long it is tried again."""

    @property
    def retry_seconds(self) -> float | None:
        """The budget in seconds; None where nothing says."""
        ...


@runtime_checkable
class IsScripted(Protocol):
    """A model that needs no time to recover: runs in this process try it again at once."""

    is_scripted: bool


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait so long, then try again."""

    seconds: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """No further try."""

    reason: str
    """Why, to be added to what went wrong; empty where there is nothing to add."""


@dataclass(frozen=True, slots=True)
class RetryBudget:
    """How long, and how often in all, a model call is tried."""

    seconds: float = DURABLE_SECONDS
    attempts: int | None = None

    def after(self, error: Exception, failures: int, spent: float, chance: float) -> Pause | GiveUp:
        """What follows a failed try.

        Args:
            error: What went wrong, one of `errors.RETRYABLE`.
            failures: How many tries have failed, this one included.
            spent: Seconds since the first of them failed.
            chance: A number from 0 to 1, drawn for this pause.
        """
        if self.attempts is not None and failures >= self.attempts:
            return GiveUp("")
        if isinstance(error, UnreadableAnswer) and failures >= MOST_UNREADABLE:
            return GiveUp("")
        left = self.seconds - spent
        asked: float = getattr(error, "retry_after", None) or 0.0
        if left <= 0:
            tries = "1 try" if failures == 1 else f"{failures} tries"
            return GiveUp(f"Given up after {tries}: the retry budget of {self.seconds:g} s is used up")
        if asked > left:
            return GiveUp(
                f"The provider asks to wait {asked:g} s, more than the {left:.3g} s "
                f"that the retry budget of {self.seconds:g} s leaves"
            )
        grown = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(failures - 1, 16))
        drawn = grown * (1 - JITTER + JITTER * chance)
        spread = asked * (1 + JITTER * chance / 5)
        return Pause(round(min(left, max(drawn, spread)), 3))


def budget_of(agents: float | None, model: object, default: float, attempts: int | None) -> RetryBudget:
    """The budget: what the agent says, else its model's preset, else the default."""
    stated = (each for each in (agents, retry_seconds_of(model)) if each is not None)
    return RetryBudget(next(stated, default), attempts)


def retry_seconds_of(model: object) -> float | None:
    """What a model's settings say."""
    return model.retry_seconds if isinstance(model, HasRetryBudget) else None


def outage(error: Exception) -> str:
    """What is the matter, for anyone who watches: no address, and no words of the provider."""
    match error:
        case RateLimited():
            return "provider asks to slow down"
        case ModelTimeout():
            return "provider did not answer in time"
        case UnreadableAnswer():
            return "provider sent no readable answer"
        case _:
            return "provider unavailable"


def announced(error: Exception, seconds: float) -> str:
    """The sentence that is shown while it waits."""
    return f"{outage(error)}, next attempt in {max(seconds, 0):.0f} s"
