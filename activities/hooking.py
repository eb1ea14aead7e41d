"""Hooks of durable executions: what they are shown, and what is kept of what they change."""

import asyncio
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from agent_domain.definition import AgentDefinition
from agent_domain.errors import HookFailed, InvalidInput
from agent_domain.notes import Notes
from agent_domain.processors import AgentHook, added_between, given_back, overrides
from agent_domain.state import AgentState
from agent_domain.tools import ToolCall, ToolExecution
from agent_domain.wishes import Wishes


def hooks_of(definition: AgentDefinition, *methods: str) -> Sequence[AgentHook]:
    """The agent's hooks that do something there."""
    return [hook for hook in definition.hooks if any(overrides(hook, method) for method in methods)]


@contextmanager
def contained() -> Generator[None]:
    """For anybody's code: what would end the worker, or look like a cancel, is an error like any other."""
    try:
        yield
    except (SystemExit, asyncio.CancelledError) as error:
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and task and task.cancelling():
            raise
        raise HookFailed(f"{type(error).__name__}: {error}") from error


def before_step(hooks: Sequence[AgentHook], state: AgentState) -> AgentState:
    """The state in which the model is asked."""
    with contained():
        for hook in hooks:
            state = given_back(hook.before_step(state), hook, state)
    return state


def after_step(hooks: Sequence[AgentHook], state: AgentState) -> AgentState:
    """The state that is judged."""
    for hook in hooks:
        state = given_back(hook.after_step(state), hook, state)
    return state


@dataclass
class AroundCall:
    """The hooks of one call, and the state that they pass on. What they raise ends the step."""

    hooks: Sequence[AgentHook]
    began: AgentState
    state: AgentState

    def before(self, call: ToolCall) -> None:
        """The tool is about to run."""
        try:
            for hook in self.hooks:
                self.state = given_back(hook.before_tool(self.state, call), hook, self.state)
            self._refuse_messages()
        except (Exception, SystemExit, asyncio.CancelledError) as error:
            raise HookFailed(f"{type(error).__name__} in a hook before the call: {error}") from error

    def after(self, execution: ToolExecution) -> None:
        """The tool has its result."""
        try:
            for hook in self.hooks:
                self.state = given_back(hook.after_tool(self.state, execution), hook, self.state)
            self._refuse_messages()
        except (Exception, SystemExit, asyncio.CancelledError) as error:
            raise HookFailed(f"{type(error).__name__} in a hook after the call: {error}") from error

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
