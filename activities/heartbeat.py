"""Keeps the server informed that an activity lives, whatever it waits for."""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager

from temporalio import activity

HEARTBEAT_SECONDS = 0.25
"""A cancel reaches an activity with its next heartbeat."""


@contextmanager
def pulse() -> Generator[None]:
    """Heartbeats while the body runs; local activities have none and need none.

    Not at once: most activities are over before their first one, which would be a call to the server. A timer
    costs next to nothing, unlike a task.
    """
    if activity.info().is_local:
        yield
        return
    loop = asyncio.get_running_loop()

    def beat() -> None:
        nonlocal timer
        timer = loop.call_later(HEARTBEAT_SECONDS, beat)
        activity.heartbeat()

    timer = loop.call_later(HEARTBEAT_SECONDS, beat)
    try:
        yield
    finally:
        timer.cancel()
