"""Hooks of durable executions: what they are shown, and what is kept of what they change."""

import asyncio
import inspect
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from everstep.activities.isolation import contained, in_thread
from everstep.agent_domain.agents.definition import AgentDefinition
from everstep.agent_domain.agents.processors import (
    AgentHook,
    Processor,
    ProcessorWithModel,
    added_between,
    given_back,
    overrides,
)
from everstep.agent_domain.errors import Escaped, HookFailed, InvalidInput
from everstep.agent_domain.loop.hook_requests import Wishes
from everstep.agent_domain.state.state import AgentState
from everstep.agent_domain.storage.metadata_changes import Notes
from everstep.agent_domain.tools.tools import ToolCall, ToolExecution


def hooks_of(definition: AgentDefinition, *methods: str) -> Sequence[AgentHook]:
    """The agent's hooks that do something there."""
    return [hook for hook in definition.hooks if any(overrides(hook, method) for method in methods)]


MOST_SECONDS = 15 * 60.0
"""So long hooks and processors may take at one place. Their activities have more time (`MODEL`, `TOOL`), and
would otherwise be tried again for ever."""

MOST_SECONDS_IF_QUICK = 2.0
"""The same before the call of a quick tool, and again after it: for all of it there is one local activity."""


@asynccontextmanager
async def in_time(what: str, *, is_quick: bool = False) -> AsyncGenerator[None]:
    """Anybody's code: whatever comes of it is there in time, or is an error like any other."""
    limit = MOST_SECONDS_IF_QUICK if is_quick else MOST_SECONDS
    deadline = asyncio.timeout(limit)
    try:
        async with deadline:
            with contained():
                yield
    except TimeoutError:
        if deadline.expired():
            raise TimeoutError(f"{what} did not finish within {limit:g}s") from None
        raise


async def before_step(hooks: Sequence[AgentHook], state: AgentState) -> AgentState:
    """The state in which the model is asked."""
    if not hooks:
        return state
    async with in_time("the hooks before the step"):
        return await in_thread(lambda: _passed_on(hooks, "before_step", state))


async def after_step(hooks: Sequence[AgentHook], state: AgentState) -> AgentState:
    """The state that is judged."""
    return await in_thread(lambda: _passed_on(hooks, "after_step", state)) if hooks else state


def _passed_on(hooks: Sequence[AgentHook], method: str, state: AgentState, *told: object) -> AgentState:
    """The state from hook to hook."""
    for hook in hooks:
        state = given_back(getattr(hook, method)(state, *told), hook, state)
    return state


def beside_the_loop(processor: Processor) -> Processor:
    """The same; but for what it awaits, it runs in a thread."""
    if isinstance(processor, ProcessorWithModel) or inspect.iscoroutinefunction(processor):
        return processor

    async def called(state: AgentState) -> AgentState:
        result = await in_thread(lambda: processor(state))
        return await result if inspect.isawaitable(result) else result

    called.__name__ = getattr(processor, "__name__", type(processor).__name__)
    return called


@dataclass
class AroundCall:
    """The hooks of one call, and the state that they pass on. What they raise ends the step."""

    hooks: Sequence[AgentHook]
    began: AgentState
    state: AgentState
    is_quick: bool = False
    """Whether the tool is: then they have to be, too."""

    async def before(self, call: ToolCall) -> None:
        """The tool is about to run."""
        await self._passed_on("before_tool", "before the call", call)

    async def after(self, execution: ToolExecution) -> None:
        """The tool has its result."""
        await self._passed_on("after_tool", "after the call", execution)

    async def _passed_on(self, method: str, place: str, told: object) -> None:
        try:
            async with in_time("the hooks", is_quick=self.is_quick):
                self.state = await in_thread(lambda: _passed_on(self.hooks, method, self.state, told))
            self._refuse_messages()
        except Exception as error:  # noqa: BLE001 -- whatever they raise ends the step
            cause = error.__cause__ if isinstance(error, Escaped) and error.__cause__ else error
            raise HookFailed(f"{type(cause).__name__} in a hook {place}: {cause}") from cause

    def _refuse_messages(self) -> None:
        if self.state.messages != self.began.messages:
            raise InvalidInput(
                "messages have no place among the calls of a step; add them in before_step or after_step"
            )

    @property
    def notes(self) -> Notes:
        """What they changed in the metadata."""
        return added_between(self.began, self.state).notes

    @property
    def wishes(self) -> Wishes:
        """What they asked for."""
        return Wishes.between(self.began, self.state)
