"""The actions of people in a replay: each runs until it is done, or until it waits for a workflow."""

import asyncio
from collections.abc import Awaitable
from typing import Any


class Actions:
    """Runs actions; those that wait for a workflow continue when it does."""

    def __init__(self) -> None:
        self._blocked = asyncio.Event()
        self._running = set[asyncio.Future[Any]]()

    async def run(self, action: Awaitable[Any]) -> None:
        """Run an action until it is done, or waits for a workflow."""
        self._blocked.clear()
        task, blocked = asyncio.ensure_future(action), asyncio.ensure_future(self._blocked.wait())
        self._running.add(task)
        try:
            await asyncio.wait({task, blocked}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            blocked.cancel()
        self.require_success()

    def on_wait(self) -> None:
        """The running action waits for a workflow."""
        self._blocked.set()

    def require_success(self) -> None:
        """Raise the error of an action that has failed, and forget those that are done."""
        done = {action for action in self._running if action.done()}
        self._running -= done
        for action in done:
            if not action.cancelled():
                action.result()

    async def aclose(self) -> None:
        """End the actions that still wait."""
        for action in self._running:
            action.cancel()
        if self._running:
            await asyncio.wait(self._running)
        self.require_success()
