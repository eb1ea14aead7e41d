"""Budgets in the loop: what an exhausted one does, and how budgets of requests and parents combine."""

from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from uuid import uuid4

import pytest

from everstep.agent_domain.loop.budget import (
    Budget,
    BudgetLimit,
    BudgetScope,
    BudgetUnit,
    ExhaustedBudget,
    OnExhausted,
    inherited_budgets,
    tightened_budgets,
)
from everstep.agent_domain.loop.continuation import ContinuationCriteria
from everstep.agent_domain.loop.criteria import ToolCallPresenceCheck
from everstep.agent_domain.loop.facts import ExecutionFacts
from everstep.agent_domain.loop.loop import AwaitBudget, Infer, Rules, Stop, decide
from everstep.agent_domain.loop.status import StopReason
from everstep.agent_domain.loop.stop_signal import StopSignal

NOON = datetime(2026, 1, 16, 12, tzinfo=UTC)
RULES = Rules(ContinuationCriteria(ToolCallPresenceCheck()))
EXHAUSTED = ExhaustedBudget(
    uuid4(),
    BudgetUnit.USD,
    BudgetScope.TENANT,
    Decimal("5.00"),
    Decimal("4.987"),
    Decimal(0),
    Decimal("0.05"),
)


def started(hears: int = 0) -> ExecutionFacts:
    """The facts of an execution whose first step has begun."""
    return ExecutionFacts.begun(None, NOON).steered_by(hears).step_started(NOON, hears)


@pytest.mark.parametrize(
    ("unit", "reason"),
    [
        (BudgetUnit.USD, StopReason.GUARD),
        (BudgetUnit.TOKENS, StopReason.TOKEN_LIMIT),
        (BudgetUnit.STEPS, StopReason.STEPS_LIMIT),
    ],
)
@pytest.mark.parametrize("policy", [OnExhausted.STOP, OnExhausted.DEGRADE])
def test_an_exhausted_budget_forbids_the_step(
    unit: BudgetUnit, reason: StopReason, policy: OnExhausted
) -> None:
    """4.8.5: its unit gives the stop reason."""
    exhausted = replace(EXHAUSTED, unit=unit, on_exhausted=policy)
    facts = started().budget_exhausted(exhausted)
    decision = decide(facts, RULES, NOON)

    assert isinstance(decision, Stop)
    assert (decision.reason, decision.outcome.resolved_by, facts.step_count) == (reason, "BudgetLimit", 0)
    vote = decision.outcome.forbidding_criterion()
    assert vote is not None
    assert vote.context["limit"] == 5


def test_steered_messages_of_a_step_that_is_not_taken_are_given_back() -> None:
    """4.8.5"""
    facts = started(hears=2).budget_exhausted(EXHAUSTED, 2)
    decision = decide(facts, RULES, NOON)
    assert isinstance(decision, Stop)
    assert (facts.steered, decision.unheard) == (2, 2)


def test_a_budget_that_asks_is_waited_for_in_the_same_step() -> None:
    """4.8.6: a cancel ends the wait."""
    asking = replace(EXHAUSTED, on_exhausted=OnExhausted.ASK)
    facts = started(hears=1).budget_exhausted(asking)

    assert decide(facts, RULES, NOON) == AwaitBudget(asking)
    assert decide(facts.budget_raised(), RULES, NOON) == Infer(1)
    cancelled = facts.signalled(StopSignal(StopReason.USER_REQUESTED)).abandoned()
    decision = decide(cancelled, RULES, NOON)
    assert isinstance(decision, Stop)
    assert decision.reason is StopReason.USER_REQUESTED


def test_the_reason_is_a_sentence_with_the_amounts() -> None:
    """4.8.5"""
    vote = BudgetLimit(EXHAUSTED).explain(None)
    assert vote.reason == (
        "The tenant's budget of 5 USD is exhausted: 0.013 USD left, and the next model call needs up to 0.05 "
        "USD"
    )
    steps = replace(EXHAUSTED, unit=BudgetUnit.STEPS, limit=Decimal(30), spent=Decimal(30), needed=Decimal(1))
    assert steps.text.endswith(
        "budget of 30 steps is exhausted: 0 steps left, and the next model call needs up to 1 step"
    )


def test_a_request_lowers_the_limit_of_the_agent_and_changes_nothing_else() -> None:
    """4.8.8"""
    own = Budget(BudgetUnit.TOKENS, Decimal(100), on_exhausted=OnExhausted.ASK, agent="a")
    lower, higher = (Budget(BudgetUnit.TOKENS, Decimal(limit), agent="a") for limit in (50, 500))
    other = Budget(BudgetUnit.USD, Decimal(1), agent="a")

    assert tightened_budgets([own], [lower, other]) == (replace(own, limit=Decimal(50)), other)
    assert tightened_budgets([own], [higher]) == (own,)


def test_subagents_share_the_budgets_of_the_first_execution() -> None:
    """4.8.8"""
    first, second = uuid4(), uuid4()
    own = Budget(BudgetUnit.STEPS, Decimal(9), agent="a")
    (inherited,) = inherited_budgets([own], first)
    assert inherited.root == first
    assert inherited_budgets([inherited], second) == (inherited,)
