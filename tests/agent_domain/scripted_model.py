"""A model that replies from a script, and a runner for its agent in-process."""

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from itertools import count
from typing import Any
from uuid import UUID

from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.agents.drivers import OnText, StepDriver
from everstep.agent_domain.messages.cached_context import InferenceRequest
from everstep.agent_domain.state.state import AgentState
from everstep.agent_domain.state.steps import InferenceResponse
from everstep.agent_domain.tools.tools import Tool, ToolCall
from everstep.agent_domain.values import frozen_map
from everstep.local.runner import LocalRunner

AT = datetime(2026, 1, 16, 10, 5, tzinfo=UTC)
AGENT_ID = UUID(int=1)
EXECUTION_ID = UUID(int=2)


class StoppedClock:
    """A clock that never advances."""

    def now(self) -> datetime:
        return AT

    def seconds(self) -> float:
        return 0.0


class ScriptedModel:
    """Gives one reply after the other, and keeps the requests."""

    def __init__(self, *answers: InferenceResponse | str | Exception) -> None:
        self.answers = list(answers)
        self.requests: list[InferenceRequest] = []

    async def respond(self, request: InferenceRequest, on_text: OnText) -> InferenceResponse:
        self.requests.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        response = InferenceResponse(answer) if isinstance(answer, str) else answer
        if response.text:
            on_text(response.text)
        return response


def a_call(call_id: str = "c1", name: str = "weather", **args: Any) -> ToolCall:
    return ToolCall(call_id, name, frozen_map(args))


def calling(*calls: ToolCall, text: str = "") -> InferenceResponse:
    return InferenceResponse(text, calls)


def a_state_in_its_first_step(asked: str = "Hello") -> AgentState:
    state = AgentState.empty().with_messages(asked).identified(AGENT_ID, EXECUTION_ID)
    return state.with_step_started(AT)


def runner(
    driver: StepDriver, tools: Iterable[Tool] = (), build: Callable[[DefinitionBuilder], object] | None = None
) -> LocalRunner:
    """A runner for an agent with this driver and these tools, with a stopped clock."""
    builder = DefinitionBuilder.base().with_driver(driver).with_tools(tools)
    if build:
        build(builder)
    ids = count(1)
    return LocalRunner(builder.definition(), clock=StoppedClock(), new_id=lambda: UUID(int=next(ids)))


async def run(
    driver: StepDriver,
    tools: Iterable[Tool] = (),
    build: Callable[[DefinitionBuilder], object] | None = None,
    asked: str = "Hello",
) -> AgentState:
    return await runner(driver, tools, build).run(AgentState.empty().with_messages(asked))
