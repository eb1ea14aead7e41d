"""The facts that an execution carries from step to step: counters, clocks, failures, signals, status."""

from dataclasses import FrozenInstanceError, fields, replace
from datetime import timedelta
from uuid import UUID

import pytest
from hypothesis import given, strategies as st
from pydantic import TypeAdapter

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.loop.criteria import CumulativeExecutionTimeLimit, ExecutionTimeLimit
from everstep.agent_domain.loop.error_policy import ErrorContext, ErrorHandlingDecision, ErrorPolicy
from everstep.agent_domain.loop.facts import ExecutionFacts, StateInfo
from everstep.agent_domain.loop.hook_requests import Wishes
from everstep.agent_domain.loop.status import AgentStatus, StopReason
from everstep.agent_domain.loop.step_error import ErrorType, StepError
from everstep.agent_domain.loop.step_facts import Besides, CallNeed, StepFacts, StepType
from everstep.agent_domain.loop.stop_signal import StopSignal
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.values import frozen_map
from tests.agent_domain.executions import (
    CANCEL,
    DONE,
    GO_ON,
    NOON,
    a_call,
    a_failed_call,
    a_failed_step,
    a_step,
    after,
    an_answered_call,
    an_execution,
    an_outcome,
    names,
)

NEW = ExecutionFacts()
BOOM = StepError("boom", ErrorType.TIMEOUT)
WAITING = a_step(a_call("a"), a_call("b"))
HALT = StopSignal(StopReason.GUARD, "Enough")


def an_execution_in_its_first_step() -> ExecutionFacts:
    """An execution whose first step has begun."""
    return NEW.entered(NOON).step_started(NOON)


def step_counts(facts: ExecutionFacts) -> tuple[int, int, int]:
    """All steps, failed ones, failed ones in a row."""
    return facts.step_count, facts.total_failures, facts.trailing_failures


def working_times(facts: ExecutionFacts) -> tuple[float, float]:
    """The working time of the execution and of its session."""
    info = facts.state_info
    return info.cumulative_execution_seconds, info.session_execution_seconds


# --- Counters ---


def test_new_facts() -> None:
    """4.1.1: in progress, no steps, no requests."""
    assert (NEW.status, step_counts(NEW), NEW.next_step_number) == (AgentStatus.IN_PROGRESS, (0, 0, 0), 1)
    assert [NEW.awaits_reply, NEW.is_applied, NEW.is_paused] == [False] * 3
    assert NEW.pending == ()
    assert NEW.error_context == ErrorContext.none()


def test_a_step_counts_from_its_last_result_on() -> None:
    """2.6.1: evaluation is on completed steps; 4.4.1: the number is never stored."""
    facts = an_execution_in_its_first_step()
    assert (facts.awaits_reply, facts.step_count, facts.next_step_number) == (True, 0, 1)

    facts = facts.with_step(WAITING)
    assert (facts.awaits_reply, names(facts.pending), facts.is_applied) == (False, ["a", "b"], False)
    assert (facts.step_count, facts.next_step_number) == (0, 1)

    facts = facts.with_step(WAITING.settled([a_call("b")]))
    assert (names(facts.pending), facts.step_count) == (["a"], 0)

    facts = facts.with_step(WAITING.settled([a_call("a"), a_call("b")]))
    assert (names(facts.pending), facts.is_applied) == ([], True)
    assert (facts.step_count, facts.next_step_number) == (1, 2)

    facts = facts.recorded(GO_ON)
    assert (facts.step_count, facts.is_applied, facts.awaits_reply) == (1, False, False)
    assert facts.last_outcome == GO_ON
    assert facts.current_step is not None


def test_recording_twice_counts_once() -> None:
    """4.4.1: by any recorder."""
    facts = an_execution(a_step(), a_failed_step())

    assert step_counts(facts) == (2, 1, 1)
    assert step_counts(facts.recorded(GO_ON)) == (2, 1, 1)
    assert step_counts(facts.recorded(GO_ON).recorded(None)) == (2, 1, 1)
    assert facts.recorded(GO_ON).recorded(None).last_outcome == GO_ON


def test_usage_counts_once_a_step_is_complete_and_only_once() -> None:
    """2.6.2, 4.2.1: it includes the step just finished."""
    step = a_step(a_call(), usage=Usage(9, 2))
    waiting = an_execution_in_its_first_step().with_step(step)
    done = waiting.with_step(step.settled([a_call()]))

    assert waiting.usage == Usage()
    assert done.usage == Usage(9, 2)
    assert done.with_step(replace(step.settled([a_call()]), finish_reason="stop")).usage == Usage(9, 2)
    assert an_execution(a_step(usage=Usage(9)), a_step(usage=Usage(2))).usage == Usage(11)


