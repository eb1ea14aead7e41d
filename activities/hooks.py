"""Runs the hooks of durable executions and collects the changes that they make."""

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
    """Return the agent's hooks that override one of these methods."""
    return [hook for hook in definition.hooks if any(overrides(hook, method) for method in methods)]


MOST_SECONDS = 15 * 60.0
"""Time limit of hooks and processors at one place. Their activities have a longer timeout (`MODEL`, `TOOL`);
without this limit Temporal would retry them forever.
"""

MOST_SECONDS_IF_QUICK = 2.0
"""The limit before the call of a quick tool, and again after it: all of it runs in one local activity."""


@asynccontextmanager
async def in_time(what: str, *, is_quick: bool = False) -> AsyncGenerator[None]:
    """Run user code in the body with a time limit; raises `TimeoutError` when it is over."""
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
    """Return the state with which the model is asked."""
    if not hooks:
        return state
    async with in_time("the hooks before the step"):
        return await in_thread(lambda: _passed_on(hooks, "before_step", state))


async def after_step(hooks: Sequence[AgentHook], state: AgentState) -> AgentState:
    """Return the state that is evaluated."""
    return await in_thread(lambda: _passed_on(hooks, "after_step", state)) if hooks else state


def _passed_on(hooks: Sequence[AgentHook], method: str, state: AgentState, *told: object) -> AgentState:
    for hook in hooks:
        state = given_back(getattr(hook, method)(state, *told), hook, state)
    return state


def beside_the_loop(processor: Processor) -> Processor:
    """Wrap a processor so that its synchronous part runs in a thread."""
    if isinstance(processor, ProcessorWithModel) or inspect.iscoroutinefunction(processor):
        return processor

    async def called(state: AgentState) -> AgentState:
        result = await in_thread(lambda: processor(state))
        return await result if inspect.isawaitable(result) else result

    called.__name__ = getattr(processor, "__name__", type(processor).__name__)
    return called


@dataclass
class AroundCall:
    """Runs the hooks of one call and passes the state from one to the next. An exception ends the step."""

    hooks: Sequence[AgentHook]
    began: AgentState
    state: AgentState
    is_quick: bool = False
    """Whether the tool is quick; then its hooks have the short time limit."""

    async def before(self, call: ToolCall) -> None:
        """Run `before_tool` of every hook."""
        await self._passed_on("before_tool", "before the call", call)

    async def after(self, execution: ToolExecution) -> None:
        """Run `after_tool` of every hook."""
        await self._passed_on("after_tool", "after the call", execution)

    async def _passed_on(self, method: str, place: str, told: object) -> None:
        try:
            async with in_time("the hooks", is_quick=self.is_quick):
                self.state = await in_thread(lambda: _passed_on(self.hooks, method, self.state, told))
            self._refuse_messages()
        except Exception as error:  # noqa: BLE001 -- every exception of a hook ends the step
            cause = error.__cause__ if isinstance(error, Escaped) and error.__cause__ else error
            raise HookFailed(f"{type(cause).__name__} in a hook {place}: {cause}") from cause

    def _refuse_messages(self) -> None:
        if self.state.messages != self.began.messages:
            raise InvalidInput(
                "hooks of tool calls cannot add messages; add them in before_step or after_step"
            )

    @property
    def notes(self) -> Notes:
        """The changes that the hooks made to the metadata."""
        return added_between(self.began, self.state).notes

    @property
    def wishes(self) -> Wishes:
        """The requests that the hooks made, such as a pause."""
        return Wishes.between(self.began, self.state)
