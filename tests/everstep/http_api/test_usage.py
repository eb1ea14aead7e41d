"""Usage reports."""

from decimal import Decimal
from typing import Any

import pytest

from everstep.agent_domain.loop.budget import BudgetUnit
from everstep.agent_domain.storage.budget_ledger import OperatorBudget
from tests.everstep.http_api.house import ApiCaller, ApiSetup, MakeCaller, assert_problem


async def test_usage_is_summed_by_agent(sign_in: MakeCaller, work: None) -> None:
    ann, ben, service = await sign_in("ann"), await sign_in("ben"), await sign_in("robot", "sessions:all")
    for person, agent in ((ann, "clerk"), (ann, "clerk"), (ann, "other"), (ben, "other")):
        sent = await person.post("/agent/messages", {"content": "Hello", "agent": agent})
        await person.wait_for_status(sent["execution_id"], "completed")

    async def read_usage(person: ApiCaller) -> list[tuple[str, int, int]]:
        usage = await person.get("/agent/usage")
        return [(told["agent"], told["executions"], told["steps"]) for told in usage["agents"]]

    assert await read_usage(ann) == [("clerk", 2, 2), ("other", 1, 1)]
    assert await read_usage(ben) == [("other", 1, 1)]
    assert await read_usage(service) == [("clerk", 2, 2), ("other", 2, 2)]
    del work


async def test_costs_are_summed_and_unknown_ones_are_not_nothing(sign_in: MakeCaller, work: None) -> None:
    """4.7.4, 4.7.5: of executions, sessions, users, agents, models and days."""
    ann, ben, service = await sign_in("ann"), await sign_in("ben"), await sign_in("robot", "sessions:all")
    session = await ann.create_session()
    sent = [
        (await ann.post_message(session, f"spend {usd}"))["execution_id"] for usd in ("0.25", "0.0000015")
    ]
    for execution in sent:
        await ann.wait_for_status(execution, "completed")
    unknown = (await ben.post("/agent/messages", {"content": "spend", "agent": "other"}))["execution_id"]
    await ben.wait_for_status(unknown, "completed")
    day = (await ann.get(f"/agent/executions/{sent[0]}"))["created_at"][:10]

    async def read_costs(person: ApiCaller, group: str) -> dict[str, Any]:
        usage = await person.get("/agent/usage", group_by=group)
        costs = {told["name"]: (told["cost_usd"], told["known_cost_usd"]) for told in usage["groups"]}
        return costs | {"all": (usage["cost_usd"], usage["known_cost_usd"])}

    own, both = (0.2500015, 0.2500015), (None, 0.2500015)
    assert await read_costs(ann, "agent") == {"clerk": own, "all": own}
    assert await read_costs(service, "user") == {"ann": own, "ben": (None, 0), "all": both}
    assert await read_costs(service, "model") == {"m-1": both, "all": both}
    assert await read_costs(service, "day") == {day: both, "all": both}
    told = [await ann.get(f"/agent/executions/{execution}") for execution in sent]
    assert [(each["cost_usd"], each["tree_cost_usd"]) for each in told] == [(0.25, 0.25), (1.5e-06, 1.5e-06)]
    assert (await ann.get(f"/agent/sessions/{session}"))["cost_usd"] == 0.2500015
    assert (await ben.get(f"/agent/executions/{unknown}"))["cost_usd"] is None
    (step,) = (await ann.get(f"/agent/executions/{sent[0]}/steps"))["items"]
    (vote,) = (await ann.get(f"/agent/executions/{sent[0]}/trace"))["items"]
    assert (step["cost_usd"], vote["cost_usd"]) == (0.25, 0.25)
    assert_problem(await ann.http.get("/agent/usage?group_by=modell"), 422, "group_by")
    del work


async def test_only_executions_of_the_period_are_counted(ann: ApiCaller) -> None:
    begun = await ann.post("/agent/executions", {"content": "Hello"})
    at = begun["created_at"]

    within = await ann.get("/agent/usage", since=at)
    before = await ann.get("/agent/usage", until=at)

    assert [told["executions"] for told in within["agents"]] == [1]
    assert before["agents"] == []
    assert before["until"] == at
    assert before["total_tokens"] == 0


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("since=2026-01-02T00:00:00Z&until=2026-01-01T00:00:00Z", "earlier"),
        ("since=2024-01-01T00:00:00Z&until=2026-01-01T00:00:00Z", "366 days"),
        ("since=2026-01-02T00:00:00", "time zone"),
        ("since=yesterday", "query.since"),
        ("until=0001-01-01T00:00:00Z&since=9999-12-31T23:59:59Z", "earlier"),
    ],
)
async def test_an_invalid_period_is_refused(ann: ApiCaller, query: str, words: str) -> None:
    assert_problem(await ann.http.get(f"/agent/usage?{query}"), 422, words)