# --- Failures ---


@pytest.mark.parametrize(
    ("steps", "trailing", "total"),
    [
        ([], 0, 0),
        ([a_step()], 0, 0),
        ([a_failed_step()], 1, 1),
        ([a_failed_step(), a_failed_step()], 2, 2),
        ([a_failed_step(), a_step(), a_failed_step()], 1, 2),
        ([a_failed_step(), a_failed_step(), a_step()], 0, 2),
        # Any type, any tool.
        ([a_failed_step(ErrorType.RATE_LIMIT), a_step(a_failed_call()), a_failed_step()], 3, 3),
        # One failing call among several makes the step count.
        ([a_step(an_answered_call("a"), a_failed_call("b"), an_answered_call("c"))], 1, 1),
        # Two failing calls are one failed step.
        ([a_step(a_failed_call("a"), a_failed_call("b"))], 1, 1),
    ],
)
def test_failures_in_a_row_and_in_all(steps: list[StepFacts], trailing: int, total: int) -> None:
    """3.4.3: trailing steps with errors back to the first without; the current step is added once."""
    waiting_to_be_recorded = an_execution(*steps)
    recorded = waiting_to_be_recorded.recorded(GO_ON)

    for facts in (waiting_to_be_recorded, recorded, recorded.step_started(NOON)):
        assert step_counts(facts) == (len(steps), total, trailing)


@given(st.lists(st.booleans(), max_size=12))
def test_counters_agree_with_the_history(history: list[bool]) -> None:
    """3.4.3: in any order of failures and successes."""
    facts = an_execution(*(a_failed_step() if failed else a_step() for failed in history))
    trailing = next((n for n, failed in enumerate(reversed(history)) if not failed), len(history))

    assert step_counts(facts) == (len(history), sum(history), trailing)


def test_the_context_of_a_failure_has_both_counts() -> None:
    """3.4.1, 3.4.3: the input of the error policy."""
    facts = an_execution(a_failed_step(), a_step(), a_step(a_failed_call(kind=ErrorType.TIMEOUT)))
    context = ErrorContext(ErrorType.TIMEOUT, 1, 2, "boom", "search")

    assert facts.error_context == context
    assert facts.recorded(GO_ON).error_context == context


def test_only_failures_of_this_execution_count() -> None:
    """3.4.3: within the current execution."""
    assert step_counts(an_execution(a_failed_step(), a_failed_step()).renewed()) == (0, 0, 0)


def test_an_exception_becomes_the_step_under_way() -> None:
    """4.3.4: a failure step of type error, with zero usage; its text is not part of the facts."""
    facts = an_execution_in_its_first_step().with_step(replace(WAITING, usage=Usage(5))).failed(BOOM, 2.5)

    assert facts.current_step == StepFacts(
        1,
        own_errors=(StepError("", ErrorType.TIMEOUT),),
        own_type=StepType.ERROR,
        is_failure=True,
        seconds=2.5,
    )
    assert (step_counts(facts), facts.usage, facts.pending) == ((1, 1, 1), Usage(), ())
    assert facts.error_context.type is ErrorType.TIMEOUT


def test_an_exception_after_a_step_was_applied_becomes_the_next_step() -> None:
    """4.3.4: an exception raised after step n becomes failure step n+1."""
    facts = an_execution(a_step(usage=Usage(5))).failed(BOOM)

    assert facts.current_step is not None
    assert (facts.current_step.number, step_counts(facts), facts.usage) == (2, (2, 1, 1), Usage(5))


# --- Clocks ---


def test_a_state_starts_once() -> None:
    """2.7: StateInfo.started_at is set at creation and never reset."""
    facts = NEW.at(NOON).at(after(5))

    assert (facts.state_info.started_at, facts.state_info.updated_at) == (NOON, after(5))
    later = facts.entered(after(6)).step_started(after(7)).renewed().entered(after(8))
    assert later.state_info.started_at == NOON


def test_the_run_starts_with_each_entry_and_each_resume() -> None:
    """2.7: execution_started_at; a new execution clears it."""
    entered = NEW.entered(NOON)
    again = entered.entered(after(5))
    resumed = again.paused().resumed(after(9))

    assert (entered.execution_started_at, again.execution_started_at) == (NOON, after(5))
    assert resumed.execution_started_at == after(9)
    assert resumed.renewed().execution_started_at is None


