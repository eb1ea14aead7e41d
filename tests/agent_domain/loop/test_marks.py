"""Marks: changes of them, and what two concurrent hooks set."""

from typing import Any

import pytest
from hypothesis import given, strategies as st

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.loop.facts import ExecutionFacts
from everstep.agent_domain.loop.hook_requests import Wishes
from everstep.agent_domain.loop.marks import MAX_MARKS, changed_marks, former_marks, mark_changes, with_mark
from everstep.agent_domain.values import EMPTY, frozen_map

marks = st.dictionaries(
    st.sampled_from("abc"), st.integers() | st.booleans() | st.text("xy", max_size=3), max_size=3
).map(frozen_map)


@given(marks, marks)
def test_changes_lead_from_one_set_of_marks_to_the_other(before: Any, after: Any) -> None:
    """4.5.6"""
    assert changed_marks(before, mark_changes(before, after)) == after


def test_marks_of_hooks_travel_as_changes() -> None:
    """4.5.6: the later call's value counts, and what only one of them changed stays."""
    before = ExecutionFacts().marked("round", 1).marked("old", True)
    first = Wishes.between(before, before.marked("round", 2).marked("old", None))
    second = Wishes.between(before, before.marked("round", 3))

    assert (first.marks, second.marks) == ({"round": 2, "old": None}, {"round": 3})
    assert before.wished(first | second).marks == {"round": 3}
    assert first
    assert not Wishes.between(before, before)


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        (1, "x", "the name of a mark must be text, not int"),
        ("x", object(), "the marks.x is of type object; use"),
        (
            "x",
            "y" * MAX_MARKS,
            "with 'x' the marks have 2008 characters of JSON, more than 2000; keep numbers",
        ),
    ],
)
def test_a_mark_that_does_not_fit_is_refused(name: Any, value: object, problem: str) -> None:
    """4.5.6"""
    with pytest.raises(InvalidInput, match=problem):
        with_mark(EMPTY, name, value)


def test_only_a_recorded_critique_is_a_former_mark() -> None:
    """9.7.3"""
    critique = {"verdict": "approved", "iteration": 2}
    assert former_marks({"critique": critique}) == {"critique": critique}
    assert former_marks({"critique": None}) == former_marks({}) == EMPTY
