"""The agents of `bench/fairness.py`: one answers at once, one only long after its first piece of text."""

import asyncio
import time
from multiprocessing.connection import Connection
from typing import Final

from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.agents.definition import AgentDefinition
from everstep.agent_domain.agents.drivers import OnText, ToolCallingDriver
from everstep.agent_domain.messages.cached_context import InferenceRequest
from everstep.agent_domain.state.steps import InferenceResponse

SLOW, QUICK = "slow", "quick"
SLOW_SECONDS: Final = 600.0


class TimedModel:
    """Answers at once or slowly; sends the time of each first piece to the measuring process."""

    name = "timed"

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.pipe: Connection | None = None

    async def respond(self, request: InferenceRequest, on_text: OnText) -> InferenceResponse:
        """Send the first piece at once, and the answer after the pause."""
        on_text("Well")
        if self.pipe:
            self.pipe.send((request.messages[-1].text, time.monotonic()))
        await asyncio.sleep(self.seconds)
        return InferenceResponse("Well.")


MODELS: Final = {SLOW: TimedModel(SLOW_SECONDS), QUICK: TimedModel(0)}


def _timed_agent(name: str) -> AgentDefinition:
    """An agent that answers in one step."""
    return (
        DefinitionBuilder.base()
        .with_name(name, "Answers")
        .with_driver(ToolCallingDriver(MODELS[name]))
        .definition()
    )


AGENTS: Final = tuple(_timed_agent(name) for name in MODELS)
