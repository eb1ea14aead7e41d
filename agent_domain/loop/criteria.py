"""The criteria that come with Everstep.

They read only the attributes of `ExecutionView`, so they work on a full `AgentState` and on the facts of a
durable execution. Each is a frozen value; those that hold no functions can be part of an
execution's plan.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Protocol

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.loop.continuation import (
    ContinuationDecision,
    ContinuationEvaluation,
    class_name,
)
from everstep.agent_domain.loop.error_policy import (
    ErrorContext,
    ErrorHandlingDecision,
    ErrorPolicy,
    as_policy,
    handling_context,
    handling_reason,
)
from everstep.agent_domain.loop.status import StopReason
from everstep.agent_domain.loop.step_facts import StepType
from everstep.agent_domain.loop.views import ExecutionView
from everstep.agent_domain.values import frozen_map, valid_number

FORBID, ALLOW, REQUEST, STOP = ContinuationDecision


def _evaluation(
    criterion: object, decision: ContinuationDecision, reason: str, **context: Any
) -> ContinuationEvaluation:
    vote = ContinuationEvaluation.from_decision(class_name(criterion), decision)
    return replace(vote, reason=reason, context=frozen_map(context))


def _limit_vote(value: float, limit: float) -> ContinuationDecision:
    return FORBID if value >= limit else ALLOW


def _limit_evaluation(
    criterion: object, decision: ContinuationDecision, **numbers: object
) -> ContinuationEvaluation:
    """The vote of a limit, with its default reason; a veto has the numbers."""
    vote = ContinuationEvaluation.from_decision(class_name(criterion), decision)
    if decision is not FORBID:
        return vote
    # A resolver is a caller's code and may return other kinds of numbers.
    shown = {
        name: float(value) if isinstance(value, Decimal) else value
        for name, value in numbers.items()
        if isinstance(value, int | float | Decimal) and math.isfinite(value)
    }
    return replace(vote, numbers=frozen_map(shown))


@dataclass(frozen=True)
class StepsLimit:
    """Forbids steps beyond the first `max_steps`."""

    max_steps: int
    resolver: Callable[[Any], int] | None = None

    def decide(self, state: ExecutionView) -> ContinuationDecision:
        """Vote on another step."""
        return _limit_vote(self._count(state), self.max_steps)

    def explain(self, state: ExecutionView) -> ContinuationEvaluation:
        """The vote; a veto has the numbers."""
        return _limit_evaluation(self, self.decide(state), steps=self._count(state), maxSteps=self.max_steps)

    def _count(self, state: ExecutionView) -> int:
        return self.resolver(state) if self.resolver else state.step_count


@dataclass(frozen=True)
class TokenUsageLimit:
    """Forbids further steps once `max_tokens` tokens were used."""

    max_tokens: int
    resolver: Callable[[Any], int] | None = None

    def decide(self, state: ExecutionView) -> ContinuationDecision:
        """Vote on another step."""
        return _limit_vote(self._used(state), self.max_tokens)

    def explain(self, state: ExecutionView) -> ContinuationEvaluation:
        """The vote; a veto has the numbers."""
        return _limit_evaluation(
            self, self.decide(state), tokens=self._used(state), maxTokens=self.max_tokens
        )

    def _used(self, state: ExecutionView) -> int:
        return self.resolver(state) if self.resolver else state.tokens


def _require_positive(seconds: float) -> None:
    # The order matters for nan: the message that it is not greater than zero comes first.
    if isinstance(seconds, int | float) and not seconds > 0:  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without types
        raise InvalidInput("Max seconds must be greater than zero.")
    valid_number(seconds, "Max seconds")


@dataclass(frozen=True)
class ExecutionTimeLimit:
    """Forbids further steps once the run has lasted `max_seconds` of wall-clock time.

    The time counts from when the run began or was last resumed.
    """

    max_seconds: float
    resolver: Callable[[Any], Any] | None = None
    """Returns the time from which the seconds count."""

    def __post_init__(self) -> None:
        _require_positive(self.max_seconds)

    def decide(self, state: ExecutionView) -> ContinuationDecision:
        """Vote on another step."""
        return _limit_vote(self._elapsed_seconds(state), self.max_seconds)

    def explain(self, state: ExecutionView) -> ContinuationEvaluation:
        """The vote; a veto has the numbers."""
        elapsed = self._elapsed_seconds(state)
        return _limit_evaluation(
            self, self.decide(state), elapsedSeconds=elapsed, maxSeconds=self.max_seconds
        )

    def _elapsed_seconds(self, state: ExecutionView) -> float:
        if self.resolver is None:
            return state.elapsed_seconds
        start, now = self.resolver(state), state.state_info.updated_at
        return (now - start).total_seconds() if start and now else 0.0


@dataclass(frozen=True)
class CumulativeExecutionTimeLimit:
    """Forbids further steps once `max_seconds` of working time were spent.

    The working time is that of this execution, or of the whole session.
    """

    max_seconds: float
    scope: str | Callable[[Any], float] = "execution"
    """`execution` or `session`; a function here is used as the resolver."""
    resolver: Callable[[Any], float] | None = None

    def __post_init__(self) -> None:
        _require_positive(self.max_seconds)
        if callable(self.scope):
            object.__setattr__(self, "resolver", self.scope)
            object.__setattr__(self, "scope", "execution")
        if self.scope not in ("execution", "session"):
            raise InvalidInput(f"the scope is {self.scope!r}; use execution or session")

    def _working_seconds(self, state: ExecutionView) -> float:
        if self.resolver:
            return self.resolver(state)
        info = state.state_info
        of_session = self.scope == "session"
        return info.session_execution_seconds if of_session else info.cumulative_execution_seconds

    def decide(self, state: ExecutionView) -> ContinuationDecision:
        """Vote on another step."""
        return _limit_vote(self._working_seconds(state), self.max_seconds)

    def explain(self, state: ExecutionView) -> ContinuationEvaluation:
        """The vote with its reasons."""
        worked, decision = self._working_seconds(state), self.decide(state)
        relation = "exceeded" if decision is FORBID else "under"
        reason = f"Cumulative execution time {worked:.1f}s {relation} limit {int(self.max_seconds)}s"
        return _evaluation(self, decision, reason, cumulativeSeconds=worked, maxSeconds=self.max_seconds)


@dataclass(frozen=True)
class FinishReasonCheck:
    """Forbids another step after the model stopped for one of these reasons."""

    reasons: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if isinstance(self.reasons, str) or not isinstance(self.reasons, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidInput(f"finish reasons are a list of words, not {self.reasons!r}")
        object.__setattr__(self, "reasons", frozenset(map(str, self.reasons)))

    def decide(self, state: ExecutionView) -> ContinuationDecision:
        """Vote on another step."""
        step = state.current_step
        return FORBID if step and step.finish_reason in self.reasons else ALLOW

    def explain(self, state: ExecutionView) -> ContinuationEvaluation:
        """The vote; a veto has the finish reason."""
        vote, step = (
            ContinuationEvaluation.from_decision(class_name(self), self.decide(state)),
            state.current_step,
        )
        if vote.decision is not FORBID or step is None:
            return vote
        return replace(vote, numbers=frozen_map({"finishReason": step.finish_reason}))


class ResolvesErrorContext(Protocol):
    """Finds the failure in a state, for the error policy."""

    def resolve(self, state: Any) -> ErrorContext:
        """The latest failure, or `ErrorContext.none()`."""
        ...


@dataclass(frozen=True)
class ErrorPolicyCriterion:
    """Forbids another step after an error for which the policy says stop.

    A `context_resolver` replaces the default resolution of the failure. It is code, so it works only for
    agents that run in-process.
    """

    policy: ErrorPolicy = ErrorPolicy()
    context_resolver: ResolvesErrorContext | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "policy", as_policy(self.policy))
        resolver = self.context_resolver
        if resolver is not None and not callable(getattr(resolver, "resolve", None)):
            raise InvalidInput(f"the context resolver is {resolver!r}; pass an object with resolve(state)")

    def _context(self, state: ExecutionView) -> ErrorContext:
        return self.context_resolver.resolve(state) if self.context_resolver else state.error_context

    @classmethod
    def with_policy(cls, policy: ErrorPolicy) -> "ErrorPolicyCriterion":
        """The criterion for this policy."""
        return cls(policy)

    def decide(self, state: ExecutionView) -> ContinuationDecision:
        """Vote on another step."""
        return _handling_vote(self.policy.evaluate(self._context(state)))

    def explain(self, state: ExecutionView) -> ContinuationEvaluation:
        """The vote with its reasons."""
        context = self._context(state)
        handling, retries = self.policy.evaluate(context), self.policy.retries_for(context.type)
        reason = handling_reason(context, handling, retries)
        return _evaluation(
            self, _handling_vote(handling), reason, **handling_context(context, handling, retries)
        )


def _handling_vote(handling: ErrorHandlingDecision) -> ContinuationDecision:
    return FORBID if handling is ErrorHandlingDecision.STOP else ALLOW


@dataclass(frozen=True)
class ToolCallPresenceCheck:
    """Requests another step while the model calls tools, or the error policy says retry."""

    policy: ErrorPolicy = ErrorPolicy()

    def __post_init__(self) -> None:
        object.__setattr__(self, "policy", as_policy(self.policy))

    def decide(self, state: ExecutionView) -> ContinuationDecision:
        """Vote on another step."""
        step = state.current_step
        called = step is not None and step.has_tool_calls
        retry = self.policy.evaluate(state.error_context) is ErrorHandlingDecision.RETRY
        return REQUEST if state.step_count == 0 or called or retry else STOP


@dataclass(frozen=True)
class ResponseContentCheck:
    """Requests another step while a predicate holds for the response. Needs the response's text."""

    resolver: Callable[[Any], str | None]
    predicate: Callable[[str], bool]

    def decide(self, state: Any) -> ContinuationDecision:
        """Vote on another step."""
        response = self.resolver(state)
        if response is None:
            return ALLOW
        return REQUEST if self.predicate(response) else STOP


