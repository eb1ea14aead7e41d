"""The aggregation of votes into an outcome: every row of the table, every name of a decider."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import pytest
from hypothesis import given, strategies as st

from everstep.agent_domain.agents.builder import AgentBuilder
from everstep.agent_domain.agents.drivers import ToolCallingDriver
from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.loop.continuation import (
    CallableCriterion,
    CanExplainContinuation,
    CanProvideStopReason,
    ContinuationCriteria,
    ContinuationDecision,
    ContinuationEvaluation,
    ContinuationOutcome,
    Criterion,
    compact,
    expanded,
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
from everstep.agent_domain.testing import ScriptedModel
from everstep.agent_domain.values import EMPTY, FrozenDict, json_text
from tests.agent_domain.executions import CANCEL, a_failed_step, a_step, after, an_answered_call, an_execution
from tests.agent_domain.state_words import evaluations

FORBID, ALLOW, REQUEST, STOP = ContinuationDecision
NOTHING = ExecutionFacts()
"""A state that no criterion of the test reads."""


@dataclass(frozen=True)
class Votes:
    """Votes as configured, under its own name."""

    decision: ContinuationDecision
    name: str = "Someone"
    reason: StopReason | None = None

    def decide(self, state: object) -> ContinuationDecision:
        return self.decision

    def explain(self, state: object) -> ContinuationEvaluation:
        vote = ContinuationEvaluation.from_decision(f"tests.{self.name}", self.decision)
        return replace(vote, stop_reason=self.reason)


@dataclass(frozen=True)
class Raises:
    """Always raises."""

    error: Exception = field(default_factory=lambda: ZeroDivisionError("by zero"))

    def decide(self, state: object) -> ContinuationDecision:
        raise self.error


def allows(name: str = "Guard") -> Votes:
    return Votes(ALLOW, name)


def requests(name: str = "Worker") -> Votes:
    return Votes(REQUEST, name)


def stops(name: str = "Idler") -> Votes:
    return Votes(STOP, name)


def forbids(reason: StopReason = StopReason.GUARD, name: str = "Veto") -> Votes:
    return Votes(FORBID, name, reason)


STEPS = forbids(StopReason.STEPS_LIMIT, "Steps")
TOKENS = forbids(StopReason.TOKEN_LIMIT, "Tokens")
TIME = forbids(StopReason.TIME_LIMIT, "Time")


def outcome(*criteria: Criterion[Any], state: ExecutionFacts = NOTHING) -> ContinuationOutcome:
    return ContinuationCriteria(*criteria).evaluate(state)


def verdict(of: ContinuationOutcome) -> tuple[ContinuationDecision, bool, str, StopReason]:
    return of.decision, of.should_continue, of.resolved_by, of.stop_reason


def trace(of: ContinuationOutcome) -> list[tuple[str, ContinuationDecision]]:
    return [(vote.name, vote.decision) for vote in of.evaluations]


# --- Types ---


def test_there_are_four_decisions() -> None:
    """2.1.1: forbid, allow, request, stop."""
    assert [str(decision) for decision in ContinuationDecision] == ["forbid", "allow", "request", "stop"]


def test_a_criterion_may_be_guard_and_work_driver() -> None:
    """2.1.1: a criterion may mix both kinds."""

    def office_hours(state: ExecutionFacts) -> ContinuationDecision:
        return FORBID if state.steered else REQUEST

    criteria = ContinuationCriteria(ContinuationCriteria.when(office_hours))

    assert criteria.decide(NOTHING) is REQUEST
    assert criteria.decide(NOTHING.steered_by()) is FORBID


@pytest.mark.parametrize(
    ("decision", "reason"),
    [
        (FORBID, "Thing forbids another step"),
        (ALLOW, "Thing does not object to another step"),
        (REQUEST, "Thing has work for another step"),
        (STOP, "Thing sees nothing left to do"),
    ],
)
@pytest.mark.parametrize("qualified", ["acme.guards.Thing", "acme.guards.Outer.Thing", "Thing"])
def test_an_evaluation_from_a_decision_has_its_default_reason(
    qualified: str, decision: ContinuationDecision, reason: str
) -> None:
    """2.1.2: the reason names the last segment of the class name."""
    vote = ContinuationEvaluation.from_decision(qualified, decision)

    assert vote == ContinuationEvaluation(qualified, decision, reason, context=EMPTY, stop_reason=None)
    assert vote.name == "Thing"


def test_an_evaluation_has_no_context_and_no_stop_reason_by_default() -> None:
    """2.1.2: context is {} and stop_reason None."""
    vote = ContinuationEvaluation("Thing", ALLOW, "Fine")

    assert (vote.context, vote.stop_reason) == ({}, None)


def test_a_veto_written_as_text_is_a_veto() -> None:
    """2.1.1: the values are the literals, in any notation of a criterion."""

    class Plain:
        def decide(self, state: object) -> str:
            return "forbid"

    class Explained(Plain):
        def explain(self, state: object) -> ContinuationEvaluation:
            untyped: Any = "forbid", "No", {}, "token_limit"
            return ContinuationEvaluation("Explained", *untyped)

    plain: Any = Plain()
    explained: Any = Explained()

    assert verdict(outcome(plain, requests())) == (FORBID, False, "Plain", StopReason.GUARD)
    assert verdict(outcome(explained, requests())) == (FORBID, False, "Explained", StopReason.TOKEN_LIMIT)
    assert verdict(outcome(explained, stops())) == (STOP, False, "Idler", StopReason.COMPLETED)


def test_an_outcome_finds_the_first_vote_by_short_name_qualified_name_or_class() -> None:
    """2.1.3: evaluation_for(name) is the first match or None."""
    found = outcome(StepsLimit(1), ToolCallPresenceCheck(), StepsLimit(0))
    first = found.evaluations[0]

    assert first.decision is ALLOW
    assert found.evaluation_for("StepsLimit") is first
    assert found.evaluation_for("agent_domain.criteria.StepsLimit") is first
    assert found.evaluation_for(StepsLimit) is first
    assert found.evaluation_for(TokenUsageLimit) is None
    assert found.evaluation_for("elsewhere.StepsLimit") is None
    assert found.evaluation_for("Steps") is None


def test_an_outcome_knows_its_first_veto() -> None:
    """2.1.3: forbidding_criterion() is the first forbid or None, also if another criterion decided."""
    vetoed = outcome(allows(), STEPS, forbids(StopReason.ERROR, "Policy"))

    assert vetoed.resolved_by == "Policy"
    assert vetoed.forbidding_criterion() is vetoed.evaluations[1]
    assert outcome(requests()).forbidding_criterion() is None


def test_the_written_form_of_an_outcome() -> None:
    """2.1.3: camelCase keys, criteria by short name."""
    written = outcome(CumulativeExecutionTimeLimit(2), requests(), state=NOTHING.worked(2.5)).to_dict()

    assert written == {
        "decision": "forbid",
        "shouldContinue": False,
        "resolvedBy": "CumulativeExecutionTimeLimit",
        "stopReason": "time_limit",
        "evaluations": [
            {
                "criterion": "CumulativeExecutionTimeLimit",
                "decision": "forbid",
                "reason": "Cumulative execution time 2.5s exceeded limit 2s",
                "stopReason": "time_limit",
                "context": {"cumulativeSeconds": 2.5, "maxSeconds": 2},
            },
            {
                "criterion": "Worker",
                "decision": "request",
                "reason": "Worker has work for another step",
                "stopReason": None,
                "context": {},
            },
        ],
    }
    assert list(written) == ["decision", "shouldContinue", "resolvedBy", "stopReason", "evaluations"]
    assert list(written["evaluations"][0]) == ["criterion", "decision", "reason", "stopReason", "context"]


def test_an_outcome_that_was_written_reads_the_same() -> None:
    """2.1.3: it answers the same questions; 0.6: unknown keys are skipped."""
    written = outcome(StepsLimit(0), requests()).to_dict()
    read = ContinuationOutcome.from_dict({**written, "since": 2})

    assert read.to_dict() == written
    for name in ("StepsLimit", "agent_domain.criteria.StepsLimit", StepsLimit):
        assert read.evaluation_for(name) is read.evaluations[0]


def test_a_written_outcome_may_lack_its_trace() -> None:
    """2.1.3: all other fields are independent of it."""
    written = outcome(stops()).to_dict()
    del written["evaluations"]

    assert verdict(ContinuationOutcome.from_dict(written)) == (STOP, False, "Idler", StopReason.COMPLETED)


def test_votes_with_default_reasons_take_no_room_in_a_history() -> None:
    """2.1.3: a reason that follows from a name is left out, everything else is kept."""
    found = outcome(TokenUsageLimit(5), CumulativeExecutionTimeLimit(9), requests())

    assert compact(found) == {
        "by": "Worker",
        "votes": [
            "TokenUsageLimit",
            [
                "CumulativeExecutionTimeLimit",
                "allow",
                "Cumulative execution time 0.0s under limit 9s",
                None,
                {"cumulativeSeconds": 0.0, "maxSeconds": 9},
            ],
            ["Worker", "request"],
        ],
    }


@pytest.mark.parametrize(
    "own",
    [{"stop_reason": StopReason.GUARD}, {"context": FrozenDict({"left": 0})}, {"source": "a hook"}],
    ids=["stop reason", "context", "source"],
)
@pytest.mark.parametrize("decision", ContinuationDecision)
def test_a_vote_with_the_usual_reason_keeps_its_other_fields(
    own: dict[str, Any], decision: ContinuationDecision
) -> None:
    """2.1.2, 2.1.3: its stop reason, or its context."""
    vote = replace(ContinuationEvaluation.from_decision("Mine", decision), **own)
    found = ContinuationOutcome(decision, decision is REQUEST, "Mine", StopReason.COMPLETED, (vote,))

    assert expanded(compact(found)).evaluations == (vote,)


@given(st.lists(evaluations, max_size=4), st.sampled_from(ContinuationDecision), st.sampled_from(StopReason))
def test_an_outcome_in_few_bytes_reads_the_same(
    votes: list[ContinuationEvaluation], decision: ContinuationDecision, reason: StopReason
) -> None:
    """2.1.3: through JSON and back."""
    plain = ContinuationEvaluation.from_decision("tests.Plain", decision)
    found = ContinuationOutcome(decision, decision is REQUEST, "Mine", reason, (plain, *votes))

    assert expanded(json.loads(json_text(compact(found)))).to_dict() == found.to_dict()


def test_additions_of_a_later_version_to_a_vote_are_ignored() -> None:
    """0.6: readers skip unknown fields."""
    entry: list[Any] = ["Guard", "allow", "Fine", None, {}, "", "since 2"]
    read = expanded({"decision": "request", "by": "aggregate", "stop": "completed", "votes": [entry], "v": 2})

    assert read.evaluations == (ContinuationEvaluation("Guard", ALLOW, "Fine"),)
    assert verdict(read) == (REQUEST, True, "aggregate", StopReason.COMPLETED)


def test_explain_is_used_instead_of_decide() -> None:
    """2.1.4: CanExplainContinuation."""

    class Explains(Votes):
        def decide(self, state: object) -> ContinuationDecision:
            raise AssertionError("asked for the decision alone")

    assert isinstance(Explains(ALLOW), CanExplainContinuation)
    assert outcome(Explains(REQUEST, "Poet")).resolved_by == "Poet"


def test_a_criterion_without_explain_gets_the_default_reason() -> None:
    """2.1.4, 2.1.2: decide alone is enough."""

    class Terse:
        def decide(self, state: object) -> ContinuationDecision:
            return STOP

    assert not isinstance(Terse(), CanExplainContinuation | CanProvideStopReason)
    assert [vote.reason for vote in outcome(Terse()).evaluations] == ["Terse sees nothing left to do"]


def test_criteria_answer_in_three_ways() -> None:
    """2.1.5: evaluate, can_continue and decide agree."""
    going, stopped = ContinuationCriteria(requests()), ContinuationCriteria(stops())

    assert (going.can_continue(NOTHING), going.decide(NOTHING)) == (True, REQUEST)
    assert (stopped.can_continue(NOTHING), stopped.decide(NOTHING)) == (False, STOP)


def test_criteria_are_appended_to_a_new_set() -> None:
    """2.1.5: with_criteria appends; 0.8: the original set does not change."""
    few = ContinuationCriteria(allows())
    more = few.with_criteria(stops(), requests())

    assert trace(few.evaluate(NOTHING)) == [("Guard", ALLOW)]
    assert trace(more.evaluate(NOTHING)) == [("Guard", ALLOW), ("Idler", STOP), ("Worker", REQUEST)]


def test_a_function_is_a_criterion() -> None:
    """2.1.5: when(fn) is shown as CallableCriterion."""

    def never(state: object) -> ContinuationDecision:
        return FORBID

    assert isinstance(ContinuationCriteria.when(never), CallableCriterion)
    vetoed = outcome(ContinuationCriteria.when(never))

    assert verdict(vetoed) == (FORBID, False, "CallableCriterion", StopReason.GUARD)
    assert vetoed.evaluations[0].reason == "CallableCriterion forbids another step"


def test_an_object_that_cannot_vote_is_refused_with_advice() -> None:
    """2.1.4: a criterion implements decide(state)."""
    function: Any = len

    with pytest.raises(InvalidInput, match=r"is not a criterion: give it a method decide\(state\), or wrap"):
        ContinuationCriteria(function)


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


def nested(*criteria: Criterion[Any]) -> ContinuationCriteria:
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
    vote, guard = outcome(nested(*inside), allows()).evaluations

    assert (vote.name, vote.decision, vote.stop_reason) == ("ContinuationCriteria", decision, reason)
    assert guard.name == "Guard"


def test_the_vote_of_a_set_names_its_decider() -> None:
    """2.2.6: the one evaluation has a full reason."""
    (vote,) = outcome(nested(allows(), forbids())).evaluations

    assert vote.reason == "ContinuationCriteria forbids another step (Veto)"


def test_a_nested_veto_stays_a_veto() -> None:
    """2.2.6: also if an outer criterion requests."""
    found = outcome(requests(), nested(nested(forbids(), stops()), requests()))

    assert verdict(found) == (FORBID, False, "ContinuationCriteria", StopReason.GUARD)


def test_a_nested_limit_without_work_inside_stops_if_there_is_none_outside() -> None:
    """2.2.6: a nested natural completion counts as stop."""
    done = nested(STEPS, stops())

    assert verdict(outcome(done, allows())) == (
        STOP,
        False,
        "ContinuationCriteria",
        StopReason.COMPLETED,
    )


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_nested_limit_forbids_the_work_of_others(depth: int) -> None:
    """2.2.6: if an outer criterion requests, the nested completion is the forbid of its first limit."""
    done: Criterion[Any] = nested(allows(), TOKENS, stops(), TIME)
    for _ in range(depth - 1):
        done = nested(done, allows(), stops(), STEPS)
    found = outcome(requests(), done)

    assert verdict(found) == (FORBID, False, "Tokens", StopReason.TOKEN_LIMIT)
    assert trace(found) == [("Worker", REQUEST), ("Tokens", FORBID)]


def test_a_nested_stop_without_a_limit_forbids_nothing() -> None:
    """2.2.6: only a limit turns the stop of a set into a veto."""
    assert verdict(outcome(nested(stops(), allows()), requests())) == (
        REQUEST,
        True,
        "Worker",
        StopReason.COMPLETED,
    )


def test_a_request_for_continuation_is_an_outer_request_to_a_nested_set() -> None:
    """2.2.6, 2.4.2: and only the outermost set has it in its trace."""
    found = outcome(nested(nested(STEPS, stops())), state=NOTHING.requested())

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
    found = outcome(forbids(StopReason.ERROR), nested(nested(Raises(), stops())))

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
    for read in (ContinuationOutcome.from_dict(written), expanded(json.loads(json_text(compact(found))))):
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
    found = outcome(nested(stops()), state=NOTHING.signalled(CANCEL).requested())

    assert trace(found) == [
        ("StopSignal", FORBID),
        ("ContinuationCriteria", STOP),
        ("ContinuationRequest", REQUEST),
    ]


# --- Comparison with a reference written from the table alone ---


@dataclass(frozen=True)
class Leaf:
    """A single criterion: its vote, and its stop reason."""

    says: str
    states: StopReason | None

    def criterion(self, name: str) -> Criterion[Any]:
        return Votes(ContinuationDecision(self.says), name, self.states)


@dataclass(frozen=True)
class Broken:
    """A criterion that raises."""

    def criterion(self, name: str) -> Criterion[Any]:
        return Raises()


@dataclass(frozen=True)
class Group:
    """A set of criteria within another."""

    members: tuple["Ballot", ...]

    def criterion(self, name: str) -> ContinuationCriteria:
        return ContinuationCriteria(*(each.criterion(f"{name}x{i}") for i, each in enumerate(self.members)))


Ballot: TypeAlias = Leaf | Broken | Group


@dataclass(frozen=True)
class Cast:
    """One evaluation in the reference."""

    name: str
    says: str
    because: str | None = None
    raised: bool = False
    instead: "Cast | None" = None


@dataclass(frozen=True)
class Verdict:
    """An outcome in the reference, and the row that it comes from."""

    row: str
    says: str
    by: str
    because: str
    casts: Sequence[Cast]


LIMITS = {"steps_limit", "token_limit", "time_limit"}


def cast(ballot: Ballot, name: str) -> Cast:
    """The vote of one criterion."""
    if isinstance(ballot, Broken):
        return Cast("Raises", "forbid", "error", raised=True)
    if isinstance(ballot, Leaf):
        because = ballot.states or StopReason.GUARD
        return Cast(name, ballot.says, str(because) if ballot.says == "forbid" else None)
    inside = reference([cast(each, f"{name}x{i}") for i, each in enumerate(ballot.members)])
    limits = [c if c.says == "forbid" else c.instead for c in inside.casts]
    first_limit = next((limit for limit in limits if limit), None)
    return Cast(
        "ContinuationCriteria",
        inside.says,
        inside.because,
        raised=any(c.raised for c in inside.casts),
        instead=first_limit if inside.row in "be" else None,
    )


def reference(casts: Sequence[Cast]) -> Verdict:
    """The table of 2.2.2, with the additions of 2.2.3, 2.2.4, 2.2.6 and 2.2.7 to its rows."""
    said = {c.says for c in casts}
    if "request" in said:
        casts = [c.instead or c for c in casts]
    said = {c.says for c in casts}

    def firsts(says: str) -> str:
        return next(c.name for c in casts if c.says == says)

    forbids = [c for c in casts if c.says == "forbid"]
    if not casts:
        return Verdict("a", "stop", "ContinuationCriteria", "completed", casts)
    if forbids and {c.because for c in forbids} <= LIMITS and "request" not in said and "stop" in said:
        return Verdict("b", "stop", firsts("stop"), "completed", casts)
    if forbids:
        weight = {True: 0, False: 2}
        deciding = min(forbids, key=lambda c: min(weight[c.raised], 1 if c.because == "error" else 2))
        return Verdict("c", "forbid", deciding.name, deciding.because or "guard", casts)
    if "request" in said:
        return Verdict("d", "request", firsts("request"), "completed", casts)
    if "stop" in said:
        return Verdict("e", "stop", firsts("stop"), "completed", casts)
    return Verdict("f", "request", "aggregate", "completed", casts)


SAID = ["forbid", "forbid", "allow", "request", "stop", "stop"]
# Limits often, or natural completion would be rare.
STATED = [None, *StopReason, *map(StopReason, sorted(LIMITS)), *map(StopReason, sorted(LIMITS))]
LEAVES = st.builds(Leaf, says=st.sampled_from(SAID), states=st.sampled_from(STATED))
SINGLE = st.one_of(LEAVES, LEAVES, LEAVES, LEAVES, LEAVES, LEAVES, st.builds(Broken))


def groups(members: st.SearchStrategy[Ballot]) -> st.SearchStrategy[Group]:
    return st.builds(Group, st.lists(members, max_size=4).map(tuple))


BALLOTS: st.SearchStrategy[Ballot] = st.recursive(SINGLE, groups, max_leaves=6)


def agrees(ballots: Sequence[Ballot], state: ExecutionFacts, expected: Verdict) -> None:
    found = outcome(*(each.criterion(f"V{i}") for i, each in enumerate(ballots)), state=state)

    assert (str(found.decision), found.resolved_by, str(found.stop_reason)) == (
        expected.says,
        expected.by,
        expected.because,
    )
    assert found.should_continue is (expected.row in "df")
    assert [(v.name, str(v.decision)) for v in found.evaluations] == [
        (c.name, c.says) for c in expected.casts
    ]


@given(st.lists(LEAVES, max_size=6))
def test_any_list_of_votes_is_decided_by_the_table(ballots: list[Leaf]) -> None:
    """2.2.2, 2.2.3, 2.2.4, 2.2.5: against a reference written from the table."""
    agrees(ballots, NOTHING, reference([cast(each, f"V{i}") for i, each in enumerate(ballots)]))


@given(st.lists(BALLOTS, max_size=5), st.sampled_from([None, *StopReason]), st.booleans())
def test_sets_within_sets_signals_and_requests_are_decided_by_the_table(
    ballots: list[Ballot], signal: StopReason | None, requested: bool
) -> None:
    """2.2.6, 2.2.7, 2.4.2: the same with nesting, criteria that raise, signals and requests."""
    state = NOTHING.requested() if requested else NOTHING
    casts = [cast(each, f"V{i}") for i, each in enumerate(ballots)]
    if signal:
        state = state.signalled(StopSignal(signal))
        if signal is StopReason.USER_REQUESTED or not requested:
            casts.insert(0, Cast("StopSignal", "forbid", signal))
    if requested:
        casts.append(Cast("ContinuationRequest", "request"))

    agrees(ballots, state, reference(casts))


def test_the_usual_outcome_after_a_step_takes_no_room_at_all() -> None:
    """2.1.3: after a step that called tools, with an agent that sets no limits."""
    facts = an_execution(a_step(an_answered_call()))
    plan = AgentBuilder.base().with_driver(ToolCallingDriver(ScriptedModel())).definition().plan()
    found = plan.rules().criteria.evaluate(facts.at(after(1)))

    assert found.should_continue
    assert compact(found) == {}
    assert expanded({}).to_dict() == found.to_dict()


@pytest.mark.parametrize("told", [{}, {"maxRetries": 3}, {"totalFailures": 1, "errorType": "tool"}])
def test_the_vote_of_an_idle_error_policy_is_short(told: dict[str, Any]) -> None:
    """2.1.3: differences from the default are kept."""
    usual = expanded({}).evaluation_for("ErrorPolicyCriterion")
    assert usual
    vote = replace(usual, context=usual.context.merged(told))
    found = ContinuationOutcome(REQUEST, True, "Mine", StopReason.COMPLETED, (vote,))

    assert compact(found)["votes"] == [["ErrorPolicyCriterion", told] if told else ["ErrorPolicyCriterion"]]
    assert expanded(compact(found)).to_dict() == found.to_dict()
