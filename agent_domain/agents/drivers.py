"""Drivers: they exchange messages with the model, and translate a step into messages of the conversation.

A `StepDriver` works in two phases, so that the loop's caller can run the tools in between and
survive a crash there. `infer` asks the model. `said` returns the messages that the conversation
keeps of the reply, and `answered` those of each tool result, so that both can be recorded as soon
as they are known. `use_tools` combines the phases, for callers that have an executor.

Any other object with a method `use_tools(state)` can drive a step as well; it is then responsible
for the whole step.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol, Self, TypeAlias, runtime_checkable

from everstep.agent_domain.agents.structured_result import (
    ResultTool,
    has_native_output,
    is_result_refusal,
    tool_names,
)
from everstep.agent_domain.errors import InvalidInput, InvalidModelOutput
from everstep.agent_domain.ids import call_id
from everstep.agent_domain.loop.step_error import StepError
from everstep.agent_domain.loop.step_facts import CallNeed, StepType
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.messages import leak_guard
from everstep.agent_domain.messages.cached_context import InferenceRequest
from everstep.agent_domain.messages.messages import (
    PROVIDER_ITEMS,
    Message,
    Messages,
    assistant,
    call_entry,
    tool_message,
    user,
)
from everstep.agent_domain.state.state import AgentState
from everstep.agent_domain.state.steps import AgentStep, InferenceResponse
from everstep.agent_domain.tools.tools import Toolbox, ToolCall, ToolExecution
from everstep.agent_domain.values import frozen_map

MOST_CALLS: Final = 256
"""The most calls of one answer: each is recorded in Temporal's history, whose entries are small."""
MOST_NAME_CHARACTERS: Final = 32_000
"""Of the names and ids of these calls together."""
LONGEST_FINISH_REASON: Final = 100

OnText: TypeAlias = Callable[[str], None]
"""Called with each piece of text as the model writes it."""


def ignore_text(_text: str) -> None:
    """An `OnText` for callers that do not stream."""


@runtime_checkable
class Model(Protocol):
    """A language model: one request, one response. It never retries by itself."""

    async def respond(self, request: InferenceRequest, on_text: OnText) -> InferenceResponse:
        """Send one request.

        Args:
            request: The messages, tools and options.
            on_text: Called with each piece of text as it arrives.
        """
        ...


@dataclass(frozen=True, slots=True)
class Reply:
    """The result of the first phase of a step, before any tool runs."""

    response: InferenceResponse
    own_type: StepType | None = None
    errors: tuple[StepError, ...] = ()
    executions: tuple[ToolExecution, ...] = ()
    """Results that need no tool, such as the report of an unusable decision."""
    runs_tools: bool = True

    def charged(self, usage: Usage) -> "Reply":
        """A copy that also counts what earlier attempts at the call used."""
        return replace(self, response=self.response.charged(usage))


class CanExecuteToolCalls(Protocol):
    """Runs tool calls; each call yields exactly one execution, in the order of the calls."""

    async def execute_tool(self, call: ToolCall, state: AgentState) -> ToolExecution:
        """Run one call."""
        ...

    async def execute_tools(
        self, calls: Sequence[ToolCall], state: AgentState
    ) -> tuple[AgentState, tuple[ToolExecution, ...]]:
        """Run the calls; return the state, which hooks may have changed, and the executions."""
        ...


@runtime_checkable
class CanUseTools(Protocol):
    """Runs a whole step, which becomes the current step of the returned state."""

    async def use_tools(self, state: AgentState) -> AgentState:
        """Run the step and return the state after it."""
        ...


