"""The aggregation of votes into an outcome: every row of the table, every name of a decider."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from everstep.agent_domain.loop.compact_outcomes import (
    compact,
    expand,
)
from everstep.agent_domain.loop.continuation import (
    CanProvideStopReason,
    ContinuationCriteria,
    ContinuationDecision,
    ContinuationEvaluation,
    ContinuationOutcome,
    Criterion,
)
from everstep.agent_domain.loop.criteria import (
    CumulativeExecutionTimeLimit,
    ErrorPolicyCriterion,
    ExecutionTimeLimit,
    FinishReasonCheck,
    StepsLimit,
    TokenUsageLimit,
    ToolCallPresenceCheck,
)
from everstep.agent_domain.loop.error_policy import ErrorPolicy
from everstep.agent_domain.loop.facts import ExecutionFacts
from everstep.agent_domain.loop.status import AgentStatus, StopReason
from everstep.agent_domain.loop.step_error import ErrorType, StepError
from everstep.agent_domain.loop.stop_signal import StopSignal
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.values import FrozenDict, json_text
from tests.agent_domain.executions import CANCEL, a_failed_step, a_step, after, an_answered_call, an_execution
from tests.agent_domain.loop.votes import (
    ALLOW,
    FORBID,
    NOTHING,
    REQUEST,
    STEPS,
    STOP,
    TIME,
    TOKENS,
    Raises,
    Votes,
    allows,
    forbids,
    outcome,
    requests,
    stops,
    trace,
    verdict,
)

# --- Aggregation ---


def test_every_criterion_is_asked_even_after_a_veto() -> None:
    """2.2.1: all are evaluated, in list order, and the trace holds every evaluation."""
    found = outcome(forbids(), requests(), Raises(), stops(), allows())

    assert [vote.name for vote in found.evaluations] == ["Veto", "Worker", "Raises", "Idler", "Guard"]


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize(
    ("votes", "expected"),
    [
        # a: no votes.
        ([], (STOP, False, "ContinuationCriteria", StopReason.COMPLETED)),
        # b: limits veto only further work, and there is none.
        ([STEPS, stops()], (STOP, False, "Idler", StopReason.COMPLETED)),
        ([STEPS, allows(), TOKENS, TIME, stops()], (STOP, False, "Idler", StopReason.COMPLETED)),
        # c: any veto.
        ([forbids()], (FORBID, False, "Veto", StopReason.GUARD)),
        ([STEPS], (FORBID, False, "Steps", StopReason.STEPS_LIMIT)),
        ([STEPS, allows()], (FORBID, False, "Steps", StopReason.STEPS_LIMIT)),
        ([STEPS, requests()], (FORBID, False, "Steps", StopReason.STEPS_LIMIT)),
        ([STEPS, requests(), stops()], (FORBID, False, "Steps", StopReason.STEPS_LIMIT)),
        ([forbids(), requests()], (FORBID, False, "Veto", StopReason.GUARD)),
        ([forbids(), stops()], (FORBID, False, "Veto", StopReason.GUARD)),
        # d: any request.
        ([requests()], (REQUEST, True, "Worker", StopReason.COMPLETED)),
        ([requests(), stops(), allows()], (REQUEST, True, "Worker", StopReason.COMPLETED)),
        # e: any stop.
        ([stops()], (STOP, False, "Idler", StopReason.COMPLETED)),
        ([stops(), allows()], (STOP, False, "Idler", StopReason.COMPLETED)),
        # f: only guards, and no objection.
        ([allows()], (REQUEST, True, "aggregate", StopReason.COMPLETED)),
        ([allows(), allows()], (REQUEST, True, "aggregate", StopReason.COMPLETED)),
    ],
)
def test_the_first_row_that_matches_decides(
    votes: list[Votes],
    expected: tuple[ContinuationDecision, bool, str, StopReason],
    backwards: bool,
) -> None:
    """2.2.2: the table; 2.2.1: the order does not change what is decided."""
    criteria = reversed(votes) if backwards else votes

    assert verdict(outcome(*criteria)) == expected


@pytest.mark.parametrize("decision", [FORBID, REQUEST, STOP])
def test_the_first_of_several_that_decide_is_named(decision: ContinuationDecision) -> None:
    """2.2.1, 2.2.2: order matters only for naming."""
    one, other = Votes(decision, "One"), Votes(decision, "Other")

    assert outcome(allows(), one, other).resolved_by == "One"
    assert outcome(other, allows(), one).resolved_by == "Other"


def test_a_veto_for_an_error_outranks_an_earlier_veto() -> None:
    """2.2.3: the first with stop reason error decides."""
    early, error = forbids(StopReason.GUARD, "Early"), forbids(StopReason.ERROR, "Error")
    second = forbids(StopReason.ERROR, "SecondError")

    assert verdict(outcome(early, error, second)) == (FORBID, False, "Error", StopReason.ERROR)
    assert verdict(outcome(STEPS, early, requests())) == (FORBID, False, "Steps", StopReason.STEPS_LIMIT)


@pytest.mark.parametrize("reason", StopReason)
def test_only_resource_limits_let_an_answer_through(reason: StopReason) -> None:
    """2.2.4: steps_limit, token_limit and time_limit veto only further work."""
    natural = reason in {StopReason.STEPS_LIMIT, StopReason.TOKEN_LIMIT, StopReason.TIME_LIMIT}
    found = outcome(forbids(reason), stops())

    expected = (STOP, "Idler", StopReason.COMPLETED) if natural else (FORBID, "Veto", reason)
    assert (found.decision, found.resolved_by, found.stop_reason) == expected
    assert trace(found) == [("Veto", FORBID), ("Idler", STOP)]


def test_a_limit_beside_another_veto_does_not_let_an_answer_through() -> None:
    """2.2.4: every forbid must be a resource limit."""
    assert verdict(outcome(STEPS, forbids(), stops())) == (FORBID, False, "Steps", StopReason.STEPS_LIMIT)


ONE_STEP = ContinuationCriteria(StepsLimit(1), ErrorPolicyCriterion(), ToolCallPresenceCheck())


def test_an_answer_in_the_last_allowed_step_completes() -> None:
    """2.2.4: with max_steps 1, a final answer at step 1."""
    found = ONE_STEP.evaluate(an_execution(a_step()))

    assert verdict(found) == (STOP, False, "ToolCallPresenceCheck", StopReason.COMPLETED)
    assert trace(found)[0] == ("StepsLimit", FORBID)


def test_a_tool_call_in_the_last_allowed_step_runs_into_the_limit() -> None:
    """2.2.4: with max_steps 1, a tool call at step 1."""
    found = ONE_STEP.evaluate(an_execution(a_step(an_answered_call())))

    assert verdict(found) == (FORBID, False, "StepsLimit", StopReason.STEPS_LIMIT)


def test_a_retry_in_the_last_allowed_step_runs_into_the_limit() -> None:
    """3.7.1, 2.2.4: a pending retry is work, so nothing has completed; the run has failed."""
    policy = ErrorPolicy.retry_all(5)
    criteria = ContinuationCriteria(
        StepsLimit(1), ErrorPolicyCriterion(policy), ToolCallPresenceCheck(policy)
    )
    facts = ExecutionFacts().failed(StepError("boom"))
    found = criteria.evaluate(facts)

    assert verdict(found) == (FORBID, False, "StepsLimit", StopReason.STEPS_LIMIT)
    assert facts.ended(found, policy).status is AgentStatus.FAILED


def test_an_absence_of_requests_does_not_by_itself_stop() -> None:
    """2.2.5: [allow, allow] continues, [allow, stop] stops."""
    assert outcome(allows(), allows()).should_continue
    assert not outcome(allows(), stops()).should_continue


# --- Nested sets ---


def a_set(*criteria: Criterion[Any]) -> ContinuationCriteria:
    return ContinuationCriteria(*criteria)


@pytest.mark.parametrize(
    ("inside", "decision", "reason"),
    [
        ([], STOP, StopReason.COMPLETED),
        ([STEPS, stops()], STOP, StopReason.COMPLETED),
        ([STEPS, requests()], FORBID, StopReason.STEPS_LIMIT),
        ([allows(), forbids(StopReason.FINISH_REASON)], FORBID, StopReason.FINISH_REASON),
        ([requests()], REQUEST, StopReason.COMPLETED),
        ([stops()], STOP, StopReason.COMPLETED),
        ([allows()], REQUEST, StopReason.COMPLETED),
    ],
)
def test_a_set_casts_one_vote_with_its_own_decision_and_stop_reason(
    inside: list[Votes], decision: ContinuationDecision, reason: StopReason
) -> None:
    """2.2.6: one evaluation for the whole set."""
    vote, guard = outcome(a_set(*inside), allows()).evaluations

    assert (vote.name, vote.decision, vote.stop_reason) == ("ContinuationCriteria", decision, reason)
    assert guard.name == "Guard"


def test_the_vote_of_a_set_names_its_decider() -> None:
    """2.2.6: the one evaluation has a full reason."""
    (vote,) = outcome(a_set(allows(), forbids())).evaluations

    assert vote.reason == "ContinuationCriteria forbids another step (Veto)"


def test_a_nested_veto_stays_a_veto() -> None:
    """2.2.6: also if an outer criterion requests."""
    found = outcome(requests(), a_set(a_set(forbids(), stops()), requests()))

    assert verdict(found) == (FORBID, False, "ContinuationCriteria", StopReason.GUARD)


def test_a_nested_limit_without_work_inside_stops_if_there_is_none_outside() -> None:
    """2.2.6: a nested natural completion counts as stop."""
    done = a_set(STEPS, stops())

    assert verdict(outcome(done, allows())) == (
        STOP,
        False,
        "ContinuationCriteria",
        StopReason.COMPLETED,
    )


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_nested_limit_forbids_the_work_of_others(depth: int) -> None:
    """2.2.6: if an outer criterion requests, the nested completion is the forbid of its first limit."""
    done: Criterion[Any] = a_set(allows(), TOKENS, stops(), TIME)
    for _ in range(depth - 1):
        done = a_set(done, allows(), stops(), STEPS)
    found = outcome(requests(), done)

    assert verdict(found) == (FORBID, False, "Tokens", StopReason.TOKEN_LIMIT)
    assert trace(found) == [("Worker", REQUEST), ("Tokens", FORBID)]


def test_a_nested_stop_without_a_limit_forbids_nothing() -> None:
    """2.2.6: only a limit turns the stop of a set into a veto."""
    assert verdict(outcome(a_set(stops(), allows()), requests())) == (
        REQUEST,
        True,
        "Worker",
        StopReason.COMPLETED,
    )


def test_a_request_for_continuation_is_an_outer_request_to_a_nested_set() -> None:
    """2.2.6, 2.4.2: and only the outermost set has it in its trace."""
    found = outcome(a_set(a_set(STEPS, stops())), state=NOTHING.requested())

    assert verdict(found) == (FORBID, False, "Steps", StopReason.STEPS_LIMIT)
    assert trace(found) == [("Steps", FORBID), ("ContinuationRequest", REQUEST)]


# --- Criteria that raise ---


def test_a_criterion_that_raises_ends_the_run() -> None:
    """2.2.7: forbid, resolved by that criterion, stop reason error."""
    found = outcome(requests(), Raises())

    assert verdict(found) == (FORBID, False, "Raises", StopReason.ERROR)
    assert found.evaluations[1].reason == "Raises raised ZeroDivisionError: by zero"
    assert found.failure == StepError("by zero", exception="ZeroDivisionError")


@pytest.mark.parametrize("others", [[STEPS, stops()], [forbids()], [forbids(StopReason.ERROR)]])
@pytest.mark.parametrize("backwards", [False, True])
def test_a_criterion_that_raises_outranks_all_votes(others: list[Votes], backwards: bool) -> None:
    """2.2.7: it outranks an earlier error, too, because the failure step reports it."""
    criteria = [Raises(), *others] if backwards else [*others, Raises()]

    assert verdict(outcome(*criteria)) == (FORBID, False, "Raises", StopReason.ERROR)


def test_the_first_of_several_that_raise_is_recorded() -> None:
    """2.2.7: resolved by that criterion, with its own failure."""

    class AlsoRaises(Raises):
        pass

    found = outcome(AlsoRaises(TimeoutError("late")), Raises())

    assert found.resolved_by == "AlsoRaises"
    assert found.failure == StepError("late", ErrorType.TIMEOUT, exception="TimeoutError")


def test_a_criterion_that_raises_within_a_set_ends_the_run() -> None:
    """2.2.7, 2.2.6: the set is the criterion that is named."""
    found = outcome(forbids(StopReason.ERROR), a_set(a_set(Raises(), stops())))

    assert verdict(found) == (FORBID, False, "ContinuationCriteria", StopReason.ERROR)
    assert found.failure == StepError("by zero", exception="ZeroDivisionError")


def explains_nonsense(state: object) -> Any:
    return "perhaps"


def raises_late(state: object, decision: ContinuationDecision) -> Any:
    raise LookupError("no reason")


@pytest.mark.parametrize(
    ("method", "fn", "message"),
    [
        ("decide", explains_nonsense, "'perhaps' is not a valid ContinuationDecision"),
        ("explain", explains_nonsense, "'str' object has no attribute 'decision'"),
        ("stop_reason", raises_late, "no reason"),
    ],
)
def test_a_criterion_with_an_invalid_vote_has_raised(
    method: str, fn: Callable[..., Any], message: str
) -> None:
    """2.2.7: for each of its methods."""

    class Broken:
        def decide(self, state: object) -> ContinuationDecision:
            return FORBID

    setattr(Broken, method, staticmethod(fn))
    found = outcome(Broken())

    assert verdict(found) == (FORBID, False, "Broken", StopReason.ERROR)
    assert found.failure is not None
    assert found.failure.message == message


def test_a_criterion_that_raises_keeps_its_own_name() -> None:
    """2.2.7, 2.1.3: under its name in every other trace."""

    class Registered(Raises):
        criterion_class = "acme.office_hours"

    found = outcome(Registered())

    assert (found.resolved_by, found.evaluations[0].criterion_class) == ("office_hours", "acme.office_hours")


def test_an_outcome_without_a_raise_has_no_failure() -> None:
    """2.2.7: a veto for an error is no exception."""
    assert outcome(forbids(StopReason.ERROR)).failure is None


# --- Stop reasons ---


def test_there_are_nine_stop_reasons() -> None:
    """2.3.1: the literals."""
    assert {str(reason) for reason in StopReason} == {
        "completed",
        "steps_limit",
        "token_limit",
        "time_limit",
        "retry_limit",
        "error",
        "finish_reason",
        "guard",
        "user_requested",
    }


class Knows:
    """States the reason of its veto, or leaves it to its name."""

    def __init__(self, decision: ContinuationDecision, reason: StopReason | None) -> None:
        self.decision, self.reason = decision, reason
        self.asked: list[ContinuationDecision] = []

    def decide(self, state: object) -> ContinuationDecision:
        return self.decision

    def stop_reason(self, state: object, decision: ContinuationDecision) -> StopReason | None:
        self.asked.append(decision)
        return self.reason


class KnowsTokenUsageLimit(Knows):
    """Has a name that contains a stop reason as well."""


class ExplainsToo(KnowsTokenUsageLimit):
    """Gives a reason with its evaluation, too."""

    def explain(self, state: object) -> ContinuationEvaluation:
        vote = ContinuationEvaluation.from_decision("ExplainsTokenUsageLimitToo", self.decision)
        return replace(vote, stop_reason=StopReason.RETRY_LIMIT)


@pytest.mark.parametrize(
    ("criterion", "reason"),
    [
        (ExplainsToo(FORBID, StopReason.TIME_LIMIT), StopReason.RETRY_LIMIT),
        (KnowsTokenUsageLimit(FORBID, StopReason.TIME_LIMIT), StopReason.TIME_LIMIT),
        (KnowsTokenUsageLimit(FORBID, None), StopReason.TOKEN_LIMIT),
        (Knows(FORBID, None), StopReason.GUARD),
    ],
)
def test_the_source_of_the_stop_reason_of_a_veto(criterion: Knows, reason: StopReason) -> None:
    """2.3.2: the evaluation's own, the criterion's, the name's, else guard."""
    found = outcome(criterion)

    assert (found.stop_reason, found.evaluations[0].stop_reason) == (reason, reason)
    assert isinstance(criterion, CanProvideStopReason)


