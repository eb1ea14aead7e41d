"""Facts that are rebuilt from a record."""

from dataclasses import replace

from everstep.agent_domain.loop.boundary import Boundary
from everstep.agent_domain.what_if.repeated_facts import Bound, Followed, bounds_of, decision_points
from tests.agent_domain.what_if.recording import ANSWER, FAIL, Call, ScriptedStep, recorded_run
from tests.scenarios import base


def test_what_was_recorded_is_used_once() -> None:
    """15.2.2"""
    record = recorded_run(base(), [ScriptedStep((Call(seconds=2.0), Call(seconds=3.0))), ANSWER])
    assert bounds_of(record) == (Bound.LEAST,)
    points = list(decision_points(record, Bound.LEAST))
    assert [(point.step, point.followed) for point in points] == [
        (0, Followed.STEP),
        (1, Followed.STEP),
        (2, Followed.END),
    ]
    assert [point.facts.at(point.now).clock for point in points] == [(0.0, 0.0), (4.0, 4.0), (5.0, 5.0)]


def test_what_was_not_recorded_has_a_least_and_a_most() -> None:
    """15.2.3"""
    record = recorded_run(base(), [ScriptedStep((Call(seconds=2.0), Call(seconds=3.0))), ANSWER])
    old = replace(record, steps=tuple(replace(step, boundary=None) for step in record.steps))
    assert bounds_of(old) == (Bound.LEAST, Bound.MOST)
    least, most = (list(decision_points(old, bound))[1] for bound in Bound)
    assert least.facts.at(least.now).clock == (0.0, 4.0)
    assert most.facts.at(most.now).clock == (2.0, 6.0)


def test_failure_steps_leave_what_they_reset_open() -> None:
    """15.2.3: a failure that only the workflow saw leaves repeated calls as they were."""
    record = recorded_run(base(), [replace(FAIL, raises=TimeoutError())])
    assert len(bounds_of(record)) == 2


def test_the_steering_that_waited_is_a_fact() -> None:
    """15.2.2"""
    record = recorded_run(base(), [ANSWER])
    (step,) = record.steps
    steered = replace(record, steps=(replace(step, boundary=Boundary(1.0, 1.0, steered=2)),))
    assert list(decision_points(steered, Bound.LEAST))[-1].facts.steered == 2


def test_the_time_of_a_decision_that_was_not_made_is_open() -> None:
    """15.2.3: an execution that runs may be decided at any later time."""
    record = recorded_run(base(), [ScriptedStep((Call(),))])
    *_, last = decision_points(record, Bound.MOST)
    assert last.followed is Followed.NOTHING
    assert last.facts.at(last.now).elapsed_seconds > 10**9