class StepDriver(ABC):
    """A driver in two phases."""

    tools: Toolbox = Toolbox()
    parallel_tools: bool = True
    executor: CanExecuteToolCalls | None = None

    model: Model | None = None
    """The model that the driver calls."""
    asks_preset: bool = False
    """Whether the driver uses the model of the agent's preset if it has none."""

    @property
    def wants_model(self) -> bool:
        """Whether the driver has no model and accepts that of the agent's preset."""
        return self.asks_preset and self.model is None

    def with_model(self, model: Model) -> Self:
        """A copy of the driver with this model."""
        driver = copy.copy(self)
        driver.model = model
        return driver

    def known_model(self) -> Model:
        """The driver's model.

        Raises:
            InvalidInput: The driver has none.
        """
        if self.model is None:
            raise InvalidInput(f"{type(self).__name__} has no model; pass one, or run the agent on a worker")
        return self.model

    def equip(self, tools: Toolbox, *, parallel_tools: bool = True) -> None:
        """Set the agent's tools."""
        self.tools = tools
        self.parallel_tools = parallel_tools

    def request(self, state: AgentState) -> InferenceRequest:
        """The request for a step, as far as it is known: a compaction measures it."""
        cached = state.cached_context
        cached = cached if cached.tools else cached.with_tools(self.tools.schemas)
        return InferenceRequest.compile(state.messages, cached, parallel_tools=self.parallel_tools)

    @abstractmethod
    async def infer(self, state: AgentState, on_text: OnText = ignore_text) -> Reply:
        """Ask the model."""

    @abstractmethod
    def said(self, step: AgentStep) -> Messages:
        """The messages of the model's reply, which precede those of the tool results."""

    def answered(self, execution: ToolExecution) -> Messages:
        """The messages of one tool result; none by default."""
        del execution
        return ()

    def outputs(self, step: AgentStep) -> Messages:
        """The messages that a completed step adds to the conversation."""
        called = {call.id for call in step.tool_calls}
        results = (
            self.answered(each) if each.call.id in called else self.refused(each)
            for each in step.tool_executions
            if each.call.id in called or is_result_refusal(each)
        )
        return (*self.said(step), *(message for messages in results for message in messages))

    def refused(self, refusal: ToolExecution) -> Messages:
        """The messages about a structured result that does not fit its schema."""
        return (user(refusal.text),)

    async def use_tools(self, state: AgentState) -> AgentState:
        """Run both phases, and the tools in between.

        Raises:
            InvalidInput: There are calls to run, and the driver has no executor.
        """
        state = state_with_reply(self, state, await self.infer(state))
        calls = state.current_step.pending_calls if state.current_step else ()
        if not calls:
            return state
        if self.executor is None:
            raise InvalidInput("this driver has no executor for its tool calls; set driver.executor")
        state, executions = await self.executor.execute_tools(calls, state)
        return state_with_results(self, state, executions)


def needs_run_only(_call: ToolCall) -> CallNeed:
    """The need of a call by default: it only has to run."""
    return CallNeed.RUN


def state_with_reply(
    driver: StepDriver,
    state: AgentState,
    reply: Reply,
    seconds: float = 0.0,
    need_of: Callable[[ToolCall], CallNeed] = needs_run_only,
) -> AgentState:
    """The state after the model replied.

    Args:
        driver: Translates the step into messages.
        state: The state with the step begun.
        reply: The model's reply.
        seconds: How long the model took.
        need_of: What each call waits for.

    Raises:
        InvalidInput: The step has not begun.
        InvalidModelOutput: The reply has more calls than can be recorded.
    """
    started = state.current_step_started_at or state.state_info.updated_at
    if started is None:
        raise InvalidInput("the step has not begun; call with_step_started(at) first")
    response = with_call_ids(state, _recordable_response(reply.response))
    needs = {call.id: need_of(call) for call in response.tool_calls}
    places = {call.id: place for place, call in enumerate(response.tool_calls)}
    step = AgentStep(
        id=state.new_step_id(),
        created_at=started,
        input_messages=state.messages,
        inference_response=response,
        # Results without a call come first, the others in the order of the calls.
        tool_executions=tuple(sorted(reply.executions, key=lambda each: places.get(each.call.id, -1))),
        own_errors=reply.errors,
        own_type=reply.own_type,
        runs_tools=reply.runs_tools,
        seconds=seconds,
        needs=frozen_map(needs),
    )
    return state.with_current_step(_with_output_messages(driver, step))


def state_with_results(
    driver: StepDriver, state: AgentState, executions: Iterable[ToolExecution], seconds: float = 0.0
) -> AgentState:
    """The state after some calls of the current step have results.

    Args:
        driver: Translates the step into messages.
        state: The state with the current step.
        executions: The results.
        seconds: How long the calls took.

    Raises:
        InvalidInput: There is no current step.
    """
    step = state.current_step
    if step is None:
        raise InvalidInput("there is no step whose calls could be answered")
    step = step.observed(executions, seconds)
    state = state.with_current_step(_with_output_messages(driver, step))
    # Only when the step is complete: calls of the same step see the metadata with which it began.
    changes = (execution.metadata for execution in step.tool_executions) if step.is_complete else ()
    for metadata in changes:
        state = state.with_metadata(metadata) if metadata else state
    return state


