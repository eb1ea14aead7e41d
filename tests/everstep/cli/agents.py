"""The agents of these tests: commands start them by name, and a worker in the tests' process runs them."""

import asyncio
from typing import Any

from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.agents.drivers import OnText, ToolCallingDriver
from everstep.agent_domain.agents.registry import AgentSpecRegistry
from everstep.agent_domain.agents.spec import AgentSpec
from everstep.agent_domain.messages.cached_context import InferenceRequest
from everstep.agent_domain.state.steps import InferenceResponse
from everstep.agent_domain.testing import says
from everstep.agent_domain.tools.function_tool import tool
from everstep.capabilities.subagents import UseSubagents
from everstep.capabilities.user_input import UseUserInput
from everstep.inference.scripted import Scenario, ScenarioModel, Script, ScriptedCall, ScriptedTurn


@tool
async def transfer(euros: int) -> str:
    """Transfer money."""
    return f"transferred {euros}"


@tool
async def shout() -> str:
    """Tries to clear the screen."""
    return "\x1b[2Jboo"


def _calls(name: str, **args: Any) -> tuple[ScriptedTurn, ...]:
    call = ScriptedCall(name=name, args=args)
    return ScriptedTurn(text="Let me see.", calls=(call,)), ScriptedTurn(text="It is done.")


HOSTILE = "\x1b[2J\x9b1A\rfine\u202eenif\u2066\u200b\ufeff\u2028\U000e0041"
"""Text that would clear the screen, and be displayed in another order."""

FORM = {"type": "object", "properties": {"day": {"type": "string"}}, "required": ["day"]}

AIDE = AgentSpec("aide", "Does one thing", "You are an aide.")

SCRIPT = Script(
    scenarios=(
        Scenario(when="delegate", turns=_calls("spawn_subagent", subagent="aide", prompt="choose, then pay")),
        Scenario(
            when="choose, then pay",
            turns=(
                *_calls("user_input", prompt="Which floor?", choices=["high", "low"])[:1],
                *_calls("transfer", euros=80),
            ),
        ),
        Scenario(when="choose", turns=_calls("user_input", prompt="Which floor?", choices=["high", "low"])),
        Scenario(when="fill in", turns=_calls("user_input", prompt="Which day?", schema=FORM)),
        Scenario(when="pay", turns=_calls("transfer", euros=80)),
        Scenario(when="shout", turns=_calls("shout")),
        Scenario(
            when="hostile",
            turns=(
                ScriptedTurn(
                    text=HOSTILE,
                    calls=(
                        ScriptedCall(
                            name="user_input",
                            args={"prompt": f"Which {HOSTILE}?", "choices": [HOSTILE, "low"]},
                        ),
                        ScriptedCall(name="shout"),
                    ),
                ),
                ScriptedTurn(text=f"Done {HOSTILE}"),
            ),
        ),
        Scenario(when="hello", turns=(ScriptedTurn(text="Hello!"),)),
    )
)


class HesitantModel:
    """Streams a part of its answer, and continues when the test releases it."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.heard: list[str] = []

    async def respond(self, request: InferenceRequest, on_text: OnText) -> InferenceResponse:
        self.heard = [message.text for message in request.messages]
        if request.messages[-1].text == "Never mind":
            return says("Fine.")
        if request.messages[-1].text == "Say nothing yet":
            await self.go_on.wait()
            return says("Here I am.")
        on_text("Let me think")
        await self.go_on.wait()
        on_text(" about it.")
        return says("Let me think about it.")


class BrokenModel:
    """Always raises."""

    async def respond(self, request: InferenceRequest, on_text: OnText) -> InferenceResponse:
        raise ValueError("The model is on strike")


hesitant = HesitantModel()

agents = [
    DefinitionBuilder.base()
    .with_name("clerk", "Does what it is told")
    .with_tools([transfer, shout])
    .with_approval("transfer", "always")
    .with_capability(UseUserInput())
    .with_capability(UseSubagents(AgentSpecRegistry([AIDE])))
    .with_driver(ToolCallingDriver(ScenarioModel(SCRIPT))),
    DefinitionBuilder.base()
    .with_name("hesitant", "Takes its time")
    .with_timeout(3600)
    .with_driver(ToolCallingDriver(hesitant)),
    DefinitionBuilder.base().with_name("broken", "Fails").with_driver(ToolCallingDriver(BrokenModel())),
]
