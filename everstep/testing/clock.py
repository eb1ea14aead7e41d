"""A clock that tests move."""

from datetime import UTC, datetime, timedelta

from everstep.agent_domain.errors import InvalidInput


class ManualClock:
    """A clock for in-process runs that moves only when a test moves it, or when the run would wait.

    Pass it where a runner takes a `clock`. Limits on time, pauses between attempts and durations follow it.

    Args:
        start: The first moment; it needs a time zone.
    """

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        if start.tzinfo is None:
            raise InvalidInput("start has no time zone; pass one, such as datetime(2026, 1, 1, tzinfo=UTC)")
        self._start = start
        self._seconds = 0.0

    def now(self) -> datetime:
        """The current moment."""
        return self._start + timedelta(seconds=self._seconds)

    def seconds(self) -> float:
        """Seconds since the start."""
        return self._seconds

    def advance(self, duration: timedelta | float) -> None:
        """Move forward.

        Args:
            duration: By how much; a number counts seconds.

        Raises:
            InvalidInput: It is negative.
        """
        seconds = duration.total_seconds() if isinstance(duration, timedelta) else duration
        if seconds < 0:
            raise InvalidInput(f"a clock does not go back: {seconds} seconds")
        self._seconds += seconds

    async def sleep(self, seconds: float) -> None:
        """Move forward instead of waiting."""
        self.advance(seconds)