def test_the_first_manual_step_starts_the_run_and_later_ones_do_not() -> None:
    """2.7: execution_started_at is set by the first manual step."""
    first = NEW.step_started(NOON)
    second = first.with_step(a_step()).recorded(GO_ON).step_started(after(60))

    assert (first.execution_started_at, second.execution_started_at) == (NOON, NOON)
    assert second.step_started_at == after(60)


def test_the_wall_clock_counts_from_the_run_else_from_the_state() -> None:
    """2.7: now - (execution_started_at ?? started_at)."""
    old = NEW.at(NOON)

    assert NEW.elapsed_seconds == 0.0
    assert old.at(after(12.5)).elapsed_seconds == 12.5
    assert old.entered(after(10)).at(after(12.5)).elapsed_seconds == 2.5


def test_a_pause_of_days_never_times_an_execution_out() -> None:
    """2.7.3: the wall clock runs from the start or the last resume."""
    limit = ExecutionTimeLimit(60)
    facts = an_execution(a_step(an_answered_call())).paused()
    resumed = facts.resumed(after(9 * 86400))

    assert str(limit.decide(facts.at(after(9 * 86400)))) == "forbid"
    assert str(limit.decide(resumed)) == "allow"
    assert str(limit.decide(resumed.at(after(9 * 86400 + 60)))) == "forbid"


def test_a_pause_is_no_work() -> None:
    """2.7.2: 5 s of work, a pause of 1 h and 3 s of work are 8 s."""
    five = an_execution_in_its_first_step().with_step(a_step(an_answered_call(), seconds=5.0)).recorded(GO_ON)
    resumed = five.paused().resumed(after(3605))
    eight = resumed.step_started(after(3605)).with_step(a_step(seconds=3.0)).at(after(3608))

    assert working_times(eight) == (8.0, 8.0)
    assert str(CumulativeExecutionTimeLimit(8).decide(eight)) == "forbid"
    assert str(CumulativeExecutionTimeLimit(8.1).decide(eight)) == "allow"


def test_waiting_within_a_step_is_no_work() -> None:
    """2.7.1, 2.7.2: only inference and tools count, for any time that a person takes in between."""
    asking = a_step(a_call(need=CallNeed.INPUT), seconds=5.0)
    waiting = an_execution_in_its_first_step().with_step(asking).at(after(3600))
    done = waiting.with_step(asking.settled([a_call()], 3.0))

    assert working_times(waiting) == (0.0, 0.0)
    assert working_times(done) == (8.0, 8.0)


def test_a_cumulative_clock_survives_being_carried_over() -> None:
    """2.7.2: it is part of the facts, and of the written state info."""
    facts = an_execution(a_step(seconds=5.5))
    read = StateInfo.from_dict(facts.state_info.to_dict())

    assert (read.cumulative_execution_seconds, read.session_execution_seconds) == (5.5, 5.5)


def test_a_new_execution_resets_the_execution_but_not_the_session() -> None:
    """2.7: cumulative_execution_seconds is 0 at a new execution, session_execution_seconds never."""
    second = an_execution(a_step(seconds=5.0)).renewed().entered(NOON).step_started(NOON)
    second = second.with_step(a_step(seconds=3.0))

    assert working_times(second) == (3.0, 8.0)


def test_failed_steps_and_processors_are_work() -> None:
    """2.7.1, 2.7: processing seconds of each step, failed ones too, and of a critic."""
    failed = an_execution_in_its_first_step().failed(BOOM, 1.5)

    assert working_times(failed) == (1.5, 1.5)
    assert working_times(failed.worked(0.25)) == (1.75, 1.75)
    assert working_times(an_execution(replace(a_failed_step(), seconds=2.0))) == (2.0, 2.0)


def test_the_seconds_of_a_step_count_once() -> None:
    """2.7.1: a result for a step that is complete already adds no work."""
    facts = an_execution_in_its_first_step().with_step(a_step(seconds=2.0))

    assert working_times(facts.with_step(a_step(seconds=2.0, finish_reason="stop"))) == (2.0, 2.0)


def test_clocks_keep_fractions() -> None:
    """2.7.4: of seconds."""
    facts = an_execution(*[a_step(seconds=0.125)] * 3).at(NOON + timedelta(milliseconds=1))

    assert working_times(facts) == (0.375, 0.375)
    assert facts.elapsed_seconds == 0.001


