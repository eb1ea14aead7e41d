"""The sentence of a decision: its deciding vote, with the numbers behind it.

A sentence begins with what happened: `went on`, `retried`, `completed`, `stopped`, `failed` or `cancelled`.
It reads the votes as they were recorded. Where an older release recorded no numbers, it says so without them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from everstep.agent_domain.loop.budget import BudgetUnit
from everstep.agent_domain.loop.continuation import (
    SIGNAL_CRITERION,
    ContinuationDecision,
    ContinuationEvaluation,
    ContinuationOutcome,
)
from everstep.agent_domain.loop.error_policy import ErrorHandlingDecision
from everstep.agent_domain.loop.facts import ExecutionFacts
from everstep.agent_domain.loop.status import AgentStatus, StopReason
from everstep.agent_domain.loop.step_error import StepError
from everstep.agent_domain.loop.step_facts import StepFacts
from everstep.agent_domain.values import truncate

MAX_TEXT: Final = 200
"""How many characters of an error or a reason a sentence quotes."""
SHOWN_TOOLS: Final = 3


@dataclass(frozen=True, slots=True)
class DecidedStep:
    """What a sentence says of the step after which something was decided."""

    tools: tuple[str, ...] = ()
    """The names of its calls."""
    error_text: str = ""
    """Its errors, as far as the reader may see them, on one line."""
    has_messages_next: bool = False
    """Whether the next step read messages that arrived in between."""

    @classmethod
    def of(
        cls,
        tools: Iterable[str],
        errors: Iterable[StepError],
        *,
        has_messages_next: bool = False,
        in_full: bool = False,
        has_content: bool = True,
    ) -> "DecidedStep":
        """The step with these calls and errors.

        Args:
            tools: The names of its calls.
            errors: Its errors.
            has_messages_next: Whether the next step read messages that arrived in between.
            in_full: Whether to include the texts of errors, instead of those for every viewer.
            has_content: Whether to include texts at all: those of tools may quote a conversation.
        """
        texts = (_error_text(error, in_full=in_full) if has_content else error.kind_text for error in errors)
        return cls(tuple(tools), one_line("\n".join(texts)), has_messages_next)

    @classmethod
    def from_facts(cls, step: StepFacts | None) -> "DecidedStep":
        """What is known without bodies."""
        return cls() if step is None else cls.of((call.name for call in step.calls), step.errors)


def explain_end(
    outcome: ContinuationOutcome, facts: ExecutionFacts, *, cancelled_by: str | None = None
) -> str:
    """Why an execution ended, from facts alone, which have no text of a conversation: for workflows.

    Args:
        outcome: The last outcome.
        facts: The facts of the ended execution.
        cancelled_by: Who cancelled it, if that is known.
    """
    step = DecidedStep.from_facts(facts.current_step)
    is_failed = facts.status is AgentStatus.FAILED
    return end_sentence(outcome, step, facts.step_count, is_failed=is_failed, cancelled_by=cancelled_by)


def end_sentence(
    outcome: ContinuationOutcome,
    step: DecidedStep,
    steps: int,
    *,
    is_failed: bool,
    cancelled_by: str | None = None,
) -> str:
    """Why an execution ended.

    Args:
        outcome: The last outcome.
        step: The last step.
        steps: How many steps there were.
        is_failed: Whether the execution failed, which a limit may also end.
        cancelled_by: Who cancelled it, if that is known.
    """
    vote = outcome.evaluation_for(outcome.resolved_by)
    if outcome.stop_reason is StopReason.USER_REQUESTED:
        return _cancel_sentence(outcome, steps, cancelled_by)
    if outcome.stop_reason is StopReason.ERROR:
        return f"failed: {_error_end(outcome, vote, step)}"
    if outcome.stop_reason is StopReason.COMPLETED:
        return f"completed: {_completion(outcome, vote)}"
    text = _stop_text(outcome, vote, steps)
    if not is_failed:
        return f"stopped: {text}"
    return f"failed: {text}, and the last step failed{_prefixed(': ', step.error_text)}"


def outcome_sentence(
    outcome: ContinuationOutcome, step: DecidedStep, steps: int, *, is_failed: bool = False
) -> str:
    """Why another step followed, or why the execution ended; see `end_sentence`."""
    if outcome.should_continue:
        return next_step_sentence(outcome, step)
    return end_sentence(outcome, step, steps, is_failed=is_failed)


def next_step_sentence(outcome: ContinuationOutcome, step: DecidedStep) -> str:
    """Why another step followed."""
    policy = _policy_vote(outcome)
    retries = policy is not None and policy.context["handling"] == ErrorHandlingDecision.RETRY
    if outcome.resolved_by == "ToolCallPresenceCheck" and policy and retries:
        return f"retried: {_failure_text(policy.context, step)}"
    return f"went on: {_work_text(outcome, step, policy)}"


def _work_text(outcome: ContinuationOutcome, step: DecidedStep, policy: ContinuationEvaluation | None) -> str:
    match outcome.resolved_by:
        case "ToolCallPresenceCheck" if policy:
            text = f"the error policy ignores the {_error_name(policy.context)}{_quoted(step)}"
        case "ToolCallPresenceCheck" if step.tools:
            text = f"the model called {_tools_text(step.tools)}"
        case "ToolCallPresenceCheck":
            text = "no step has run yet"
        case "ContinuationRequest" if step.has_messages_next:
            text = "a message arrived"
        case "ContinuationRequest":
            text = "another step was requested by a hook, a driver or a message"
        case "aggregate":
            text = "no criterion objected"
        case _:
            text = _requested_text(outcome)
    return text


def _requested_text(outcome: ContinuationOutcome) -> str:
    vote = outcome.evaluation_for(outcome.resolved_by)
    numbers = _values(vote)
    if "critiques" in numbers:
        return f"critique {numbers['critiques']} of {numbers['maxCritiques']} rejected the answer"
    return _reason_text(outcome, vote)


# Ends.


def _cancel_sentence(outcome: ContinuationOutcome, steps: int, cancelled_by: str | None) -> str:
    after = f"after {count_text(steps, 'step')}" if steps else "before its first step was complete"
    if cancelled_by:
        return f"cancelled: by {cancelled_by}, {after}"
    signal = outcome.stop_signal
    by_code = signal is not None and signal.source not in ("", "cancel")
    return f"cancelled: {f'by {signal.source}' if by_code and signal else 'on request'}, {after}"


def cancel_sentence(steps: int, cancelled_by: str | None) -> str:
    """Why an execution ended that was cancelled between two decisions."""
    signal = ContinuationOutcome(
        ContinuationDecision.FORBID, False, SIGNAL_CRITERION, StopReason.USER_REQUESTED
    )
    return _cancel_sentence(signal, steps, cancelled_by)


def _error_end(outcome: ContinuationOutcome, vote: ContinuationEvaluation | None, step: DecidedStep) -> str:
    context = _values(vote)
    if "handling" in context:
        return _failure_text(context, step)
    name = outcome.resolved_by
    raised = f"{name} raised "
    if vote and vote.reason.startswith(raised):
        return raised + vote.reason.removeprefix(raised).partition(":")[0]
    if vote and vote.error:
        return f"unexpected {vote.error.exception or 'error'}"
    if name == SIGNAL_CRITERION:
        return _signal_text(vote)
    if step.error_text:
        return f"{step.error_text} ({name})"
    return _reason_text(outcome, vote)


def _completion(outcome: ContinuationOutcome, vote: ContinuationEvaluation | None) -> str:
    match outcome.resolved_by:
        case "ToolCallPresenceCheck":
            return "the model answered without calling tools"
        case "StopOnFinalDecision":
            return "the model gave its final answer"
        case "ContinuationCriteria" if not outcome.evaluations:
            return "no criterion asks for a step"
        case "AgentStatus":
            return "the agent had already ended"
        case "StopSignal":
            return _signal_text(vote)
        case _:
            return _reason_text(outcome, vote)


_LIMITS: Final = (
    ("steps", "maxSteps", "{} of {} steps"),
    ("tokens", "maxTokens", "{} of {} tokens"),
    ("elapsedSeconds", "maxSeconds", "{} of {} s"),
    ("cumulativeSeconds", "maxSeconds", "{} of {} s of work"),
    ("critiques", "maxCritiques", "the answer was still rejected after {} of {} critiques"),
    ("repeatedCalls", "maxCalls", "the same call returned the same result {} of {} times in a row"),
    ("consecutiveFailures", "maxFailures", "{} of {} failures in a row"),
)

_UNNUMBERED: Final = {
    StopReason.STEPS_LIMIT: "the step limit was reached",
    StopReason.TOKEN_LIMIT: "the token limit was reached",
    StopReason.TIME_LIMIT: "the time limit was reached",
    StopReason.RETRY_LIMIT: "the retry limit was reached",
    StopReason.FINISH_REASON: "the model stopped for a reason that ends the run",
}
"""For votes of an older release, which had no numbers."""


def _stop_text(outcome: ContinuationOutcome, vote: ContinuationEvaluation | None, steps: int) -> str:
    values = _values(vote)
    if "budget_id" in values:
        return budget_text(values)
    for value, limit, text in _LIMITS:
        if value in values and limit in values:
            return text.format(_number_text(values[value]), _number_text(values[limit]))
    if "finishReason" in values:
        return f"the model's finish reason is {values['finishReason']}"
    if outcome.resolved_by == SIGNAL_CRITERION:
        return _signal_text(vote)
    is_own = vote is not None and not _is_default(vote)
    known = _UNNUMBERED.get(outcome.stop_reason)
    if known and not is_own:
        return f"{known} after {count_text(steps, 'step')} ({outcome.resolved_by})"
    return _reason_text(outcome, vote)


def stop_reason_text(reason: StopReason, steps: int) -> str:
    """Why an execution ended of which no vote is recorded."""
    if reason is StopReason.STEPS_LIMIT and not steps:
        return "stopped: 0 of 0 steps"
    verb = {StopReason.COMPLETED: "completed", StopReason.ERROR: "failed"}.get(reason, "stopped")
    known = _UNNUMBERED.get(reason, f"the stop reason is {reason}")
    return f"{verb}: {known} after {count_text(steps, 'step')}; the votes are not recorded"


def budget_text(budget: Mapping[str, Any]) -> str:
    """An exhausted budget, with its amounts."""
    unit = BudgetUnit(budget["unit"])
    spent, limit, needed = (Decimal(str(budget[key])) for key in ("spent", "limit", "needed"))
    return (
        f"budget of the {budget['scope']}: {spent.normalize():f} of {unit.text(limit)} spent, the next model "
        f"call needs up to {unit.text(needed)}"
    )


# Parts of sentences.


def _policy_vote(outcome: ContinuationOutcome) -> ContinuationEvaluation | None:
    """The vote of the error policy about a failure, if there was one."""
    votes = (vote for vote in outcome.evaluations if "handling" in vote.context)
    return next((vote for vote in votes if vote.context.get("consecutiveFailures")), None)


def _failure_text(context: Mapping[str, Any], step: DecidedStep) -> str:
    failures, retries = context.get("consecutiveFailures", 0), context.get("maxRetries", 0)
    counts = f"{count_text(failures, 'failure')} in a row, max_retries {retries}"
    text = _error_name(context)
    quoted = _quoted(step)
    return f"{text}{quoted}; {counts}" if quoted else f"{text}, {counts}"


def _error_name(context: Mapping[str, Any]) -> str:
    kind, tool = str(context.get("errorType", "unknown")).replace("_", " "), context.get("toolName")
    return f"{kind} error in {tool}" if tool else f"{kind} error"


def _quoted(step: DecidedStep) -> str:
    return _prefixed(": ", step.error_text)


def _prefixed(prefix: str, text: str) -> str:
    return f"{prefix}{text}" if text else ""


def _error_text(error: StepError, *, in_full: bool) -> str:
    # Facts have errors without their messages.
    shown = error.message if in_full else error.told
    return shown or error.advice or error.exception or ""


def _signal_text(vote: ContinuationEvaluation | None) -> str:
    source = vote.source if vote else ""
    return f"stop signal from {source}" if source else "stop signal from a hook or a driver"


def _reason_text(outcome: ContinuationOutcome, vote: ContinuationEvaluation | None) -> str:
    """The reason of a criterion's vote; its default is a sentence that names it."""
    name, votes = outcome.resolved_by, {False: "asks for another step", True: "ends the run"}
    if vote is None:
        return f"{name} {votes[not outcome.should_continue]}"
    return vote.reason if _is_default(vote) else f"{one_line(vote.reason)} ({name})"