@pytest.mark.parametrize("decision", [ALLOW, REQUEST, STOP])
def test_a_criterion_is_asked_for_a_stop_reason_about_vetoes_only(decision: ContinuationDecision) -> None:
    """2.3.2: asked for forbids only."""
    silent, vetoing = Knows(decision, StopReason.ERROR), Knows(FORBID, StopReason.ERROR)
    found = outcome(silent, vetoing)

    assert (silent.asked, vetoing.asked) == ([], [FORBID])
    assert found.evaluations[0].stop_reason is None


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("StepsLimit", StopReason.STEPS_LIMIT),
        ("MyStepsLimitPerDay", StopReason.STEPS_LIMIT),
        ("TokenUsageLimit", StopReason.TOKEN_LIMIT),
        ("ExecutionTimeLimit", StopReason.TIME_LIMIT),
        ("CumulativeExecutionTimeLimit", StopReason.TIME_LIMIT),
        ("ErrorPolicyCriterion", StopReason.ERROR),
        ("FinishReasonCheck", StopReason.FINISH_REASON),
        ("RetryLimit", StopReason.GUARD),
        ("stepslimit", StopReason.GUARD),
        ("StepsLimit.Elsewhere", StopReason.GUARD),
    ],
)
def test_a_name_can_contain_the_stop_reason(name: str, reason: StopReason) -> None:
    """2.3.2: by substring of the criterion's name."""
    assert outcome(Votes(FORBID, name)).stop_reason is reason


