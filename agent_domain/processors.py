"""What users put around steps and tool calls: processors and hooks.

Both take a state and return one; whatever they raise becomes a failure step. Through the state
they can ask for a stop (`with_stop_signal`) or for one more step (`with_continuation_requested`).
"""

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from agent_domain.errors import InvalidInput
from agent_domain.state import AgentState
from agent_domain.tools import ToolCall, ToolExecution

Processor: TypeAlias = Callable[[AgentState], AgentState | Awaitable[AgentState]]
"""Looks at the state after a step joined the conversation, and may change it."""


def given_back(result: object, by: object, before: AgentState) -> AgentState:
    """The state that a processor or hook returned, if it goes on from the one that it was given."""
    name = getattr(by, "__name__", type(by).__name__)
    if not isinstance(result, AgentState):
        raise InvalidInput(f"{name} returned {type(result).__name__}; return the state to go on with")
    if _under_way(result) != _under_way(before):
        raise InvalidInput(
            f"{name} returned a state of another execution; change the state that it was given, "
            "and add messages with with_user_message(..., reset=False)"
        )
    return result


def _under_way(state: AgentState) -> tuple[object, ...]:
    return state.execution.execution_id, state.facts.recorded_steps


class AgentHook:
    """Called around steps and tool calls; override what you need. Each returns the state to go on with."""

    def before_step(self, state: AgentState) -> AgentState:
        """The step has begun, the model was not asked yet."""
        return state

    def before_tool(self, state: AgentState, call: ToolCall) -> AgentState:
        """A tool is about to run."""
        del call
        return state

    def after_tool(self, state: AgentState, execution: ToolExecution) -> AgentState:
        """A tool has its result."""
        del execution
        return state

    def after_step(self, state: AgentState) -> AgentState:
        """The step joined the conversation; the evaluation follows."""
        return state