def test_time_is_added_to_both_sums() -> None:
    """4.1.6: add_execution_time."""
    info = StateInfo(cumulative_execution_seconds=1.5, session_execution_seconds=10.0)

    assert info.add_execution_time(2.25) == StateInfo(
        cumulative_execution_seconds=3.75, session_execution_seconds=12.25
    )


def test_the_written_form_of_state_info() -> None:
    """4.1.6: its keys."""
    info = StateInfo(UUID(int=7), NOON, after(1.5), 2.5, 3.5)

    assert info.to_dict() == {
        "id": "00000000-0000-0000-0000-000000000007",
        "startedAt": "2026-01-16T12:00:00.000000Z",
        "updatedAt": "2026-01-16T12:00:01.500000Z",
        "cumulativeExecutionSeconds": 2.5,
        "sessionExecutionSeconds": 3.5,
    }
    assert StateInfo.from_dict(info.to_dict()) == info
    assert StateInfo.from_dict(StateInfo().to_dict()) == StateInfo()
    assert StateInfo.from_dict({"mood": "new"}) == StateInfo()


# --- Signals, requests, messages ---


def test_the_next_step_start_clears_signals_and_requests() -> None:
    """2.4.1: both are cleared there, and not before; messages wait until the step that receives them."""
    asked = an_execution(a_step()).signalled(HALT).requested().steered_by(2)

    for facts in (asked, asked.recorded(GO_ON), asked.at(after(5))):
        assert (facts.stop_signal, facts.continuation_requested, facts.steered) == (HALT, True, 2)
    started = asked.recorded(GO_ON).step_started(NOON)
    assert (started.stop_signal, started.continuation_requested, started.steered) == (None, False, 2)
    assert asked.recorded(GO_ON).step_started(NOON, hears=2).steered == 0


def test_messages_wait_together() -> None:
    """8.3.1: nothing accepted is dropped."""
    assert NEW.steered_by().steered_by(2).steered == 3


def test_marks_are_kept_until_they_are_removed_or_the_execution_ends() -> None:
    """4.5.6"""
    facts = an_execution(a_step()).marked("verdict", "rejected").marked("round", 1)

    assert facts.recorded(GO_ON).step_started(NOON).marks == {"verdict": "rejected", "round": 1}
    assert facts.marked("verdict", None).marks == {"round": 1}
    assert facts.renewed().marks == {}


def test_the_marks_of_a_steps_hooks_are_applied_once() -> None:
    """4.5.6: what a processor sets later is not undone by another result of the step."""
    step = a_step(besides=Besides(wishes=Wishes(marks=frozen_map({"checked": 1}))))
    facts = an_execution(step)
    assert facts.marks == {"checked": 1}
    assert facts.marked("checked", 2).abandoned().marks == {"checked": 2}


def test_the_critique_of_former_facts_is_a_mark() -> None:
    """9.7.3, 1.1.1: histories were written when it was a field of its own."""
    reader = TypeAdapter(ExecutionFacts)
    facts = an_execution(a_step())
    written = reader.dump_python(facts, mode="json", exclude={"marks"})

    critique = {"verdict": "rejected", "iteration": 1}
    assert reader.validate_python({**written, "critique": critique}) == facts.marked("critique", critique)
    assert reader.validate_python({**written, "critique": None}) == facts
    assert reader.validate_json(reader.dump_json(facts.marked("round", 1))) == facts.marked("round", 1)


def test_a_new_execution_keeps_identity_age_and_session_time_only() -> None:
    """4.1.4: everything else is cleared."""
    facts = an_execution(a_failed_step(), a_step(usage=Usage(5), seconds=2.0))
    facts = facts.signalled(HALT).requested().steered_by().paused().ended(DONE, ErrorPolicy())
    info = StateInfo(None, NOON, NOON, 0.0, 2.0)

    assert facts.renewed() == ExecutionFacts(state_info=info)


def test_a_pause_lasts_until_it_is_resumed() -> None:
    """8.4.1: resumes as the same execution in the same step."""
    facts = an_execution_in_its_first_step().with_step(WAITING)
    resumed = facts.paused().resumed(after(60))

    assert facts.paused().is_paused
    assert not resumed.is_paused
    assert resumed == facts.entered(after(60))
    assert resumed.pending == WAITING.calls


# --- Cancelling ---


