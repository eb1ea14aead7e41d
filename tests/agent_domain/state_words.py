"""Builders of states and steps, and strategies for arbitrary ones."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from hypothesis import strategies as st

from everstep.agent_domain.loop.continuation import (
    ContinuationDecision,
    ContinuationEvaluation,
    ContinuationOutcome,
)
from everstep.agent_domain.loop.status import AgentStatus, StopReason
from everstep.agent_domain.loop.step_error import ErrorType, StepError
from everstep.agent_domain.loop.step_facts import CallNeed, StepType
from everstep.agent_domain.loop.stop_signal import StopSignal
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.messages.cached_context import CachedContext
from everstep.agent_domain.messages.messages import Message, MessageList, MessageStore, Role, assistant, user
from everstep.agent_domain.state.state import AgentState
from everstep.agent_domain.state.steps import AgentStep, InferenceResponse
from everstep.agent_domain.tools.tools import ToolCall, ToolExecution
from everstep.agent_domain.values import frozen_map

AT = datetime(2026, 1, 16, 10, 5, 0, 123456, tzinfo=UTC)
AGENT, PARENT, EXECUTION = UUID(int=1), UUID(int=2), UUID(int=3)

GOES_ON = ContinuationOutcome(ContinuationDecision.REQUEST, True, "Worker", StopReason.COMPLETED)
STOPS = ContinuationOutcome(ContinuationDecision.STOP, False, "Worker", StopReason.COMPLETED)


def later(seconds: float) -> datetime:
    """This many seconds after the start."""
    return AT + timedelta(seconds=seconds)


def a_call(name: str = "look", call_id: str = "c1", **args: Any) -> ToolCall:
    """A tool call with these arguments."""
    return ToolCall(call_id, name, frozen_map(args))


def a_success(call: ToolCall, result: Any = "done") -> ToolExecution:
    """A call that succeeded."""
    return ToolExecution(call, result, None, AT, later(1))


def a_failure(call: ToolCall, message: str = "broken", kind: ErrorType | None = None) -> ToolExecution:
    """A call that failed."""
    return ToolExecution(call, None, StepError(message, kind), AT, later(1))


def a_step(
    text: str = "",
    *executions: ToolExecution,
    calls: tuple[ToolCall, ...] = (),
    tokens: int = 0,
    number: int = 1,
    **fields: Any,
) -> AgentStep:
    """A step with a text, with these calls and results, and perhaps further calls."""
    made = (*(execution.call for execution in executions), *calls)
    return AgentStep(
        id=UUID(int=100 + number),
        created_at=AT,
        output_messages=MessageList([assistant(text)] if text else []),
        inference_response=InferenceResponse(text, made, usage=Usage(input=tokens)),
        tool_executions=executions,
        **fields,
    )


def a_state(*messages: Message | str) -> AgentState:
    """A state with ids and these messages, not started."""
    spoken = [user(message) if isinstance(message, str) else message for message in messages]
    return AgentState.empty().with_messages(spoken).identified(AGENT, EXECUTION)


def after_steps(*steps: AgentStep, state: AgentState | None = None) -> AgentState:
    """The state after these steps, a second each, as the loop would have recorded them."""
    state = state or a_state("Hello")
    for index, step in enumerate(steps):
        begun = state.with_step_started(later(index))
        state = begun.with_current_step(step).recorded(GOES_ON, later(index + 1))
    return state


# Arbitrary values. Content that no store can hold (half a surrogate pair, NUL) never gets into a value.

texts = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\x00"), max_size=12)
names = st.sampled_from(["look", "search_files", "écrire", "検索"])
moments = st.integers(-(10**15), 10**16).map(lambda microseconds: AT + timedelta(microseconds=microseconds))
seconds = st.floats(0, 1e6, allow_nan=False)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
json_maps = st.dictionaries(texts, json_values, max_size=3).map(frozen_map)
counts = st.integers(0, 10**12)
usages = st.builds(Usage, counts, counts, counts, counts, counts)

contents = texts | st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": texts}), max_size=2)
messages = st.builds(Message, st.sampled_from(Role), contents, json_maps)
conversations = st.lists(messages, max_size=4)

errors = st.builds(StepError, texts, st.none() | st.sampled_from(ErrorType), st.none() | names)
signals = st.builds(StopSignal, st.sampled_from(StopReason), texts, json_maps, texts)
evaluations = st.builds(
    ContinuationEvaluation,
    st.sampled_from(["StepsLimit", "Mine"]),
    st.sampled_from(ContinuationDecision),
    texts,
    json_maps,
    st.none() | st.sampled_from(StopReason),
)
outcomes = st.builds(
    ContinuationOutcome,
    st.sampled_from(ContinuationDecision),
    st.booleans(),
    texts,
    st.sampled_from(StopReason),
    st.lists(evaluations, max_size=2).map(tuple),
)


@st.composite
def calls(draw: st.DrawFn) -> tuple[ToolCall, ...]:
    """Calls with their own ids, some with arguments that were no JSON object."""
    drawn = draw(st.lists(st.tuples(names, json_maps, st.none() | texts), max_size=3))
    return tuple(
        ToolCall(f"call-{index}", name, frozen_map({}) if malformed else args, malformed or None)
        for index, (name, args, malformed) in enumerate(drawn)
    )


@st.composite
def executions_of(draw: st.DrawFn, call: ToolCall) -> ToolExecution:
    """The call with a result or an error."""
    error = draw(st.none() | errors)
    result = None if error else frozen_map({"": draw(json_values)})[""]
    started = draw(st.none() | moments)
    return ToolExecution(call, result, error, started, started)


@st.composite
def steps(draw: st.DrawFn, complete: bool = True) -> AgentStep:
    """Any step; without `complete` it may wait for results."""
    made = draw(calls())
    done = made if complete else made[: draw(st.integers(0, len(made)))]
    response = InferenceResponse(draw(texts), made, draw(st.none() | texts), draw(usages))
    return AgentStep(
        id=draw(st.uuids()),
        created_at=draw(moments),
        input_messages=tuple(draw(conversations)),
        output_messages=MessageList(draw(conversations)),
        inference_response=draw(st.none() | st.just(response)) if not made else response,
        tool_executions=tuple(draw(executions_of(call)) for call in done),
        own_errors=tuple(draw(st.lists(errors, max_size=2))),
        own_type=draw(st.none() | st.sampled_from(StepType)),
        own_usage=draw(st.none() | usages),
        is_failure=draw(st.booleans()),
        seconds=draw(seconds),
        needs=frozen_map({call.id: draw(st.sampled_from(CallNeed)) for call in made}),
    )


@st.composite
def states(draw: st.DrawFn) -> AgentState:
    """Any state that the loop and its users can produce."""
    store = MessageStore().with_section("messages", draw(conversations))
    for name in draw(st.sets(texts, max_size=2)):
        store = store.with_section(name, draw(conversations))
    state = AgentState(draw(st.none() | st.uuids()), draw(st.none() | st.uuids()))
    state = state.with_message_store(store).with_metadata(draw(json_maps))
    state = state.identified(draw(st.uuids()), draw(st.uuids()))
    context = CachedContext(
        tuple(draw(conversations)), draw(st.lists(json_maps, max_size=1)), draw(st.none() | texts)
    )
    state = state.with_cached_context(context)
    for step in draw(st.lists(steps(), max_size=3)):
        begun = draw(moments)
        state = state.with_step_started(begun).with_current_step(step)
        state = state.with_stop_signal(draw(signals)) if draw(st.booleans()) else state
        state = state.recorded(draw(st.none() | outcomes), draw(moments))
    if draw(st.booleans()):
        state = state.with_step_started(draw(moments)).with_current_step(draw(steps(complete=False)))
    if draw(st.booleans()):
        state = state.with_continuation_outcome(draw(outcomes))
    return replace(state, facts=replace(state.facts, status=draw(st.sampled_from(AgentStatus))))