@dataclass(frozen=True)
class StopOnFinalDecision:
    """Votes `stop` unless the last step called tools."""

    def decide(self, state: ExecutionView) -> ContinuationDecision:
        """Vote on another step."""
        step = state.current_step
        return ALLOW if step and step.step_type is StepType.TOOL_EXECUTION else STOP


@dataclass(frozen=True)
class ErrorPresenceCheck:
    """Forbids another step after any error."""

    def decide(self, state: ExecutionView) -> ContinuationDecision:
        """Vote on another step."""
        step = state.current_step
        return FORBID if step and step.has_errors else ALLOW

    def stop_reason(self, state: ExecutionView, decision: ContinuationDecision) -> StopReason | None:
        """Why the run stops."""
        return StopReason.ERROR


@dataclass(frozen=True)
class RetryLimit:
    """Forbids another step after `max_failures` failed steps in a row."""

    max_failures: int

    def decide(self, state: ExecutionView) -> ContinuationDecision:
        """Vote on another step."""
        return _limit_vote(state.trailing_failures, self.max_failures)

    def explain(self, state: ExecutionView) -> ContinuationEvaluation:
        """The vote; a veto has the numbers."""
        return _limit_evaluation(
            self,
            self.decide(state),
            consecutiveFailures=state.trailing_failures,
            maxFailures=self.max_failures,
        )

    def stop_reason(self, state: ExecutionView, decision: ContinuationDecision) -> StopReason | None:
        """Why the run stops."""
        return StopReason.RETRY_LIMIT
