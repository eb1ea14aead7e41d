"""Background work continues despite any exception."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from everstep.agent_domain.background import (
    LONGEST_PAUSE,
    MAX_ERROR_LENGTH,
    Failures,
    keep_running,
    note_failure,
)


class Log:
    """Keeps the log lines."""

    def __init__(self) -> None:
        self.lines = list[str]()
        self.traces = list[BaseException | None]()

    def error(self, msg: str, /, *args: object, exc_info: BaseException | None = None) -> None:
        self.lines.append(msg % args)
        self.traces.append(exc_info)


class Clock:
    """A clock that advances during sleeps."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept = list[float]()

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def failing(times: int, error: Exception) -> Callable[[], Awaitable[None]]:
    left = times

    async def work() -> None:
        nonlocal left
        left -= 1
        if left >= 0:
            raise error

    return work


async def test_work_that_fails_restarts_after_growing_pauses() -> None:
    """1.3.3."""
    clock, log, failures = Clock(), Log(), Failures()

    work = failing(8, ValueError("odd"))
    await keep_running("the work", work, sleep=clock.sleep, clock=clock, log=log, failures=failures)

    assert clock.slept == [1, 2, 4, 8, 16, 32, 60, 60]
    assert failures.counts == {"the work": 8}
    assert failures.last == {"the work": "ValueError: odd"}
    assert log.lines[0] == "the work failed (1 times so far) and continues: ValueError: odd"
    assert [bool(trace) for trace in log.traces] == [True] + 7 * [False]


async def test_work_that_ran_long_enough_restarts_soon() -> None:
    """1.3.3."""
    clock, left = Clock(), 3

    async def work() -> None:
        nonlocal left
        left -= 1
        if left < 0:
            return
        clock.now += LONGEST_PAUSE + 1
        raise ValueError

    await keep_running("work", work, sleep=clock.sleep, clock=clock, log=Log(), failures=Failures())

    assert clock.slept == [1, 1, 1]


async def test_cancelling_the_work_ends_it() -> None:
    clock, failures = Clock(), Failures()

    async def work() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await keep_running("work", work, sleep=clock.sleep, clock=clock, log=Log(), failures=failures)
    assert not failures.counts


def test_a_long_error_is_remembered_in_short() -> None:
    failures = Failures()

    note_failure("work", ValueError("x" * 5000), Log(), failures)

    assert len(failures.last["work"]) == MAX_ERROR_LENGTH
