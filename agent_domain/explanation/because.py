"""The because of an execution: why it ended, or what it waits for, and why each of its steps was followed.

It is computed from rows of the store when it is read. Nothing of it is stored, so a sentence improves for
executions of the past, too.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from everstep.agent_domain.explanation.waits import (
    calls_sentence,
    outage_of,
    paused_sentence,
    pending_sentence,
    request_sentence,
    retry_sentence,
    since_text,
)
from everstep.agent_domain.ids import request_id
from everstep.agent_domain.loop.continuation import ContinuationEvaluation, ContinuationOutcome
from everstep.agent_domain.loop.explanations import (
    DecidedStep,
    cancel_sentence,
    count_text,
    end_sentence,
    next_step_sentence,
    one_line,
    stop_reason_text,
    telling_votes,
)
from everstep.agent_domain.loop.status import ExecutionStatus, StopReason
from everstep.agent_domain.loop.step_error import StepError
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.messages.disclosure import public_document
from everstep.agent_domain.storage.executions import ExecutionRow
from everstep.agent_domain.storage.requests import RequestRow, Resolution
from everstep.agent_domain.storage.steps import StepRow


@dataclass(frozen=True, slots=True)
class HeardMessage:
    """A message or an answer that a step received, by its id."""

    kind: str
    """`message`, or what was decided: `answer`, `default`, `approve`, `deny`, `edit` or `expired`."""
    id: str
    """The key of the message, or the id of the request."""
    by: str | None = None
    """Who sent it, if that is recorded."""

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON data."""
        return {"kind": self.kind, "id": self.id, "by": self.by}


@dataclass(frozen=True, slots=True)
class StepBecause:
    """Why a step was followed by another one, or by none, or what it waits for."""

    number: int
    sentence: str
    votes: tuple[ContinuationEvaluation, ...] = ()
    """The votes that say something."""
    folded_votes: int = 0
    """How many other votes had no objection."""
    superseded: tuple[str, ...] = ()
    """The attempts that were given up."""
    messages: tuple[HeardMessage, ...] = ()
    """What it received from people."""
    compactions: tuple[str, ...] = ()
    """How the conversation was shortened before it."""
    usage: Usage = Usage()
    """The tokens of all its model calls."""
    cost_usd: Decimal | None = None
    """What they cost, in US dollars; None if that is unknown."""


@dataclass(frozen=True, slots=True)
class ExecutionBecause:
    """Why an execution ended, or what it waits for or does now."""

    sentence: str
    steps: tuple[StepBecause, ...] = ()


