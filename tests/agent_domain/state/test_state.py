"""The full state: its content, its transitions, and its written form."""

from dataclasses import FrozenInstanceError, replace
from typing import Any
from uuid import UUID

import pytest

from everstep.agent_domain.capabilities.critique import CritiqueFacts, CritiqueVerdict
from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.ids import step_id
from everstep.agent_domain.loop.continuation import (
    ContinuationDecision,
    ContinuationEvaluation,
    ContinuationOutcome,
)
from everstep.agent_domain.loop.error_policy import ErrorContext, ErrorPolicy
from everstep.agent_domain.loop.facts import StateInfo
from everstep.agent_domain.loop.status import AgentStatus, StopReason
from everstep.agent_domain.loop.step_error import ErrorType, StepError
from everstep.agent_domain.loop.step_facts import StepType
from everstep.agent_domain.loop.stop_signal import StopSignal
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.messages.cached_context import CachedContext
from everstep.agent_domain.messages.messages import (
    Messages,
    MessageStore,
    assistant,
    system,
    tool_message,
    user,
)
from everstep.agent_domain.state.state import AgentState
from everstep.agent_domain.state.steps import AgentStep, StepExecution
from tests.agent_domain.state_words import (
    AGENT,
    AT,
    EXECUTION,
    GOES_ON,
    PARENT,
    STOPS,
    a_call,
    a_failure,
    a_state,
    a_step,
    a_success,
    after_steps,
    later,
)

SIGNAL = StopSignal(StopReason.GUARD, "enough")
CALL = a_call("look", "c1", at="x")
OTHER = a_call("look", "c2")


def results(step: AgentStep) -> Messages:
    """A driver's output for a finished step: the calls, then each result."""
    said = assistant("", tool_calls=[{"id": call.id} for call in step.tool_calls])
    return (said, *(tool_message(e.text, e.call.id, e.call.name) for e in step.tool_executions))


def a_state_with_critique(approved: bool, **metadata: Any) -> AgentState:
    return a_state().with_metadata({"self_critic_result": {"approved": approved}, **metadata})


# Content.


def test_an_empty_state_has_nothing_and_has_not_started() -> None:
    """4.1.1, 4.1.2."""
    state = AgentState.empty()
    assert state.status is AgentStatus.IN_PROGRESS
    assert (state.agent_id, state.parent_agent_id) == (None, None)
    assert (state.steps, state.current_step, state.step_count) == ((), None, 0)
    assert (state.messages, state.metadata, state.usage) == ((), {}, Usage())
    assert state.message_store.sections == (("messages", ()),)
    assert state.state_info == StateInfo()
    assert state.cached_context.is_empty
    assert (state.current_step_started_at, state.execution_started_at) == (None, None)
    assert state.last_continuation_outcome is None
    assert state.execution.step_executions == ()


def test_a_step_is_found_by_its_place_counted_from_zero() -> None:
    """4.1.1."""
    first, second = a_step("one"), a_step("two", number=2)
    state = after_steps(first, second)
    assert (state.step_count, state.steps) == (2, (first, second))
    assert [state.step_at(index) for index in (0, 1, 2, -1)] == [first, second, None, None]


def test_a_state_does_not_change() -> None:
    """0.8: an operation returns a new state."""
    state = AgentState.empty()
    with pytest.raises(FrozenInstanceError):
        state.metadata = state.metadata  # type: ignore[misc]
    assert state.with_metadata("seen", True).with_messages("Hi").with_stop_signal(SIGNAL) != state
    assert state == AgentState.empty()


def test_messages_replace_the_default_section() -> None:
    """4.1.2: other sections stay."""
    store = MessageStore().with_section("notes", [user("later")])
    state = a_state("old").with_message_store(store).with_messages([user("new"), {"role": "assistant"}])
    assert state.messages == (user("new"), assistant(""))
    assert state.message_store.section("notes") == (user("later"),)
    assert state.with_messages("text").messages == (user("text"),)


