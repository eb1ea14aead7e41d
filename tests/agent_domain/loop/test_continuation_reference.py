"""The aggregation of random votes, against a reference that was written from the table alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from hypothesis import given, strategies as st

from everstep.agent_domain.loop.continuation import (
    ContinuationCriteria,
    ContinuationDecision,
    Criterion,
)
from everstep.agent_domain.loop.facts import ExecutionFacts
from everstep.agent_domain.loop.status import StopReason
from everstep.agent_domain.loop.stop_signal import StopSignal
from tests.agent_domain.loop.votes import NOTHING, Raises, Votes, outcome


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
