"""Work in the background that goes on, whatever happens in it.

A process does one thing for its users and others beside it: it looks for lost executions, announces itself,
keeps links. None of these may end the process, or end without a word. So each is kept running: what it raises
is logged and counted, and it begins again after a pause.

Time, and how long to sleep, are the caller's.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Protocol

FIRST_PAUSE: Final = 1.0
LONGEST_PAUSE: Final = 60.0
"""Seconds before failed work begins again: twice as long each time, until it went well for so long."""

LENGTH: Final = 300
"""Characters of an error that are remembered."""


class Log(Protocol):
    """A logger."""

    def error(self, msg: str, /, *args: object, exc_info: BaseException | None = None) -> None:
        """Write down what failed."""
        ...


class Failures:
    """What failed in the background of one process, counted by the work's name."""

    def __init__(self) -> None:
        self._counts = Counter[str]()
        self._last = dict[str, str]()

    def add(self, name: str, error: BaseException) -> int:
        """Count one more; how often this work has failed."""
        self._counts[name] += 1
        self._last[name] = f"{type(error).__name__}: {error}"[:LENGTH]
        return self._counts[name]

    @property
    def counts(self) -> Mapping[str, int]:
        """How often each work has failed."""
        return self._counts

    @property
    def last(self) -> Mapping[str, str]:
        """What each work failed with last."""
        return self._last


FAILURES: Final = Failures()
"""Those of this process: there is one background, whoever works in it."""


def note_failure(name: str, error: BaseException, log: Log, failures: Failures = FAILURES) -> None:
    """Log and count what nobody foresaw; with its stack trace for the first time."""
    count = failures.add(name, error)
    log.error(
        "%s failed (%s times so far), and goes on: %s: %s",
        name,
        count,
        type(error).__name__,
        error,
        exc_info=error if count == 1 else None,
    )


async def keep_running(
    name: str,
    work: Callable[[], Awaitable[object]],
    *,
    sleep: Callable[[float], Awaitable[object]],
    clock: Callable[[], float],
    log: Log,
    failures: Failures = FAILURES,
) -> None:
    """Do the work until it is done or cancelled; what it raises is noted, and it begins again after a pause.

    Args:
        name: What it is called in logs and metrics.
        work: Begins the work; may be called often.
        sleep: Waits for some seconds.
        clock: The time in seconds.
        log: Where failures are written.
        failures: Where they are counted.
    """
    pause = FIRST_PAUSE
    while True:
        began = clock()
        try:
            await work()
        except Exception as error:  # noqa: BLE001 -- whatever it is, the work goes on
            note_failure(name, error, log, failures)
        else:
            return
        if clock() - began > LONGEST_PAUSE:
            pause = FIRST_PAUSE
        await sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)