def test_metadata_are_set_by_key_or_merged_by_map() -> None:
    """4.1.2."""
    state = AgentState.empty().with_metadata("a", 1).with_metadata({"b": [2], "c": None})
    assert state.metadata == {"a": 1, "b": [2], "c": None}
    assert state.with_metadata("a", None).metadata == {"a": None, "b": [2], "c": None}
    assert state.without_metadata("a", "c", "x").metadata == {"b": [2]}


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ("\ud800", "half of a surrogate pair; send valid Unicode"),
        ("\x00", "NUL character; remove it"),
        (float("nan"), "nan, which JSON cannot hold"),
        ({1}, "of type set"),
        ({1: 2}, "keys must be text"),
    ],
)
def test_metadata_that_json_cannot_hold_are_refused(value: object, complaint: str) -> None:
    """4.1.2: the error names the reason and the place."""
    with pytest.raises(InvalidInput, match=complaint) as refused:
        AgentState.empty().with_metadata("key", value)
    assert "metadata" in str(refused.value)


def test_the_latest_outcome_is_kept() -> None:
    """4.1.2."""
    state = AgentState.empty().with_continuation_outcome(STOPS)
    assert state.last_continuation_outcome is state.last_outcome is STOPS


def test_the_cached_context_is_no_part_of_the_conversation() -> None:
    """5.2.2."""
    context = CachedContext((system("Be brief"),))
    state = a_state("Hello").with_cached_context(context)
    assert (state.cached_context, state.messages) == (context, (user("Hello"),))


def test_given_ids_stay() -> None:
    """4.1.1: the state's own information uses the agent's id."""
    state = AgentState.empty().identified(AGENT, EXECUTION)
    assert (state.agent_id, state.execution.execution_id, state.state_info.id) == (AGENT, EXECUTION, AGENT)
    assert state.identified(UUID(int=8), UUID(int=9)) == state


@pytest.mark.parametrize(
    ("conversation", "response"),
    [
        ((), None),
        ((user("Hello"),), None),
        ((assistant("one"), assistant("two"), user("thanks")), "two"),
        ((assistant("one"), assistant("calls", tool_calls=[{"id": "c1"}])), "one"),
        ((assistant("one"), assistant('{"at":"x"}')), "one"),
        ((assistant("one"), assistant('```json\n{"at": "x"}\n```')), "one"),
        ((assistant("one"), assistant('{"at":"y"}')), '{"at":"y"}'),
        ((assistant("one"), assistant(" \n")), "one"),
    ],
)
def test_the_final_response_is_the_last_text_for_people(conversation: Messages, response: str | None) -> None:
    """4.3.5: no tool call, and not the arguments of one."""
    state = after_steps(a_step("", a_success(CALL)), state=a_state()).with_messages(conversation)
    assert state.final_response == response


@pytest.mark.parametrize(
    ("state", "critique"),
    [
        (AgentState.empty(), None),
        (
            a_state_with_critique(False, self_critic_iteration=1).with_mark(
                "critique", {"verdict": "approved", "iteration": 2}
            ),
            CritiqueFacts(CritiqueVerdict.APPROVED, 2),
        ),
        (AgentState.empty().with_metadata("self_critic_result", "odd"), None),
        (a_state_with_critique(True, self_critic_iteration=1), CritiqueFacts(CritiqueVerdict.APPROVED, 1)),
        (a_state_with_critique(False), CritiqueFacts(CritiqueVerdict.REJECTED, 0)),
        (a_state_with_critique(False, self_critic_iteration=2), CritiqueFacts(CritiqueVerdict.REJECTED, 2)),
        (
            a_state_with_critique(False, self_critic_iteration="two"),
            CritiqueFacts(CritiqueVerdict.REJECTED, 0),
        ),
    ],
)
def test_a_state_without_marks_has_the_mark_that_its_critique_implies(
    state: AgentState, critique: CritiqueFacts | None
) -> None:
    """9.7.2: states were stored when the verdict was in the metadata only."""
    read = AgentState.from_dict(state.to_dict())
    assert CritiqueFacts.from_marks(read.marks) == critique


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ({1, 2}, "the marks.verdict is of type set"),
        ("long" * 500, "with 'verdict' the marks have 2014 characters of JSON, more than 2000; keep numbers"),
    ],
)
def test_a_mark_is_small_json(value: object, problem: str) -> None:
    """4.5.6"""
    with pytest.raises(InvalidInput, match=problem):
        AgentState.empty().with_mark("verdict", value)


def test_marks_survive_storage() -> None:
    """4.5.6: and a state without any is written as before."""
    state = a_state("Hello").with_mark("verdict", {"score": 3})
    assert AgentState.from_dict(state.to_dict()).marks == {"verdict": {"score": 3}}
    assert "marks" not in state.with_mark("verdict", None).to_dict()