@pytest.mark.parametrize(
    "limit",
    [
        StepsLimit(1),
        TokenUsageLimit(10),
        ExecutionTimeLimit(60),
        CumulativeExecutionTimeLimit(5),
        CumulativeExecutionTimeLimit(5, "session"),
    ],
)
def test_limits_of_the_base_set_let_an_answer_through(limit: Criterion[Any]) -> None:
    """2.2.4, 2.3.2: each of them is a resource limit."""
    spent = an_execution(a_step(usage=Usage(10), seconds=5.0)).at(after(60))

    assert verdict(outcome(limit, stops(), state=spent))[:2] == (STOP, False)
    assert verdict(outcome(limit, requests(), state=spent))[:2] == (FORBID, False)


def test_other_guards_of_the_base_set_do_not() -> None:
    """2.2.4: a finish reason and an error are no resource limits."""
    cut = an_execution(a_step(finish_reason="length"))

    assert outcome(FinishReasonCheck(frozenset({"length"})), stops(), state=cut).stop_reason is (
        StopReason.FINISH_REASON
    )
    assert outcome(ErrorPolicyCriterion(), stops(), state=an_execution(a_failed_step())).stop_reason is (
        StopReason.ERROR
    )


# --- Signals and requests ---

HALT = StopSignal(StopReason.GUARD, "Enough for today", FrozenDict(budget=0), "hook")


