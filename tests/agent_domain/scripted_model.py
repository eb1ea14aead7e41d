"""A model that answers from a script, and what it takes to run an agent on it in-process."""

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from itertools import count
from typing import Any
from uuid import UUID

from everstep.agent_domain.agents.builder import AgentBuilder
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
    """It is always the same moment."""

    def now(self) -> datetime:
        return AT

    def seconds(self) -> float:
        return 0.0


class ScriptedModel:
    """Gives one answer after the other, and keeps what it was asked."""

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
    """A call with these arguments."""
    return ToolCall(call_id, name, frozen_map(args))


def calling(*calls: ToolCall, text: str = "") -> InferenceResponse:
    """A response that calls tools."""
    return InferenceResponse(text, calls)


def begun(asked: str = "Hello") -> AgentState:
    """A conversation whose first step has begun."""
    state = AgentState.empty().with_messages(asked).identified(AGENT_ID, EXECUTION_ID)
    return state.with_step_started(AT)


def runner(
    driver: StepDriver, tools: Iterable[Tool] = (), build: Callable[[AgentBuilder], object] | None = None
) -> LocalRunner:
    """Runs an agent with this driver and these tools, where the clock stands still."""
    builder = AgentBuilder.base().with_driver(driver).with_tools(tools)
    if build:
        build(builder)
    ids = count(1)
    return LocalRunner(builder.definition(), clock=StoppedClock(), new_id=lambda: UUID(int=next(ids)))


async def run(
    driver: StepDriver,
    tools: Iterable[Tool] = (),
    build: Callable[[AgentBuilder], object] | None = None,
    asked: str = "Hello",
) -> AgentState:
    """A whole run that begins with one user message."""
    return await runner(driver, tools, build).run(AgentState.empty().with_messages(asked))
