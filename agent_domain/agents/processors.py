"""What users put around steps and tool calls: processors and hooks.

Both take a state and return one; whatever they raise becomes a failure step. Through the state
they can ask for a stop (`with_stop_signal`) or for one more step (`with_continuation_requested`).

In a durable execution they run where the model is asked and the tools are run. What they change there is
recorded once; an attempt that is lost before that runs them again, so they have to bear that. They may add
messages before or after the conversation, and change the metadata. A hook of a tool may change the metadata.
"""

import inspect
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias, runtime_checkable

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.state.state import AgentState
from everstep.agent_domain.storage.metadata_changes import Notes
from everstep.agent_domain.storage.steps import Added
from everstep.agent_domain.tools.inquiry import AskModel
from everstep.agent_domain.tools.tools import ToolCall, ToolExecution


@runtime_checkable
class ProcessorWithModel(Protocol):
    """A processor that asks a model, such as a critic."""

    async def process(self, state: AgentState, ask: AskModel) -> AgentState:
        """Look at the state after a step joined the conversation."""
        ...


Processor: TypeAlias = Callable[[AgentState], AgentState | Awaitable[AgentState]] | ProcessorWithModel
"""Looks at the state after a step joined the conversation, and may change it."""


async def processed(processor: Processor, state: AgentState, ask: AskModel) -> AgentState:
    """The state that the processor goes on with."""
    if isinstance(processor, ProcessorWithModel):
        return given_back(await processor.process(state, ask), processor, state)
    result = processor(state)
    result = await result if inspect.isawaitable(result) else result
    return given_back(result, processor, state)


MOST_ADDED = 1000
"""So many messages may be added at one place; a durable execution has a place for each."""


def added_between(before: AgentState, after: AgentState) -> Added:
    """What a durable execution keeps of a change: what was said around the conversation, and the metadata."""
    said, known = after.messages, before.messages
    for start in range(len(said) - len(known) + 1):
        if said[start : start + len(known)] == known:
            opening, added = said[:start], said[start + len(known) :]
            if (most := max(len(opening), len(added))) > MOST_ADDED:
                raise InvalidInput(
                    f"hooks and processors added {most} messages to a step; "
                    f"add at most {MOST_ADDED} messages before and after the conversation, and join some"
                )
            return Added(opening, added, Notes.between(before.metadata, after.metadata))
    raise InvalidInput(
        "a hook or processor changed or dropped what was said; a durable execution keeps that, "
        "so add messages before or after the conversation instead"
    )


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


def overrides(hook: "AgentHook", method: str) -> bool:
    """Whether the hook does something there."""
    return getattr(getattr(hook, method), "__func__", None) is not getattr(AgentHook, method)


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
