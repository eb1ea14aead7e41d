"""Pauses and timeouts of the stream client."""

from dataclasses import dataclass
from random import uniform

MAX_REQUESTED_DELAY = 300.0
"""Upper limit in seconds for a delay that the gateway asks for."""


@dataclass(frozen=True, slots=True)
class ClientTimings:
    """Delays and timeouts, in seconds."""

    first_delay: float = 0.5
    """Before the first reconnect; doubles with each one."""
    max_delay: float = 30.0
    reply_timeout: float = 10.0
    """Timeout for a reply."""
    reset_after: float = 30.0
    """A connection that lasted this long resets the backoff."""


class Backoff:
    """Exponential backoff with jitter."""

    def __init__(self, timings: ClientTimings) -> None:
        self._timings = timings
        self._tries = 0

    def next_delay(self, requested: float | None = None) -> float:
        """Return the seconds until the next try; a delay that the gateway asked for is used as it is once."""
        timings = self._timings
        delay = min(timings.max_delay, timings.first_delay * 2 ** min(self._tries, 30)) * uniform(0.5, 1)  # noqa: S311 -- no secret
        is_first, self._tries = self._tries == 0, self._tries + 1
        if requested is None:
            return delay
        requested = min(requested, MAX_REQUESTED_DELAY)
        return requested if is_first else max(requested, delay)

    def reset(self) -> None:
        """Start again with the shortest pause, after a success."""
        self._tries = 0
