"""Background work that starts again after it fails.

A process serves its users and does other work in the background: it looks for lost executions, announces
itself, maintains links. A failure there must neither end the process nor stop the work silently. So each
piece of work is kept running: its exceptions are logged and counted, and it starts again after a pause.

The caller passes in the clock and the sleep function.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Protocol

FIRST_PAUSE: Final = 1.0
LONGEST_PAUSE: Final = 60.0
"""Seconds before failed work starts again.

The pause doubles with each failure, up to the longest, and is reset once the work has run for longer than
that.
"""

MAX_ERROR_LENGTH: Final = 300
"""Maximum length of a remembered error text."""


class Log(Protocol):
    """A logger."""

    def error(self, msg: str, /, *args: object, exc_info: BaseException | None = None) -> None:
        """Log an error."""
        ...


class Failures:
    """Failures of the background work of one process, by the work's name."""

    def __init__(self) -> None:
        self._counts = Counter[str]()
        self._last = dict[str, str]()

    def add(self, name: str, error: BaseException) -> int:
        """Count a failure, and return how often this work has failed so far."""
        self._counts[name] += 1
        self._last[name] = f"{type(error).__name__}: {error}"[:MAX_ERROR_LENGTH]
        return self._counts[name]

    @property
    def counts(self) -> Mapping[str, int]:
        """The number of failures of each piece of work."""
        return self._counts

    @property
    def last(self) -> Mapping[str, str]:
        """The latest error text of each piece of work."""
        return self._last


FAILURES: Final = Failures()
"""The failures of this process: all its background work shares one counter."""


def note_failure(name: str, error: BaseException, log: Log, failures: Failures = FAILURES) -> None:
    """Log and count an unexpected failure; only the first one is logged with its stack trace."""
    count = failures.add(name, error)
    log.error(
        "%s failed (%s times so far) and continues: %s: %s",
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
    """Run the work until it returns or is cancelled; start it again after a pause when it raises.

    Args:
        name: The work's name in logs and metrics.
        work: Starts the work; called again after each failure.
        sleep: Sleeps for a number of seconds.
        clock: Returns the time in seconds.
        log: Logs the failures.
        failures: Counts the failures.
    """
    pause = FIRST_PAUSE
    while True:
        began = clock()
        try:
            await work()
        except Exception as error:  # noqa: BLE001 -- after any failure the work starts again
            note_failure(name, error, log, failures)
        else:
            return
        if clock() - began > LONGEST_PAUSE:
            pause = FIRST_PAUSE
        await sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)
