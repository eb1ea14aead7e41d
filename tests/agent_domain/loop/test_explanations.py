"""The sentences of decisions."""

from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from everstep.agent_domain.capabilities.critique import CritiqueVerdict, SelfCriticContinuationCheck
from everstep.agent_domain.loop.budget import BudgetLimit, BudgetScope, BudgetUnit, ExhaustedBudget
from everstep.agent_domain.loop.compact_outcomes import compact, expand
from everstep.agent_domain.loop.continuation import (
    ContinuationCriteria,
    ContinuationDecision,
    ContinuationEvaluation,
    ContinuationOutcome,
)
from everstep.agent_domain.loop.criteria import (
    CumulativeExecutionTimeLimit,
    ErrorPolicyCriterion,
    ErrorPresenceCheck,
    ExecutionTimeLimit,
    FinishReasonCheck,
    RetryLimit,
    StepsLimit,
    StopOnFinalDecision,
    TokenUsageLimit,
    ToolCallPresenceCheck,
)
from everstep.agent_domain.loop.error_policy import ErrorPolicy
from everstep.agent_domain.loop.explanations import (
    DecidedStep,
    cancel_sentence,
    end_sentence,
    explain_end,
    next_step_sentence,
    stop_reason_text,
    telling_votes,
)
from everstep.agent_domain.loop.facts import ExecutionFacts
from everstep.agent_domain.loop.repeated_calls import RepeatedCallLimit, RepeatedCalls
from everstep.agent_domain.loop.status import StopReason
from everstep.agent_domain.loop.step_error import ErrorType, StepError
from everstep.agent_domain.loop.stop_signal import StopSignal
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.values import frozen_map
from tests.agent_domain.executions import (
    CANCEL,
    a_critique,
    a_failed_call,
    a_failed_step,
    a_step,
    after,
    an_answered_call,
    an_execution,
)

CALLED = an_execution(a_step(an_answered_call(), replace(an_answered_call("b"), name="book")))
ANSWERED = an_execution(a_step())
FAILED = an_execution(a_step(a_failed_call()))


class OwnCriterion:
    """A criterion with a reason of its own."""

    def __init__(self, decision: ContinuationDecision, reason: str) -> None:
        self.vote = ContinuationEvaluation("shop.OwnCriterion", decision, reason)

    def decide(self, state: object) -> ContinuationDecision:
        del state
        return self.vote.decision

    def explain(self, state: object) -> ContinuationEvaluation:
        del state
        return self.vote


class Broken:
    def decide(self, _state: object) -> ContinuationDecision:
        raise KeyError("the customer's secret")


def base(*more: Any, policy: ErrorPolicy | None = None) -> ContinuationCriteria:
    policy = policy or ErrorPolicy()
    return ContinuationCriteria(ErrorPolicyCriterion(policy), ToolCallPresenceCheck(policy), *more)


def a_budget(unit: BudgetUnit, limit: str, spent: str, needed: str) -> BudgetLimit:
    amounts = Decimal(limit), Decimal(spent), Decimal(0), Decimal(needed)
    return BudgetLimit(ExhaustedBudget(UUID(int=1), unit, BudgetScope.SESSION, *amounts))


def as_is(outcome: ContinuationOutcome) -> ContinuationOutcome:
    return outcome


def recorded(outcome: ContinuationOutcome) -> ContinuationOutcome:
    """As a step of the store has it."""
    return ContinuationOutcome.from_dict(frozen_map(outcome.to_record()))


def in_history(outcome: ContinuationOutcome) -> ContinuationOutcome:
    """As the history of a workflow has it."""
    return expand(compact(outcome))


FORMS = pytest.mark.parametrize("form", [as_is, recorded, in_history])


