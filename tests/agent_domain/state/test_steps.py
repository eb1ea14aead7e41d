"""Steps with their bodies, and their records."""

import json
from dataclasses import FrozenInstanceError, fields, replace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, strategies as st

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.loop.step_error import ErrorType, StepError
from everstep.agent_domain.loop.step_facts import CallFacts, CallNeed, StepFacts, StepType
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.messages.messages import MessageList, assistant, user
from everstep.agent_domain.state.steps import AgentStep, InferenceResponse, StepExecution
from everstep.agent_domain.values import frozen_map
from tests.agent_domain.state_words import (
    AT,
    STOPS,
    a_call,
    a_failure,
    a_step,
    a_success,
    later,
    moments,
    outcomes,
    signals,
    steps,
)

FIRST, SECOND = a_call("look", "c1", at="x"), a_call("find", "c2")
BARE = AgentStep(UUID(int=1), AT)
PSEUDO = a_failure(a_call("decision_extraction", "pseudo"), "no decision", ErrorType.VALIDATION)


def test_a_step_contains_the_reply_of_the_model() -> None:
    """4.3.1."""
    response = InferenceResponse("Hi", (FIRST,), "tool_calls", Usage(3, 4))
    said = MessageList([assistant("Hi")])
    step = AgentStep(UUID(int=1), AT, (user("Hello"),), said, response, (a_success(FIRST),))
    assert (step.id, step.created_at) == (UUID(int=1), AT)
    assert (step.input_messages, step.output_messages) == ((user("Hello"),), (assistant("Hi"),))
    assert (step.tool_calls, step.tool_executions) == ((FIRST,), (a_success(FIRST),))
    assert (step.usage, step.finish_reason) == (Usage(3, 4), "tool_calls")
    assert step.inference_response is response
    assert (step.errors, step.has_tool_calls, step.has_errors) == ((), True, False)


def test_a_step_without_a_response_has_no_text() -> None:
    """4.3.1."""
    assert (BARE.tool_calls, BARE.usage, BARE.finish_reason) == ((), Usage(), None)
    assert (BARE.has_tool_calls, BARE.has_errors, BARE.is_complete) == (False, False, True)
    assert BARE.step_type is StepType.FINAL


def test_a_step_may_have_its_own_usage() -> None:
    """4.2.1: instead of the response's."""
    assert a_step("Hi", tokens=5, own_usage=Usage(output=1)).usage == Usage(output=1)


@pytest.mark.parametrize(
    ("step", "step_type"),
    [
        (a_step("Hi"), StepType.FINAL),
        (a_step("", calls=(FIRST,)), StepType.TOOL_EXECUTION),
        (a_step("", a_success(FIRST)), StepType.TOOL_EXECUTION),
        (a_step("", a_success(FIRST), a_failure(SECOND)), StepType.ERROR),
        (replace(BARE, tool_executions=(PSEUDO,)), StepType.ERROR),
        (a_step("Hi", own_errors=(StepError("odd"),)), StepType.FINAL),
        (a_step("", a_failure(FIRST), own_type=StepType.TOOL_EXECUTION), StepType.TOOL_EXECUTION),
        (a_step("Hi", own_type=StepType.ERROR), StepType.ERROR),
    ],
)
def test_the_type_of_a_step_unless_set(step: AgentStep, step_type: StepType) -> None:
    """4.3.2: a failing execution, else tool calls, else final; the facts agree."""
    assert step.step_type is step_type
    assert step.facts(1).step_type is step_type


def test_an_older_word_for_final_is_read() -> None:
    """4.3.2."""
    written = a_step("Hi").to_dict() | {"stepType": "final_response"}
    assert AgentStep.from_dict(written).own_type is StepType.FINAL