async def test_the_period_may_be_far_in_the_past_or_future(ann: ApiCaller) -> None:
    far = await ann.get("/agent/usage", until="0001-01-01T00:00:00Z")

    assert far["until"] == "2000-01-01T00:00:00.000000Z"


async def test_latency_is_reported_for_each_group(sign_in: MakeCaller, work: None) -> None:
    """4.7.8: of steps with text to the first text, and of steps that did not wait for people to their end."""
    ann, ben = await sign_in("ann"), await sign_in("ben")
    service = await sign_in("robot", "sessions:all")
    for person, content in (
        (ann, "Hello"),
        (ann, "spend 0.25"),
        (ben, "Hello"),
        (ann, "refund"),
        (ann, "ask"),
    ):
        sent = await person.post("/agent/messages", {"content": content})
        await person.wait_for_status(sent["execution_id"], "completed", "paused")
        if content == "Hello":
            (step,) = (await person.get(f"/agent/executions/{sent['execution_id']}/steps"))["items"]
            assert 0 < step["first_text_ms"] <= step["duration_ms"]

    async def read(person: ApiCaller, group: str) -> dict[str | None, dict[str, Any]]:
        usage = await person.get("/agent/usage", group_by=group, latency="true")
        return {"all": usage["latency"]} | {each["name"]: each["latency"] for each in usage["groups"]}

    by_user = await read(service, "user")
    assert {name: each["steps"] for name, each in by_user.items()} == {"all": 3, "ann": 2, "ben": 1}
    for each in by_user.values():
        assert 0 < each["first_text_ms"]["p50"] <= each["first_text_ms"]["p95"]
        assert 0 < each["step_ms"]["p50"] <= each["step_ms"]["p95"]
    models = await read(ann, "model")
    # What `spend` answers is no stream.
    assert (models["m-1"]["steps"], models["m-1"]["first_text_ms"]) == (1, None)
    assert (await read(ben, "agent"))["all"]["steps"] == 1
    assert (await ann.get("/agent/usage"))["latency"] is None


async def test_only_administrators_see_the_usage_of_other_tenants(
    sign_in: MakeCaller, api_setup: ApiSetup
) -> None:
    """4.7.9"""
    ann, service = await sign_in("ann"), await sign_in("robot", "sessions:all")
    other, admin = await sign_in("ann", tenant="umbrella"), await sign_in("root", "admin")
    for person in (ann, other):
        await person.post("/agent/executions", {"content": "Hello"})

    async def tenants(person: ApiCaller) -> set[str]:
        usage = await person.get("/agent/usage", group_by="tenant", latency="true")
        return {each["name"] for each in usage["groups"]}

    own = api_setup.tenant
    assert await tenants(service) == {own}
    assert await tenants(other) == {"umbrella"}
    assert {own, "umbrella"} <= await tenants(admin)
    assert (await admin.get("/agent/usage", group_by="agent"))["groups"] == []


async def test_budgets_of_the_operator_are_listed(sign_in: MakeCaller, api_setup: ApiSetup) -> None:
    """4.7.10"""
    ann, ben, service = await sign_in("ann"), await sign_in("ben"), await sign_in("robot", "sessions:all")
    store, tenant = api_setup.sessions.client.store, api_setup.tenant
    for user, limit in ((None, 100), ("ann", 5)):
        await store.set_operator_budget(OperatorBudget(tenant, BudgetUnit.USD, Decimal(limit), user))

    async def budgets(person: ApiCaller) -> list[tuple[str | None, float, float]]:
        items = (await person.get("/agent/budgets"))["items"]
        return sorted(((each["user_id"], each["limit"], each["spent"]) for each in items), key=str)

    assert await budgets(ann) == [("ann", 5, 0)]
    assert await budgets(ben) == []
    assert await budgets(service) == [("ann", 5, 0), (None, 100, 0)]
    assert await budgets(await sign_in("ann", "sessions:all", tenant="umbrella")) == []
