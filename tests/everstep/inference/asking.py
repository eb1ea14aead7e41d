"""Builders for requests."""

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from everstep.agent_domain.agents.drivers import Model, ToolCallingDriver
from everstep.agent_domain.messages.cached_context import CachedContext, InferenceRequest
from everstep.agent_domain.messages.messages import Message, Messages, as_messages
from everstep.agent_domain.state.steps import AgentStep, InferenceResponse
from everstep.agent_domain.testing import MockTool, ScriptedModel
from everstep.agent_domain.tools.tools import Toolbox, ToolExecution
from everstep.agent_domain.values import frozen_map

AT = datetime(2026, 1, 16, 10, 5, tzinfo=UTC)

WEATHER_SCHEMA = frozen_map(
    {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
)
WEATHER = MockTool("weather", "Tells the weather", schema=WEATHER_SCHEMA)
CLOCK = MockTool("clock", "Tells the time")


def a_request(
    *messages: str | Message,
    system: str | None = None,
    tools: tuple[MockTool, ...] = (),
    parallel_tools: bool = True,
    **cached: Any,
) -> InferenceRequest:
    """A request with these messages; the rest is in the cached context."""
    context = CachedContext(tools=Toolbox.of(tools).schemas, **cached)
    context = context.with_system_prompt(system) if system else context
    return InferenceRequest.compile(as_messages(messages), context, parallel_tools=parallel_tools)


def with_results(response: InferenceResponse, *results: Any) -> Messages:
    """The messages that the conversation stores of a response: the response, and a result for each call."""
    executions = tuple(map(ToolExecution, response.tool_calls, results))
    step = AgentStep(UUID(int=1), AT, inference_response=response, tool_executions=executions)
    return ToolCallingDriver(ScriptedModel()).outputs(step)


class ChunkRecorder(list[str]):
    """Records the chunks of a response."""

    def __call__(self, text: str) -> None:
        self.append(text)

    @property
    def text(self) -> str:
        return "".join(self)


async def ask(model: Model, *messages: str | Message, **request: Any) -> InferenceResponse:
    """The response, without a listener."""
    return await model.respond(a_request(*messages, **request), ChunkRecorder())
