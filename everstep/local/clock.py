"""Time, as the in-process runner needs it. Tests pass a clock of their own."""

import asyncio
import time
from datetime import UTC, datetime
from typing import Protocol, runtime_checkable


class Clock(Protocol):
    """Says what time it is, and measures how long work takes."""

    def now(self) -> datetime:
        """The moment, in UTC."""
        ...

    def seconds(self) -> float:
        """A count of seconds that never goes back; only differences mean anything."""
        ...


@runtime_checkable
class CanSleep(Protocol):
    """A clock that also waits; for one that cannot, the event loop waits in real time."""

    async def sleep(self, seconds: float) -> None:
        """Come back after so many seconds."""
        ...


async def sleep_on(clock: Clock, seconds: float) -> None:
    """Wait by this clock."""
    await (clock.sleep(seconds) if isinstance(clock, CanSleep) else asyncio.sleep(seconds))


class SystemClock:
    """The machine's clock."""

    def now(self) -> datetime:
        """The moment, in UTC."""
        return datetime.now(UTC)

    def seconds(self) -> float:
        """The machine's monotonic clock."""
        return time.monotonic()
