"""Heartbeats to the Temporal server while an activity waits."""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager

from temporalio import activity

HEARTBEAT_SECONDS = 0.25
"""A cancel reaches an activity with its next heartbeat."""


@contextmanager
def heartbeat() -> Generator[None]:
    """Send heartbeats while the body runs, except in local activities, which need none.

    The first one is delayed: most activities complete before it, and it would cost a call to the server. A
    timer is cheap compared with a task.
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
