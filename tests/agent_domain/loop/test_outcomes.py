"""Decisions, evaluations and outcomes: their values, their written forms, and the shapes of a criterion."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.agents.drivers import ToolCallingDriver
from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.loop.compact_outcomes import (
    compact,
    expand,
)
from everstep.agent_domain.loop.continuation import (
    CallableCriterion,
    CanExplainContinuation,
    CanProvideStopReason,
    ContinuationCriteria,
    ContinuationDecision,
    ContinuationEvaluation,
    ContinuationOutcome,
)
from everstep.agent_domain.loop.criteria import (
    CumulativeExecutionTimeLimit,
    StepsLimit,
    TokenUsageLimit,
    ToolCallPresenceCheck,
)
from everstep.agent_domain.loop.facts import ExecutionFacts
from everstep.agent_domain.loop.status import StopReason
from everstep.agent_domain.testing import ScriptedModel
from everstep.agent_domain.values import EMPTY, FrozenDict, json_text
from tests.agent_domain.executions import a_step, after, an_answered_call, an_execution
from tests.agent_domain.loop.votes import (
    ALLOW,
    FORBID,
    NOTHING,
    REQUEST,
    STEPS,
    STOP,
    Votes,
    allows,
    forbids,
    outcome,
    requests,
    stops,
    trace,
    verdict,
)
from tests.agent_domain.state_words import evaluations


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


def test_the_votes_of_the_base_set_take_the_least_room() -> None:
    """2.1.3: histories in which the limit of repeated calls is named read the same."""
    base = expand({"base": 1})

    assert base.evaluations[-1].name == "RepeatedCallLimit"
    assert compact(base) == {"base": 1}
    assert expand({"more": ["RepeatedCallLimit"]}).to_dict() == base.to_dict()


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

    assert expand(compact(found)).evaluations == (vote,)


@given(st.lists(evaluations, max_size=4), st.sampled_from(ContinuationDecision), st.sampled_from(StopReason))
def test_an_outcome_in_few_bytes_reads_the_same(
    votes: list[ContinuationEvaluation], decision: ContinuationDecision, reason: StopReason
) -> None:
    """2.1.3: through JSON and back."""
    plain = ContinuationEvaluation.from_decision("tests.Plain", decision)
    found = ContinuationOutcome(decision, decision is REQUEST, "Mine", reason, (plain, *votes))

    assert expand(json.loads(json_text(compact(found)))).to_dict() == found.to_dict()


def test_additions_of_a_later_version_to_a_vote_are_ignored() -> None:
    """0.6: readers skip unknown fields."""
    entry: list[Any] = ["Guard", "allow", "Fine", None, {}, "", "since 2"]
    read = expand({"decision": "request", "by": "aggregate", "stop": "completed", "votes": [entry], "v": 2})

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


def test_the_usual_outcome_after_a_step_takes_nearly_no_room() -> None:
    """2.1.3: after a step that called tools, with an agent that sets no limits; plans of older releases have
    no limit of repeated calls, whose vote is one number.
    """
    facts = an_execution(a_step(an_answered_call()))
    plan = DefinitionBuilder.base().with_driver(ToolCallingDriver(ScriptedModel())).definition().plan()
    found = plan.rules().criteria.evaluate(facts.at(after(1)))

    older = plan.model_copy(update={"repeated_call_limit": None}).rules()
    former = older.criteria.evaluate(facts.at(after(1)))

    assert found.should_continue
    assert compact(found) == {"base": 1}
    assert compact(former) == {}
    for each in (found, former):
        assert expand(compact(each)).to_dict() == each.to_dict()


@pytest.mark.parametrize("context", [{}, {"maxRetries": 3}, {"totalFailures": 1, "errorType": "tool"}])
def test_the_vote_of_an_idle_error_policy_is_short(context: dict[str, Any]) -> None:
    """2.1.3: differences from the default are kept."""
    usual = expand({}).evaluation_for("ErrorPolicyCriterion")
    assert usual
    vote = replace(usual, context=usual.context.merged(context))
    found = ContinuationOutcome(REQUEST, True, "Mine", StopReason.COMPLETED, (vote,))

    assert compact(found)["votes"] == [
        ["ErrorPolicyCriterion", context] if context else ["ErrorPolicyCriterion"]
    ]
    assert expand(compact(found)).to_dict() == found.to_dict()
