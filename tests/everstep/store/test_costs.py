"""What executions cost: recorded once, with their calls, and never computed again."""

from dataclasses import replace
from decimal import Decimal

import pytest

from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.loop.step_error import StepError
from everstep.agent_domain.loop.step_facts import Besides, StepFacts
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.state.steps import InferenceResponse
from everstep.agent_domain.storage.calls import InnerReply
from everstep.agent_domain.storage.execution_store import ExecutionStore
from everstep.agent_domain.storage.steps import RecordReply
from everstep.agent_domain.values import EMPTY, frozen_map
from tests.everstep.store.store_words import (
    a_call,
    a_reply,
    a_result,
    a_settlement,
    a_step_start,
    accept_execution,
    result_record,
)

CENT = Usage(input=10).with_cost(Decimal("0.01"))


def a_paid_reply(ref: ExecutionRef, usage: Usage, number: int = 1, *, calls: bool = False) -> RecordReply:
    reply = a_reply(ref, "Hi", *([a_call("c1")] if calls else []), number=number)
    response = InferenceResponse("Hi", usage=usage, model="m-1").to_dict()
    return replace(reply, facts=replace(reply.facts, usage=usage), response=frozen_map(response))


async def costs_of(store: ExecutionStore, ref: ExecutionRef) -> tuple[Decimal | None, Decimal | None]:
    row = await store.execution(ref)
    assert row
    return row.cost_usd, row.tree_cost_usd


async def test_a_cost_is_added_once(store: ExecutionStore) -> None:
    """4.7.4: an attempt that repeats a reply or an inner call adds nothing."""
    ref = await accept_execution(store)
    inner = InnerReply(
        "k/0", "digest", frozen_map(InferenceResponse("Yes", usage=CENT, model="m-2").to_dict())
    )
    for _ in range(2):
        await store.begin_step(a_step_start(ref))
        await store.record_reply(a_paid_reply(ref, CENT, calls=True))
        await store.record_inner_reply(ref, inner, CENT)
        await store.record_call(result_record(ref, a_result(besides=Besides(CENT))))

    assert await costs_of(store, ref) == (Decimal("0.02"), Decimal("0.02"))
    (step,) = await store.steps(ref)
    assert (step.cost_usd, step.inner_usage.cost_usd) == (Decimal("0.02"), Decimal("0.01"))


@pytest.mark.parametrize("usage", [Usage(input=10), Usage()])
async def test_one_unknown_cost_makes_that_of_the_execution_unknown(
    store: ExecutionStore, usage: Usage
) -> None:
    """4.7.4: without prices, or without counters."""
    ref = await accept_execution(store)
    for number, used in enumerate((CENT, usage, CENT), 1):
        await store.begin_step(a_step_start(ref, number))
        await store.record_reply(a_paid_reply(ref, used, number))

    assert await costs_of(store, ref) == (None, None)
    assert [step.cost_usd for step in await store.steps(ref)] == [Decimal("0.01"), None, Decimal("0.01")]


async def test_a_step_that_asked_no_model_costs_nothing(store: ExecutionStore) -> None:
    """4.7.4"""
    ref = await accept_execution(store)
    await store.begin_step(a_step_start(ref))
    failure = StepFacts.failure(1, StepError("no key"))
    await store.record_reply(RecordReply(ref, 1, 1, failure, (), EMPTY, ()))

    assert await costs_of(store, ref) == (0, 0)


async def test_the_cost_of_a_tree_has_that_of_all_children(store: ExecutionStore) -> None:
    """4.7.5"""
    parent = await accept_execution(store)
    child = await accept_execution(store, parent_execution_id=parent.execution_id)
    grandchild = await accept_execution(store, parent_execution_id=child.execution_id)
    other = await accept_execution(store)
    for ref in (parent, child, grandchild, other):
        await store.begin_step(a_step_start(ref))
        await store.record_reply(a_paid_reply(ref, CENT))

    assert await costs_of(store, parent) == (Decimal("0.01"), Decimal("0.03"))
    await store.begin_step(a_step_start(grandchild, 2))
    await store.record_reply(a_paid_reply(grandchild, Usage(input=1), 2))
    assert await costs_of(store, parent) == (Decimal("0.01"), None)


async def test_the_end_adds_what_no_reply_recorded(store: ExecutionStore) -> None:
    """4.7.3: such as a call of a tool to a model that failed after it was charged."""
    ref = await accept_execution(store)
    await store.begin_step(a_step_start(ref))
    await store.record_reply(a_paid_reply(ref, CENT))
    await store.settle(a_settlement(ref, ExecutionStatus.COMPLETED, usage=CENT + CENT))

    assert await costs_of(store, ref) == (Decimal("0.02"), Decimal("0.02"))