def test_a_step_that_is_given_up_keeps_no_call_without_a_result() -> None:
    """1.1.5, 8.2.1: and its failures are no errors of the run; its usage and work count."""
    step = a_step(
        a_failed_call("a"),
        a_call("b"),
        usage=Usage(5),
        seconds=1.5,
        pseudo_errors=(BOOM,),
        own_errors=(BOOM,),
    )
    facts = an_execution_in_its_first_step().with_step(step).abandoned()

    assert facts.current_step is not None
    assert [call.is_settled for call in facts.current_step.calls] == [True, True]
    assert (facts.pending, step_counts(facts)) == ((), (1, 0, 0))
    assert (facts.usage, working_times(facts)) == (Usage(5), (1.5, 1.5))
    assert facts.error_context == ErrorContext.none()


def test_giving_up_a_step_without_a_reply_leaves_nothing_behind() -> None:
    """8.2.1: it never counts."""
    facts = an_execution_in_its_first_step().abandoned()

    assert (facts.awaits_reply, facts.step_count, facts.current_step) == (False, 0, None)
    second = an_execution(a_failed_step()).recorded(GO_ON).step_started(NOON).abandoned()
    assert (second.awaits_reply, step_counts(second)) == (False, (1, 1, 1))


def test_giving_up_a_step_that_is_complete_counts_it_once() -> None:
    """8.2.1, 2.7.1: usage and seconds are not added again."""
    facts = (
        an_execution_in_its_first_step()
        .with_step(a_step(an_answered_call(), usage=Usage(5), seconds=1.5))
        .abandoned()
    )

    assert (facts.step_count, facts.usage, working_times(facts)) == (1, Usage(5), (1.5, 1.5))


# --- The final status ---


FAILURE = an_execution_in_its_first_step().failed(BOOM)
RECOVERED = FAILURE.recorded(GO_ON).step_started(NOON).with_step(a_step())
TOOL_FAILED = an_execution(a_step(a_failed_call()))
MODEL_FAILED = an_execution(a_failed_step())
LENIENT = ErrorPolicy(on_timeout_error=ErrorHandlingDecision.IGNORE)
OTHERS = [reason for reason in StopReason if reason not in {StopReason.ERROR, StopReason.USER_REQUESTED}]


@pytest.mark.parametrize(
    "facts", [NEW, an_execution(a_step()), FAILURE, TOOL_FAILED, MODEL_FAILED, RECOVERED]
)
@pytest.mark.parametrize("policy", [ErrorPolicy(), LENIENT, ErrorPolicy.retry_all(5)])
def test_an_execution_that_ends_with_an_error_has_failed(facts: ExecutionFacts, policy: ErrorPolicy) -> None:
    """3.7.1: if the stop reason is error, for any last step."""
    assert facts.final_status(StopReason.ERROR, policy) is AgentStatus.FAILED


@pytest.mark.parametrize("reason", OTHERS)
@pytest.mark.parametrize("facts", [FAILURE, FAILURE.recorded(GO_ON)])
def test_an_execution_whose_last_step_is_a_failure_step_has_failed(
    facts: ExecutionFacts, reason: StopReason
) -> None:
    """3.7.1: unless the policy ignores its error."""
    assert facts.final_status(reason, ErrorPolicy()) is AgentStatus.FAILED
    assert facts.final_status(reason, ErrorPolicy.retry_all(5)) is AgentStatus.FAILED
    assert facts.final_status(reason, LENIENT) is AgentStatus.COMPLETED


@pytest.mark.parametrize("policy", [ErrorPolicy(), LENIENT, ErrorPolicy.retry_all(5)])
def test_an_execution_that_a_person_stopped_has_not_failed(policy: ErrorPolicy) -> None:
    """3.7.1: user_requested, although the last step is a failure step."""
    assert FAILURE.final_status(StopReason.USER_REQUESTED, policy) is AgentStatus.COMPLETED


@pytest.mark.parametrize("reason", OTHERS)
@pytest.mark.parametrize("facts", [NEW, an_execution(a_step()), TOOL_FAILED, MODEL_FAILED, RECOVERED])
def test_otherwise_an_execution_is_completed(facts: ExecutionFacts, reason: StopReason) -> None:
    """3.7.1: a failed tool call or a step with its own error is no failure step (4.3.4)."""
    assert facts.final_status(reason, ErrorPolicy()) is AgentStatus.COMPLETED


