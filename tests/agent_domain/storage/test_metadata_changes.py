"""Changes of an agent's metadata, and their sum."""

from typing import Any

from hypothesis import given, strategies as st

from everstep.agent_domain.loop.facts import ExecutionFacts
from everstep.agent_domain.loop.hook_requests import NO_WISHES, Wishes
from everstep.agent_domain.loop.status import StopReason
from everstep.agent_domain.loop.stop_signal import StopSignal
from everstep.agent_domain.storage.metadata_changes import (
    NO_METADATA_CHANGES,
    MetadataChanges,
    apply_changes,
    inherited_metadata,
)
from everstep.agent_domain.values import EMPTY, FrozenDict, frozen_map

maps = st.dictionaries(st.sampled_from("abcd"), st.integers() | st.none()).map(frozen_map)


@given(maps, maps)
def test_changes_lead_from_one_map_to_the_other(before: FrozenDict, after: FrozenDict) -> None:
    """4.4.4: in the order of the keys."""
    notes = MetadataChanges.between(before, after)

    assert notes.apply_to(before) == after
    assert MetadataChanges.from_dict(notes.to_dict()) == notes
    assert bool(notes) is (before != after)


@given(maps, maps, maps)
def test_two_changes_are_one(before: FrozenDict, between: FrozenDict, after: FrozenDict) -> None:
    """4.4.4"""
    first, second = MetadataChanges.between(before, between), MetadataChanges.between(between, after)

    assert first.followed_by(second).apply_to(before) == after == apply_changes(before, [first, second])


def test_no_changes_have_no_effect() -> None:
    metadata = frozen_map({"a": 1})
    assert NO_METADATA_CHANGES.apply_to(metadata) is metadata
    assert not NO_METADATA_CHANGES


def test_a_critique_ends_with_its_execution() -> None:
    """9.7.2"""
    metadata: dict[str, Any] = {"tasks": [], "self_critic_result": {}, "self_critic_iteration": 1}
    assert inherited_metadata(frozen_map(metadata)) == {"tasks": []}
    assert inherited_metadata(EMPTY) == {}


SIGNAL = StopSignal(StopReason.GUARD, "Enough of it", frozen_map({"why": "secret"}), "a hook")


def test_a_request_of_a_hook_contains_no_text() -> None:
    """4.5.5: workflow history holds the reason and the source of a stop signal."""
    before = ExecutionFacts()

    wishes = Wishes.between(before, before.signalled(SIGNAL).requested().paused())

    assert wishes == Wishes(StopSignal(StopReason.GUARD, source="a hook"), another_step=True, pause=True)
    assert not Wishes.between(before, before)


def test_an_earlier_request_is_not_repeated() -> None:
    """4.5.5"""
    before = ExecutionFacts().signalled(SIGNAL).requested().paused()
    assert Wishes.between(before, before) == NO_WISHES


def test_the_first_stop_request_counts() -> None:
    """2.4.1"""
    first = Wishes(StopSignal(StopReason.GUARD))
    second = Wishes(StopSignal(StopReason.ERROR), another_step=True)
    assert first | second == Wishes(StopSignal(StopReason.GUARD), another_step=True)

    facts = ExecutionFacts().signalled(SIGNAL).wished(second)
    assert facts.stop_signal == SIGNAL
    assert facts.continuation_requested
