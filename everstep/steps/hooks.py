"""Runs the hooks of durable executions and collects the changes that they make."""

import asyncio
import inspect
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from everstep.agent_domain.agents.definition import AgentDefinition
from everstep.agent_domain.agents.processors import (
    AgentHook,
    Processor,
    ProcessorWithModel,
    additions_between,
    overrides,
    require_continued_state,
)
from everstep.agent_domain.errors import Escaped, HookFailed, InvalidInput
from everstep.agent_domain.loop.hook_requests import Wishes
from everstep.agent_domain.state.state import AgentState
from everstep.agent_domain.storage.metadata_changes import MetadataChanges
from everstep.agent_domain.tools.tools import ToolCall, ToolExecution
from everstep.steps.isolation import error_boundary, run_in_thread


def find_hooks(definition: AgentDefinition, *methods: str) -> Sequence[AgentHook]:
    """Return the agent's hooks that override one of these methods."""
    return [hook for hook in definition.hooks if any(overrides(hook, method) for method in methods)]


HOOK_SECONDS = 15 * 60.0
"""Time limit of hooks and processors at one place. Their activities have a longer timeout (`MODEL`, `TOOL`);
without this limit Temporal would retry them forever.
"""

QUICK_HOOK_SECONDS = 2.0
"""The limit before the call of a quick tool, and again after it: all of it runs in one local activity."""


@asynccontextmanager
async def time_limit(subject: str, *, is_quick: bool = False) -> AsyncGenerator[None]:
    """Run user code in the body with a time limit; raises `TimeoutError` when it is over."""
    limit = QUICK_HOOK_SECONDS if is_quick else HOOK_SECONDS
    deadline = asyncio.timeout(limit)
    try:
        async with deadline:
            with error_boundary():
                yield
    except TimeoutError:
        if deadline.expired():
            raise TimeoutError(f"{subject} did not finish within {limit:g}s") from None
        raise


async def run_before_step(hooks: Sequence[AgentHook], state: AgentState) -> AgentState:
    """Return the state with which the model is asked."""
    if not hooks:
        return state
    async with time_limit("the hooks before the step"):
        return await run_in_thread(lambda: _run_hooks(hooks, "before_step", state))


async def run_after_step(hooks: Sequence[AgentHook], state: AgentState) -> AgentState:
    """Return the state that is evaluated."""
    return await run_in_thread(lambda: _run_hooks(hooks, "after_step", state)) if hooks else state


def _run_hooks(hooks: Sequence[AgentHook], method: str, state: AgentState, *told: object) -> AgentState:
    for hook in hooks:
        state = require_continued_state(getattr(hook, method)(state, *told), hook, state)
    return state


def threaded_processor(processor: Processor) -> Processor:
    """Wrap a processor so that its synchronous part runs in a thread."""
    if isinstance(processor, ProcessorWithModel) or inspect.iscoroutinefunction(processor):
        return processor

    async def run(state: AgentState) -> AgentState:
        result = await run_in_thread(lambda: processor(state))
        return await result if inspect.isawaitable(result) else result

    run.__name__ = getattr(processor, "__name__", type(processor).__name__)
    return run


@dataclass
class CallHooks:
    """Runs the hooks of one call and passes the state from one to the next. An exception ends the step."""

    hooks: Sequence[AgentHook]
    initial_state: AgentState
    state: AgentState
    is_quick: bool = False
    """Whether the tool is quick; then its hooks have the short time limit."""

    async def run_before(self, call: ToolCall) -> None:
        """Run `before_tool` of every hook."""
        await self._run("before_tool", "before the call", call)

    async def run_after(self, execution: ToolExecution) -> None:
        """Run `after_tool` of every hook."""
        await self._run("after_tool", "after the call", execution)

    async def _run(self, method: str, place: str, argument: object) -> None:
        try:
            async with time_limit("the hooks", is_quick=self.is_quick):
                self.state = await run_in_thread(lambda: _run_hooks(self.hooks, method, self.state, argument))
            self._refuse_messages()
        except Exception as error:  # noqa: BLE001 -- every exception of a hook ends the step
            cause = error.__cause__ if isinstance(error, Escaped) and error.__cause__ else error
            raise HookFailed(f"{type(cause).__name__} in a hook {place}: {cause}") from cause

    def _refuse_messages(self) -> None:
        if self.state.messages != self.initial_state.messages:
            raise InvalidInput(
                "hooks of tool calls cannot add messages; add them in before_step or after_step"
            )

    @property
    def notes(self) -> MetadataChanges:
        """The changes that the hooks made to the metadata."""
        return additions_between(self.initial_state, self.state).notes

    @property
    def wishes(self) -> Wishes:
        """The requests that the hooks made, such as a pause."""
        return Wishes.between(self.initial_state, self.state)
