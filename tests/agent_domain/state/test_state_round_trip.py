"""The written form of the full state: it is read back as it was, and invalid input is refused."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.loop.status import StopReason
from everstep.agent_domain.loop.step_error import StepError
from everstep.agent_domain.loop.stop_signal import StopSignal
from everstep.agent_domain.messages.messages import (
    Message,
    MessageStore,
    Role,
    assistant,
    user,
)
from everstep.agent_domain.state.state import AgentState
from everstep.agent_domain.values import MAX_DEPTH, freeze, frozen_map
from tests.agent_domain.state_words import (
    AGENT,
    AT,
    EXECUTION,
    GOES_ON,
    PARENT,
    STOPS,
    a_call,
    a_state,
    a_step,
    a_success,
    after_steps,
    states,
)

SIGNAL = StopSignal(StopReason.GUARD, "enough")
CALL = a_call("look", "c1", at="x")


def deep_list(depth: int) -> Any:
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


def stored_json(state: AgentState) -> Any:
    """The state through JSON, as any store would return it."""
    return json.loads(json.dumps(state.to_dict(), ensure_ascii=False))


def without_transients(state: AgentState) -> AgentState:
    """The part that a round trip keeps."""
    facts = replace(
        state.facts,
        execution_started_at=None,
        step_started_at=None,
        stop_signal=None,
        continuation_requested=False,
    )
    sections = tuple(
        (name, tuple(m for m in messages if not m.is_empty))
        for name, messages in state.message_store.sections
    )
    kept = replace(state, facts=facts, execution=replace(state.execution, hook_context=None))
    return kept.with_message_store(MessageStore(sections))


@given(states())
def test_any_state_survives_being_written_and_read(state: AgentState) -> None:
    """4.1.7, 4.4.2, 5.1.2: all but transients and empty messages, any number of times."""
    written = stored_json(state)
    read = AgentState.from_dict(written)
    assert read == without_transients(state)
    assert stored_json(read) == written


def test_the_keys_of_the_full_state() -> None:
    """4.1.7, 0.7: camelCase; the start of the execution and of the step are no part of it."""
    state = replace(a_state("Hi"), parent_agent_id=PARENT).with_metadata("a", 1)
    state = after_steps(a_step("Hello", tokens=2), state=state).with_continuation_outcome(STOPS)
    written = stored_json(state)
    steps, info = written.pop("steps"), written.pop("stateInfo")
    assert written == {
        "agentId": str(AGENT),
        "parentAgentId": str(PARENT),
        "status": "in_progress",
        "isPaused": False,
        "usage": {"input": 2, "output": 0, "cache_write": 0, "cache_read": 0, "reasoning": 0},
        "metadata": {"a": 1},
        "messageStore": {
            "sections": [
                {
                    "name": "messages",
                    "messages": [
                        {"role": "user", "content": "Hi"},
                        {"role": "assistant", "content": "Hello"},
                    ],
                }
            ]
        },
        "cachedContext": {"messages": [], "tools": [], "toolChoice": None, "responseFormat": None},
        "executionId": str(EXECUTION),
        "startedAt": "2026-01-16T10:05:00.123456Z",
        "completedAt": None,
        "currentStep": None,
        "lastContinuationOutcome": {
            "decision": "stop",
            "shouldContinue": False,
            "resolvedBy": "Worker",
            "stopReason": "completed",
            "evaluations": [],
        },
    }
    assert info == state.state_info.to_dict()
    assert [step["number"] for step in steps] == [1]


def test_the_task_is_the_last_message_of_people_before_the_first_step() -> None:
    """9.7.1: steering and earlier messages do not change it; it survives being written."""
    asked = a_state("Book a train").heard(assistant("Done"), user("And a room"))
    began = asked.entered(AT)
    steered = after_steps(a_step("Which?"), state=began).heard(user("By the harbour"))

    assert (asked.task, began.task, steered.task) == ("And a room",) * 3
    assert AgentState.from_dict(stored_json(steered)).task == "And a room"
    again = steered.with_user_message("Cancel both")
    assert again.task == again.entered(AT).task == "Cancel both"
    assert AgentState.empty().task == ""


def test_a_step_that_waits_is_written_separately() -> None:
    """4.4: only while it is under way; afterwards it is in its record."""
    waiting = a_state().with_step_started(AT).with_current_step(a_step("", calls=(CALL,)))
    assert stored_json(waiting)["currentStep"]["inferenceResponse"]["toolCalls"][0]["id"] == "c1"
    read = AgentState.from_dict(stored_json(waiting))
    assert [call.id for call in read.facts.pending] == ["c1"]
    assert (read.step_count, read.facts.next_step_number) == (0, 1)
    assert stored_json(after_steps(a_step("one")))["currentStep"] is None


def test_transients_are_gone_after_a_round_trip() -> None:
    """4.4.2, 4.1.7: the execution's start is ignored even if it was written."""
    state = a_state().entered(AT).with_step_started(AT).with_hook_context({"a": 1}).with_stop_signal(SIGNAL)
    written = stored_json(state.with_continuation_requested()) | {
        "executionStartedAt": "2020-01-01T00:00:00Z"
    }
    read = AgentState.from_dict(written)
    assert (read.execution_started_at, read.current_step_started_at) == (None, None)
    assert (read.stop_signal, read.continuation_requested) == (None, False)
    assert read.execution.hook_context is None
    assert read.execution.started_at == AT


