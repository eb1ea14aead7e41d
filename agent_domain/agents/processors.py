"""Processors and hooks: user code around steps and tool calls.

Both take a state and return one; an exception from them becomes a failure step. Through the state
they can request a stop (`with_stop_signal`) or one more step (`with_continuation_requested`).

In a durable execution they run in the activities that call the model and the tools. Their changes are
recorded once. If an attempt is lost before that, they run again, so they must tolerate repetition. They may
add messages before or after the conversation, and change the metadata. A tool hook may only change the
metadata.
"""

import inspect
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias, cast, runtime_checkable

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.state.state import AgentState
from everstep.agent_domain.storage.metadata_changes import MetadataChanges
from everstep.agent_domain.storage.steps import HookAdditions
from everstep.agent_domain.tools.inquiry import AskModel
from everstep.agent_domain.tools.tools import ToolCall, ToolExecution


@runtime_checkable
class ProcessorWithModel(Protocol):
    """A processor that asks a model, such as a critic."""

    async def process(self, state: AgentState, ask: AskModel) -> AgentState:
        """Process the state after a step joined the conversation, and return the state to continue with."""
        ...


Processor: TypeAlias = Callable[[AgentState], AgentState | Awaitable[AgentState]] | ProcessorWithModel
"""Receives the state after a step joined the conversation, and returns the state to continue with."""


async def run_processor(processor: Processor, state: AgentState, ask: AskModel) -> AgentState:
    """Run a processor and return its state.

    Raises:
        InvalidInput: The processor did not return a state of the same execution and step.
    """
    if isinstance(processor, ProcessorWithModel):
        return require_continued_state(await processor.process(state, ask), processor, state)
    result = processor(state)
    result = await result if inspect.isawaitable(result) else result
    return require_continued_state(result, processor, state)


MAX_ADDED_MESSAGES = 1000
"""The most messages added at one place; a durable execution reserves this many positions."""


def additions_between(before: AgentState, after: AgentState) -> HookAdditions:
    """The change that a durable execution records: messages around the conversation, and metadata.

    Raises:
        InvalidInput: There are too many new messages, or existing ones were changed or dropped.
    """
    new_messages, old_messages = after.messages, before.messages
    for start in range(len(new_messages) - len(old_messages) + 1):
        if new_messages[start : start + len(old_messages)] == old_messages:
            opening, added = new_messages[:start], new_messages[start + len(old_messages) :]
            if (most := max(len(opening), len(added))) > MAX_ADDED_MESSAGES:
                raise InvalidInput(
                    f"hooks and processors added {most} messages to a step; "
                    f"add at most {MAX_ADDED_MESSAGES} messages before and after the conversation, "
                    "and join some"
                )
            return HookAdditions(opening, added, MetadataChanges.between(before.metadata, after.metadata))
    raise InvalidInput(
        "a hook or processor changed or dropped messages; a durable execution keeps all messages, "
        "so add new ones before or after the conversation instead"
    )


def require_continued_state(result: object, by: object, before: AgentState) -> AgentState:
    """Return the result of a processor or hook after checking it.

    Args:
        result: The returned value.
        by: The processor or hook, for error messages.
        before: The state that it received.

    Raises:
        InvalidInput: The result is not a state of the same execution and step.
    """
    name = getattr(by, "__name__", type(by).__name__)
    if not isinstance(result, AgentState):
        raise InvalidInput(f"{name} returned {type(result).__name__}; return the state to go on with")
    state = cast("AgentState", result)
    if _step_identity(state) != _step_identity(before):
        raise InvalidInput(
            f"{name} returned a state of another execution; change the state that it was given, "
            "and add messages with with_user_message(..., reset=False)"
        )
    return state


def _step_identity(state: AgentState) -> tuple[object, ...]:
    return state.execution.execution_id, state.facts.recorded_steps


def overrides(hook: "AgentHook", method: str) -> bool:
    """Whether the hook overrides this method."""
    return getattr(getattr(hook, method), "__func__", None) is not getattr(AgentHook, method)


class AgentHook:
    """Called around steps and tool calls; override the methods you need.

    Each method returns the state to continue with.
    """

    def before_step(self, state: AgentState) -> AgentState:
        """Called after a step has begun and before the model is asked."""
        return state

    def before_tool(self, state: AgentState, call: ToolCall) -> AgentState:
        """Called before a tool runs."""
        del call
        return state

    def after_tool(self, state: AgentState, execution: ToolExecution) -> AgentState:
        """Called when a tool has its result."""
        del execution
        return state

    def after_step(self, state: AgentState) -> AgentState:
        """Called after the step joined the conversation and before the evaluation."""
        return state
