"""The writer of text for the gateway's bench: a model that types, in a worker process of its own."""

import asyncio
import multiprocessing
import random
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.agents.definition import AgentDefinition
from everstep.agent_domain.agents.drivers import OnText, ToolCallingDriver
from everstep.agent_domain.messages.cached_context import InferenceRequest
from everstep.agent_domain.state.steps import InferenceResponse
from everstep.agent_domain.testing import says
from everstep.runtime.agents import AgentBook
from everstep.runtime.installation import open_installation
from everstep.runtime.settings import Settings
from everstep.runtime.worker import make_worker

EVERY: Final = 0.05
"""Seconds between two words of a model."""
TYPIST: Final = "typist"


@dataclass(frozen=True)
class Typist:
    """A model whose every word contains the time of its writing. All begin once the file exists."""

    words: int
    go: Path

    async def respond(self, request: InferenceRequest, on_text: OnText) -> InferenceResponse:
        """Send one word after the other."""
        del request
        while not self.go.exists():  # noqa: ASYNC110 -- another process makes it
            await asyncio.sleep(0.1)
        await asyncio.sleep(random.uniform(0, EVERY))  # noqa: S311 -- not all in the same moment
        for number in range(1, self.words + 1):
            await asyncio.sleep(EVERY)
            on_text(f"#{number:010}{time.monotonic_ns():019} ")
        # The stored answer is published as well, and has no marks.
        return says("Typed.")


def typing(model: Typist) -> AgentDefinition:
    """The worker's only agent."""
    return DefinitionBuilder.base().with_name(TYPIST).with_driver(ToolCallingDriver(model)).definition()


async def work(settings: Settings, model: Typist) -> None:
    """Run a worker, linked to the gateway, as long as the bench takes."""
    async with open_installation(settings, is_linked=True) as installation:
        book = AgentBook([typing(model)], installation.models)
        async with make_worker(
            installation.temporal, installation.store, book, settings, bus=installation.bus
        ):
            await asyncio.Event().wait()


def work_in_process(settings: Settings, model: Typist) -> None:
    """The worker process."""
    asyncio.run(work(settings, model))


@asynccontextmanager
async def working(settings: Settings, model: Typist) -> AsyncGenerator[None]:
    """Run a worker in its own process."""
    started = multiprocessing.get_context("spawn").Process(
        target=work_in_process, args=(settings, model), daemon=True
    )
    started.start()
    try:
        yield
    finally:
        started.terminate()
        await asyncio.to_thread(started.join)