@dataclass(frozen=True, slots=True)
class StepExplainer:
    """Explains the steps of an execution, one at a time."""

    row: ExecutionRow
    now: datetime
    requests: tuple[RequestRow, ...] = ()
    """The open requests of the execution."""
    in_full: bool = False
    """Whether the reader may see the texts of errors."""
    has_content: bool = True
    """Whether sentences have what models and tools wrote: arguments of calls, and errors but their kinds."""
    limit: str | None = None
    """What its next model call, or its start, waits for because of a limit: see `limit_waits`."""

    def explain(self, step: StepRow, follower: StepRow | None = None) -> StepBecause:
        """Explain a step; `follower` is the next one, if it is known."""
        outcome = _outcome_of(step)
        votes, folded = telling_votes(outcome.evaluations if outcome else ())
        return StepBecause(
            step.number,
            self.sentence(step, follower),
            votes if self.in_full else tuple(map(_public_vote, votes)),
            folded,
            tuple(_superseded(step)),
            tuple(_messages_to(self.row, step)),
            tuple(compaction.text for compaction in step.compactions),
            (step.facts.usage if step.facts else Usage()) + step.inner_usage,
            step.cost_usd,
        )

    def explain_all(self, steps: Sequence[StepRow]) -> tuple[StepBecause, ...]:
        """Explain consecutive steps."""
        return tuple(map(self.explain, steps, _followers(steps)))

    def sentences(self, steps: Sequence[StepRow]) -> tuple[str, ...]:
        """The sentences of consecutive steps."""
        return tuple(map(self.sentence, steps, _followers(steps)))

    def sentence(self, step: StepRow, follower: StepRow | None = None) -> str:
        """Why a step was followed by another one or by none, or what it waits for."""
        outcome = _outcome_of(step)
        if outcome is not None and outcome.should_continue:
            decided = _decided_step(step, in_full=self.in_full, has_content=self.has_content)
            has_messages = follower is not None and bool(follower.message_keys)
            return next_step_sentence(outcome, replace(decided, has_messages_next=has_messages))
        if outcome is None and step.number < self.row.step_count:
            if follower is not None and not (follower.facts and follower.facts.is_failure):
                # An older release lost the decision if the next step waited for a budget.
                return "went on: the votes are not recorded"
            return f"interrupted: by the exception recorded as step {step.number + 1}"
        if not self.row.status.is_terminal:
            return self._waiting_sentence(step)
        if step.facts is None:
            return "abandoned: the execution ended before the model answered"
        return ended_sentence(self.row, step, in_full=self.in_full, has_content=self.has_content)

    def _waiting_sentence(self, step: StepRow) -> str:
        now = self.now
        # The budget that the next step waits for is requested before that step begins.
        opened = [request for request in self.requests if request.step_number >= step.number]
        if opened:
            more = f", and {len(opened) - 1} more" if len(opened) > 1 else ""
            return f"{request_sentence(opened[0], now, has_content=self.has_content)}{more}"
        if self.row.status is ExecutionStatus.PAUSED:
            return paused_sentence(self.row.paused_by, now)
        if step.facts is None:
            if step.waits:
                return retry_sentence(step.waits, now)
            attempt = f", attempt {step.attempt}" if step.attempt > 1 else ""
            return f"runs: the model has been answering {since_text(step.started_at, now)}{attempt}"
        pending = [call for call in step.calls if call.record is None]
        if pending:
            needs = {call.id: call.need for call in step.facts.calls}
            return calls_sentence(pending, needs, step.started_at, now, has_content=self.has_content)
        # A step is stored as begun once no limit holds it.
        return (
            f"waits: {self.limit}"
            if self.limit
            else f"runs: what follows step {step.number} is being decided"
        )


def explain_execution(
    row: ExecutionRow,
    steps: Sequence[StepRow],
    *,
    now: datetime,
    requests: Iterable[RequestRow] = (),
    in_full: bool = False,
) -> ExecutionBecause:
    """Explain an execution.

    Args:
        row: The execution.
        steps: Its steps in order, up to the last one. The first ones may be left out.
        now: The current time.
        requests: Its open requests.
        in_full: Whether the reader may see the texts of errors.
    """
    explainer = StepExplainer(row, now, tuple(requests), in_full)
    last = steps[-1] if steps else None
    return ExecutionBecause(execution_sentence(explainer, last), explainer.explain_all(steps))


def execution_sentence(explainer: StepExplainer, last: StepRow | None) -> str:
    """Why an execution ended, or what it waits for or does now.

    Args:
        explainer: The execution.
        last: Its last step, if it has one.
    """
    row, now = explainer.row, explainer.now
    if row.status.is_terminal:
        return ended_sentence(row, last, in_full=explainer.in_full, has_content=explainer.has_content)
    if row.status is ExecutionStatus.PENDING:
        return pending_sentence(row.ahead, row.created_at, now, row.queue_position, explainer.limit)
    if last is not None and last.outcome is None:
        return explainer.sentence(last)
    if explainer.requests:
        return request_sentence(explainer.requests[0], now, has_content=explainer.has_content)
    if row.status is ExecutionStatus.PAUSED:
        return paused_sentence(row.paused_by, now)
    limit, number = explainer.limit, last.number + 1 if last else 1
    return f"waits: {limit}" if limit else f"runs: step {number} begins"


def recorded_end(row: ExecutionRow, *, in_full: bool = False) -> str | None:
    """Why an execution ended, from its row alone; None while it is under way, or if its steps are needed."""
    if not row.status.is_terminal or (row.outcome is None and row.step_count):
        return None
    return ended_sentence(row, None, in_full=in_full)


