"""Agents that run in this process."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, Generic, Self, TypeAlias, TypeVar, cast

from everstep.agent_domain.agents.contracts import AgentDescriptor
from everstep.agent_domain.agents.definition import AgentDefinition
from everstep.agent_domain.agents.drivers import Model
from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.loop.loop import Decision
from everstep.agent_domain.loop.run_context import RunContext
from everstep.agent_domain.messages.messages import Message, user
from everstep.agent_domain.messages.response_format import OutputT_co
from everstep.agent_domain.state.events import E, Event, EventBus, Listener
from everstep.agent_domain.state.state import AgentState
from everstep.agent_domain.tools.inquiry import ModelChoice
from everstep.agent_domain.tools.resources import Resource, Resources, as_resources
from everstep.local.clock import Clock
from everstep.local.runner import LocalRunner

T = TypeVar("T")

GivenResources: TypeAlias = Resources | Mapping[Resource[Any], object] | Mapping[type[Any], object]
"""Objects by the key or the type under which tools find them."""


class Agent(Generic[OutputT_co]):
    """A built agent. Its methods block; inside an event loop use the methods that start with `a`.

    Text or a message can be passed in place of a state and begins a new conversation. `context` names the
    user and the request: tools read them in their `ToolContext`, hooks in `state.execution.run`. `resources`
    are objects, by key or by type, that replace what the agent's `@resource` functions make; a run starts the
    others, and stops them at its end. A state keeps both.
    """

    def __init__(
        self,
        definition: AgentDefinition,
        *,
        clock: Clock | None = None,
        on_decision: Callable[[Decision], object] | None = None,
        models: Callable[[ModelChoice], Model] | None = None,
    ) -> None:
        self.definition = definition
        self._bus = definition.events
        self._listeners = EventBus()
        self._options: dict[str, Any] = {"clock": clock, "on_decision": on_decision, "models": models}

    def __repr__(self) -> str:
        descriptor = self.descriptor()
        tools = ", ".join(descriptor.tools) or "none"
        return f"<{type(self).__name__} '{descriptor.name}': {descriptor.description}; tools {tools}>"

    @cached_property
    def runner(self) -> LocalRunner:
        """The runner of this agent."""
        return LocalRunner(self.definition, events=EventBus([self._emit]), **self._options)

    def _emit(self, event: Event) -> None:
        """Emit to the agent's own bus first, which may be shared, then to the listeners added here."""
        self._bus.emit(event)
        self._listeners.emit(event)

    def descriptor(self) -> AgentDescriptor:
        """Return the description of the agent that other agents and users see."""
        return self.definition.descriptor

    def build(self) -> Self:
        """Return the agent itself, which is built already."""
        return self

    # Blocking methods.

    def run(
        self,
        state: AgentState | Message | str,
        *,
        context: RunContext | None = None,
        resources: GivenResources | None = None,
    ) -> AgentState[OutputT_co]:
        """Run steps until a decision stops the run; the returned state has its final status."""
        return _run_blocking(self.arun(as_state(state, context, resources)), "run")

    def final_step(
        self,
        state: AgentState | Message | str,
        *,
        context: RunContext | None = None,
        resources: GivenResources | None = None,
    ) -> AgentState[OutputT_co]:
        """Return the state after the last step; the same as `run`."""
        return self.run(as_state(state, context, resources))

    def next_step(
        self,
        state: AgentState | Message | str,
        *,
        context: RunContext | None = None,
        resources: GivenResources | None = None,
    ) -> AgentState[OutputT_co]:
        """Run one more step; returns the state unchanged if the run has ended."""
        return _run_blocking(self.anext_step(as_state(state, context, resources)), "next_step")

    def has_next_step(self, state: AgentState | Message | str) -> bool:
        """Whether the agent would run another step."""
        return self.runner.has_next_step(as_state(state))

    def iterator(
        self,
        state: AgentState | Message | str,
        *,
        context: RunContext | None = None,
        resources: GivenResources | None = None,
    ) -> Generator[AgentState[OutputT_co], None, None]:
        """Yield the state after each step. `close()` stops the run early, as does dropping the iterator."""
        _require_no_loop("iterator")
        return _iterate_blocking(self.aiterator(as_state(state, context, resources)))

    # Methods for coroutines.

    async def arun(
        self,
        state: AgentState | Message | str,
        *,
        context: RunContext | None = None,
        resources: GivenResources | None = None,
    ) -> AgentState[OutputT_co]:
        """Like `run`, for coroutines."""
        return await self.runner.run(as_state(state, context, resources))

    async def afinal_step(
        self,
        state: AgentState | Message | str,
        *,
        context: RunContext | None = None,
        resources: GivenResources | None = None,
    ) -> AgentState[OutputT_co]:
        """Like `final_step`, for coroutines."""
        return await self.arun(as_state(state, context, resources))

    async def anext_step(
        self,
        state: AgentState | Message | str,
        *,
        context: RunContext | None = None,
        resources: GivenResources | None = None,
    ) -> AgentState[OutputT_co]:
        """Like `next_step`, for coroutines."""
        return await self.runner.next_step(as_state(state, context, resources))

    def aiterator(
        self,
        state: AgentState | Message | str,
        *,
        context: RunContext | None = None,
        resources: GivenResources | None = None,
    ) -> AsyncGenerator[AgentState[OutputT_co]]:
        """Like `iterator`, for coroutines."""
        return self.runner.iterate(as_state(state, context, resources))

    # Listeners.

    def with_event_handler(self, handler: EventBus | None) -> Self:
        """Send events to this bus instead of the one it was built with; None changes nothing."""
        if handler is not None:
            self._bus = handler
        return self

    def wiretap(self, fn: Listener | None) -> Self:
        """Call `fn` for every event; None changes nothing."""
        self._listeners.wiretap(fn)
        return self

    def on_event(self, cls: type[E], fn: Callable[[E], object] | None) -> Self:
        """Call `fn` for events of one class; None changes nothing."""
        self._listeners.on_event(cls, fn)
        return self


def as_state(
    value: AgentState | Message | str,
    context: RunContext | None = None,
    resources: GivenResources | None = None,
) -> AgentState:
    """Return a state; text or a message begins a new conversation.

    Args:
        value: The state, message or text.
        context: The user and the request; None leaves those of the state.
        resources: Objects that are used instead of what the agent's resources make; None leaves those of the
            state.
    """
    if resources is not None:
        return as_state(value, context).with_resources(as_resources(resources))
    if context is not None:
        if not isinstance(cast("object", context), RunContext):
            raise InvalidInput(f"the context is {context!r}; pass RunContext(user_id=...)")
        state = as_state(value)
        return replace(state, execution=replace(state.execution, run=context))
    match value:
        case AgentState():
            return value
        case Message():
            return AgentState.empty().with_messages(value)
        case str():
            return AgentState.empty().with_messages(user(value))
        case _:
            kind = type(value).__name__
            raise InvalidInput(f"an agent runs on an AgentState, a message or text, not on {kind}")


def _iterate_blocking(states: AsyncGenerator[T]) -> Generator[T, None, None]:
    with asyncio.Runner() as loop:
        try:
            while True:
                try:
                    yield loop.run(anext(states))
                except StopAsyncIteration:
                    return
        finally:
            loop.run(states.aclose())


def _require_no_loop(method: str) -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise InvalidInput(f"{method}() blocks, and an event loop is running here; use a{method}(...) instead")


def _run_blocking(work: Coroutine[Any, Any, T], method: str) -> T:
    try:
        _require_no_loop(method)
    except InvalidInput:
        work.close()
        raise
    return asyncio.run(work)
