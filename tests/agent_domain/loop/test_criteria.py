"""The criteria of Everstep: the table of votes, reasons, resolvers and clocks."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeAlias

import pytest

from everstep.agent_domain.capabilities.critique import CritiqueVerdict, SelfCriticContinuationCheck
from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.loop.continuation import (
    ContinuationCriteria,
    ContinuationDecision,
    ContinuationEvaluation,
    ContinuationOutcome,
    Criterion,
)
from everstep.agent_domain.loop.criteria import (
    CumulativeExecutionTimeLimit,
    ErrorPolicyCriterion,
    ErrorPresenceCheck,
    ExecutionTimeLimit,
    FinishReasonCheck,
    ResponseContentCheck,
    RetryLimit,
    StepsLimit,
    StopOnFinalDecision,
    TokenUsageLimit,
    ToolCallPresenceCheck,
)
from everstep.agent_domain.loop.error_policy import ErrorHandlingDecision, ErrorPolicy
from everstep.agent_domain.loop.facts import ExecutionFacts
from everstep.agent_domain.loop.finish_reason import FinishReason
from everstep.agent_domain.loop.status import StopReason
from everstep.agent_domain.loop.step_error import ErrorType
from everstep.agent_domain.loop.step_facts import StepType
from everstep.agent_domain.loop.usage import Usage
from tests.agent_domain.executions import (
    GO_ON,
    NOON,
    a_critique,
    a_failed_call,
    a_failed_step,
    a_step,
    after,
    an_answered_call,
    an_execution,
)

FORBID, ALLOW, REQUEST, STOP = ContinuationDecision
NOT_STARTED = ExecutionFacts()
ANSWERED = an_execution(a_step())
CALLED = an_execution(a_step(an_answered_call()))
CALL_FAILED = an_execution(a_step(an_answered_call("a"), a_failed_call("b")))
STEP_FAILED = an_execution(a_failed_step())
RETRY = ErrorPolicy.retry_all(2)
IGNORE = ErrorPolicy(on_model_error=ErrorHandlingDecision.IGNORE)


def alone(criterion: Criterion[Any], facts: ExecutionFacts) -> ContinuationOutcome:
    return ContinuationCriteria(criterion).evaluate(facts)


def the_vote(criterion: Criterion[Any], facts: ExecutionFacts) -> ContinuationEvaluation:
    (vote,) = alone(criterion, facts).evaluations
    return vote


def steps(count: int) -> ExecutionFacts:
    return an_execution(*[a_step(an_answered_call())] * count)


def an_execution_with_tokens(tokens: int) -> ExecutionFacts:
    return an_execution(a_step(usage=Usage(input=tokens)))


def failed_in_a_row(count: int) -> ExecutionFacts:
    return an_execution(a_step(), *[a_failed_step()] * count)


def finished_with(word: str | None) -> ExecutionFacts:
    return an_execution(a_step(finish_reason=word))


def response_text(state: ExecutionFacts) -> str | None:
    """A response text that tests pass in the finish reason."""
    return state.current_step.finish_reason if state.current_step else None


LENGTH = FinishReasonCheck(frozenset({"length"}))
ASKS = ResponseContentCheck(response_text, lambda text: text.endswith("?"))
APPROVED, REJECTED = CritiqueVerdict


@pytest.mark.parametrize(
    ("criterion", "facts", "decision", "stop_reason"),
    [
        (StepsLimit(2), steps(1), ALLOW, None),
        (StepsLimit(2), steps(2), FORBID, "steps_limit"),
        (StepsLimit(2), steps(3), FORBID, "steps_limit"),
        (StepsLimit(0), NOT_STARTED, FORBID, "steps_limit"),
        (StepsLimit(1), STEP_FAILED, FORBID, "steps_limit"),
        (TokenUsageLimit(10), an_execution_with_tokens(9), ALLOW, None),
        (TokenUsageLimit(10), an_execution_with_tokens(10), FORBID, "token_limit"),
        (TokenUsageLimit(10), an_execution_with_tokens(11), FORBID, "token_limit"),
        (TokenUsageLimit(10), an_execution(a_step(usage=Usage(2, 2, 2, 2, 1))), ALLOW, None),
        (TokenUsageLimit(10), an_execution(a_step(usage=Usage(2, 2, 2, 2, 2))), FORBID, "token_limit"),
        (ExecutionTimeLimit(60), ANSWERED.at(after(59.999)), ALLOW, None),
        (ExecutionTimeLimit(60), ANSWERED.at(after(60)), FORBID, "time_limit"),
        (ExecutionTimeLimit(60), ANSWERED.at(after(61)), FORBID, "time_limit"),
        (ExecutionTimeLimit(60), NOT_STARTED, ALLOW, None),
        (CumulativeExecutionTimeLimit(5), an_execution(a_step(seconds=4.999)), ALLOW, None),
        (CumulativeExecutionTimeLimit(5), an_execution(a_step(seconds=5.0)), FORBID, "time_limit"),
        (CumulativeExecutionTimeLimit(5), ANSWERED.at(after(3600)), ALLOW, None),
        (LENGTH, finished_with("length"), FORBID, "finish_reason"),
        (LENGTH, finished_with("stop"), ALLOW, None),
        (LENGTH, finished_with("Length"), ALLOW, None),
        (LENGTH, finished_with("max_length"), ALLOW, None),
        (LENGTH, finished_with(None), ALLOW, None),
        (LENGTH, NOT_STARTED, ALLOW, None),
        (FinishReasonCheck(), finished_with("length"), ALLOW, None),
        (
            FinishReasonCheck(frozenset({FinishReason.LENGTH})),
            finished_with("length"),
            FORBID,
            "finish_reason",
        ),
        (ErrorPolicyCriterion(), STEP_FAILED, FORBID, "error"),
        (ErrorPolicyCriterion(RETRY), STEP_FAILED, ALLOW, None),
        (ErrorPolicyCriterion(RETRY), failed_in_a_row(2), FORBID, "error"),
        (ErrorPolicyCriterion(IGNORE), STEP_FAILED, ALLOW, None),
        (ErrorPolicyCriterion(), ANSWERED, ALLOW, None),
        (ErrorPolicyCriterion(), NOT_STARTED, ALLOW, None),
        (ToolCallPresenceCheck(), NOT_STARTED, REQUEST, None),
        (ToolCallPresenceCheck(), CALLED, REQUEST, None),
        (ToolCallPresenceCheck(), CALL_FAILED, REQUEST, None),
        (ToolCallPresenceCheck(), ANSWERED, STOP, None),
        (ToolCallPresenceCheck(), STEP_FAILED, STOP, None),
        (ToolCallPresenceCheck(RETRY), STEP_FAILED, REQUEST, None),
        (ToolCallPresenceCheck(RETRY), failed_in_a_row(2), STOP, None),
        (ToolCallPresenceCheck(IGNORE), STEP_FAILED, STOP, None),
        (SelfCriticContinuationCheck(2), a_critique(REJECTED, 1), REQUEST, None),
        (SelfCriticContinuationCheck(2), a_critique(REJECTED, 2), FORBID, "retry_limit"),
        (SelfCriticContinuationCheck(2), a_critique(REJECTED, 3), FORBID, "retry_limit"),
        (SelfCriticContinuationCheck(2), a_critique(APPROVED, 1), STOP, None),
        (SelfCriticContinuationCheck(2), a_critique(APPROVED, 2), STOP, None),
        (SelfCriticContinuationCheck(2), ANSWERED, STOP, None),
        (SelfCriticContinuationCheck(), a_critique(REJECTED, 2), FORBID, "retry_limit"),
        (ASKS, finished_with("Really?"), REQUEST, None),
        (ASKS, finished_with("Really."), STOP, None),
        (ASKS, finished_with(""), STOP, None),
        (ASKS, finished_with(None), ALLOW, None),
        (StopOnFinalDecision(), CALLED, ALLOW, None),
        (StopOnFinalDecision(), ANSWERED, STOP, None),
        (StopOnFinalDecision(), CALL_FAILED, STOP, None),
        (StopOnFinalDecision(), an_execution(a_step(own_type=StepType.TOOL_EXECUTION)), ALLOW, None),
        (StopOnFinalDecision(), NOT_STARTED, STOP, None),
        (ErrorPresenceCheck(), STEP_FAILED, FORBID, "error"),
        (ErrorPresenceCheck(), CALL_FAILED, FORBID, "error"),
        (ErrorPresenceCheck(), an_execution(a_failed_step(), a_step()), ALLOW, None),
        (ErrorPresenceCheck(), NOT_STARTED, ALLOW, None),
        (RetryLimit(2), failed_in_a_row(1), ALLOW, None),
        (RetryLimit(2), failed_in_a_row(2), FORBID, "retry_limit"),
        (RetryLimit(2), failed_in_a_row(3), FORBID, "retry_limit"),
        (RetryLimit(2), an_execution(a_failed_step(), a_failed_step(), a_step()), ALLOW, None),
    ],
    ids=lambda value: None if isinstance(value, ExecutionFacts) else str(value)[:40],
)
def test_the_votes_of_each_criterion(
    criterion: Criterion[Any], facts: ExecutionFacts, decision: ContinuationDecision, stop_reason: str | None
) -> None:
    """2.5: the table."""
    vote = the_vote(criterion, facts)

    assert (vote.decision, vote.stop_reason) == (decision, stop_reason)
    assert criterion.decide(facts) is decision
    assert vote.name == type(criterion).__name__


DEFAULTS = {
    FORBID: "{} forbids another step",
    ALLOW: "{} does not object to another step",
    REQUEST: "{} has work for another step",
    STOP: "{} sees nothing left to do",
}


@pytest.mark.parametrize(
    ("criterion", "facts"),
    [
        (StepsLimit(2), steps(2)),
        (StepsLimit(2), steps(1)),
        (TokenUsageLimit(10), an_execution_with_tokens(10)),
        (TokenUsageLimit(10), an_execution_with_tokens(9)),
        (ExecutionTimeLimit(60), ANSWERED.at(after(60))),
        (ExecutionTimeLimit(60), ANSWERED),
        (LENGTH, finished_with("length")),
        (LENGTH, ANSWERED),
        (ToolCallPresenceCheck(), CALLED),
        (ToolCallPresenceCheck(), ANSWERED),
        (SelfCriticContinuationCheck(2), a_critique(REJECTED, 1)),
        (SelfCriticContinuationCheck(2), ANSWERED),
        (ASKS, finished_with("Really?")),
        (ASKS, finished_with("Really.")),
        (ASKS, ANSWERED),
        (StopOnFinalDecision(), CALLED),
        (StopOnFinalDecision(), ANSWERED),
        (ErrorPresenceCheck(), STEP_FAILED),
        (ErrorPresenceCheck(), ANSWERED),
        (RetryLimit(1), STEP_FAILED),
        (RetryLimit(1), ANSWERED),
    ],
)
def test_reasons_are_the_defaults(criterion: Criterion[Any], facts: ExecutionFacts) -> None:
    """2.5.1: unless the rule gives another text."""
    vote = the_vote(criterion, facts)

    assert vote.reason == DEFAULTS[vote.decision].format(type(criterion).__name__)
    assert vote.context == {}


@pytest.mark.parametrize(
    ("limit", "worked", "reason", "context"),
    [
        (
            CumulativeExecutionTimeLimit(8),
            8.04,
            "Cumulative execution time 8.0s exceeded limit 8s",
            {"cumulativeSeconds": 8.04, "maxSeconds": 8},
        ),
        (
            CumulativeExecutionTimeLimit(8),
            7.96,
            "Cumulative execution time 8.0s under limit 8s",
            {"cumulativeSeconds": 7.96, "maxSeconds": 8},
        ),
        (
            CumulativeExecutionTimeLimit(2.9, "session"),
            3.0,
            "Cumulative execution time 3.0s exceeded limit 2s",
            {"cumulativeSeconds": 3.0, "maxSeconds": 2.9},
        ),
    ],
)
def test_the_cumulative_limit_reports_its_duration(
    limit: CumulativeExecutionTimeLimit, worked: float, reason: str, context: dict[str, float]
) -> None:
    """2.5.1: {%.1f} of the seconds, {%d} of the limit, and both unrounded in the context."""
    vote = the_vote(limit, NOT_STARTED.worked(worked))

    assert (vote.reason, vote.context) == (reason, context)


def test_the_self_critic_reports_its_number_of_rejections() -> None:
    """2.5.1: Answer still rejected after {i} of {max} critiques."""
    vote = the_vote(SelfCriticContinuationCheck(2), a_critique(REJECTED, 3))

    assert vote.reason == "Answer still rejected after 3 of 2 critiques"


@pytest.mark.parametrize(
    ("policy", "facts", "reason", "handling"),
    [
        (RETRY, NOT_STARTED, "No failure to handle", "ignore"),
        (
            RETRY,
            failed_in_a_row(1),
            "Model error leads to a retry (failures in a row: 1, max_retries: 2)",
            "retry",
        ),
        (
            RETRY,
            failed_in_a_row(2),
            "Model error stops the run (failures in a row: 2, max_retries: 2)",
            "stop",
        ),
        (IGNORE, STEP_FAILED, "Model error does not stop the run under this policy", "ignore"),
    ],
)
def test_the_error_policy_criterion_reports_its_handling_of_the_failure(
    policy: ErrorPolicy, facts: ExecutionFacts, reason: str, handling: str
) -> None:
    """2.5.1, 3.6.1: reason and context are those of the policy."""
    vote = the_vote(ErrorPolicyCriterion.with_policy(policy), facts)

    assert vote.reason == reason
    assert vote.context["handling"] == handling


def test_the_context_of_the_error_policy_criterion() -> None:
    """3.6.1: its keys."""
    facts = an_execution(a_failed_step(), a_step(), a_step(a_failed_call(kind=ErrorType.TIMEOUT)))
    vote = the_vote(ErrorPolicyCriterion(RETRY), facts)

    assert vote.context == {
        "errorType": "timeout",
        "consecutiveFailures": 1,
        "totalFailures": 2,
        "maxRetries": 2,
        "handling": "retry",
        "toolName": "search",
    }


def test_a_criterion_for_a_policy_asks_the_resolver() -> None:
    """3.1.3: with_policy uses the resolver of the errors; 3.3.2: stop is forbid, both others are allow."""
    criterion = ErrorPolicyCriterion.with_policy(ErrorPolicy.retry_tool_errors(2))
    call_failed = a_step(a_failed_call())

    assert criterion == ErrorPolicyCriterion(ErrorPolicy.retry_tool_errors(2))
    assert criterion.decide(an_execution(call_failed)) is ALLOW
    assert criterion.decide(an_execution(call_failed, call_failed)) is FORBID
    assert criterion.decide(an_execution(a_failed_step())) is FORBID


def test_used_up_retries_are_an_error_not_a_retry_limit() -> None:
    """3.3.2: retry_limit belongs to RetryLimit and self-critique."""
    used_up = failed_in_a_row(2)

    assert alone(ErrorPolicyCriterion(RETRY), used_up).stop_reason is StopReason.ERROR
    assert alone(RetryLimit(2), used_up).stop_reason is StopReason.RETRY_LIMIT


# --- Resolvers ---


Resolver: TypeAlias = Callable[[Any], Any]

TOLD: list[tuple[Callable[[Resolver], Criterion[Any]], Any, Any]] = [
    (lambda resolver: StepsLimit(3, resolver), 2, 3),
    (lambda resolver: TokenUsageLimit(3, resolver), 2, 3),
    (lambda resolver: CumulativeExecutionTimeLimit(3, resolver=resolver), 2.999, 3.0),
    (lambda resolver: CumulativeExecutionTimeLimit(3, "session", resolver), 2.999, 3.0),
    (lambda resolver: ExecutionTimeLimit(3, resolver), after(-2.999), after(-3)),
]


@pytest.mark.parametrize(
    ("limit", "below", "reached"), TOLD, ids=["steps", "tokens", "cumulative", "session", "wall clock"]
)
def test_a_limit_takes_a_resolver(
    limit: Callable[[Resolver], Criterion[Any]], below: Any, reached: Any
) -> None:
    """2.5.2: limits take a resolver from state to value; for the wall clock that is the start."""
    facts = an_execution(a_step(usage=Usage(99), seconds=99.0)).at(NOON)
    seen: list[ExecutionFacts] = []

    def resolve(value: object) -> Resolver:
        def resolver(state: ExecutionFacts) -> Any:
            seen.append(state)
            return value

        return resolver

    assert the_vote(limit(resolve(below)), facts).decision is ALLOW
    assert the_vote(limit(resolve(reached)), facts).decision is FORBID
    assert all(state is facts for state in seen)
    assert seen


def test_the_defaults_of_the_resolvers() -> None:
    """2.5.2: step count, usage total, cumulative seconds; the session's where that is the scope."""
    facts = an_execution(a_step(an_answered_call(), usage=Usage(7), seconds=2.5), a_step(usage=Usage(3)))
    info = replace(facts.state_info, session_execution_seconds=100.0)
    facts = replace(facts, state_info=info)

    assert [StepsLimit(n).decide(facts) for n in (2, 3)] == [FORBID, ALLOW]
    assert [TokenUsageLimit(n).decide(facts) for n in (10, 11)] == [FORBID, ALLOW]
    assert [CumulativeExecutionTimeLimit(s).decide(facts) for s in (2.5, 2.6)] == [FORBID, ALLOW]
    assert [CumulativeExecutionTimeLimit(s, "session").decide(facts) for s in (100, 101)] == [FORBID, ALLOW]