def test_a_failure_is_reported_with_its_message() -> None:
    """3.4.1, 3.4.3: counted within the execution."""
    fine, broken = a_step("fine"), a_step("", a_failure(CALL, "broken"))
    state = after_steps(broken, fine, replace(broken, id=UUID(int=7)))
    assert state.error_context == ErrorContext(ErrorType.TOOL, 1, 2, "broken", "look")
    assert state.trailing_failures == 1
    assert after_steps(fine).error_context == ErrorContext.none()


# A new execution.


def an_ended_execution() -> AgentState:
    """A state in which everything that a new execution clears or keeps has a value."""
    state = replace(a_state("Hello"), parent_agent_id=PARENT).with_metadata(
        {"kept": 1, "self_critic_result": {}}
    )
    state = state.with_mark("critique", {"verdict": "approved", "iteration": 1})
    state = state.with_cached_context(CachedContext((system("Be brief"),))).entered(AT)
    step = a_step("Hi", a_success(CALL), tokens=9, seconds=4.0)
    state = after_steps(step, state=state).with_stop_signal(SIGNAL).with_continuation_requested()
    return state.ended(STOPS, ErrorPolicy(), later(5))


def test_a_reset_begins_a_new_execution_of_the_same_agent() -> None:
    """4.1.4, 2.7: the data of an execution are cleared, those of agent and session stay."""
    before = an_ended_execution()
    state = before.with_user_message("And now?")
    assert state.status is AgentStatus.IN_PROGRESS
    assert (state.steps, state.step_count, state.current_step) == ((), 0, None)
    assert state.usage == Usage()
    assert state.cached_context.is_empty
    assert (state.current_step_started_at, state.execution_started_at) == (None, None)
    assert (state.stop_signal, state.continuation_requested) == (None, False)
    assert state.last_continuation_outcome is None
    assert state.messages == (user("Hello"), assistant("Hi"), user("And now?"))
    assert (state.agent_id, state.parent_agent_id) == (AGENT, PARENT)
    assert before.state_info.cumulative_execution_seconds == 4.0
    assert state.state_info == replace(before.state_info, cumulative_execution_seconds=0.0)
    assert state.state_info.session_execution_seconds == 4.0


def test_a_new_execution_clears_its_data_and_the_critique() -> None:
    """4.4, 9.7.2."""
    before = an_ended_execution()
    state = before.for_continuation()
    assert before.execution.execution_id == EXECUTION
    assert (before.execution.started_at, before.execution.completed_at) == (AT, later(5))
    assert state.execution == AgentState.empty().execution
    assert (state.metadata, state.marks) == ({"kept": 1}, {})


def test_without_a_reset_the_execution_continues() -> None:
    """4.1.4."""
    before = an_ended_execution()
    state = before.with_user_message({"role": "user", "content": "More"}, reset=False)
    assert state.status is AgentStatus.IN_PROGRESS
    assert (state.steps, state.usage, state.execution) == (before.steps, before.usage, before.execution)
    assert state.messages == (*before.messages, user("More"))


# Transitions.


def test_a_step_start_stamps_clears_the_signals_and_opens_the_hook_context() -> None:
    """4.4.2, 2.4.1."""
    state = a_state().with_stop_signal(SIGNAL).with_continuation_requested()
    assert state.stop_signal == SIGNAL
    assert state.continuation_requested
    begun = state.with_step_started(AT)
    assert (begun.stop_signal, begun.continuation_requested) == (None, False)
    assert begun.current_step_started_at == begun.execution_started_at == begun.execution.started_at == AT
    assert begun.execution.hook_context == {}
    assert begun.with_hook_context({"note": 1}).execution.hook_context == {"note": 1}
    assert begun.facts.awaits_reply


def test_recording_appends_and_clears_what_belonged_to_the_step() -> None:
    """4.4.2, 4.4: the current step and the signals stay."""
    begun = a_state("Hello").with_step_started(AT).with_hook_context({"note": 1})
    step = a_step("Hi")
    state = begun.with_current_step(step).with_stop_signal(SIGNAL)
    recorded = state.with_step_recorded(StepExecution(1, step, STOPS, AT, later(1)))
    assert recorded.execution.step_executions == (StepExecution(1, step, STOPS, AT, later(1)),)
    assert recorded.current_step is step
    assert recorded.last_continuation_outcome is STOPS
    assert (recorded.current_step_started_at, recorded.execution.hook_context) == (None, None)
    assert recorded.stop_signal == SIGNAL