def test_a_flat_list_of_messages_is_the_default_section() -> None:
    """4.1.7."""
    read = AgentState.from_dict({"messages": [{"role": "user", "content": "Hi"}, {"role": "alien"}]})
    assert read.messages == (user("Hi"), user(""))
    assert AgentState.from_dict({}) == AgentState.empty()


def with_unknown_fields(written: dict[str, Any]) -> dict[str, Any]:
    """The form of a later version."""
    new: dict[str, Any] = {"fromTheFuture": {"nested": [1]}}
    (step,) = written["steps"]
    (section,) = written["messageStore"]["sections"]
    inner = step["step"]
    return {
        **written,
        **new,
        "stateInfo": {**written["stateInfo"], **new},
        "messageStore": {
            "sections": [
                {**section, **new, "messages": [{**message, **new} for message in section["messages"]]},
            ],
            **new,
        },
        "steps": [
            {
                **step,
                **new,
                "step": {
                    **inner,
                    **new,
                    "inferenceResponse": {**inner["inferenceResponse"], **new},
                    "toolExecutions": [
                        {**execution, **new, "call": {**execution["call"], **new}}
                        for execution in inner["toolExecutions"]
                    ],
                },
                "outcome": {**step["outcome"], **new},
            }
        ],
        "cachedContext": {**written["cachedContext"], **new},
    }


def test_unknown_fields_are_ignored() -> None:
    """0.6, 4.1.7: at every level."""
    state = after_steps(a_step("Hi", a_success(CALL)))
    assert AgentState.from_dict(with_unknown_fields(stored_json(state))) == without_transients(state)


@pytest.mark.parametrize("depth", [1, MAX_DEPTH - 1])
def test_a_state_can_read_back_any_content(depth: int) -> None:
    """4.1.7: also the deepest permitted nesting."""
    call = a_call("look", "c1", deep=deep_list(depth))
    state = after_steps(a_step("", a_success(call, deep_list(depth)))).with_metadata("deep", deep_list(depth))
    message = Message(Role.USER, freeze([deep_list(depth)]), frozen_map({"deep": deep_list(depth)}))
    state = state.heard(message)
    assert AgentState.from_dict(stored_json(state)) == without_transients(state)


