"""The facts of a recorded execution at each of its decisions, rebuilt by the transitions of the loop.

`ExecutionFacts` are not stored, but what made them is: replies, results of calls, processing, and what a
decision has read in addition (`Boundary`). Where a value was not recorded, as by an older release, the
facts are built twice: with the least and with the most that it can have been. A decision that is the same
for both is certain.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import Enum, auto
from itertools import zip_longest

from everstep.agent_domain.loop.boundary import Boundary
from everstep.agent_domain.loop.continuation import ContinuationDecision, ContinuationOutcome
from everstep.agent_domain.loop.facts import ExecutionFacts
from everstep.agent_domain.loop.status import StopReason
from everstep.agent_domain.loop.step_facts import NOTHING_BESIDES, CallFacts, StepFacts
from everstep.agent_domain.loop.stop_signal import StopSignal
from everstep.agent_domain.storage.recorded_executions import (
    RecordedCall,
    RecordedExecution,
    RecordedStep,
)
from everstep.agent_domain.values import FrozenDict

_EVALUATED = ContinuationOutcome(ContinuationDecision.REQUEST, True, "", StopReason.COMPLETED)
"""Recorded with a step that was evaluated; only whether there was an outcome is a fact."""

_CANCELLED = StopSignal(StopReason.USER_REQUESTED, source="cancel")

_SLACK = timedelta(seconds=1)
"""The clocks of a worker, a database and Temporal differ by less."""

_FOREVER = timedelta(days=36_500)
"""The most that can pass until a decision that has not been made."""

_UNKNOWN_TOKENS = 10**12
"""The most that a child whose end was not recorded can have used."""


class Bound(Enum):
    """Which end of what was not recorded the facts assume."""

    LEAST = auto()
    MOST = auto()


class Followed(Enum):
    """What followed after a step in the record."""

    STEP = auto()
    """Another step was begun."""
    END = auto()
    """The policy ended the execution."""
    CANCEL = auto()
    """A person cancelled it."""
    LOSS = auto()
    """It ended for a reason outside of its policy, such as the loss of its workflow."""
    NOTHING = auto()
    """The record ends here: the execution runs or waits."""


@dataclass(frozen=True, slots=True)
class DecisionPoint:
    """The facts of one decision between two steps, and what followed."""

    step: int
    """The steps that were complete."""
    facts: ExecutionFacts
    now: datetime
    followed: Followed
    outcome: FrozenDict | None = None
    """The recorded outcome, if there is one."""
    boundary: Boundary | None = None
    raised_outcome: FrozenDict | None = None
    """The outcome recorded with a failure step after it, which an exception of a criterion adds."""

    @property
    def is_exact(self) -> bool:
        """Whether the record has every value."""
        return self.boundary is not None


def bounds_of(record: RecordedExecution) -> tuple[Bound, ...]:
    """The bounds to build facts with: one is enough if every value was recorded."""
    return (Bound.LEAST,) if all(map(_is_exact, record.steps)) else (Bound.LEAST, Bound.MOST)


def _is_exact(step: RecordedStep) -> bool:
    if step.facts is None:
        return True
    has_digests = all(call.digest for call in step.calls if call.has_result and call.seconds)
    return step.boundary is not None and has_digests and not step.facts.is_failure


def decision_points(record: RecordedExecution, bound: Bound) -> Iterator[DecisionPoint]:
    """The decisions of a recorded execution, in order."""
    return _Repetition(record, bound).points()


class _Repetition:
    """Applies the transitions of a recorded execution, step by step."""

    def __init__(self, record: RecordedExecution, bound: Bound) -> None:
        self.record = record
        self.bound = bound
        self.start = record.started_at or record.created_at
        self.facts: ExecutionFacts = ExecutionFacts.begun(record.clocks, self.start, record.run)
        self.is_evaluated = True
        """Whether an evaluation followed the last step; none follows one whose processors raised."""

    def points(self) -> Iterator[DecisionPoint]:
        """The decisions in order."""
        yield self._point(0, None)
        for step, follower in zip_longest(self.record.steps, self.record.steps[1:]):
            if step is None or step.facts is None:
                return
            self._take(step, step.facts)
            if self.facts.pending:
                # Only a cancel decides about a step whose calls have no results.
                if _end_of(self.record, step) is Followed.CANCEL:
                    yield self._point(step.number, step)
                return
            self._process(step)
            if self.is_evaluated:
                point = self._point(step.number, step)
                raises = follower is not None and _adds_failure(self.record, step, follower)
                yield replace(point, raised_outcome=follower.outcome) if follower and raises else point

    def _take(self, step: RecordedStep, reply: StepFacts) -> None:
        """Apply a step's reply and the results of its calls."""
        before = self.facts
        if reply.is_failure and not self.is_evaluated:
            self.facts = before.failed(reply.own_errors[0], reply.seconds)
            return
        facts = before.recorded(_EVALUATED) if before.is_applied else before
        self.facts = facts.step_started(self.start).with_step(_with_results(step, reply, self.bound))
        if reply.is_failure and self.bound is Bound.MOST:
            # At most, repeated calls go on, and children whose ends were not recorded have used tokens.
            has_children = any(call.starts_child for call in step.calls)
            facts = self.facts.charged(_UNKNOWN_TOKENS) if has_children else self.facts
            self.facts = replace(facts, repeated=before.repeated.step_started())

    def _process(self, step: RecordedStep) -> None:
        """Apply what processors did; a pause was ended, as another decision follows."""
        done, facts = step.processing, self.facts
        self.is_evaluated = done is None or done.error is None
        if done:
            facts = facts.spent(done.besides.usage).wished(done.besides.wishes)
            facts = facts.worked(done.seconds) if self.is_evaluated else facts
        self.facts = replace(facts.processed(), is_paused=False)

    def _point(self, number: int, step: RecordedStep | None) -> DecisionPoint:
        followed, facts = _followed(self.record, number, step), self.facts
        outcome, boundary = (step.outcome, step.boundary) if step else (None, None)
        if followed is Followed.CANCEL:
            facts = _cancelled(facts, outcome)
            # That of the decision before the cancel is not the one that followed it.
            outcome = None if outcome is not None and outcome.get("shouldContinue") else outcome
        facts = replace(facts, execution_started_at=self.start)
        if boundary is None:
            return DecisionPoint(number, facts, self._assumed_time(step, followed), followed, outcome)
        worked = boundary.worked_seconds
        session = self.record.clocks.session_execution_seconds + worked
        info = replace(
            facts.state_info, cumulative_execution_seconds=worked, session_execution_seconds=session
        )
        facts = replace(facts, state_info=info, steered=boundary.steered)
        now = self.start + timedelta(seconds=boundary.elapsed_seconds)
        return DecisionPoint(number, facts, now, followed, outcome, boundary)

    def _assumed_time(self, step: RecordedStep | None, followed: Followed) -> datetime:
        """The time of a decision of which it was not recorded; a pause restarts the wall clock."""
        if step is None or self.bound is Bound.LEAST:
            return self.start
        latest = step.completed_at or self.record.completed_at
        if followed is Followed.NOTHING or latest is None:
            return self.start + _FOREVER
        return max(self.start, latest + _SLACK)