def test_the_number_of_a_step_follows_from_the_recorded_ones() -> None:
    """4.4.1: count + 1, also while the step is under way."""
    state = after_steps(a_step("one"))
    assert state.facts.next_step_number == 2
    under_way = state.with_step_started(AT).with_current_step(a_step("", calls=(CALL,), number=2))
    assert (under_way.facts.next_step_number, under_way.step_count) == (2, 1)
    assert [
        record.number for record in after_steps(a_step("one"), a_step("two")).execution.step_executions
    ] == [
        1,
        2,
    ]


def test_a_step_joins_the_conversation_once_its_last_call_is_answered() -> None:
    """4.5.2, 4.2.1: its messages, its usage and its seconds, each once."""
    waiting = a_state("Hello").with_step_started(AT).with_current_step(a_step("Hi", calls=(CALL,), tokens=5))
    assert [call.id for call in waiting.facts.pending] == ["c1"]
    assert not waiting.facts.is_applied
    assert (waiting.messages, waiting.usage, waiting.steps) == ((user("Hello"),), Usage(), ())
    done = a_step("Hi", a_success(CALL), tokens=5, seconds=2.0)
    state = waiting.with_current_step(done)
    state = state.with_current_step(done)
    assert state.facts.is_applied
    assert (state.messages, state.usage) == ((user("Hello"), assistant("Hi")), Usage(input=5))
    assert state.state_info.cumulative_execution_seconds == 2.0
    assert (state.step_count, state.steps) == (1, (done,))


def test_work_beside_the_calls_counts_for_the_step_and_its_execution() -> None:
    """2.7.1: such as a critic's."""
    state = a_state().with_step_started(AT).with_current_step(a_step("Hi", seconds=1.0)).worked(0.5)
    assert state.current_step is not None
    assert (state.current_step.seconds, state.state_info.session_execution_seconds) == (1.5, 1.5)
    assert a_state().worked(0.5).state_info.cumulative_execution_seconds == 0.5


def test_an_exception_becomes_the_step_under_way() -> None:
    """4.3.4: messages in, nothing out, no usage, type error."""
    begun = after_steps(a_step("one", tokens=5)).with_step_started(later(1))
    state = begun.failed(StepError("boom"), later(2), seconds=1.0).recorded(GOES_ON, later(3))
    step = state.current_step
    assert step is not None
    assert (step.input_messages, step.output_messages) == (begun.messages, ())
    assert (step.usage, step.step_type, step.errors) == (Usage(), StepType.ERROR, (StepError("boom"),))
    assert step.is_failure
    assert state.facts.current_step == step.facts(2)
    assert (state.step_count, state.usage, state.messages) == (2, Usage(input=5), begun.messages)
    assert state.state_info.cumulative_execution_seconds == 1.0
    record = state.execution.step_executions[1]
    assert (record.number, record.started_at, record.completed_at) == (2, later(1), later(3))


def test_an_exception_after_a_step_was_applied_becomes_the_next_step() -> None:
    """4.3.4: n does not change, the failure is n + 1."""
    applied = a_state("Hello").with_step_started(AT).with_current_step(a_step("Hi", tokens=5))
    state = applied.failed(StepError("boom"), later(1)).recorded(GOES_ON, later(2))
    first, second = state.execution.step_executions
    assert (first.number, first.step, first.outcome) == (1, applied.current_step, None)
    assert (second.number, second.step.is_failure, second.outcome) == (2, True, GOES_ON)
    assert second.step.input_messages == (user("Hello"), assistant("Hi"))
    assert (state.step_count, state.usage) == (2, Usage(input=5))


def test_steps_have_their_own_ids() -> None:
    """4.3.1, 4.4.3: that follow from execution and number."""
    state = a_state().with_step_started(AT)
    assert state.new_step_id() == step_id(EXECUTION, 1)
    later_on = after_steps(a_step("one")).with_step_started(AT)
    assert state.new_step_id() == state.with_metadata("a", 1).new_step_id() != later_on.new_step_id()
    with pytest.raises(InvalidInput, match="call identified"):
        AgentState.empty().new_step_id()