def test_the_wall_clock_runs_from_the_start_of_the_run_else_of_the_state() -> None:
    """2.5.2, 2.7: now - (execution_started_at ?? started_at)."""
    limit = ExecutionTimeLimit(60)
    old = ExecutionFacts().at(after(-3600))

    assert limit.decide(old.at(after(-3541))) is ALLOW
    assert limit.decide(old.at(after(-3540))) is FORBID
    assert limit.decide(old.entered(NOON).at(after(59))) is ALLOW
    assert limit.decide(old.entered(NOON).at(after(60))) is FORBID


def test_a_state_that_has_not_begun_is_never_timed_out() -> None:
    """2.7: without a start no time has elapsed, also for a resolver without a start."""
    assert ExecutionTimeLimit(60, lambda _state: None).decide(ANSWERED.at(after(9999))) is ALLOW
    assert ExecutionTimeLimit(60, lambda _state: NOON - timedelta(days=9)).decide(NOT_STARTED) is ALLOW


@pytest.mark.parametrize("limit", [ExecutionTimeLimit, CumulativeExecutionTimeLimit])
@pytest.mark.parametrize("seconds", [0, -1, -0.5, float("nan")])
def test_a_time_limit_must_be_positive(limit: Callable[[float], object], seconds: float) -> None:
    """2.5.2: ValueError."""
    with pytest.raises(ValueError, match=r"^Max seconds must be greater than zero\.$"):
        limit(seconds)


