"""The short form of an outcome, as it is written to workflow history: common values are left out.

Histories and stored steps have it, so no default may ever change.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from everstep.agent_domain.loop.continuation import (
    ContinuationDecision,
    ContinuationEvaluation,
    ContinuationOutcome,
)
from everstep.agent_domain.loop.error_policy import NO_FAILURE
from everstep.agent_domain.loop.status import StopReason
from everstep.agent_domain.values import EMPTY, FrozenDict, frozen_map


def compact(outcome: ContinuationOutcome) -> FrozenDict:
    """Serialize an outcome in few bytes for workflow history: common values are left out."""
    fields: dict[str, Any] = {
        "decision": outcome.decision,
        "by": outcome.resolved_by,
        "stop": outcome.stop_reason,
        "votes": [_compact_vote(vote) for vote in outcome.evaluations],
    }
    votes, usual = fields["votes"], _COMPACT_DEFAULTS["votes"]
    if len(votes) > len(usual) and votes[: len(usual)] == usual:
        # Criteria after the base set, which usually allow another step.
        fields |= {"votes": usual, "more": votes[len(usual) :]}
        if fields["more"] == _OF_BASE:
            del fields["more"]
            fields["base"] = 1
    return frozen_map({key: value for key, value in fields.items() if value != _COMPACT_DEFAULTS.get(key)})


_OF_BASE = ["RepeatedCallLimit"]
"""The votes that follow the usual ones in every agent since `base()` has this limit."""

_NO_FAILURE: Mapping[str, Any] = {
    "errorType": "unknown",
    "consecutiveFailures": 0,
    "totalFailures": 0,
    "maxRetries": 0,
    "handling": "ignore",
    "toolName": None,
}

_COMPACT_DEFAULTS: Mapping[str, Any] = {
    "decision": ContinuationDecision.REQUEST,
    "by": "ToolCallPresenceCheck",
    "stop": StopReason.COMPLETED,
    # The votes of the base set after a step that called tools.
    "votes": [
        "StepsLimit",
        "TokenUsageLimit",
        "ExecutionTimeLimit",
        "FinishReasonCheck",
        ["ErrorPolicyCriterion"],
        ["ToolCallPresenceCheck", "request"],
    ],
}


def _compact_vote(vote: ContinuationEvaluation) -> list[Any] | str:
    """Shorten a vote; the name alone means `allow` with the default reason."""
    entry: list[Any] = [vote.name, vote.decision]
    if vote.reason == NO_FAILURE and vote.context.keys() == _NO_FAILURE.keys():
        # The vote of an error policy after nearly every step.
        changed = {key: value for key, value in vote.context.items() if value != _NO_FAILURE[key]}
        return [vote.name, changed] if changed else [vote.name]
    plain = ContinuationEvaluation.from_decision(vote.name, vote.decision)
    if vote.reason == plain.reason and not (vote.stop_reason or vote.context or vote.source or vote.numbers):
        return vote.name if vote.decision is ContinuationDecision.ALLOW else entry
    rest = [vote.source, vote.numbers] if vote.numbers else [vote.source] if vote.source else []
    return [*entry, vote.reason, vote.stop_reason, vote.context, *rest]


def expand(data: Mapping[str, Any]) -> ContinuationOutcome:
    """Read an outcome that `compact` serialized."""
    fields = {**_COMPACT_DEFAULTS, **data}
    decision = ContinuationDecision(fields["decision"])
    more = _OF_BASE if "base" in fields else fields.get("more", ())
    votes = tuple(_expand_entry(entry) for entry in (*fields["votes"], *more))
    should_continue = decision is ContinuationDecision.REQUEST
    return ContinuationOutcome(
        decision, should_continue, str(fields["by"]), StopReason(fields["stop"]), votes
    )


def _expand_entry(entry: Any) -> ContinuationEvaluation:
    if isinstance(entry, str):
        return _expand_vote(entry)
    name, detail = entry[0], entry[1] if len(entry) > 1 else EMPTY
    if isinstance(detail, Mapping):
        context = frozen_map({**_NO_FAILURE, **cast("Mapping[str, Any]", detail)})
        return _expand_vote(name, reason=NO_FAILURE, context=context)
    # Entries that a later version appends are ignored.
    vote = _expand_vote(*entry[:_SOURCE_AT])
    if len(entry) <= _SOURCE_AT:
        return vote
    source, *more = entry[_SOURCE_AT:]
    maps = (cast("Mapping[str, Any]", each) for each in more[:1] if isinstance(each, Mapping))
    return replace(vote, source=str(source), numbers=frozen_map(next(maps, EMPTY)))


_SOURCE_AT = 5
"""The index of a signal's source in a vote, before its numbers; most votes are shorter."""


def _expand_vote(
    name: str,
    decision: str = ContinuationDecision.ALLOW,
    reason: str | None = None,
    stop_reason: str | None = None,
    context: FrozenDict = EMPTY,
) -> ContinuationEvaluation:
    vote = ContinuationDecision(decision)
    stop = StopReason(stop_reason) if stop_reason else None
    if reason is None:
        reason = ContinuationEvaluation.from_decision(name, vote).reason
    return ContinuationEvaluation(name, vote, reason, context, stop)
