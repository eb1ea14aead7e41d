"""Time, as the in-process runner needs it. Tests pass a clock of their own."""

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Says what time it is, and measures how long work takes."""

    def now(self) -> datetime:
        """The moment, in UTC."""
        ...

    def seconds(self) -> float:
        """A count of seconds that never goes back; only differences mean anything."""
        ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> datetime:
        """The moment, in UTC."""
        return datetime.now(UTC)

    def seconds(self) -> float:
        """The machine's monotonic clock."""
        return time.monotonic()
