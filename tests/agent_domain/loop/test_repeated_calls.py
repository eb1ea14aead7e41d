"""Repeated calls: what counts as one, when the model is reminded, and when the run stops."""

from typing import Any

import pytest

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.loop.continuation import ContinuationDecision
from everstep.agent_domain.loop.facts import ExecutionFacts
from everstep.agent_domain.loop.loop import Infer, Rules, Stop, decide
from everstep.agent_domain.loop.repeated_calls import RepeatedCallLimit, RepeatedCalls, call_digest
from everstep.agent_domain.loop.status import StopReason
from everstep.agent_domain.loop.step_facts import CallFacts, StepFacts
from everstep.agent_domain.values import frozen_map
from tests.scenarios import START, base

LOOK = call_digest("look", {"at": 1}, "seen")


@pytest.mark.parametrize(
    "call",
    [
        ("listen", {"at": 1}, "seen"),
        ("look", {"at": 2}, "seen"),
        ("look", {"at": 1}, "gone"),
        ("look", "{", ""),
    ],
)
def test_a_call_is_the_same_if_tool_arguments_and_result_are(call: Any) -> None:
    """2.6.4"""
    assert call_digest("look", frozen_map({"at": 1}), "seen") == LOOK
    assert call_digest(*call) != LOOK


@pytest.mark.parametrize(
    ("steps", "counts"),
    [
        ("a a a", [1, 2, 3]),
        ("a b a", [1, 1, 1]),
        ("aa a", [2, 3]),
        ("ab b", [1, 2]),
        ("ab ab", [1, 1]),
        ("a - a", [1, 0, 1]),
        ("? ? a", [1, 1, 1]),
    ],
)
def test_calls_count_in_a_row(steps: str, counts: list[int]) -> None:
    """2.6.4: those of one step in their order. Those of older releases have no digest."""
    repeated, seen = RepeatedCalls(), list[int]()
    for step in steps.split():
        repeated = repeated.step_started().with_step(None if c == "?" else c for c in step if c != "-")
        seen.append(repeated.count)

    assert seen == counts


def run(limit: RepeatedCallLimit, *steps: int) -> list[Infer | Stop]:
    """The decisions of an execution whose steps make the same call so many times."""
    rules = Rules(base().base_criteria().with_criteria(limit))
    facts, decisions = ExecutionFacts().entered(START), list[Infer | Stop]()
    for number, calls in enumerate((*steps, None), 1):
        decision = decide(facts, rules, START)
        assert isinstance(decision, Infer | Stop)
        decisions.append(decision)
        if isinstance(decision, Stop) or calls is None:
            break
        facts = facts.recorded(decision.outcome) if facts.is_applied else facts
        made = tuple(CallFacts(f"{number}/{n}", "look", is_settled=True, digest=LOOK) for n in range(calls))
        facts = facts.step_started(START).with_step(StepFacts(number, made))
    return decisions


@pytest.mark.parametrize(
    ("limit", "steps", "reminded", "stopped_after"),
    [
        (3, [1, 1, 1, 1], {3: 2}, 3),
        (6, [1] * 8, {5: 4}, 6),
        (6, [2, 3, 1], {3: 5}, 3),
        (6, [6], {}, 1),
        (1, [1, 1], {}, 1),
        (2, [1, 1, 1], {}, 2),
        (30, [1] * 19, {}, None),
    ],
)
def test_the_model_is_told_once_and_then_stopped(
    limit: int, steps: list[int], reminded: dict[int, int], stopped_after: int | None
) -> None:
    """2.6.4: after two thirds of the limit, and with the reason guard at the limit."""
    decisions = run(RepeatedCallLimit(limit), *steps)

    counts = {
        each.number: each.reminder.count for each in decisions if isinstance(each, Infer) and each.reminder
    }
    assert counts == reminded
    last = decisions[-1]
    assert (isinstance(last, Stop), len(decisions) - 1) == (
        stopped_after is not None,
        stopped_after or len(steps),
    )
    if isinstance(last, Stop):
        vote = last.outcome.evaluation_for("RepeatedCallLimit")
        assert (last.reason, last.outcome.resolved_by) == (StopReason.GUARD, "RepeatedCallLimit")
        assert vote is not None
        assert f"times in a row, limit {limit}" in vote.reason
        assert vote.decision is ContinuationDecision.FORBID


def test_the_reminder_is_a_text_for_the_model() -> None:
    """2.6.4"""
    (infer,) = (each for each in run(RepeatedCallLimit(3), 1, 1) if isinstance(each, Infer) and each.reminder)

    assert infer.reminder is not None
    assert infer.reminder.text.startswith("<loop-reminder>\nlook was called 2 times in a row")
    assert infer.reminder.text.endswith("After 3 such calls the work ends.\n</loop-reminder>")


@pytest.mark.parametrize("limit", [0, -1, 1.5, True, "3"])
def test_a_limit_is_a_whole_number(limit: Any) -> None:
    with pytest.raises(InvalidInput, match="max_calls"):
        RepeatedCallLimit(limit)
