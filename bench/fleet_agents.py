"""The agents of the fleet's bench, which `everstep worker` loads, and the number of words that each types.

The message says how many words: `Type 900 words.` Each word is a mark: its number, and the time at which it
was written.
"""

import asyncio
import re
import time
from typing import Final

from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.agents.definition import AgentDefinition
from everstep.agent_domain.agents.drivers import OnText, ToolCallingDriver
from everstep.agent_domain.loop.step_facts import CallNeed
from everstep.agent_domain.messages.cached_context import InferenceRequest
from everstep.agent_domain.state.steps import InferenceResponse
from everstep.agent_domain.testing import says
from everstep.agent_domain.tools.function_tool import tool
from everstep.agent_domain.tools.tools import ToolOptions
from everstep.inference.scripted import ScenarioModel, Script, ScriptedCall, ScriptedTurn

EVERY: Final = 0.05
"""Seconds between two words."""
TYPIST, WRITER, ASKER = "typist", "writer", "asker"


def words_in(text: str) -> int:
    """The number of words that a message asks for."""
    found = re.search(r"Type (\d+) words", text)
    return int(found[1]) if found else 1


def mark(number: int) -> str:
    """A word."""
    return f"#{number:010}{time.monotonic_ns():019} "


class TypingModel:
    """A model in the worker's process, without a connection."""

    async def respond(self, request: InferenceRequest, on_text: OnText) -> InferenceResponse:
        """Send one word after the other, each at its time."""
        clock = asyncio.get_running_loop().time
        due = clock()
        for number in range(1, words_in(request.messages[-1].text) + 1):
            on_text(mark(number))
            due += EVERY
            await asyncio.sleep(due - clock())
        # The stored answer is published as well, and has no marks.
        return says("Typed.")


@tool(options=ToolOptions(need=CallNeed.APPROVAL))
async def publish(title: str) -> str:
    """Publish an article."""
    return f"published {title}"


def asking_agent() -> AgentDefinition:
    """An agent that waits for a person."""
    script = Script.of(
        ScriptedTurn(calls=(ScriptedCall(name="publish", args={"title": "News"}),)),
        ScriptedTurn(text="Published."),
    )
    builder = DefinitionBuilder.base().with_name(ASKER, "Publishes").with_tools([publish])
    return builder.with_driver(ToolCallingDriver(ScenarioModel(script))).definition()


AGENTS: Final = [
    DefinitionBuilder.base()
    .with_name(TYPIST, "Types")
    .with_driver(ToolCallingDriver(TypingModel()))
    .definition(),
    # Its model is the default preset's, behind HTTP: bench/typing_server.py.
    DefinitionBuilder.base().with_name(WRITER, "Types").definition(),
    asking_agent(),
]
