"""A server as a managed child process: started until it answers, stopped, killed, and watched."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from signal import Signals
from typing import ClassVar, Final

from everstep.runtime.embedded.child import Child, ChildExit, exit_text, log_tail
from everstep.runtime.embedded.config import EmbeddedConfig
from everstep.runtime.embedded.errors import EmbeddedError, ServiceFailed

INTERVAL: Final = 0.02
"""Seconds between two connection attempts during a start; refused ones are cheap."""


class Service(ABC):
    """The common parts of PostgreSQL and Temporal.

    A start after a stop, a kill or a death uses the same files, ports and addresses. All calls belong to the
    event loop of the first one.
    """

    name: ClassVar[str]
    stop_signal: ClassVar[Signals]
    orphan_signal: ClassVar[Signals]
    """The signal that it gets when this process dies without stopping it."""

    def __init__(self, config: EmbeddedConfig, on_death: Callable[[ChildExit], object]) -> None:
        self.config = config
        self.log: Path = config.logs / f"{self.name}.log"
        self._on_death = on_death
        self._child: Child | None = None
        self._watch: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """The server's process id, while it runs."""
        return self._child.pid if self._child else None

    async def start(self) -> None:
        """Start the server and wait until it answers.

        Raises:
            ServiceFailed: It did not answer in time, or it ended.
        """
        if self._child:
            raise EmbeddedError(f"{self.name} runs already, as process {self._child.pid}")
        child: Child | None = None
        try:
            async with asyncio.timeout(self.config.start_timeout):
                await self._prepare()
                child = await self._launch()
                await self._until_it_answers(child)
        except BaseException as error:
            if child:
                await child.kill()
                await self._clean_up()
            if isinstance(error, TimeoutError):
                raise self._failure(f"did not answer within {self.config.start_timeout:g} seconds") from None
            raise
        self._child = child
        self._watch = asyncio.create_task(self._report_death(child))

    async def stop(self) -> None:
        """Ask the server to stop, and kill it if it takes too long; do nothing if it does not run."""
        if child := self._release_child():
            await child.stop(self.stop_signal, self.config.stop_timeout)
            await self._after_exit()

    async def kill(self) -> None:
        """Kill the server, as in a crash; do nothing if it does not run."""
        if child := self._release_child():
            await child.kill()
            await self._after_exit()

    # Hooks of the subclasses.

    async def _prepare(self) -> None:  # noqa: B027 -- not every service needs preparation
        """Create the files that the server needs before it starts."""

    @abstractmethod
    async def _launch(self) -> Child:
        """Start the process."""

    @abstractmethod
    async def _answers(self) -> bool:
        """Return whether the server serves requests."""

    async def _clean_up(self) -> None:  # noqa: B027 -- not every service leaves files
        """Remove files that the ended process may have left."""

    # The common life cycle.

    async def _until_it_answers(self, child: Child) -> None:
        ended_first = asyncio.create_task(child.wait())
        answers = asyncio.create_task(self._ask_until_it_answers())
        try:
            await asyncio.wait({ended_first, answers}, return_when=asyncio.FIRST_COMPLETED)
            # Checked first: if the child has ended, another program answers, on a port that the child did not
            # get.
            if ended_first.done():
                raise self._failure(f"did not start: it {exit_text(ended_first.result())}")
            await answers
        finally:
            ended_first.cancel()
            answers.cancel()
            await asyncio.gather(ended_first, answers, return_exceptions=True)

    async def _ask_until_it_answers(self) -> None:
        # There is no event for readiness, so it is polled.
        while not await self._answers():  # noqa: ASYNC110
            await asyncio.sleep(INTERVAL)

    def _failure(self, reason: str) -> ServiceFailed:
        return ServiceFailed(self.name, reason, self.log, log_tail(self.log))

    async def _report_death(self, child: Child) -> None:
        code = await child.wait()
        # Unless `stop` or `kill` has ended it.
        if self._child is child:
            self._child = None
            self._on_death(ChildExit(self.name, child.pid, code, child.log, child.log_tail()))

    def _release_child(self) -> Child | None:
        child, self._child = self._child, None
        return child

    async def _after_exit(self) -> None:
        if self._watch:
            await self._watch
        await self._clean_up()