def test_a_pending_signal_comes_first_with_its_own_reason_and_message() -> None:
    """2.4.2: criterion StopSignal, forbid."""
    found = outcome(requests(), stops(), state=NOTHING.signalled(HALT))
    first = found.evaluations[0]

    assert verdict(found) == (FORBID, False, "StopSignal", StopReason.GUARD)
    assert (first.name, first.decision, first.reason) == ("StopSignal", FORBID, "Enough for today")
    assert (first.stop_reason, first.context) == (StopReason.GUARD, {"budget": 0})
    assert len(found.evaluations) == 3


def test_the_source_of_a_signal_is_the_decider() -> None:
    """2.4.2, 4.6.1: also where the outcome was written, in full or in few bytes."""
    found = outcome(requests(), stops(), state=NOTHING.signalled(HALT))
    written = found.to_dict()

    assert found.source == written["evaluations"][0]["source"] == "hook"
    for read in (ContinuationOutcome.from_dict(written), expand(json.loads(json_text(compact(found))))):
        assert (read.source, read.resolved_by, read.stop_signal) == ("hook", "StopSignal", HALT)


def test_the_decider_is_the_criterion_where_no_signal_decided() -> None:
    """4.6.1: a signal that names no source has its criterion as source."""
    nameless = StopSignal(StopReason.GUARD)
    of_nobody = outcome(state=NOTHING.signalled(nameless))

    assert outcome(stops()).source == "Idler"
    assert outcome(stops()).stop_signal is None
    assert (of_nobody.source, of_nobody.stop_signal) == ("StopSignal", nameless)
    assert "source" not in of_nobody.to_dict()["evaluations"][0]