def test_a_step_that_is_cut_short_leaves_no_call_without_a_result() -> None:
    """1.1.5: each unanswered call gets one text; existing results stay."""
    step = a_step("", a_success(CALL), calls=(OTHER,))
    waiting = a_state("Hello").with_step_started(AT).with_current_step(step)
    state = waiting.abandoned(later(1), results)
    assert [message.text for message in state.messages if message.is_tool] == [
        "done",
        "Error: Cancelled before it finished",
    ]
    assert [message.answers for message in state.messages if message.is_tool] == ["c1", "c2"]
    assert (state.facts.pending, state.step_count) == ((), 1)


def test_failures_in_a_step_that_is_cut_short_are_no_errors_of_the_run() -> None:
    """8.2.1, 1.1.5: the model reads them all the same."""
    step = a_step("", a_failure(CALL, "broken"), calls=(OTHER,))
    state = a_state().with_step_started(AT).with_current_step(step).abandoned(later(1), results)
    assert next(message.text for message in state.messages if message.is_tool) == "Error: broken"
    assert state.error_context == ErrorContext.none()
    assert state.facts.current_step == (state.current_step and state.current_step.facts(1))


@pytest.mark.parametrize(
    "state",
    [
        a_state("Hello"),
        a_state("Hello").with_step_started(AT),
        after_steps(a_step("Hi", a_success(CALL))),
        a_state("Hello").with_step_started(AT).with_current_step(a_step("Hi", a_success(CALL))),
    ],
)
def test_without_waiting_calls_no_result_is_added(state: AgentState) -> None:
    """1.1.5."""
    abandoned = state.abandoned(later(1), results)
    assert (abandoned.messages, abandoned.steps) == (state.messages, state.steps)


def test_a_step_that_is_given_up_before_the_reply_leaves_nothing() -> None:
    """1.1.5, 8.2.1."""
    abandoned = a_state("Hello").with_step_started(AT).abandoned(later(1), results)
    assert (abandoned.facts.awaits_reply, abandoned.current_step_started_at) == (False, None)
    assert (abandoned.step_count, abandoned.messages) == (0, (user("Hello"),))


def test_recording_without_a_step_changes_nothing() -> None:
    """4.4.2."""
    for state in (a_state(), after_steps(a_step("one"))):
        assert state.recorded(STOPS, later(9)) == state


def test_an_execution_that_ends_has_its_status_its_outcome_and_the_time() -> None:
    """4.5.1, 4.4."""
    state = after_steps(a_step("one")).ended(STOPS, ErrorPolicy(), later(4))
    assert (state.status, state.last_outcome) == (AgentStatus.COMPLETED, STOPS)
    assert state.execution.completed_at == state.state_info.updated_at == later(4)
    assert state.ended(GOES_ON, ErrorPolicy(), later(5)) == state


def test_ending_records_the_step_that_is_complete() -> None:
    """4.5.2."""
    applied = a_state().with_step_started(AT).with_current_step(a_step("one"))
    state = applied.ended(STOPS, ErrorPolicy(), later(4))
    assert state.execution.step_executions == (StepExecution(1, a_step("one"), STOPS, AT, later(4)),)


def test_a_criterion_that_raised_leaves_a_failure_step() -> None:
    """2.2.7, 4.3.4."""
    vote = ContinuationEvaluation(
        "mine.Criterion",
        ContinuationDecision.FORBID,
        "raised",
        error=StepError("boom"),
        stop_reason=StopReason.ERROR,
    )
    outcome = ContinuationOutcome(ContinuationDecision.FORBID, False, "Criterion", StopReason.ERROR, (vote,))
    state = after_steps(a_step("one")).ended(outcome, ErrorPolicy(), later(4))
    assert state.status is AgentStatus.FAILED
    assert state.step_count == len(state.steps) == 2
    assert state.steps[1].errors == (StepError("boom"),)
    assert state.execution.step_executions[1].outcome == outcome
    assert state.facts.current_step == state.steps[1].facts(2)


# Helpers for hand-made states.


@pytest.mark.parametrize(
    ("given", "marked", "now", "started"),
    [
        (later(1), later(2), later(3), later(1)),
        (None, later(2), later(3), later(2)),
        (None, None, later(3), later(3)),
        (None, None, None, AT),
    ],
)
def test_a_hand_made_step_starts_when_given_else_when_marked_else_now(
    given: Any, marked: Any, now: Any, started: Any
) -> None:
    """4.1.3."""
    state = a_state().with_step_started(marked) if marked else a_state()
    step = a_step("one")
    recorded = state.record_step(step, started_at=given, now=now)
    assert (recorded.steps, recorded.current_step, recorded.step_count) == ((step,), step, 1)
    assert recorded.messages == (assistant("one"),)
    assert recorded.execution.step_executions[0].started_at == started
    assert recorded.execution.step_executions[0].duration >= 0