@FORMS
@pytest.mark.parametrize(
    ("criteria", "facts", "sentence"),
    [
        (base(StepsLimit(1)), CALLED, "stopped: 1 of 1 steps"),
        (base(StepsLimit(3, lambda _state: 5)), CALLED, "stopped: 5 of 3 steps"),
        (base(TokenUsageLimit(10)), replace(CALLED, usage=Usage(input=11)), "stopped: 11 of 10 tokens"),
        (base(ExecutionTimeLimit(60)), CALLED.at(after(61.25)), "stopped: 61.2 of 60 s"),
        (base(CumulativeExecutionTimeLimit(2)), CALLED.worked(2.5), "stopped: 2.5 of 2 s of work"),
        (
            base(FinishReasonCheck(frozenset({"length"}))),
            an_execution(a_step(an_answered_call(), finish_reason="length")),
            "stopped: the model's finish reason is length",
        ),
        (
            base(RetryLimit(1), policy=ErrorPolicy.retry_all(3)),
            FAILED,
            "stopped: 1 of 1 failures in a row",
        ),
        (
            base(RepeatedCallLimit(3)),
            replace(CALLED, repeated=RepeatedCalls("x", 3)),
            "stopped: the same call returned the same result 3 of 3 times in a row",
        ),
        (
            base(SelfCriticContinuationCheck(2)),
            a_critique(CritiqueVerdict.REJECTED, 2),
            "stopped: the answer was still rejected after 2 of 2 critiques",
        ),
        (
            base(a_budget(BudgetUnit.USD, "0.25", "0.24", "0.03")),
            CALLED,
            "stopped: budget of the session: 0.24 of 0.25 USD spent, the next model call needs up to "
            "0.03 USD",
        ),
        (
            base(a_budget(BudgetUnit.STEPS, "1", "1", "1")),
            CALLED,
            "stopped: budget of the session: 1 of 1 step spent, the next model call needs up to 1 step",
        ),
        (
            base(OwnCriterion(ContinuationDecision.FORBID, "No money left")),
            CALLED,
            "stopped: No money left (OwnCriterion)",
        ),
        (
            ContinuationCriteria(ContinuationCriteria.when(lambda _s: ContinuationDecision.FORBID)),
            CALLED,
            "stopped: CallableCriterion forbids another step",
        ),
        (
            base(),
            CALLED.signalled(StopSignal(StopReason.GUARD, "no more", source="BeforeStep")),
            "stopped: stop signal from BeforeStep",
        ),
        (
            base(),
            CALLED.signalled(StopSignal(StopReason.GUARD)),
            "stopped: stop signal from a hook or a driver",
        ),
        (base(), CALLED.signalled(CANCEL), "cancelled: by user, after 1 step"),
        (base(), ANSWERED, "completed: the model answered without calling tools"),
        (ContinuationCriteria(StopOnFinalDecision()), ANSWERED, "completed: the model gave its final answer"),
        (ContinuationCriteria(), ANSWERED, "completed: no criterion asks for a step"),
        (base(), FAILED, "failed: tool error in search, 1 failure in a row, max_retries 0"),
        (
            base(policy=ErrorPolicy.retry_all(1)),
            an_execution(a_failed_step(ErrorType.RATE_LIMIT)),
            "failed: rate limit error, 1 failure in a row, max_retries 1",
        ),
        (
            ContinuationCriteria(ErrorPresenceCheck()),
            FAILED,
            "failed: ErrorPresenceCheck forbids another step",
        ),
        (base(Broken()), CALLED, "failed: Broken raised KeyError"),
    ],
)
def test_an_end_is_explained_by_its_deciding_criterion(
    criteria: ContinuationCriteria,
    facts: ExecutionFacts,
    sentence: str,
    form: Callable[[ContinuationOutcome], ContinuationOutcome],
) -> None:
    """15.1.1: with its numbers, also after the outcome was stored."""
    outcome = form(criteria.evaluate(facts))
    is_failed = outcome.stop_reason is StopReason.ERROR

    assert end_sentence(outcome, DecidedStep(), facts.step_count, is_failed=is_failed) == sentence


@FORMS
@pytest.mark.parametrize(
    ("criteria", "facts", "sentence"),
    [
        (base(), CALLED, "went on: the model called 2 tools: search, book"),
        (base(), an_execution(a_step(an_answered_call())), "went on: the model called 1 tool: search"),
        (base(), ExecutionFacts(), "went on: no step has run yet"),
        (
            base(policy=ErrorPolicy.retry_tool_errors(3)),
            FAILED,
            "retried: tool error in search: boom; 1 failure in a row, max_retries 3",
        ),
        (
            base(policy=ErrorPolicy.ignore_tool_errors()),
            FAILED,
            "went on: the error policy ignores the tool error in search: boom",
        ),
        (
            base(),
            ANSWERED.requested(),
            "went on: another step was requested by a hook, a driver or a message",
        ),
        (
            base(SelfCriticContinuationCheck(3)),
            a_critique(CritiqueVerdict.REJECTED, 1),
            "went on: critique 1 of 3 rejected the answer",
        ),
        (ContinuationCriteria(StepsLimit(3)), CALLED, "went on: no criterion objected"),
        (
            ContinuationCriteria(OwnCriterion(ContinuationDecision.REQUEST, "2 of 3 sources")),
            CALLED,
            "went on: 2 of 3 sources (OwnCriterion)",
        ),
    ],
)
def test_another_step_is_explained_by_its_deciding_criterion(
    criteria: ContinuationCriteria,
    facts: ExecutionFacts,
    sentence: str,
    form: Callable[[ContinuationOutcome], ContinuationOutcome],
) -> None:
    """15.1.1: with its numbers, also after the outcome was stored."""
    step = DecidedStep.from_facts(facts.current_step)

    assert next_step_sentence(form(criteria.evaluate(facts)), step) == sentence