def test_a_signal_without_a_message_gives_the_default_reason() -> None:
    """2.4.2, 2.1.2: a trace has no empty reasons."""
    found = outcome(state=NOTHING.signalled(StopSignal(StopReason.USER_REQUESTED)))

    assert verdict(found) == (FORBID, False, "StopSignal", StopReason.USER_REQUESTED)
    assert found.evaluations[0].reason == "StopSignal forbids another step"


def test_a_request_comes_last() -> None:
    """2.4.2: criterion ContinuationRequest, request."""
    found = outcome(stops(), allows(), state=NOTHING.requested())

    assert verdict(found) == (REQUEST, True, "ContinuationRequest", StopReason.COMPLETED)
    assert trace(found) == [("Idler", STOP), ("Guard", ALLOW), ("ContinuationRequest", REQUEST)]
    assert found.evaluations[-1].reason == "ContinuationRequest has work for another step"


@pytest.mark.parametrize("reason", StopReason)
def test_a_request_suppresses_a_pending_signal_unless_a_person_stopped(reason: StopReason) -> None:
    """2.4.2: only user_requested is stronger."""
    both = NOTHING.signalled(StopSignal(reason)).requested()
    stays = reason is StopReason.USER_REQUESTED

    assert outcome(stops(), state=both).should_continue is not stays
    assert [name for name, _ in trace(outcome(state=both))] == (
        ["StopSignal", "ContinuationRequest"] if stays else ["ContinuationRequest"]
    )


def test_a_request_never_suppresses_the_veto_of_a_criterion() -> None:
    """2.4.2: a guard's veto stays in force."""
    found = outcome(STEPS, stops(), state=NOTHING.signalled(HALT).requested())

    assert verdict(found) == (FORBID, False, "Steps", StopReason.STEPS_LIMIT)


def test_a_signal_for_a_resource_limit_lets_an_answer_through() -> None:
    """2.2.4, 2.4.2: a signal is a forbid like any other."""
    spent = NOTHING.signalled(StopSignal(StopReason.TOKEN_LIMIT, "Spent"))

    assert verdict(outcome(stops(), state=spent)) == (STOP, False, "Idler", StopReason.COMPLETED)
    assert verdict(outcome(allows(), state=spent)) == (FORBID, False, "StopSignal", StopReason.TOKEN_LIMIT)


def test_a_nested_set_does_not_count_signals_again() -> None:
    """2.4.2, 2.2.6: signals and requests appear once, in the outermost trace."""
    found = outcome(a_set(stops()), state=NOTHING.signalled(CANCEL).requested())

    assert trace(found) == [
        ("StopSignal", FORBID),
        ("ContinuationCriteria", STOP),
        ("ContinuationRequest", REQUEST),
    ]
