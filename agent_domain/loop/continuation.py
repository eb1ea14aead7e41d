"""Decides whether another step follows: criteria vote, and a table turns the votes into a decision.

Every criterion is always evaluated, so that a trace shows all votes. Guards `forbid` or `allow`,
work drivers `request` or `stop`. The first row of the table in `_decide` that matches wins;
the order of the criteria only determines which one is named as the deciding criterion.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Annotated, Any, Protocol, TypeAlias, TypeVar, runtime_checkable

from pydantic import Field

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.loop.status import StopReason
from everstep.agent_domain.loop.step_error import StepError
from everstep.agent_domain.loop.stop_signal import StopSignal
from everstep.agent_domain.values import (
    EMPTY,
    FrozenDict,
    enum_member,
    frozen_map,
    read_each,
    read_key,
    read_optional,
)


class ContinuationDecision(StrEnum):
    """One vote."""

    FORBID = "forbid"
    """A guard's veto."""
    ALLOW = "allow"
    """A guard has no objection."""
    REQUEST = "request"
    """A work driver has more work."""
    STOP = "stop"
    """A work driver has none."""


_DEFAULT_REASONS = {
    ContinuationDecision.FORBID: "{} forbids another step",
    ContinuationDecision.ALLOW: "{} does not object to another step",
    ContinuationDecision.REQUEST: "{} has work for another step",
    ContinuationDecision.STOP: "{} sees nothing left to do",
}

SIGNAL_CRITERION = "StopSignal"
"""The criterion name of a pending signal in traces."""

# By substring of the criterion's name; `CumulativeExecutionTimeLimit` contains the third.
_REASONS_BY_NAME = {
    "StepsLimit": StopReason.STEPS_LIMIT,
    "TokenUsageLimit": StopReason.TOKEN_LIMIT,
    "ExecutionTimeLimit": StopReason.TIME_LIMIT,
    "ErrorPolicy": StopReason.ERROR,
    "FinishReason": StopReason.FINISH_REASON,
}


def short_name(qualified: str) -> str:
    """The last segment of a qualified class name."""
    return qualified.rsplit(".", 1)[-1]


_FIRST_PATHS = {
    "everstep.agent_domain.loop.criteria": "agent_domain.criteria",
    "everstep.agent_domain.loop.continuation": "agent_domain.continuation",
}
"""Original paths of moved modules: qualified names are sent to clients and stored, so they do not change."""


def class_name(criterion: object) -> str:
    """The qualified name of a criterion in traces: its `criterion_class` attribute, else its class."""
    own = getattr(criterion, "criterion_class", None)
    if isinstance(own, str):
        return own
    kind = criterion if isinstance(criterion, type) else type(criterion)
    return f"{_FIRST_PATHS.get(kind.__module__, kind.__module__)}.{kind.__qualname__}"


Numbers: TypeAlias = Annotated[FrozenDict, Field(exclude_if=lambda numbers: not numbers)]