def test_a_fraction_of_a_second_is_a_time_limit() -> None:
    """2.7.4, 2.5.2: clocks and limits keep fractions."""
    assert ExecutionTimeLimit(0.25).decide(ANSWERED.at(after(0.249))) is ALLOW
    assert ExecutionTimeLimit(0.25).decide(ANSWERED.at(after(0.25))) is FORBID
    assert CumulativeExecutionTimeLimit(0.25).decide(NOT_STARTED.worked(0.2).worked(0.1)) is FORBID


@pytest.mark.parametrize("limit", [StepsLimit(-1), TokenUsageLimit(0), StepsLimit(0), TokenUsageLimit(-5)])
def test_step_and_token_limits_may_forbid_everything(limit: Criterion[Any]) -> None:
    """2.5.2: they are unchecked."""
    assert limit.decide(NOT_STARTED) is FORBID


def test_a_scope_is_execution_or_session() -> None:
    """2.7: there are two sums."""
    with pytest.raises(InvalidInput, match="the scope is 'day'; use execution or session"):
        CumulativeExecutionTimeLimit(1, "day")


# --- Retries that are pending ---


def base(policy: ErrorPolicy) -> ContinuationCriteria:
    return ContinuationCriteria(ErrorPolicyCriterion(policy), ToolCallPresenceCheck(policy))