def _is_default(vote: ContinuationEvaluation) -> bool:
    return vote.reason == ContinuationEvaluation.from_decision(vote.criterion_class, vote.decision).reason


def _values(vote: ContinuationEvaluation | None) -> Mapping[str, Any]:
    return {**vote.context, **vote.numbers} if vote else {}


def _tools_text(names: tuple[str, ...]) -> str:
    shown = ", ".join(names[:SHOWN_TOOLS])
    more = ", ..." if len(names) > SHOWN_TOOLS else ""
    return f"{count_text(len(names), 'tool')}: {shown}{more}"


def count_text(count: int, what: str) -> str:
    """A number of things, such as `1 step` or `2 steps`."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def one_line(text: str) -> str:
    """A text as the part of a sentence: on one line, cut to a maximum length."""
    return truncate(" ".join(text.split()), MAX_TEXT)


def _number_text(value: object) -> str:
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)


def telling_votes(
    votes: Iterable[ContinuationEvaluation],
) -> tuple[tuple[ContinuationEvaluation, ...], int]:
    """The votes that say something, and how many others have no objection."""
    all_votes = tuple(votes)
    telling = tuple(vote for vote in all_votes if not _is_silent(vote))
    return telling, len(all_votes) - len(telling)


def _is_silent(vote: ContinuationEvaluation) -> bool:
    if vote.decision is not ContinuationDecision.ALLOW:
        return False
    has_no_failure = "handling" in vote.context and not vote.context.get("consecutiveFailures")
    return _is_default(vote) or has_no_failure or "maxSeconds" in vote.context
