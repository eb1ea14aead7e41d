"""Heartbeats to the Temporal server while an activity waits."""

import asyncio
from contextlib import AbstractContextManager, nullcontext

from temporalio import activity

HEARTBEAT_SECONDS = 0.25
"""A cancel reaches an activity with its next heartbeat."""
SLOWEST_SECONDS = 5.0
"""Half of the timeout after which Temporal takes a worker for lost."""
HEARTBEATS_PER_SECOND = 50
"""Each heartbeat is a write of the Temporal server, of about a millisecond: a thousand activities with the
usual pause would keep it from dispatching tasks. So heartbeats become rarer if a process runs more than a
dozen activities, and a cancel reaches a tool later. It does not wait for them while a model streams: see
`text_checkpoints`.
"""

_beating = 0
"""The activities of this process that send heartbeats."""


def heartbeat_pause(activities: int) -> float:
    """Return the seconds between two heartbeats of each of so many activities."""
    return min(SLOWEST_SECONDS, max(HEARTBEAT_SECONDS, activities / HEARTBEATS_PER_SECOND))


def heartbeat() -> AbstractContextManager[None]:
    """Send heartbeats while the body runs, except in local activities, which need none.

    The first one is delayed: most activities complete before it, and it would cost a call to the server. A
    timer is cheap compared with a task.
    """
    return nullcontext() if activity.info().is_local else _Heartbeat()


class _Heartbeat:
    """A thousand of them wait at once: a class with slots takes a fifth of the memory of a generator."""

    __slots__ = ("_timer",)

    def __enter__(self) -> None:
        global _beating  # noqa: PLW0603 -- the load of this process
        _beating += 1
        self._timer = asyncio.get_running_loop().call_later(heartbeat_pause(_beating), self._beat)

    def __exit__(self, *_error: object) -> None:
        global _beating  # noqa: PLW0603 -- see above
        _beating -= 1
        self._timer.cancel()

    def _beat(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(heartbeat_pause(_beating), self._beat)
        activity.heartbeat()
