"""A server as a managed child: started until it answers, stopped, killed, and missed when it dies."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from signal import Signals
from typing import ClassVar, Final

from everstep.runtime.embedded.child import Child, Death, ended, log_tail
from everstep.runtime.embedded.config import EmbeddedConfig
from everstep.runtime.embedded.errors import EmbeddedError, ServiceFailed

INTERVAL: Final = 0.02
"""Seconds between two questions whether a server answers; refusals cost next to nothing."""


class Service(ABC):
    """What PostgreSQL and Temporal have in common.

    A start after a stop, a kill or a death uses the same files, ports and addresses. All calls
    belong to the event loop that made the first.
    """

    name: ClassVar[str]
    stop_signal: ClassVar[Signals]
    orphan_signal: ClassVar[Signals]
    """What it gets when our process dies without having stopped it."""

    def __init__(self, config: EmbeddedConfig, on_death: Callable[[Death], object]) -> None:
        self.config = config
        self.log: Path = config.logs / f"{self.name}.log"
        self._on_death = on_death
        self._child: Child | None = None
        self._watch: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """The server's process, while it runs."""
        return self._child.pid if self._child else None

    async def start(self) -> None:
        """Start the server and wait until it answers; `ServiceFailed` when it does not."""
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
                raise self._failed(f"did not answer within {self.config.start_timeout:g} seconds") from None
            raise
        self._child = child
        self._watch = asyncio.create_task(self._report_death(child))

    async def stop(self) -> None:
        """Ask the server to stop, and kill it when it takes too long; nothing when it does not run."""
        if child := self._let_go():
            await child.stop(self.stop_signal, self.config.stop_timeout)
            await self._gone()

    async def kill(self) -> None:
        """End the server as a crash would; nothing when it does not run."""
        if child := self._let_go():
            await child.kill()
            await self._gone()

    # What differs.

    async def _prepare(self) -> None:  # noqa: B027 -- not every service needs anything
        """Make what the server needs before it can start."""

    @abstractmethod
    async def _launch(self) -> Child:
        """Start the process."""

    @abstractmethod
    async def _answers(self) -> bool:
        """Whether the server does what it is there for."""

    async def _clean_up(self) -> None:  # noqa: B027 -- not every service leaves anything
        """Remove what the process may have left when it ended."""

    # What does not.

    async def _until_it_answers(self, child: Child) -> None:
        ended_first = asyncio.create_task(child.wait())
        answers = asyncio.create_task(self._ask_until_it_answers())
        try:
            await asyncio.wait({ended_first, answers}, return_when=asyncio.FIRST_COMPLETED)
            # Looked at first: whoever answers then is somebody else, on a port that we did not get.
            if ended_first.done():
                raise self._failed(f"did not start: it {ended(ended_first.result())}")
            await answers
        finally:
            ended_first.cancel()
            answers.cancel()
            await asyncio.gather(ended_first, answers, return_exceptions=True)

    async def _ask_until_it_answers(self) -> None:
        # Nobody tells when it is ready; one has to ask.
        while not await self._answers():  # noqa: ASYNC110
            await asyncio.sleep(INTERVAL)

    def _failed(self, reason: str) -> ServiceFailed:
        return ServiceFailed(self.name, reason, self.log, log_tail(self.log))

    async def _report_death(self, child: Child) -> None:
        code = await child.wait()
        # Unless it was us who ended it.
        if self._child is child:
            self._child = None
            self._on_death(Death(self.name, child.pid, code, child.log, child.log_tail()))

    def _let_go(self) -> Child | None:
        child, self._child = self._child, None
        return child

    async def _gone(self) -> None:
        if self._watch:
            await self._watch
        await self._clean_up()