def test_hand_made_steps_are_numbered() -> None:
    """4.1.3."""
    state = a_state().record_step(a_step("one")).record_step(a_step("two", number=2))
    assert [record.number for record in state.execution.step_executions] == [1, 2]
    assert state.step_count == len(state.steps) == 2


def test_a_hand_made_step_counts_although_its_calls_have_no_results() -> None:
    """4.1.3: it is recorded, so nothing waits for them."""
    step = a_step("", calls=(CALL,), tokens=5)
    state = a_state().record_step(step)
    assert (state.step_count, state.steps, state.current_step) == (1, (step,), step)
    assert (state.facts.pending, state.usage) == ((), Usage(input=5))
    assert AgentState.from_dict(state.to_dict()).step_count == 1


def test_a_record_without_a_step_start_counts_as_well() -> None:
    """4.4.2: each step once, and its usage."""
    step = a_step("one", a_failure(CALL), tokens=5)
    state = a_state().with_step_recorded(StepExecution(1, step, GOES_ON, AT, later(1)))
    assert (state.step_count, state.steps, state.usage) == (1, (step,), Usage(input=5))
    assert (state.trailing_failures, state.last_outcome) == (1, GOES_ON)
    assert state.facts.current_step == step.facts(1)


def test_a_state_can_fail_by_hand() -> None:
    """4.1.3: failed, with a failure step."""
    state = a_state("Hello").fail_with(ValueError("boom"), AT)
    assert state.status is AgentStatus.FAILED
    (step,) = state.steps
    assert (step.is_failure, step.step_type, step.errors_as_text) == (True, StepType.ERROR, "boom")
    assert step.input_messages == (user("Hello"),)


# Clocks, pausing.


def test_the_wall_clock_starts_when_a_run_is_entered() -> None:
    """2.7: else time counts from the creation of the state."""
    created = a_state().at(AT)
    assert created.state_info.started_at == AT
    assert created.at(later(5)).elapsed_seconds == 5.0
    entered = created.entered(later(7))
    assert entered.at(later(9.25)).elapsed_seconds == 2.25
    assert entered.execution.started_at == later(7)
    assert entered.entered(later(8)).execution.started_at == later(7)


def test_resuming_ends_a_pause_and_restarts_the_wall_clock() -> None:
    """2.7."""
    paused = a_state().entered(AT).paused()
    resumed = paused.resumed(later(1000))
    assert (paused.is_paused, resumed.is_paused) == (True, False)
    assert resumed.at(later(1001)).elapsed_seconds == 1.0


def test_both_sums_of_working_time_grow() -> None:
    """4.1.6, 2.7.4: fractions are kept."""
    info = StateInfo(AGENT, AT, later(1), 1.25, 10.0).add_execution_time(0.5)
    assert info == StateInfo(AGENT, AT, later(1), 1.75, 10.5)


def test_the_information_about_a_state_is_written_and_read() -> None:
    """4.1.6, 0.5."""
    info = StateInfo(AGENT, AT, later(1), 1.25, 10.0)
    written = {
        "id": "00000000-0000-0000-0000-000000000001",
        "startedAt": "2026-01-16T10:05:00.123456Z",
        "updatedAt": "2026-01-16T10:05:01.123456Z",
        "cumulativeExecutionSeconds": 1.25,
        "sessionExecutionSeconds": 10.0,
    }
    assert info.to_dict() == written
    assert StateInfo.from_dict({**written, "later": 1}) == info
    assert StateInfo.from_dict(StateInfo().to_dict()) == StateInfo.from_dict({}) == StateInfo()


@pytest.mark.parametrize("missing", [{}, {"cumulativeExecutionSeconds": None}])
def test_missing_seconds_read_as_zero(missing: dict[str, Any]) -> None:
    """4.1.6."""
    info = StateInfo.from_dict({"id": str(AGENT), **missing})
    assert (info.cumulative_execution_seconds, info.session_execution_seconds) == (0.0, 0.0)