def broken(change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    written = stored_json(after_steps(a_step("Hi", a_success(CALL))))
    change(written)
    return written


@pytest.mark.parametrize(
    ("written", "complaint"),
    [
        ("text", "must be a map, not str"),
        (None, "must be a map, not NoneType"),
        (broken(lambda d: d.update(agentId=7)), "agentId is 7"),
        (broken(lambda d: d.update(agentId="x")), "agentId is 'x'; pass a UUID"),
        (broken(lambda d: d.update(status="asleep")), "asleep"),
        (broken(lambda d: d.update(steps=[{}])), "number"),
        (broken(lambda d: d.update(steps=5)), "int"),
        (broken(lambda d: d.update(metadata=[1])), "metadata must be a map"),
        (broken(lambda d: d.update(messageStore={"sections": [{}]})), "name"),
        (broken(lambda d: d.update(startedAt="noon")), "startedAt is not an ISO 8601 date"),
        (broken(lambda d: d.update(metadata={"a": "\ud800"})), "half of a surrogate pair"),
        (broken(lambda d: d["steps"][0]["step"].update(stepType="odd")), "odd"),
        (broken(lambda d: d["usage"].update(input=-1)), "input is -1"),
        (broken(lambda d: d.update(messages=1, messageStore=None)), "int"),
    ],
)
def test_unreadable_input_is_refused_in_one_way(written: Any, complaint: str) -> None:
    """4.1.7: one typed error, which names the reason."""
    with pytest.raises(InvalidInput, match=complaint) as refused:
        AgentState.from_dict(written)
    assert str(refused.value).startswith("the agent state cannot be read: ")


DOORS: list[Callable[[str], object]] = [
    Message.from_string,
    lambda text: AgentState.empty().with_messages(text),
    lambda text: AgentState.empty().with_user_message(text),
    lambda text: AgentState.empty().with_messages([{"role": "user", "content": [{"text": text}]}]),
    lambda text: AgentState.empty().with_metadata({text: 1}),
    lambda text: AgentState.empty().with_hook_context({"a": text}),
]


@pytest.mark.parametrize("enter", DOORS)
@pytest.mark.parametrize(("text", "complaint"), [("half \udfff", "surrogate pair"), ("\x00", "NUL")])
def test_text_that_cannot_be_stored_does_not_get_in(
    enter: Callable[[str], object], text: str, complaint: str
) -> None:
    """4.1.7: refused when it is set, not when the state is written."""
    with pytest.raises(InvalidInput, match=complaint):
        enter(text)


def test_an_exception_whose_text_cannot_be_stored_can_be_recorded() -> None:
    """4.3.4, 4.1.7: such as one that names an undecodable file."""
    state = a_state().fail_with(OSError("no file a\udc80\x00b"), AT)
    (read,) = AgentState.from_dict(stored_json(state)).steps
    assert read.errors_as_text.startswith("no file a")
    assert read.errors_as_text.endswith("b")


def test_a_paused_state_is_paused_when_it_is_read() -> None:
    """8.4.1: no later call resumes it automatically."""
    assert AgentState.from_dict(stored_json(a_state("Hello").paused())).is_paused


def test_a_large_state_is_shown_in_a_line() -> None:
    """4.1.1: debuggers and event loops request it on their own."""
    state = after_steps(a_step("Hi" * 1000), state=a_state("Hello" * 1000))
    assert repr(state) == f"<AgentState {AGENT} in_progress, 1 steps>"
    assert repr(state.execution) == f"<ExecutionData {EXECUTION}, 1 steps recorded>"


@given(st.lists(st.sampled_from(["fails", "breaks off", "succeeds", "by hand"]), max_size=6))
def test_failures_in_a_row_are_counted_alike_when_they_are_read(history: list[str]) -> None:
    """3.4.3, 4.1.7: while steps are recorded one by one, and from the records."""
    state = a_state("Hello")
    for what in history:
        begun = state.with_step_started(AT)
        step = a_step("Hi", number=state.step_count + 1)
        match what:
            case "fails":
                state = begun.failed(StepError("odd"), AT).recorded(GOES_ON, AT)
            case "breaks off":
                state = begun.with_current_step(step).failed(StepError("odd"), AT).recorded(GOES_ON, AT)
            case "succeeds":
                state = begun.with_current_step(step).recorded(GOES_ON, AT)
            case _:
                state = state.record_step(step)
    assert AgentState.from_dict(stored_json(state)).facts == without_transients(state).facts