def ended_sentence(
    row: ExecutionRow, last: StepRow | None, *, in_full: bool = False, has_content: bool = True
) -> str:
    """Why an execution ended.

    Args:
        row: The ended execution.
        last: Its last step, if it has one.
        in_full: Whether the reader may see the texts of errors.
        has_content: Whether the sentence may quote errors at all, or only name their kinds.
    """
    outcome = ContinuationOutcome.from_dict(row.outcome) if row.outcome else _outcome_of(last)
    by, is_failed = row.cancelled_by and row.cancelled_by.text, row.status is ExecutionStatus.FAILED
    step = _decided_step(last, in_full=in_full, has_content=has_content)
    recorded = (row.error_message if in_full else row.error_told) or ""
    error = one_line(recorded) if has_content else step.error_text
    if row.status is ExecutionStatus.CANCELLED and (outcome is None or outcome.should_continue):
        return cancel_sentence(row.step_count, by)
    if outcome is not None and not outcome.should_continue:
        step = replace(step, error_text=error or step.error_text)
        return end_sentence(outcome, step, row.step_count, is_failed=is_failed, cancelled_by=by)
    if is_failed:
        hidden = "the execution has the error" if recorded else "the reason is not recorded"
        return f"failed: {error or hidden}"
    return stop_reason_text(row.stop_reason or StopReason.COMPLETED, row.step_count)


def _superseded(step: StepRow) -> Iterator[str]:
    """The attempts at the model call and at tool calls that were given up."""
    given_up = range(1, step.attempt + (step.waits is not None))
    failed = [attempt for attempt in given_up if attempt in step.failed_attempts]
    lost = [attempt for attempt in given_up if attempt not in step.failed_attempts]
    if failed:
        yield f"{_attempts_text(failed)} given up: {_outage(step)}"
    if lost:
        yield f"{_attempts_text(lost)} given up: the worker was lost or stopped"
    for call in step.calls:
        if call.attempts > 1:
            count = count_text(call.attempts - 1, "attempt")
            yield f"{count} at {call.call.name} given up: the worker was lost or stopped"


def _attempts_text(attempts: Sequence[int]) -> str:
    first, last = attempts[0], attempts[-1]
    if first == last:
        return f"attempt {first}"
    is_range = len(attempts) == last - first + 1
    return f"attempts {first} to {last}" if is_range else f"attempts {', '.join(map(str, attempts))}"


def _outage(step: StepRow) -> str:
    wait = step.wait
    if wait is None:
        return "the provider failed"
    seconds = round((wait.until - wait.since).total_seconds())
    return f"{outage_of(wait)} for {seconds} s"


def _messages_to(row: ExecutionRow, step: StepRow) -> Iterator[HeardMessage]:
    yield from (HeardMessage("message", key) for key in step.message_keys)
    for call in step.calls:
        if decision := call.decision:
            yield _heard(request_id(row.ref.execution_id, call.call.id), decision)
        if call.answered:
            yield _heard(call.answered.id, call.answered.resolution)


def _heard(identity: UUID, resolution: Resolution) -> HeardMessage:
    return HeardMessage(resolution.outcome, str(identity), resolution.by and resolution.by.text)


# What is recorded.


def _followers(steps: Sequence[StepRow]) -> tuple[StepRow | None, ...]:
    return (*steps[1:], None) if steps else ()


def _outcome_of(step: StepRow | None) -> ContinuationOutcome | None:
    if step is None or step.outcome is None:
        return None
    return ContinuationOutcome.from_dict(step.outcome)


def _decided_step(step: StepRow | None, *, in_full: bool, has_content: bool) -> DecidedStep:
    if step is None:
        return DecidedStep()
    tools = (call.call.name for call in step.calls)
    return DecidedStep.of(tools, _errors_of(step), in_full=in_full, has_content=has_content)


def _errors_of(step: StepRow) -> tuple[StepError, ...]:
    return step.errors or tuple(call.record.error for call in step.calls if call.record and call.record.error)


def _public_vote(vote: ContinuationEvaluation) -> ContinuationEvaluation:
    return replace(vote, context=public_document(vote.context))
