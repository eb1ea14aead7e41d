"""The clock of the in-process runner. Tests pass their own."""

import asyncio
import time
from datetime import UTC, datetime
from typing import Protocol, runtime_checkable


class Clock(Protocol):
    """Returns the time and measures durations."""

    def now(self) -> datetime:
        """The current time, in UTC."""
        ...

    def seconds(self) -> float:
        """A monotonic count of seconds; only differences have a meaning."""
        ...


@runtime_checkable
class CanSleep(Protocol):
    """A clock that can also sleep; with other clocks the event loop sleeps in real time."""

    async def sleep(self, seconds: float) -> None:
        """Return after so many seconds."""
        ...


async def sleep_on_clock(clock: Clock, seconds: float) -> None:
    """Sleep on this clock, or on the event loop's if it cannot sleep."""
    await (clock.sleep(seconds) if isinstance(clock, CanSleep) else asyncio.sleep(seconds))


class SystemClock:
    """The machine's clock."""

    def now(self) -> datetime:
        """The current time, in UTC."""
        return datetime.now(UTC)

    def seconds(self) -> float:
        """The machine's monotonic clock."""
        return time.monotonic()
