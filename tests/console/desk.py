"""The agents of these tests: those of the HTTP API's tests, and one that writes slowly."""

import asyncio

from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.agents.drivers import OnText, ToolCallingDriver
from everstep.agent_domain.messages.cached_context import InferenceRequest
from everstep.agent_domain.state.steps import InferenceResponse
from everstep.agent_domain.testing import says
from tests.everstep.http_api.clerk import CHIEF, CLERK, OTHER

WORDS = 40
SECONDS = 4.0


class WriterModel:
    """Repeats what it is asked, or writes numbered words for some seconds."""

    async def respond(self, request: InferenceRequest, on_text: OnText) -> InferenceResponse:
        last = request.messages[-1].text
        if last.startswith("say "):
            on_text(last.removeprefix("say "))
            return says(last.removeprefix("say "))
        words = [f"word{number} " for number in range(WORDS)]
        for word in words:
            on_text(word)
            await asyncio.sleep(SECONDS / WORDS)
        return says("".join(words))


WRITER = (
    DefinitionBuilder.new().with_name("writer", "Writes slowly").with_driver(ToolCallingDriver(WriterModel()))
)

agents = [CLERK, CHIEF, OTHER, WRITER]
