"""Budgets over HTTP: set per request, shown, and raised by callers with the scope `approve`."""

from decimal import Decimal
from typing import Any
from uuid import uuid4

import pytest

from everstep.agent_domain.loop.budget import BudgetUnit
from everstep.agent_domain.storage.budget_ledger import OperatorBudget
from tests.everstep.http_api.house import ApiCaller, MakeCaller, assert_problem


async def start_with(person: ApiCaller, budget: Any, content: str = "Hello") -> str:
    """An execution in a session of its own, with this budget."""
    return (await person.post("/agent/messages", {"content": content, "budget": budget}))["execution_id"]


async def test_a_budget_pauses_and_is_raised_with_the_scope_alone(sign_in: MakeCaller, work: None) -> None:
    """4.8.6: never by ownership; others learn nothing of it."""
    ann, ben = await sign_in("ann"), await sign_in("ben", "approve")
    execution = await start_with(ann, {"steps": 0, "on_exhausted": "ask"})
    request = await ann.wait_for_request(execution)
    path = f"/agent/executions/{execution}/budget"
    assert (request["kind"], request["may_decide"], request["approver"]) == (
        "budget",
        False,
        ["scope:approve"],
    )
    assert {key: request["request"][key] for key in ("unit", "limit", "spent", "needed")} == {
        "unit": "steps",
        "limit": 0,
        "spent": 0,
        "needed": 1,
    }
    shown = (await ann.get(f"/agent/executions/{execution}"))["budget"]
    assert shown == {
        "unit": "steps",
        "limit": 0,
        "spent": 0,
        "reserved": 0,
        "scope": "execution",
        "on_exhausted": "ask",
        "set_by": "agent",
    }

    for person in (ann, await sign_in("robot", "sessions:all")):
        assert_problem(await person.send_post(path, {"steps": 5}), 403, "scope 'approve'")
    for stranger in (await sign_in("cid"), await sign_in("ben", "approve", tenant=f"far-{uuid4().hex}")):
        assert_problem(await stranger.send_post(path, {"steps": 5}), 404)
    reader = await sign_in("eve", "approve", "read-only")
    assert_problem(await reader.send_post(path, {"steps": 5}), 403)
    for body, words in (
        ({}, "has no amount"),
        ({"steps": 1, "usd": 1}, "pass one new total"),
        ({"steps": -1}, "steps"),
        ({"steps": 1.5}, "steps"),
        ({"usd": 1}, "no budget in usd"),
        ({"dollars": 1}, "dollars"),
    ):
        assert_problem(await ben.send_post(path, body), 422, words)

    (listed,) = (await ben.get("/agent/inbox"))["items"]
    assert (listed["id"], listed["kind"], listed["may_decide"]) == (request["id"], "budget", True)
    assert (await ben.get(f"/agent/executions/{execution}/requests"))["items"] == [listed]
    raised = await ben.post(path, {"steps": 3}, key="once")
    assert (raised["limit"], raised["unit"]) == (3, "steps")
    assert await ben.post(path, {"steps": 3}, key="once") == raised

    done = await ann.wait_for_status(execution, "completed")
    assert (done["budget"]["limit"], done["budget"]["spent"], done["budget"]["reserved"]) == (3, 1, 0)
    assert (await ben.get("/agent/inbox"))["items"] == []
    (resolved,) = (await ann.get(f"/agent/executions/{execution}/requests", status="all"))["items"]
    assert (resolved["decision"], resolved["decided_by"]["subject"], resolved["decided_by"]["scopes"]) == (
        "raise",
        "ben",
        ["approve"],
    )
    messages = (await ann.get(f"/agent/sessions/{done['session_id']}/messages"))["items"]
    assert [each["content"] for each in messages if each["metadata"].get("kind") == "budget"] == [
        "The execution's budget of 0 steps is exhausted: 0 steps left, and the next model call needs up to 1 "
        "step; it waits until callers with the scope 'approve' raise it"
    ]
    assert_problem(await ben.send_post(path, {"steps": 9}), 409, "has ended")
    del work


@pytest.mark.parametrize(
    ("budget", "words"),
    [
        ({}, "has no amount"),
        ({"tokens": -5}, "tokens"),
        ({"usd": "much"}, "usd"),
        ({"steps": 1, "on_exhausted": "degrade"}, "on_exhausted"),
        ({"steps": 1, "scope": "tenant"}, "scope"),
    ],
)
async def test_a_wrong_budget_starts_nothing(ann: ApiCaller, budget: Any, words: str) -> None:
    """4.8.1"""
    for path in ("/agent/messages", "/agent/executions"):
        assert_problem(await ann.send_post(path, {"content": "Hello", "budget": budget}), 422, words)
    assert (await ann.get("/agent/executions"))["items"] == []


async def test_a_request_and_the_operator_limit_every_agent(sign_in: MakeCaller, work: None) -> None:
    """4.8.8, 4.8.9: of several budgets, the execution's own is shown first."""
    ann, ben = await sign_in("ann"), await sign_in("ben", "approve")
    store, tenant = ann.api_setup.sessions.client.store, ann.api_setup.tenant
    await store.set_operator_budget(OperatorBudget(tenant, BudgetUnit.STEPS, Decimal(1)))
    first = await ann.post("/agent/executions", {"content": "Hello", "budget": {"tokens": 50_000}})
    done = await ann.wait_for_status(first["id"], "completed")
    assert [(each["unit"], each["set_by"], each["spent"] > 0) for each in done["budgets"]] == [
        ("tokens", "agent", True),
        ("steps", "operator", True),
    ]
    assert done["budget"] == done["budgets"][0]

    second = await ann.start_execution("Hello")
    stopped = await ann.wait_for_status(second, "completed")
    assert (stopped["stop_reason"], stopped["step_count"]) == ("steps_limit", 0)
    third = await start_with(ann, {"steps": 0, "on_exhausted": "ask"})
    await ann.wait_for_request(third)
    path = f"/agent/executions/{third}/budget"
    refused = await ben.send_post(path, {"steps": 5, "scope": "tenant"})
    assert_problem(refused, 409, "The operator has set the tenant's budget")
    await ann.post(f"/agent/executions/{third}/cancel")
    await ann.wait_for_status(third, "cancelled")
    del work