def test_a_retry_that_runs_into_a_limit_has_failed() -> None:
    """3.7.1: retry_all(5), max_steps 1, the model call fails: steps_limit, failed."""
    ended = FAILURE.ended(an_outcome(StopReason.STEPS_LIMIT), ErrorPolicy.retry_all(5))

    assert (ended.status, ended.last_outcome) == (AgentStatus.FAILED, an_outcome(StopReason.STEPS_LIMIT))


def test_ending_records_the_step_that_is_complete() -> None:
    """3.7.1, 4.5.2: with the outcome of the evaluation after it."""
    ended = an_execution(a_step(), a_failed_step()).ended(DONE, ErrorPolicy())

    assert (ended.is_applied, step_counts(ended), ended.step_started_at) == (False, (2, 1, 1), None)
    assert (ended.status, ended.last_outcome) == (AgentStatus.COMPLETED, DONE)


def test_ending_before_the_first_step_leaves_no_step_behind() -> None:
    """2.6.1, 8.2.1: a pending execution that is cancelled never starts."""
    ended = NEW.signalled(CANCEL).ended(an_outcome(StopReason.USER_REQUESTED), ErrorPolicy())

    assert (ended.status, step_counts(ended), ended.current_step) == (AgentStatus.COMPLETED, (0, 0, 0), None)


@pytest.mark.parametrize("facts", [NEW, an_execution(a_step()), an_execution(a_step()).recorded(GO_ON)])
def test_a_criterion_that_raised_leaves_a_failure_step(facts: ExecutionFacts) -> None:
    """2.2.7, 4.3.4: a failure step is recorded, with stop reason error the run has failed."""
    ended = facts.ended(an_outcome(StopReason.ERROR, BOOM), ErrorPolicy())

    assert step_counts(ended) == (facts.step_count + 1, 1, 1)
    assert ended.current_step is not None
    assert (ended.current_step.is_failure, ended.current_step.number) == (True, facts.step_count + 1)
    assert (ended.status, ended.is_applied) == (AgentStatus.FAILED, False)


@pytest.mark.parametrize("status", [AgentStatus.COMPLETED, AgentStatus.FAILED])
@pytest.mark.parametrize("reason", StopReason)
def test_a_terminal_status_is_never_overwritten(status: AgentStatus, reason: StopReason) -> None:
    """3.7.1: an ended execution does not change."""
    over = replace(FAILURE, status=status, last_outcome=DONE)

    assert over.ended(an_outcome(reason), ErrorPolicy()) == over
    assert over.closed(an_outcome(reason), ErrorPolicy()) == over


# --- Size ---


def test_facts_do_not_grow_with_the_execution() -> None:
    """1.1.2: decisions rest on counters, the current step and signals; no step but the current is kept."""
    few, many = an_execution(*[a_step()] * 3), an_execution(*[a_step()] * 300)

    assert replace(many, recorded_steps=2, current_step=few.current_step) == few
    grown = [f.name for f in fields(many) if isinstance(getattr(many, f.name), tuple | list | dict)]
    # Marks are limited (4.5.6).
    assert grown == ["marks"]


@pytest.mark.parametrize("field", [field.name for field in fields(ExecutionFacts)])
def test_facts_cannot_be_changed(field: str) -> None:
    """0.8: domain values are immutable."""
    with pytest.raises(FrozenInstanceError):
        setattr(NEW, field, None)


def test_invalid_state_info_is_refused() -> None:
    """4.1.6: a time must be valid."""
    with pytest.raises(InvalidInput, match="startedAt is not an ISO 8601 date"):
        StateInfo.from_dict({"startedAt": "yesterday"})


def test_an_interrupted_step_ends_no_row_of_failures() -> None:
    """3.4.3, 4.3.4: nothing was evaluated between it and its own failure step."""
    failed = an_execution_in_its_first_step().failed(BOOM).recorded(GO_ON)
    applied = failed.step_started(NOON).with_step(a_step())
    assert applied.trailing_failures == 0
    assert step_counts(applied.failed(BOOM)) == (3, 2, 2)
    assert step_counts(applied.recorded(None).failed(BOOM)) == (3, 2, 2)
    # A step that was evaluated, or is followed by a successful one, ends it.
    assert step_counts(applied.recorded(GO_ON).failed(BOOM)) == (3, 2, 1)
    went_well = applied.recorded(None).step_started(NOON).with_step(a_step()).recorded(GO_ON)
    assert step_counts(went_well.step_started(NOON).failed(BOOM)) == (4, 2, 1)
    assert applied.recorded(None).recorded(None) == applied.recorded(None)