@pytest.mark.parametrize(
    ("step", "text"),
    [
        (a_step("Hi"), ""),
        (a_step("", a_success(FIRST), a_failure(SECOND, "broken")), "broken"),
        (a_step("", a_failure(FIRST, "one"), a_failure(SECOND, "two")), "one\ntwo"),
        (a_step("", a_failure(FIRST, "one"), own_errors=(StepError("a"), StepError("b"))), "a\nb"),
    ],
)
def test_the_errors_of_a_step_are_its_own_or_else_those_of_its_calls(step: AgentStep, text: str) -> None:
    """4.3.3: as text, one a line."""
    assert step.errors_as_text == text
    assert step.has_errors == bool(text)


def test_the_error_of_a_call_names_its_tool() -> None:
    """3.4.1, 4.3.3."""
    assert a_step("", a_failure(SECOND, "broken")).errors == (StepError("broken", tool_name="find"),)


@pytest.mark.parametrize(
    ("outputs", "text"),
    [
        ((), "(no response)"),
        ((assistant(""),), "(no response)"),
        ((assistant("one"), user("two")), "one\ntwo"),
        ((assistant("one"), assistant(""), assistant("two")), "one\ntwo"),
    ],
)
def test_the_display_text_is_the_text_of_the_reply(outputs: Any, text: str) -> None:
    """4.3.3."""
    step = replace(BARE, output_messages=outputs)
    assert step.display_text == text
    assert step.output_messages.to_string() == text.removesuffix("(no response)")
    assert step.output_messages == outputs


def test_calls_wait_until_each_has_a_result() -> None:
    """1.1.5, 4.4.1: in response order."""
    step = a_step("", calls=(FIRST, SECOND))
    assert (step.pending_calls, step.is_complete) == ((FIRST, SECOND), False)
    assert step.observed([a_success(SECOND)]).seconds == 0.0
    half = step.observed([a_success(SECOND)], seconds=1.5)
    assert (half.pending_calls, half.seconds) == ((FIRST,), 1.5)
    whole = half.observed([a_success(FIRST)], seconds=0.5)
    assert (whole.tool_executions, whole.is_complete) == ((a_success(FIRST), a_success(SECOND)), True)
    assert whole.seconds == 2.0


def test_described_calls_wait_for_nothing() -> None:
    """12.3: scripted steps."""
    described = a_step("", calls=(FIRST,), runs_tools=False)
    assert (described.has_tool_calls, described.pending_calls, described.is_complete) == (True, (), True)


def test_a_call_keeps_its_first_result() -> None:
    """1.1.3: exactly one."""
    step = a_step("", calls=(FIRST,)).observed([a_success(FIRST, "first")])
    assert step.observed([a_success(FIRST, "second")]).tool_executions == (a_success(FIRST, "first"),)


def test_results_without_a_call_of_the_model_come_first() -> None:
    """12.2: pseudo executions."""
    step = a_step("", PSEUDO, calls=(FIRST,))
    step = replace(step, inference_response=InferenceResponse("", (FIRST,)))
    assert step.observed([a_success(FIRST)]).tool_executions == (PSEUDO, a_success(FIRST))


def test_errors_can_be_made_void_while_the_model_still_reads_them() -> None:
    """1.1.5, 8.2.1: of a step that was cut short."""
    step = a_step("", a_success(FIRST), a_failure(SECOND, "broken"), own_errors=(StepError("odd"),))
    void = step.without_errors()
    assert not void.has_errors
    assert [execution.text for execution in void.tool_executions] == ["done", "Error: broken"]


def test_the_facts_of_a_step_hold_no_bodies() -> None:
    """1.1.2: counts, names and kinds, but no text, argument, result or message of an error."""
    step = a_step(
        "secret",
        a_success(FIRST, "secret"),
        a_failure(SECOND, "secret", ErrorType.TIMEOUT),
        calls=(a_call("ask", "c3", q="secret"),),
        tokens=7,
        own_errors=(StepError("secret", ErrorType.MODEL, "find", "ValueError"),),
        needs=frozen_map({"c3": "input"}),
        is_failure=True,
        seconds=2.5,
        input_messages=(user("secret"),),
    )
    failed = StepError("", ErrorType.TIMEOUT, "find")
    assert step.facts(4) == StepFacts(
        number=4,
        calls=(
            CallFacts("c1", "look", is_settled=True),
            CallFacts("c2", "find", is_settled=True, error=failed),
            CallFacts("c3", "ask", CallNeed.INPUT),
        ),
        usage=Usage(input=7),
        own_errors=(StepError("", ErrorType.MODEL, "find", "ValueError"),),
        is_failure=True,
        seconds=2.5,
    )
    assert "secret" not in repr(step.facts(4))


