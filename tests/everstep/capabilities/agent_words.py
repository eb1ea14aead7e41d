"""Builders for agents with capabilities: a model that plays a script, run in this process."""

from collections.abc import Iterable
from typing import Any

from everstep.agent_domain.agents.builder import AgentCapability
from everstep.agent_domain.agents.drivers import Model, ToolCallingDriver
from everstep.agent_domain.messages.messages import Message
from everstep.agent_domain.state.state import AgentState
from everstep.agent_domain.state.steps import InferenceResponse
from everstep.agent_domain.testing import MockTool, ScriptedModel, calls
from everstep.agent_domain.tools.inquiry import ModelChoice
from everstep.local.local_agent import Agent
from everstep.runtime.builder import AgentBuilder

LOOK = MockTool.returning("look", "Looks around", "seen")
LOOKS = calls(("look", {}))


def builder_of(*capabilities: AgentCapability, max_steps: int = 20) -> AgentBuilder:
    """An agent with these capabilities and one more tool."""
    builder = AgentBuilder.base().with_max_steps(max_steps).with_tools([LOOK])
    for capability in capabilities:
        builder.with_capability(capability)
    return builder


def an_agent(model: Model, *capabilities: AgentCapability, max_steps: int = 20) -> Agent:
    """The same, with this model."""
    return builder_of(*capabilities, max_steps=max_steps).with_driver(ToolCallingDriver(model)).build()


async def run(
    *script: InferenceResponse | str | Exception, having: Iterable[AgentCapability], max_steps: int = 20
) -> tuple[AgentState, ScriptedModel]:
    """The state at the end of a run in which the model gives these responses, and the model."""
    model = ScriptedModel(*script)
    return await an_agent(model, *having, max_steps=max_steps).arun("Plan a trip"), model


def results(state: AgentState) -> list[str]:
    """The result of each call, in order, as the model read it."""
    return [execution.text for step in state.steps for execution in step.tool_executions]


def messages_of_request(model: ScriptedModel, turn: int) -> list[Message]:
    """The messages of one request."""
    return list(model.requests[turn].messages)


class Presets:
    """Models by preset name; settings are identified by the preset that they change."""

    def __init__(self, **models: Model) -> None:
        self.models = models
        self.wanted: list[ModelChoice] = []

    def __call__(self, choice: ModelChoice) -> Model:
        self.wanted.append(choice)
        name: Any = choice if choice is None or isinstance(choice, str) else choice.get("preset")
        return self.models[name or "default"]
