"""The agents of these tests: those of the HTTP API's tests, and one that writes slowly."""

import asyncio
import os
from pathlib import Path

from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.agents.drivers import OnText, ToolCallingDriver
from everstep.agent_domain.messages.cached_context import InferenceRequest
from everstep.agent_domain.state.steps import InferenceResponse
from everstep.agent_domain.testing import says
from tests.everstep.http_api.clerk import CHIEF, CLERK, OTHER

WORDS = 40
SECONDS = 2.5
MEGABYTE = 1_000_000


class WriterModel:
    """Repeats what it is asked, or writes numbered words: for some seconds, or until a file exists."""

    async def respond(self, request: InferenceRequest, on_text: OnText) -> InferenceResponse:
        last = request.messages[-1].text
        if last.startswith("say "):
            on_text(last.removeprefix("say "))
            return says(last.removeprefix("say "))
        if last == "a megabyte":
            # Of many paragraphs a browser makes as many elements, for many seconds.
            long = ("paragraph " * 99 + "\n\n") * (MEGABYTE // 992) + "the end"
            on_text(long)
            return says(long)
        flag = Path(last.removeprefix("until ")) if last.startswith("until ") else None
        words = list[str]()
        # The text of another attempt, after the loss of a process, begins with another id.
        by = f"By {os.getpid()}: " if flag else ""
        on_text(by)
        while not flag.exists() if flag else len(words) < WORDS:
            words.append(f"word{len(words)} ")
            on_text(words[-1])
            await asyncio.sleep(SECONDS / WORDS)
        return says(by + "".join(words))


WRITER = (
    DefinitionBuilder.new().with_name("writer", "Writes slowly").with_driver(ToolCallingDriver(WriterModel()))
)

agents = [CLERK, CHIEF, OTHER, WRITER]
