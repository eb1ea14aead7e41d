"""Runs hooks and processors: isolated, with a time limit, and each with the state of the one before."""

import asyncio
import inspect
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from everstep.agent_domain.agents.definition import AgentDefinition
from everstep.agent_domain.agents.processors import (
    AgentHook,
    Processor,
    ProcessorWithModel,
    overrides,
    require_continued_state,
    run_processor,
)
from everstep.agent_domain.errors import Escaped, HookFailed, InvalidInput
from everstep.agent_domain.loop.hook_requests import NO_WISHES, Wishes
from everstep.agent_domain.loop.step_error import StepError
from everstep.agent_domain.loop.step_facts import Besides
from everstep.agent_domain.state.state import AgentState
from everstep.agent_domain.storage.metadata_changes import NO_METADATA_CHANGES, MetadataChanges
from everstep.agent_domain.tools.inquiry import AskModel
from everstep.agent_domain.tools.tools import ToolCall, ToolExecution
from everstep.steps.isolation import error_boundary, run_in_thread

HOOK_SECONDS = 15 * 60.0
"""Time limit of hooks and processors at one place. Their activities have a longer timeout (`MODEL`, `TOOL`);
without this limit Temporal would retry them forever.
"""

QUICK_HOOK_SECONDS = 2.0
"""The limit before the call of a quick tool, and again after it: all of it runs in one local activity."""


def find_hooks(definition: AgentDefinition, *methods: str) -> Sequence[AgentHook]:
    """Return the agent's hooks that override one of these methods."""
    return [hook for hook in definition.hooks if any(overrides(hook, method) for method in methods)]


@asynccontextmanager
async def _time_limit(subject: str, *, is_quick: bool = False) -> AsyncGenerator[None]:
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


async def run_before_step(definition: AgentDefinition, state: AgentState) -> AgentState:
    """Run `before_step` of every hook; returns the state with which the model is asked."""
    hooks = find_hooks(definition, "before_step")
    if not hooks:
        return state
    async with _time_limit("the hooks before the step"):
        return await run_in_thread(lambda: _run_hooks(hooks, "before_step", state))


async def process_step(definition: AgentDefinition, state: AgentState, ask: AskModel) -> AgentState:
    """Run the processors and the `after_step` hooks; returns the state that is evaluated."""
    hooks = find_hooks(definition, "after_step")
    async with _time_limit("processors and hooks"):
        for processor in definition.processors:
            state = await run_processor(_threaded_processor(processor), state, ask)
        return await run_in_thread(lambda: _run_hooks(hooks, "after_step", state)) if hooks else state


def _run_hooks(hooks: Sequence[AgentHook], method: str, state: AgentState, *arguments: object) -> AgentState:
    for hook in hooks:
        state = require_continued_state(getattr(hook, method)(state, *arguments), hook, state)
    return state


def _threaded_processor(processor: Processor) -> Processor:
    """Wrap a processor so that its synchronous part runs in a thread."""
    if isinstance(processor, ProcessorWithModel) or inspect.iscoroutinefunction(processor):
        return processor

    async def run(state: AgentState) -> AgentState:
        result = await run_in_thread(lambda: processor(state))
        return await result if inspect.isawaitable(result) else result

    run.__name__ = getattr(processor, "__name__", type(processor).__name__)
    return run


class ToolHooks:
    """Runs the hooks around tool calls, of one call after the other, and passes the state on.

    An exception ends the step.

    Args:
        hooks: The hooks that override `before_tool` or `after_tool`.
        state: The state in which the calls run.
        is_free: Whether the hooks may also change messages, which a durable execution could not record.
    """

    def __init__(self, hooks: Sequence[AgentHook], state: AgentState, *, is_free: bool = False) -> None:
        self.hooks = hooks
        self.state = state
        self.is_free = is_free
        self._turn = asyncio.Lock()
        self._changes: dict[str, list[tuple[AgentState, AgentState]]] = {}
        """The states before and after the hooks of each call."""

    async def run_before(self, call: ToolCall, *, is_quick: bool = False) -> None:
        """Run `before_tool` of every hook.

        Args:
            call: The call.
            is_quick: Whether the tool is declared quick; then its hooks have the short time limit.

        Raises:
            HookFailed: A hook raised, or returned a state that is refused.
        """
        await self._run(call.id, "before_tool", call, is_quick=is_quick)

    async def run_after(self, execution: ToolExecution, *, is_quick: bool = False) -> None:
        """Run `after_tool` of every hook; see `run_before`."""
        await self._run(execution.call.id, "after_tool", execution, is_quick=is_quick)

    async def _run(self, call_id: str, method: str, argument: object, *, is_quick: bool) -> None:
        if not self.hooks:
            return
        async with self._turn:
            before = self.state
            try:
                async with _time_limit("the hooks", is_quick=is_quick):
                    after = await run_in_thread(lambda: _run_hooks(self.hooks, method, before, argument))
                self._refuse_messages(before, after)
            except Exception as error:  # noqa: BLE001 -- every exception of a hook ends the step
                cause = error.__cause__ if isinstance(error, Escaped) and error.__cause__ else error
                place = "before the call" if method == "before_tool" else "after the call"
                raise HookFailed(f"{type(cause).__name__} in a hook {place}: {cause}") from cause
            self.state = after
            self._changes.setdefault(call_id, []).append((before, after))

    def _refuse_messages(self, before: AgentState, after: AgentState) -> None:
        if not self.is_free and after.messages != before.messages:
            raise InvalidInput(
                "hooks of tool calls cannot add messages; add them in before_step or after_step"
            )

    async def charge(self, besides: Besides) -> None:
        """Add what a call used to the state that the next hooks receive."""
        async with self._turn:
            state = self.state.spent(besides.usage)
            self.state = state.charged(besides.child_tokens, besides.child_cost_usd)

    def notes(self, call_id: str) -> MetadataChanges:
        """The changes that the hooks of a call made to the metadata."""
        notes = NO_METADATA_CHANGES
        for before, after in self._changes.get(call_id, ()):
            notes = notes.followed_by(MetadataChanges.between(before.metadata, after.metadata))
        return notes

    def wishes(self, call_id: str) -> Wishes:
        """The requests that the hooks of a call made, such as a pause."""
        changes = self._changes.get(call_id)
        return Wishes.between(changes[0][0], changes[-1][1]) if changes else NO_WISHES


def failure_of(error: Exception, tool_name: str | None = None) -> StepError:
    """Return the error of a step or call that an exception ended; a hook's has the type of its cause."""
    failure = StepError.of(error, tool_name)
    if not isinstance(error, HookFailed):
        return failure
    return replace(failure, type=StepError.of(error.__cause__ or error).type)