def test_a_failed_step_without_tool_calls_is_followed_by_another_when_retried() -> None:
    """2.5.3: a pending retry counts as work."""
    retried = base(RETRY).evaluate(STEP_FAILED)

    assert (retried.should_continue, retried.resolved_by) == (True, "ToolCallPresenceCheck")


def test_ignoring_an_error_adds_no_work() -> None:
    """2.5.3: a failed step without tool calls that is ignored ends the run."""
    ignored = base(IGNORE).evaluate(STEP_FAILED)

    assert (ignored.decision, ignored.stop_reason) == (STOP, StopReason.COMPLETED)


def test_a_retry_is_pending_only_for_the_current_step() -> None:
    """2.5.3: once a step without errors followed, nothing is pending."""
    recovered = an_execution(a_failed_step(), a_step())

    assert not base(RETRY).can_continue(recovered)


def test_a_retry_stays_pending_once_the_failed_step_is_recorded() -> None:
    """2.5.3, 3.4.3: recording a step changes no vote."""
    assert base(RETRY).evaluate(STEP_FAILED.recorded(GO_ON)) == base(RETRY).evaluate(STEP_FAILED)
    assert base(RETRY).evaluate(failed_in_a_row(2).recorded(GO_ON)) == base(RETRY).evaluate(
        failed_in_a_row(2)
    )
