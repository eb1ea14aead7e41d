"""How long somebody who watches waits for what."""

from dataclasses import dataclass
from random import uniform

LONGEST_ASKED = 300.0
"""Seconds: nobody stays away for longer, whatever the gateway asks for."""


@dataclass(frozen=True, slots=True)
class Pace:
    """All in seconds."""

    pause: float = 0.5
    """Before the first return; it doubles."""
    longest: float = 30.0
    patience: float = 10.0
    """For an answer."""
    steady: float = 30.0
    """A connection that lasts as long was a good one."""


class Pauses:
    """Between one try and the next: longer each time, with some chance in it, until one goes well."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._tries = 0

    def next(self, asked: float | None = None) -> float:
        """Seconds. Whoever is asked to come back at a moment does so, once."""
        pace = self._pace
        drawn = min(pace.longest, pace.pause * 2 ** min(self._tries, 30)) * uniform(0.5, 1)  # noqa: S311 -- no secret
        is_first, self._tries = self._tries == 0, self._tries + 1
        if asked is None:
            return drawn
        asked = min(asked, LONGEST_ASKED)
        return asked if is_first else max(asked, drawn)

    def reset(self) -> None:
        """It went well."""
        self._tries = 0