@dataclass(frozen=True, slots=True)
class ContinuationEvaluation:
    """One criterion's vote, with its reasons."""

    criterion_class: str
    decision: ContinuationDecision
    reason: str
    context: FrozenDict = EMPTY
    stop_reason: StopReason | None = None
    error: StepError | None = None
    """Set when the criterion raised instead of voting."""
    limit: "ContinuationEvaluation | None" = None
    """The veto of a resource limit inside a nested set, if the set itself votes `stop`."""
    source: str = ""
    """The requester of the stop, in the vote of a signal that names its source."""
    numbers: Numbers = field(default=EMPTY, compare=False)
    """The value and the limit behind a veto, such as `steps` and `maxSteps`, for its explanation."""

    def __post_init__(self) -> None:
        # Converted to the enum, so that a veto given as the text "forbid" is not overlooked.
        object.__setattr__(self, "decision", _decision(self.decision))
        reason = self.stop_reason and enum_member(
            StopReason, self.stop_reason, "the stop reason of an evaluation"
        )
        object.__setattr__(self, "stop_reason", reason)
        object.__setattr__(self, "context", frozen_map(self.context, "the context of an evaluation"))
        object.__setattr__(self, "numbers", frozen_map(self.numbers, "the numbers of an evaluation"))

    @classmethod
    def from_decision(cls, criterion_class: str, decision: ContinuationDecision) -> "ContinuationEvaluation":
        """The vote with its default reason."""
        reason = _DEFAULT_REASONS[_decision(decision)].format(short_name(criterion_class))
        return cls(criterion_class, decision, reason)

    @property
    def name(self) -> str:
        """The short name of the criterion, as in traces."""
        return short_name(self.criterion_class)

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON data; `source` is present only if it is set."""
        data = {
            "criterion": self.name,
            "decision": self.decision,
            "reason": self.reason,
            "stopReason": self.stop_reason,
            "context": self.context,
        }
        return {**data, "source": self.source} if self.source else data

    def to_record(self) -> dict[str, Any]:
        """Convert to JSON data with the numbers, if there are any."""
        return {**self.to_dict(), "numbers": self.numbers} if self.numbers else self.to_dict()

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "ContinuationEvaluation":
        """Read the JSON form; unknown keys are ignored."""
        return cls(
            read_key(data, "criterion", str),
            read_key(data, "decision", ContinuationDecision),
            str(data.get("reason", "")),
            data.get("context") or EMPTY,
            read_optional(data, "stopReason", StopReason),
            source=str(data.get("source", "")),
            numbers=data.get("numbers") or EMPTY,
        )


def _decision(given: object) -> ContinuationDecision:
    return enum_member(ContinuationDecision, given, "the decision of an evaluation")


@dataclass(frozen=True, slots=True)
class ContinuationOutcome:
    """The decision about another step, with all votes."""

    decision: ContinuationDecision
    should_continue: bool
    resolved_by: str
    stop_reason: StopReason
    evaluations: tuple[ContinuationEvaluation, ...] = ()

    def evaluation_for(self, name: str | type) -> ContinuationEvaluation | None:
        """The first vote of a criterion, by short name, qualified name or class."""
        wanted = class_name(name) if isinstance(name, type) else name
        # A trace that was read back has short names only.
        known = ((e, {e.criterion_class, e.name}) for e in self.evaluations)
        return next((e for e, own in known if wanted in own or own == {short_name(wanted)}), None)

    def forbidding_criterion(self) -> ContinuationEvaluation | None:
        """The first veto."""
        return _first(self.evaluations, ContinuationDecision.FORBID)

    @property
    def source(self) -> str:
        """The deciding criterion, or the source that a stop signal names."""
        decided = self.evaluation_for(self.resolved_by)
        return (decided and decided.source) or self.resolved_by

    @property
    def stop_signal(self) -> StopSignal | None:
        """The signal that voted; its message is empty if the vote has the default reason."""
        vote = self.evaluation_for(SIGNAL_CRITERION)
        if vote is None or vote.stop_reason is None:
            return None
        default = ContinuationEvaluation.from_decision(SIGNAL_CRITERION, vote.decision).reason
        return StopSignal(
            vote.stop_reason, "" if vote.reason == default else vote.reason, vote.context, vote.source
        )

    @property
    def failure(self) -> StepError | None:
        """The exception of the criterion that raised, if one did."""
        return next((e.error for e in self.evaluations if e.error), None)

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON data."""
        return {
            "decision": self.decision,
            "shouldContinue": self.should_continue,
            "resolvedBy": self.resolved_by,
            "stopReason": self.stop_reason,
            "evaluations": [evaluation.to_dict() for evaluation in self.evaluations],
        }

    def to_record(self) -> dict[str, Any]:
        """Convert to JSON data with the numbers behind vetoes."""
        return {**self.to_dict(), "evaluations": [evaluation.to_record() for evaluation in self.evaluations]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "ContinuationOutcome":
        """Read the JSON form; unknown keys are ignored."""
        return cls(
            read_key(data, "decision", ContinuationDecision),
            read_key(data, "shouldContinue", bool),
            read_key(data, "resolvedBy", str),
            read_key(data, "stopReason", StopReason),
            read_each(data, "evaluations", ContinuationEvaluation.from_dict),
        )


class Signalled(Protocol):
    """The part of a state that the evaluation itself reads; criteria read more."""

    @property
    def stop_signal(self) -> StopSignal | None:
        """A request to stop that is pending until the next evaluation."""
        ...

    @property
    def continuation_requested(self) -> bool:
        """Whether another step was requested."""
        ...


S_contra = TypeVar("S_contra", contravariant=True)


class Criterion(Protocol[S_contra]):
    """Votes on whether another step may or should follow."""

    def decide(self, state: S_contra) -> ContinuationDecision:
        """The decision, without reasons."""
        ...


@runtime_checkable
class CanExplainContinuation(Protocol):
    """A criterion that returns its whole evaluation; called instead of `decide`."""

    def explain(self, state: Any) -> ContinuationEvaluation:
        """The vote with its reasons."""
        ...


@runtime_checkable
class CanProvideStopReason(Protocol):
    """A criterion that provides the stop reason of its veto."""

    def stop_reason(self, state: Any, decision: ContinuationDecision) -> StopReason | None:
        """The reason, or None to derive it from the criterion's name."""
        ...


@dataclass(frozen=True)
class CallableCriterion:
    """A criterion that calls a function from state to decision."""

    fn: Callable[[Any], ContinuationDecision]

    def __post_init__(self) -> None:
        if not callable(self.fn):
            raise InvalidInput(f"when takes a function from state to decision, not {self.fn!r}")

    def decide(self, state: Any) -> ContinuationDecision:
        """The decision, without reasons."""
        return self.fn(state)


class ContinuationCriteria:
    """An ordered set of criteria. The set is itself a criterion: nested in another one, it casts one vote."""

    def __init__(self, *criteria: Criterion[Any]) -> None:
        for criterion in criteria:
            if isinstance(criterion, type):
                raise InvalidInput(f"{criterion!r} is not a criterion: pass an instance, not the class")
            if not callable(getattr(criterion, "decide", None)):
                raise InvalidInput(
                    f"{criterion!r} is not a criterion: give it a method decide(state), "
                    "or wrap a function with ContinuationCriteria.when(fn)"
                )
        self.criteria = criteria

    @staticmethod
    def when(fn: Callable[[Any], ContinuationDecision]) -> CallableCriterion:
        """Make a criterion from a function from state to decision."""
        return CallableCriterion(fn)

    def with_criteria(self, *more: Criterion[Any]) -> "ContinuationCriteria":
        """A copy with these appended."""
        return ContinuationCriteria(*self.criteria, *more)

    def evaluate(self, state: Signalled) -> ContinuationOutcome:
        """Collect the votes of all criteria and decide by the table."""
        return _decide((*_signal(state), *(_vote(c, state) for c in self.criteria), *_request(state)))

    def can_continue(self, state: Signalled) -> bool:
        """Whether another step follows."""
        return self.evaluate(state).should_continue

    def decide(self, state: Signalled) -> ContinuationDecision:
        """The decision, without reasons."""
        return self.evaluate(state).decision

    def explain(self, state: Signalled) -> ContinuationEvaluation:
        """The vote of this set inside another one; only the outermost set reads signals."""
        outcome = _decide(tuple(_vote(criterion, state) for criterion in self.criteria))
        vote = ContinuationEvaluation.from_decision(class_name(self), outcome.decision)
        reason = f"{vote.reason} ({outcome.resolved_by})"
        limit = _first_limit(outcome) if outcome.decision is ContinuationDecision.STOP else None
        return replace(
            vote, reason=reason, stop_reason=outcome.stop_reason, error=outcome.failure, limit=limit
        )


def _signal(state: Signalled) -> Iterable[ContinuationEvaluation]:
    """A pending stop signal votes first, unless a request for continuation outweighs it."""
    signal = state.stop_signal
    if signal and not (state.continuation_requested and signal.reason is not StopReason.USER_REQUESTED):
        vote = ContinuationEvaluation.from_decision(SIGNAL_CRITERION, ContinuationDecision.FORBID)
        reason = signal.message or vote.reason
        yield replace(
            vote, reason=reason, context=signal.context, stop_reason=signal.reason, source=signal.source
        )


def _request(state: Signalled) -> Iterable[ContinuationEvaluation]:
    if state.continuation_requested:
        yield ContinuationEvaluation.from_decision("ContinuationRequest", ContinuationDecision.REQUEST)


def _vote(criterion: Criterion[Any], state: Signalled) -> ContinuationEvaluation:
    """The vote of one criterion; a criterion that raises vetoes, and its vote holds the exception."""
    name = class_name(criterion)
    try:
        vote = _evaluation_of(criterion, name, state)
        if vote.decision is not ContinuationDecision.FORBID or vote.stop_reason:
            return vote
        return replace(vote, stop_reason=_stop_reason(criterion, vote, state))
    except Exception as error:  # noqa: BLE001 -- any exception of a user's criterion ends the run
        reason = f"{short_name(name)} raised {type(error).__name__}: {error}"
        forbid = ContinuationDecision.FORBID
        return ContinuationEvaluation(name, forbid, reason, EMPTY, StopReason.ERROR, StepError.of(error))


def _evaluation_of(criterion: Criterion[Any], name: str, state: Signalled) -> ContinuationEvaluation:
    if isinstance(criterion, CanExplainContinuation):
        return criterion.explain(state)
    return ContinuationEvaluation.from_decision(name, ContinuationDecision(criterion.decide(state)))


def _stop_reason(criterion: object, vote: ContinuationEvaluation, state: Signalled) -> StopReason:
    own = criterion.stop_reason(state, vote.decision) if isinstance(criterion, CanProvideStopReason) else None
    if own:
        return own
    named = (reason for part, reason in _REASONS_BY_NAME.items() if part in vote.name)
    return next(named, StopReason.GUARD)


def _decide(votes: tuple[ContinuationEvaluation, ...]) -> ContinuationOutcome:
    """Apply the table, row by row."""
    request = _first(votes, ContinuationDecision.REQUEST)
    if request:
        # The `stop` of a nested set with a reached limit is replaced by that limit's veto:
        # another criterion has work, and the limit forbids it.
        votes = tuple(vote.limit or vote for vote in votes)
    forbid, stop = _deciding_forbid(votes), _first(votes, ContinuationDecision.STOP)
    if not votes:
        return _outcome(votes, ContinuationDecision.STOP, "ContinuationCriteria")
    # Two rows in one: natural completion despite limits, and a stop without a veto or a request.
    if stop and not request and _only_limits_forbid(votes):
        return _outcome(votes, ContinuationDecision.STOP, stop.name)
    if forbid:
        return _outcome(
            votes, ContinuationDecision.FORBID, forbid.name, forbid.stop_reason or StopReason.GUARD
        )
    if request:
        return _outcome(votes, ContinuationDecision.REQUEST, request.name)
    return _outcome(votes, ContinuationDecision.REQUEST, "aggregate")


def _outcome(
    votes: tuple[ContinuationEvaluation, ...],
    decision: ContinuationDecision,
    resolved_by: str,
    reason: StopReason = StopReason.COMPLETED,
) -> ContinuationOutcome:
    return ContinuationOutcome(decision, decision is ContinuationDecision.REQUEST, resolved_by, reason, votes)


def _first(
    votes: Iterable[ContinuationEvaluation], decision: ContinuationDecision
) -> ContinuationEvaluation | None:
    return next((vote for vote in votes if vote.decision is decision), None)


def _deciding_forbid(votes: tuple[ContinuationEvaluation, ...]) -> ContinuationEvaluation | None:
    """An error outranks every other veto; a criterion that raised outranks an error."""
    forbids = [vote for vote in votes if vote.decision is ContinuationDecision.FORBID]
    raised = (vote for vote in forbids if vote.error)
    errors = (vote for vote in forbids if vote.stop_reason is StopReason.ERROR)
    return next(raised, None) or next(errors, None) or (forbids[0] if forbids else None)


def _first_limit(outcome: ContinuationOutcome) -> ContinuationEvaluation | None:
    """The first veto of a limit in a set that voted `stop`, including the sets nested in it."""
    vetoes = (e if e.decision is ContinuationDecision.FORBID else e.limit for e in outcome.evaluations)
    return next((veto for veto in vetoes if veto), None)


def _only_limits_forbid(votes: Iterable[ContinuationEvaluation]) -> bool:
    """Whether all vetoes come from resource limits, which veto only further work; true without vetoes."""
    forbids = (vote for vote in votes if vote.decision is ContinuationDecision.FORBID)
    return all(vote.stop_reason and vote.stop_reason.is_resource_limit for vote in forbids)