def test_a_message_explains_the_step_that_it_requested() -> None:
    """15.1.1: the step after it says that a message arrived."""
    outcome = base().evaluate(ANSWERED.requested())

    assert next_step_sentence(outcome, DecidedStep(has_messages_next=True)) == "went on: a message arrived"


def test_many_tools_are_counted_and_the_first_are_named() -> None:
    """15.1.1."""
    outcome = base().evaluate(CALLED)

    sentence = next_step_sentence(outcome, DecidedStep(tuple("abcde")))

    assert sentence == "went on: the model called 5 tools: a, b, c, ..."


def test_a_limit_may_end_a_failed_execution() -> None:
    """15.1.1, 3.7.1: the sentence says both."""
    outcome = base(StepsLimit(1), policy=ErrorPolicy.retry_all(3)).evaluate(FAILED)

    sentence = end_sentence(outcome, DecidedStep(error_text="boom"), 1, is_failed=True)

    assert sentence == "failed: 1 of 1 steps, and the last step failed: boom"


@pytest.mark.parametrize(
    ("error", "public", "full"),
    [
        (StepError("secret", exception="KeyError", ref="12ab"), "KeyError (ref 12ab)", "secret"),
        (StepError("No such\ncity", exception="ToolError", is_public=True), "No such city", "No such city"),
        (StepError("x" * 300, exception="ToolError", is_public=True), "x" * 200 + "...", "x" * 200 + "..."),
        (StepError("", exception="KeyError"), "KeyError", "KeyError"),
    ],
)
def test_readers_see_of_an_error_what_they_may_see(error: StepError, public: str, full: str) -> None:
    """15.1.3, 5.4.4: its text is public, or there is a reference."""
    outcome = base().evaluate(FAILED)

    for text, in_full in ((public, False), (full, True)):
        step = DecidedStep.of((), (error,), in_full=in_full)
        sentence = end_sentence(outcome, step, 1, is_failed=True)
        assert sentence == f"failed: tool error in search: {text}; 1 failure in a row, max_retries 0"


def test_the_sentence_of_a_workflow_has_no_texts() -> None:
    """15.1.2: facts have none, and the text of an exception is cut off."""
    raised = base(Broken()).evaluate(CALLED)

    assert explain_end(raised, CALLED.ended(raised, ErrorPolicy())) == "failed: Broken raised KeyError"


def test_a_cancel_names_its_sender() -> None:
    """15.1.1: and how far the execution came."""
    cancelled = base().evaluate(CALLED.signalled(StopSignal(StopReason.USER_REQUESTED, source="cancel")))

    assert explain_end(cancelled, CALLED) == "cancelled: on request, after 1 step"
    assert (
        explain_end(cancelled, CALLED, cancelled_by="jane (cancel)")
        == "cancelled: by jane (cancel), after 1 step"
    )
    assert cancel_sentence(0, None) == "cancelled: on request, before its first step was complete"


def test_votes_of_an_older_release_have_no_numbers() -> None:
    """15.1.5: the sentence says what is known."""
    outcome = ContinuationOutcome.from_dict(
        base(StepsLimit(2)).evaluate(replace(CALLED, recorded_steps=1)).to_dict()
    )

    sentence = end_sentence(outcome, DecidedStep(), 2, is_failed=False)

    assert sentence == "stopped: the step limit was reached after 2 steps (StepsLimit)"
    assert stop_reason_text(StopReason.STEPS_LIMIT, 0) == "stopped: 0 of 0 steps"
    unknown = "stopped: the stop reason is guard after 2 steps; the votes are not recorded"
    assert stop_reason_text(StopReason.GUARD, 2) == unknown


def test_votes_without_objection_are_folded() -> None:
    """15.1.4: votes that allow another step and say nothing else are a count."""
    limits = StepsLimit(9), TokenUsageLimit(9), CumulativeExecutionTimeLimit(9)
    own = OwnCriterion(ContinuationDecision.ALLOW, "2 of 3 sources")
    outcome = base(*limits, own, policy=ErrorPolicy.ignore_tool_errors()).evaluate(FAILED)

    votes, folded = telling_votes(outcome.evaluations)

    assert [vote.name for vote in votes] == ["ErrorPolicyCriterion", "ToolCallPresenceCheck", "OwnCriterion"]
    assert folded == 3
    assert telling_votes(base(*limits).evaluate(CALLED).evaluations)[1] == 4
