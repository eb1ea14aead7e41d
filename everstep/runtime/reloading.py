"""Replaces the process of the agents when their files change."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Protocol

from everstep.agent_domain.errors import EverstepError, InvalidInput
from everstep.runtime.agent_process import AgentReport

NAMED_FILES = 3
"""How many changed files a message names."""


class RunningProcess(Protocol):
    """A process of agents."""

    @property
    def report(self) -> AgentReport:
        """What it says of itself."""
        ...

    async def wait(self) -> str:
        """Wait for its end; return how it ended."""
        ...

    async def stop(self) -> None:
        """Stop it; its running calls may finish."""
        ...


class Reloader:
    """Keeps one process of agents running, and replaces it after each change of files."""

    def __init__(
        self,
        current: RunningProcess,
        launch: Callable[[], Awaitable[RunningProcess]],
        changes: AsyncIterator[tuple[Path, ...]],
        say: Callable[[str], object],
    ) -> None:
        """Keep a process running.

        Args:
            current: The first process.
            launch: Starts another one; raises if its agents cannot be loaded.
            changes: The changed files, change by change.
            say: Shows a line to the user.
        """
        self.current = current
        self._launch = launch
        self._changes = changes
        self._say = say
        self._replaced: set[asyncio.Task[None]] = set()

    async def run(self, stop: asyncio.Event) -> None:
        """Replace the process after each change, until the stop event; then stop all processes.

        Raises:
            InvalidInput: The process ended by itself.
        """
        reloading, stopped = asyncio.create_task(self._reload_on_changes()), asyncio.create_task(stop.wait())
        try:
            await asyncio.wait((reloading, stopped), return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()
            reloading.cancel()
            await asyncio.gather(reloading, stopped, return_exceptions=True)
            await asyncio.gather(self.current.stop(), *self._replaced)
        if not reloading.cancelled():
            reloading.result()

    async def _reload_on_changes(self) -> None:
        while True:
            end = asyncio.create_task(self.current.wait())
            change = asyncio.create_task(self._next_change())
            try:
                await asyncio.wait((end, change), return_when=asyncio.FIRST_COMPLETED)
                if end.done():
                    raise InvalidInput(f"the process of the agents {end.result()}; its last lines are above")
            finally:
                end.cancel()
                change.cancel()
                await asyncio.gather(end, change, return_exceptions=True)
            await self._reload(change.result())

    async def _next_change(self) -> tuple[Path, ...]:
        return await anext(self._changes)

    async def _reload(self, changed: tuple[Path, ...]) -> None:
        more = f" and {len(changed) - NAMED_FILES} more" if len(changed) > NAMED_FILES else ""
        names = ", ".join(path.name for path in changed[:NAMED_FILES])
        self._say(f"changed: {names}{more}; loading the agents again ...")
        try:
            launched = await self._launch()
        except (EverstepError, OSError) as error:
            self._say(f"not reloaded: {error}\nThe agents from before the change continue.")
            return
        replaced, self.current = self.current, launched
        stopping = asyncio.create_task(replaced.stop())
        self._replaced.add(stopping)
        stopping.add_done_callback(self._replaced.discard)
        self._say(f"reloaded: {', '.join(launched.report.agents)}")
