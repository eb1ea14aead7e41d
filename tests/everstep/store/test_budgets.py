"""Budgets in both stores: reservations before model calls, settled or released once."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from uuid import UUID, uuid4

import pytest

from everstep.agent_domain.errors import NotFound
from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.loop.budget import Budget, BudgetScope, BudgetUnit, OnExhausted
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.storage.budget_ledger import (
    BudgetAccount,
    BudgetClaim,
    BudgetGrant,
    BudgetOwner,
    BudgetRefusal,
    BudgetRequest,
    BudgetTerms,
    Need,
    OperatorBudget,
    RaiseBudget,
    spending,
)
from everstep.agent_domain.storage.calls import InnerReply
from everstep.agent_domain.storage.commands import CommandKind
from everstep.agent_domain.storage.execution_store import ExecutionStore
from everstep.agent_domain.storage.executions import ExecutionEnded, Settlement
from everstep.agent_domain.storage.requests import RequestKind, RequestState
from everstep.agent_domain.values import EMPTY, frozen_map
from everstep.store.postgres import PostgresStore
from tests.everstep.store.store_words import (
    TENANT,
    a_new_execution,
    a_ref,
    a_reply,
    a_step_start,
    of_another_tenant,
)

TOKENS = Budget(BudgetUnit.TOKENS, Decimal(1000), agent="helper")
SHARED = replace(TOKENS, scope=BudgetScope.TENANT)


async def an_execution_with(
    store: ExecutionStore, *budgets: Budget, ref: ExecutionRef | None = None, user: str | None = "ann"
) -> BudgetTerms:
    """Accept an execution whose first step has begun; return the budgets under which it calls models."""
    ref = ref or a_ref()
    stored = [
        {"unit": each.unit, "limit": str(each.limit), "scope": each.scope, "agent": each.agent}
        | {"on_exhausted": each.on_exhausted}
        for each in budgets
    ]
    plan = frozen_map({"budgets": stored} if stored else {})
    await store.accept(a_new_execution(ref, user_id=user, plan=plan))
    await store.begin_step(a_step_start(ref))
    return BudgetTerms(BudgetOwner(ref, user), budgets)


def a_claim(
    terms: BudgetTerms, *, base: int = 100, least: int = 1, most: int = 100, key: str = "step/1"
) -> BudgetClaim:
    needs: Mapping[BudgetUnit, Need] = {
        BudgetUnit.TOKENS: Need(Decimal(base), Decimal(1)),
        BudgetUnit.STEPS: Need(Decimal(1)),
        BudgetUnit.USD: Need(Decimal("0.01"), Decimal("0.0001")),
    }
    return BudgetClaim(terms, key, needs, least, most)


async def amounts(store: ExecutionStore, ref: ExecutionRef) -> list[tuple[int, int, int]]:
    """The limit, what was spent, and what is reserved, of each budget."""
    return [(int(each.limit), int(each.spent), int(each.reserved)) for each in await store.budgets_of(ref)]


async def test_a_call_is_granted_what_is_left_and_settled_by_what_it_spent(store: ExecutionStore) -> None:
    """Follows rules 4.8.2 and 4.8.3."""
    terms = await an_execution_with(store, TOKENS)
    ref = terms.owner.ref

    assert await store.reserve_budget(a_claim(terms)) == BudgetGrant(100)
    assert await amounts(store, ref) == [(1000, 0, 200)]
    # An attempt after a crash replaces the reservation of the earlier one.
    assert await store.reserve_budget(a_claim(terms, base=400, most=5000)) == BudgetGrant(600)
    assert await amounts(store, ref) == [(1000, 0, 1000)]

    await store.record_reply(replace(a_reply(ref), spending=spending("step/1", Decimal(0), 450, 1)))
    assert await amounts(store, ref) == [(1000, 450, 0)]
    # The reply is recorded once, and so is what it spent.
    await store.record_reply(replace(a_reply(ref), spending=spending("step/1", Decimal(0), 450, 1)))
    await store.settle_budget(ref, spending("step/1", Decimal(0), 450, 1))
    assert await amounts(store, ref) == [(1000, 450, 0)]


async def test_every_budget_covers_the_call_or_none_is_reserved(store: ExecutionStore) -> None:
    """4.8.2: units and scopes apply together; the narrowest that does not cover the call is named."""
    steps = Budget(BudgetUnit.STEPS, Decimal(1), agent="helper")
    money = Budget(BudgetUnit.USD, Decimal("0.025"), BudgetScope.SESSION, OnExhausted.ASK, agent="helper")
    terms = await an_execution_with(store, TOKENS, steps, money, ref=a_ref(session_id=uuid4()))
    ref = terms.owner.ref

    assert await store.reserve_budget(a_claim(terms, most=5000)) == BudgetGrant(150)
    await store.settle_budget(ref, spending("step/1", Decimal("0.0123"), 130, 1))

    refused = await store.reserve_budget(a_claim(terms, key="step/2"))
    assert isinstance(refused, BudgetRefusal)
    assert refused.exhausted is not None
    assert (refused.exhausted.unit, refused.exhausted.scope) == (BudgetUnit.STEPS, BudgetScope.EXECUTION)
    accounts = {each.unit: (each.spent, each.reserved) for each in await store.budgets_of(ref)}
    assert accounts == {
        BudgetUnit.TOKENS: (130, 0),
        BudgetUnit.STEPS: (1, 0),
        BudgetUnit.USD: (Decimal("0.0123"), 0),
    }


async def test_what_others_have_reserved_is_no_exhaustion(store: ExecutionStore) -> None:
    """4.8.4"""
    first, second = await an_execution_with(store, SHARED), await an_execution_with(store, SHARED)
    assert await store.reserve_budget(a_claim(first, base=500, most=400)) == BudgetGrant(400)

    assert await store.reserve_budget(a_claim(second, base=200)) == BudgetRefusal(None)

    await store.settle_budget(first.owner.ref, spending("step/1", Decimal(0), 750, 1))
    assert await store.reserve_budget(a_claim(second, base=200)) == BudgetGrant(50)
    third = await an_execution_with(store, SHARED)
    refused = await store.reserve_budget(a_claim(third, base=400))
    assert isinstance(refused, BudgetRefusal)
    assert refused.exhausted is not None
    assert (refused.exhausted.needed, refused.exhausted.spent) == (401, 750)


@pytest.mark.parametrize("status", [ExecutionStatus.CANCELLED, ExecutionStatus.FAILED])
async def test_the_end_of_an_execution_releases_what_it_reserved(
    store: ExecutionStore, status: ExecutionStatus
) -> None:
    """4.8.3: also the reservations of questions of tools; nothing is reserved afterwards."""
    terms = await an_execution_with(store, SHARED)
    ref = terms.owner.ref
    await store.reserve_budget(a_claim(terms))
    await store.reserve_budget(a_claim(terms, key="inner/call/c1/0"))
    reply = InnerReply("call/c1/0", "digest", EMPTY)
    spent = spending("inner/call/c1/0", Decimal(0), 70, 0)
    await store.record_inner_reply(ref, reply, a_reply(ref).facts.usage, spent)
    assert await amounts(store, ref) == [(1000, 70, 200)]

    await store.settle(Settlement(ref, "end", status))

    assert await amounts(store, ref) == [(1000, 70, 0)]
    with pytest.raises(ExecutionEnded):
        await store.reserve_budget(a_claim(terms))


async def test_two_hundred_executions_of_a_tenant_never_exceed_its_budget(
    postgres: PostgresStore,
) -> None:
    """4.8.4: reserved at once, and settled for less than was reserved."""
    limit, needed = 20_000, 150
    budget = replace(SHARED, limit=Decimal(limit))
    all_terms = [await an_execution_with(postgres, budget) for _ in range(200)]
    exceeded: list[BudgetAccount] = []

    async def watch() -> None:
        while True:
            (account,) = await postgres.budgets_of(all_terms[0].owner.ref)
            if account.spent + account.reserved > limit:
                exceeded.append(account)
            await asyncio.sleep(0)

    async def use_up(terms: BudgetTerms) -> int:
        for number in range(1, 100):
            claim = a_claim(terms, base=needed, most=100, key=f"step/{number}")
            answer = await postgres.reserve_budget(claim)
            while answer == BudgetRefusal(None):
                await asyncio.sleep(0.01)
                answer = await postgres.reserve_budget(claim)
            if isinstance(answer, BudgetRefusal):
                return number - 1
            used = needed + answer.output // 2
            await postgres.settle_budget(terms.owner.ref, spending(claim.key, Decimal(0), used, 1))
        raise AssertionError("the budget is never exhausted")

    watching = asyncio.create_task(watch())
    calls = await asyncio.gather(*map(use_up, all_terms))
    watching.cancel()

    (account,) = await postgres.budgets_of(all_terms[0].owner.ref)
    assert not exceeded
    assert account.reserved == 0
    assert limit - needed <= account.spent <= limit
    assert sum(calls) >= limit // (needed + 50)


async def test_claims_that_are_reserved_together_are_judged_one_by_one(postgres: PostgresStore) -> None:
    """4.8.2, 4.8.4: an ended execution, one of another tenant and one that does not fit refuse no other."""
    budget = replace(SHARED, limit=Decimal(350))
    ended, *all_terms = [await an_execution_with(postgres, budget) for _ in range(5)]
    await postgres.settle(Settlement(ended.owner.ref, "end", ExecutionStatus.CANCELLED))
    stranger = replace(ended, owner=BudgetOwner(of_another_tenant(all_terms[0].owner.ref)))
    claims = [a_claim(terms, base=100, most=1) for terms in (all_terms[0], ended, stranger, *all_terms[1:])]

    answers = await asyncio.gather(*map(postgres.reserve_budget, claims), return_exceptions=True)

    assert isinstance(answers[1], ExecutionEnded)
    assert isinstance(answers[2], NotFound)
    granted = [answers[0], *answers[3:]]
    assert (granted.count(BudgetGrant(1)), granted.count(BudgetRefusal(None))) == (3, 1)
    assert await amounts(postgres, all_terms[0].owner.ref) == [(350, 0, 303)]


async def test_a_raised_budget_resumes_the_executions_that_wait_for_it(store: ExecutionStore) -> None:
    """4.8.6"""
    asking = replace(SHARED, on_exhausted=OnExhausted.ASK)
    waiting = [await an_execution_with(store, asking), await an_execution_with(store, asking)]
    other = await an_execution_with(store, replace(asking, agent="other"))
    ids: dict[UUID, UUID] = {}
    for terms in (*waiting, other):
        refused = await store.reserve_budget(a_claim(terms, base=5000))
        assert isinstance(refused, BudgetRefusal)
        assert refused.exhausted
        request = BudgetRequest(uuid4(), refused.exhausted, 1, -5)
        ids[terms.owner.ref.execution_id] = request.id
        await store.settle(
            Settlement(terms.owner.ref, "pause", ExecutionStatus.PAUSED, budget_request=request)
        )
    ref = waiting[0].owner.ref
    (opened,) = await store.open_requests(ref)
    assert (opened.kind, opened.step_number, opened.tool) == (RequestKind.BUDGET, 1, "")
    assert opened.policy is not None
    assert opened.policy.approver == ("scope:approve",)
    assert opened.request == {
        "budget_id": opened.request["budget_id"],
        "unit": "tokens",
        "scope": "tenant",
        "limit": 1000,
        "spent": 0,
        "reserved": 0,
        "needed": 5001,
        "step_number": 1,
    }

    (account,) = await store.budgets_of(ref)
    raised = await store.raise_budget(RaiseBudget(account, Decimal(9000), key="again"))

    assert raised.account.limit == 9000
    assert {each.execution_id for each in raised.resumed} == {
        terms.owner.ref.execution_id for terms in waiting
    }
    for terms in waiting:
        (command,) = await store.pending_commands(terms.owner.ref)
        assert (command.kind, command.call_id) == (CommandKind.BUDGET, None)
        closed = await store.request(terms.owner.ref, ids[terms.owner.ref.execution_id])
        assert closed is not None
        assert (closed.state, closed.resolution and closed.resolution.outcome) == (
            RequestState.RESOLVED,
            "raise",
        )
    assert [row.id for row in await store.open_requests(other.owner.ref)] == [
        ids[other.owner.ref.execution_id]
    ]
    assert await store.reserve_budget(a_claim(waiting[0], base=5000)) == BudgetGrant(100)
    # A later plan with a lower limit keeps what people have raised.
    assert await amounts(store, ref) == [(9000, 0, 5100)]


async def test_a_budget_that_was_raised_before_the_pause_resumes_at_once(store: ExecutionStore) -> None:
    """4.8.6: the person was faster than the worker that records the pause."""
    terms = await an_execution_with(store, replace(TOKENS, on_exhausted=OnExhausted.ASK))
    ref = terms.owner.ref
    refused = await store.reserve_budget(a_claim(terms, base=5000))
    assert isinstance(refused, BudgetRefusal)
    assert refused.exhausted
    (account,) = await store.budgets_of(ref)
    await store.raise_budget(RaiseBudget(account, Decimal(9000)))

    request = BudgetRequest(uuid4(), refused.exhausted, 1, -5)
    await store.settle(Settlement(ref, "pause", ExecutionStatus.PAUSED, budget_request=request))

    assert not await store.open_requests(ref)
    assert [command.kind for command in await store.pending_commands(ref)] == [CommandKind.BUDGET]


async def test_the_operator_limits_a_tenant_and_its_users(store: ExecutionStore) -> None:
    """4.8.8"""
    tenant = OperatorBudget(TENANT, BudgetUnit.TOKENS, Decimal(1000))
    await store.set_operator_budget(tenant)
    await store.set_operator_budget(
        OperatorBudget(TENANT, BudgetUnit.STEPS, Decimal(1), "ann", OnExhausted.ASK)
    )
    anns, bobs = await an_execution_with(store), await an_execution_with(store, user="bob")
    begin = await store.preview_step(anns.owner.ref, 1)
    assert set(begin.material.operator_units) == {BudgetUnit.TOKENS, BudgetUnit.STEPS}
    bob_begin = await store.preview_step(bobs.owner.ref, 1)
    assert bob_begin.material.operator_units == (BudgetUnit.TOKENS,)

    assert await store.reserve_budget(a_claim(anns)) == BudgetGrant(100)
    await store.settle_budget(anns.owner.ref, spending("step/1", Decimal(0), 150, 1))
    refused = await store.reserve_budget(a_claim(anns, key="step/2"))
    assert isinstance(refused, BudgetRefusal)
    assert refused.exhausted
    assert (refused.exhausted.scope, refused.exhausted.is_operators) == (BudgetScope.USER, True)
    assert await store.reserve_budget(a_claim(bobs, most=5000)) == BudgetGrant(750)

    await store.set_operator_budget(replace(tenant, limit=Decimal(500)))
    listed = [
        (each.scope, each.subject, int(each.limit), int(each.spent))
        for each in await store.operator_budgets(TENANT)
    ]
    assert listed == [(BudgetScope.USER, "ann", 1, 1), (BudgetScope.TENANT, "", 500, 150)]
    assert await store.operator_budgets("umbrella") == ()
    removed = await store.remove_operator_budget(TENANT, tenant.account.id)
    assert removed is not None
    assert removed.account.spent == 150
    assert await store.remove_operator_budget(TENANT, tenant.account.id) is None
