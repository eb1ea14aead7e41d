"""Budgets as people write them."""

from decimal import Decimal
from typing import Any

import pytest

from everstep.agent_domain.agents.budget_arguments import parse_budgets, parse_total
from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.agents.plan import ExecutionPlan
from everstep.agent_domain.agents.spec import AgentSpec
from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.loop.budget import Budget, BudgetScope, BudgetUnit, OnExhausted


def test_a_budget_for_each_unit_and_scope() -> None:
    """4.8.1: a later one replaces an earlier one; a plan keeps them exactly."""
    builder = DefinitionBuilder.new().with_name("clerk").with_budget(usd=0.1, steps=9)
    builder.with_budget(usd=Decimal("2.5"), on_exhausted="ask")
    builder.with_budget(tokens=1000, scope="user", on_exhausted="degrade", degrade_to=" fast ")
    plan = builder.definition().plan()

    assert plan.budgets == (
        Budget(BudgetUnit.USD, Decimal("2.5"), on_exhausted=OnExhausted.ASK, agent="clerk"),
        Budget(BudgetUnit.STEPS, Decimal(9), agent="clerk"),
        Budget(
            BudgetUnit.TOKENS, Decimal(1000), BudgetScope.USER, OnExhausted.DEGRADE, "fast", agent="clerk"
        ),
    )
    assert ExecutionPlan.model_validate(plan.model_dump(mode="json")) == plan
    assert "budgets" not in DefinitionBuilder.new().definition().plan().model_dump()


WRONG: list[tuple[dict[str, Any], str]] = [
    ({}, "has no amount; pass usd, tokens or steps"),
    ({"usd": -1}, "usd is -1; pass dollars, from 0"),
    ({"usd": float("nan")}, "usd is nan; pass dollars"),
    ({"usd": True}, "usd is True; pass dollars"),
    ({"usd": "5"}, "usd is '5'; pass dollars"),
    ({"tokens": 1.5}, "tokens is 1.5; pass a whole number of tokens"),
    ({"steps": 10**13}, "steps is 10000000000000; pass a whole number of steps, from 0 to 1,000,000,000,000"),
    ({"steps": 1, "on_exhausted": "stopp"}, "on_exhausted is 'stopp'; use one of: stop, ask, degrade"),
    ({"steps": 1, "scope": "tenants"}, "scope is 'tenants'; use one of: execution, session, user, tenant"),
    ({"usd": 1, "on_exhausted": "degrade"}, "needs degrade_to, the cheaper preset or model"),
    ({"usd": 1, "degrade_to": "fast"}, "degrade_to needs on_exhausted='degrade'"),
    (
        {"usd": 1, "on_exhausted": "degrade", "degrade_to": 5},
        "degrade_to is a int; pass the name of a preset",
    ),
    ({"steps": 1, "on_exhausted": "degrade", "degrade_to": "fast"}, "a cheaper preset takes as many steps"),
    ({"usd": 1, "on_exhaustd": "ask"}, "has no 'on_exhaustd'"),
]


@pytest.mark.parametrize(("given", "message"), WRONG)
def test_a_wrong_budget_is_refused_in_one_sentence(given: dict[str, Any], message: str) -> None:
    """4.8.1: by the builder, and in agent files."""
    with pytest.raises(InvalidInput) as refused:
        parse_budgets(given, "'budget'")
    assert message in str(refused.value)
    with pytest.raises(InvalidInput, match="budget"):
        AgentSpec("clerk", "A clerk", "You are a clerk", budget=[given])
    if "on_exhaustd" not in given:
        with pytest.raises(InvalidInput, match="with_budget"):
            DefinitionBuilder.new().with_budget(**given)


def test_agent_files_have_one_budget_or_several() -> None:
    """4.8.1"""
    one = AgentSpec.from_json(
        {"name": "a", "description": "A", "prompt": "Be", "budget": {"usd": 0.5, "on_exhausted": "ask"}}
    )
    assert one.budget == [{"usd": 0.5, "on_exhausted": "ask"}]
    two = [{"steps": 5}, {"tokens": 100, "scope": "session"}]
    assert AgentSpec("a", "A", "Be", budget=two).budget == two
    with pytest.raises(InvalidInput, match="'budget'"):
        AgentSpec("a", "A", "Be", budget=["much"])  # type: ignore[list-item]


def test_a_new_total_has_one_amount() -> None:
    """4.8.6"""
    assert parse_total({"usd": 2, "tokens": None}).limit == 2
    with pytest.raises(InvalidInput, match="pass one new total"):
        parse_total({"usd": 2, "tokens": 5})
