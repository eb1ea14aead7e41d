"""Pauses and timeouts of the stream client."""

from dataclasses import dataclass
from random import uniform

LONGEST_ASKED = 300.0
"""Upper limit in seconds for a delay that the gateway asks for."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Delays and timeouts, in seconds."""

    pause: float = 0.5
    """Before the first reconnect; doubles with each one."""
    longest: float = 30.0
    patience: float = 10.0
    """Timeout for a reply."""
    steady: float = 30.0
    """A connection that lasted this long resets the backoff."""


class Pauses:
    """Exponential backoff with jitter."""

    def __init__(self, pace: Pace) -> None:
        self._timings = pace
        self._tries = 0

    def next(self, asked: float | None = None) -> float:
        """Return the seconds until the next try; a delay that the gateway asked for is used as it is once."""
        pace = self._timings
        drawn = min(pace.longest, pace.pause * 2 ** min(self._tries, 30)) * uniform(0.5, 1)  # noqa: S311 -- no secret
        is_first, self._tries = self._tries == 0, self._tries + 1
        if asked is None:
            return drawn
        asked = min(asked, LONGEST_ASKED)
        return asked if is_first else max(asked, drawn)

    def reset(self) -> None:
        """Start again with the shortest pause, after a success."""
        self._tries = 0