def test_the_facts_contain_the_finish_reason() -> None:
    """2.5: for the check of finish reasons."""
    step = replace(BARE, inference_response=InferenceResponse("Hi", finish_reason="length"))
    assert step.facts(1).finish_reason == "length"


@pytest.mark.parametrize("value", [BARE, InferenceResponse(), StepExecution(1, BARE, None, AT, AT)])
def test_steps_do_not_change(value: Any) -> None:
    """0.8."""
    for field in fields(value):
        with pytest.raises(FrozenInstanceError):
            setattr(value, field.name, None)
    with pytest.raises((AttributeError, TypeError)):
        value.note = "kept"


def test_the_facts_distinguish_pseudo_executions_from_calls() -> None:
    """12.2, 3.4.2."""
    facts = replace(BARE, tool_executions=(PSEUDO,)).facts(1)
    assert (facts.calls, facts.pseudo_errors) == (
        (),
        (StepError("", ErrorType.VALIDATION, "decision_extraction"),),
    )


# Records.


def test_a_record_has_its_step_its_time_and_the_outcome() -> None:
    """4.4.3: the duration has microseconds, waiting included; processing counts work alone."""
    record = StepExecution(3, a_step("Hi", seconds=0.25), STOPS, AT, later(1.000001))
    assert (record.id, record.number, record.outcome) == (record.step.id, 3, STOPS)
    assert (record.started_at, record.completed_at) == (AT, later(1.000001))
    assert (record.duration, record.processing_seconds) == (1.000001, 0.25)
    assert record.stop_signal is None


@st.composite
def records(draw: st.DrawFn) -> StepExecution:
    outcome, signal = draw(st.none() | outcomes), draw(st.none() | signals)
    return StepExecution(
        draw(st.integers(1, 99)), draw(steps()), outcome, draw(moments), draw(moments), signal
    )


@given(records())
def test_any_record_survives_being_written_and_read(record: StepExecution) -> None:
    """4.4, 4.4.3."""
    assert StepExecution.from_dict(json.loads(json.dumps(record.to_dict()))) == record


def test_a_result_with_a_text_form_is_read_back_as_its_text() -> None:
    """5.4.2: objects are written as the text for the model."""
    step = a_step("", a_success(FIRST, UUID(int=5)))
    (execution,) = AgentStep.from_dict(json.loads(json.dumps(step.to_dict()))).tool_executions
    assert execution.result == execution.text == str(UUID(int=5))


def test_fields_that_an_older_version_did_not_write_are_empty() -> None:
    """0.6, 4.1.7: and additions of a newer one are ignored."""
    written = {"id": str(UUID(int=1)), "createdAt": "2026-01-16T10:05:00.123456Z", "new": 1}
    assert AgentStep.from_dict(written) == BARE
    assert InferenceResponse.from_dict({"new": 1}) == InferenceResponse()
    moment = {"startedAt": written["createdAt"], "completedAt": written["createdAt"]}
    assert StepExecution.from_dict({"number": 1, "step": written, **moment}) == StepExecution(
        1, BARE, None, AT, AT
    )


@pytest.mark.parametrize("missing", ["id", "createdAt"])
def test_a_step_has_an_id_and_a_time(missing: str) -> None:
    """4.3.1."""
    written = BARE.to_dict()
    del written[missing]
    with pytest.raises(InvalidInput, match=f"'{missing}' is missing"):
        AgentStep.from_dict(written)


def test_a_time_without_a_zone_is_refused() -> None:
    """0.5."""
    with pytest.raises(InvalidInput, match="no time zone; pass an aware datetime"):
        replace(BARE, created_at=AT.replace(tzinfo=None)).to_dict()