def _with_output_messages(driver: StepDriver, step: AgentStep) -> AgentStep:
    return replace(step, output_messages=driver.outputs(step)) if step.is_complete else step


def _recordable_response(response: InferenceResponse) -> InferenceResponse:
    calls = response.tool_calls
    characters = sum(len(call.name) + len(call.id) for call in calls)
    if len(calls) > MOST_CALLS or characters > MOST_NAME_CHARACTERS:
        error = InvalidModelOutput(
            f"one answer of the model has {len(calls):,} tool calls, with names and ids of {characters:,} "
            f"characters; at most {MOST_CALLS} with {MOST_NAME_CHARACTERS:,} characters can be recorded"
        )
        error.usage = response.usage
        raise error
    reason = response.finish_reason
    if reason is None or len(reason) <= LONGEST_FINISH_REASON:
        return response
    return replace(response, finish_reason=reason[:LONGEST_FINISH_REASON])


def with_call_ids(state: AgentState, response: InferenceResponse) -> InferenceResponse:
    """The response with a unique id for each call, even if the model gave none or repeated one."""
    taken = {entry.get("id") for message in state.messages for entry in message.calls}
    calls: dict[str, ToolCall] = {}
    for index, call in enumerate(response.tool_calls):
        usable = call.id and call.id not in taken and call.id not in calls
        identified = call if usable else replace(call, id=new_call_id(state, index))
        calls[identified.id] = identified
    return replace(response, tool_calls=tuple(calls.values()))


def new_call_id(state: AgentState, index: int = 0) -> str:
    """An id for a call of the current step to which the model gave none.

    Raises:
        InvalidInput: The state has no execution id.
    """
    execution_id = state.execution.execution_id
    if execution_id is None:
        raise InvalidInput("the state has no execution id yet; call identified(agent_id, execution_id) first")
    return call_id(execution_id, state.facts.recorded_steps + 1, index)


def tool_calling_reply_messages(step: AgentStep) -> Messages:
    """One assistant message: the answer, or the calls."""
    response = step.inference_response or InferenceResponse()
    extra = {PROVIDER_ITEMS: response.items} if response.items else {}
    if not step.tool_calls:
        return (assistant(response.text, **extra),)
    entries = [call_entry(call.id, call.name, call.arguments) for call in step.tool_calls]
    return (assistant(response.text, tool_calls=entries, **extra),)


def result_message(execution: ToolExecution) -> Message:
    """A result as the model reads it; the raw value stays with the step."""
    return tool_message(execution.text, execution.call.id, execution.call.name, execution.attachments)


class ToolCallingDriver(StepDriver):
    """Uses the model's native tool calls."""

    asks_preset = True

    def __init__(self, model: Model | None = None) -> None:
        self.model = model

    async def infer(self, state: AgentState, on_text: OnText = ignore_text) -> Reply:
        """Ask the model, with the cached context and the conversation."""
        request, guard = self.request(state), leak_guard.TextGuard(on_text)
        output = state.cached_context.output
        is_native = output is not None and has_native_output(self.model, output)
        result_tool = ResultTool.of(output, tool_names(request)) if output and not is_native else None
        if result_tool:
            request = result_tool.request(request)
        if state.execution.is_last_turn and request.tools:
            # The tools stay in the request: providers need the schemas of earlier calls, and cache them.
            choice = result_tool.choice if result_tool else "none"
            request = replace(request, tool_choice=choice)
        # Where a reply in JSON cannot be leaked arguments, it is streamed without delay.
        is_guarded = bool(request.tools) and not is_native
        response = await self.known_model().respond(request, guard.feed if is_guarded else on_text)
        text = leak_guard.without_repeated_arguments(response.text, response.tool_calls)
        guard.finish(text)
        response = replace(response, text=text)
        if result_tool is None:
            return Reply(response)
        response = result_tool.answer(response)
        if response.text and not text:
            on_text(response.text)
        return Reply(response)

    def said(self, step: AgentStep) -> Messages:
        """One assistant message: the answer, or the calls."""
        return tool_calling_reply_messages(step)

    def answered(self, execution: ToolExecution) -> Messages:
        """One tool message with the result."""
        return (result_message(execution),)
