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


def given_back(result: object, by: object) -> AgentState:
    """The state that a processor or hook returned; forgetting to return one is told as what it is."""
    if not isinstance(result, AgentState):
        name = getattr(by, "__name__", type(by).__name__)
        raise InvalidInput(f"{name} returned {type(result).__name__}; return the state to go on with")
    return result


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