def _cancelled(facts: ExecutionFacts, outcome: FrozenDict | None) -> ExecutionFacts:
    recorded = None if outcome is None else ContinuationOutcome.from_dict(outcome).stop_signal
    is_cancel = recorded is not None and recorded.reason is StopReason.USER_REQUESTED
    return facts.signalled(recorded if recorded and is_cancel else _CANCELLED).abandoned()


def _adds_failure(record: RecordedExecution, step: RecordedStep, follower: RecordedStep) -> bool:
    """Whether the last row may be the failure of a criterion that raised after this step."""
    is_failure = follower.facts is not None and follower.facts.is_failure
    is_last = follower is record.steps[-1] and record.status.is_terminal
    return is_last and is_failure and step.outcome is None


def _with_results(step: RecordedStep, facts: StepFacts, bound: Bound) -> StepFacts:
    """The step with the results of its calls."""
    known = {call.id: call for call in step.calls if call.has_result}
    results = [known[call.id] for call in facts.pending if call.id in known]
    if not results:
        return facts
    seconds = [result.seconds for result in results]
    # Calls that ran concurrently count once.
    worked = max(seconds) if bound is Bound.LEAST else sum(seconds)
    besides = sum((result.besides for result in results), NOTHING_BESIDES)
    return facts.settled((_call_facts(result, bound) for result in results), worked, besides)


def _call_facts(call: RecordedCall, bound: Bound) -> CallFacts:
    # Calls of older releases have no digest: at most, each repeats the one before.
    digest = call.digest or (call.name if bound is Bound.MOST else None)
    return CallFacts(call.id, call.name, error=call.error, digest=digest)


def _followed(record: RecordedExecution, number: int, step: RecordedStep | None) -> Followed:
    if number < max((each.number for each in record.steps), default=0):
        begun = next(each for each in record.steps if each.number == number + 1)
        is_budget = step is not None and step.boundary is not None and step.boundary.exhausted is not None
        # A step that a budget did not cover was begun, and not taken.
        if begun.facts is not None or not (is_budget and record.status.is_terminal):
            return Followed.STEP
    if not record.status.is_terminal:
        return Followed.NOTHING
    return _end_of(record, step)


def _end_of(record: RecordedExecution, step: RecordedStep | None) -> Followed:
    """How an execution ended whose record has no further step."""
    if record.stop_reason is StopReason.USER_REQUESTED:
        return Followed.CANCEL
    outcome = step.outcome if step else None
    if outcome is None:
        # Before the first step there is no row for an outcome.
        is_refused = step is None and record.stop_reason not in (None, StopReason.ERROR)
        return Followed.END if is_refused else Followed.LOSS
    is_policy = not outcome.get("shouldContinue") and outcome.get("resolvedBy") != "AgentExecution"
    return Followed.END if is_policy else Followed.LOSS
