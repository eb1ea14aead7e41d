"""Builders for in-process runs: a clock that advances with work only, and a listener that records events."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any, TypeVar
from uuid import UUID

from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.agents.drivers import OnText, ToolCallingDriver
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.messages.cached_context import InferenceRequest
from everstep.agent_domain.messages.messages import MessageList, assistant
from everstep.agent_domain.state.events import ContinuationEvaluated, Event, StreamEventReceived
from everstep.agent_domain.state.state import AgentState
from everstep.agent_domain.state.steps import AgentStep, InferenceResponse
from everstep.agent_domain.testing import DeterministicAgentDriver, MockTool, ScenarioStep
from everstep.agent_domain.tools.tools import ToolCall
from everstep.local.runner import LocalRunner

T = TypeVar("T")
AT = datetime(2026, 1, 16, 10, 5, tzinfo=UTC)


class WorkClock:
    """Time advances when `works` is called, and at no other moment."""

    def __init__(self) -> None:
        self.elapsed = 0.0

    def now(self) -> datetime:
        return AT + timedelta(seconds=self.elapsed)

    def seconds(self) -> float:
        # Not from zero, so that only differences have a meaning.
        return 1000 + self.elapsed

    def advance(self, seconds: float) -> None:
        self.elapsed += seconds


class EventRecorder(list[Event]):
    """All events that a listener received."""

    @property
    def summary(self) -> list[str]:
        """Each event with the number or name that distinguishes it from others of its class."""
        return [_label_of(event) for event in self]

    def of(self, kind: type[T]) -> list[T]:
        """The events of one class."""
        return [event for event in self if isinstance(event, kind)]


def _label_of(event: Event) -> str:
    name = type(event).__name__
    match event:
        case StreamEventReceived():
            return f"{name} {'closed' if event.is_complete else event.content}"
        case ContinuationEvaluated():
            return str(event).split("] ")[1]
        case _:
            which = getattr(event, "step_number", None) or getattr(event, "tool_call_id", None)
            return f"{name} {which}" if which else name


def a_runner(
    driver: Any,
    build: Callable[[DefinitionBuilder], object] | None = None,
    *,
    clock: WorkClock | None = None,
    heard: EventRecorder | None = None,
    on_decision: Callable[[Any], object] | None = None,
) -> LocalRunner:
    """Runs an agent with this driver; ids count from 1."""
    builder = DefinitionBuilder.base().with_driver(driver)
    if build:
        build(builder)
    definition = builder.definition()
    if heard is not None:
        definition.events.wiretap(heard.append)
    ids = count(1)
    return LocalRunner(
        definition,
        clock=clock or WorkClock(),
        new_id=lambda: UUID(int=next(ids)),
        on_decision=on_decision,
    )


def a_conversation(text: str = "Hello") -> AgentState:
    """A conversation that begins with this message."""
    return AgentState.empty().with_messages(text)


def a_scripted_driver(*steps: ScenarioStep) -> DeterministicAgentDriver:
    """A driver with this script."""
    return DeterministicAgentDriver.from_steps(*steps)


class Script:
    """A model with a list of responses; the last one repeats. An exception in the list is raised."""

    def __init__(self, *acts: Callable[[], object] | InferenceResponse | Exception | str) -> None:
        self.acts = acts
        self.turn = 0

    async def respond(self, request: InferenceRequest, on_text: OnText) -> InferenceResponse:
        del request
        act = self.acts[min(self.turn, len(self.acts) - 1)]
        self.turn += 1
        result = act() if callable(act) else act
        if isinstance(result, Exception):
            raise result
        response = result if isinstance(result, InferenceResponse) else InferenceResponse(str(result))
        if response.text:
            on_text(response.text)
        return response


def a_model(*acts: Callable[[], object] | InferenceResponse | Exception | str) -> ToolCallingDriver:
    """A driver with a model that responds this way."""
    return ToolCallingDriver(Script(*acts))


def a_call_response(*named: str, text: str = "", **response: Any) -> InferenceResponse:
    """A response that calls these tools, with the ids c1, c2, ..."""
    made = tuple(ToolCall(f"c{index}", name) for index, name in enumerate(named, 1))
    return InferenceResponse(text, made, **response)


class OwnDriver:
    """A custom driver that runs a complete step."""

    def __init__(self, *acts: Callable[[AgentState], AgentState | None]) -> None:
        self.acts = list(acts)

    async def use_tools(self, state: AgentState) -> Any:
        return self.acts.pop(0)(state)


def step_with_text(text: str, **fields: Any) -> Callable[[AgentState], AgentState]:
    """A step with text, as a custom driver builds it."""

    def act(state: AgentState) -> AgentState:
        step = AgentStep(
            id=state.new_step_id(),
            created_at=AT,
            input_messages=state.messages,
            output_messages=MessageList([assistant(text)]),
            **fields,
        )
        return state.with_current_step(step)

    return act


async def within_timeout(work: Coroutine[Any, Any, T] | Awaitable[T]) -> T:
    """The result, or a failing test instead of a hanging one."""
    async with asyncio.timeout(5):
        return await work


Build = Callable[[DefinitionBuilder], object]


FINAL = ScenarioStep.final


LOOK = MockTool.returning("look", "Looks", "seen")


def look_then_answer(usage: Usage | None = None) -> Any:
    return a_scripted_driver(ScenarioStep.tool_call("look", response="I look", usage=usage), FINAL("Done"))


def with_look(builder: DefinitionBuilder) -> object:
    return builder.with_tools([LOOK])


def outcomes_of(state: AgentState) -> list[str | None]:
    return [record.outcome and record.outcome.decision.value for record in state.execution.step_executions]


def boom(*_args: object) -> Any:
    raise ValueError("boom")
