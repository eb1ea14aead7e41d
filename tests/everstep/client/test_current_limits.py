"""The limits of tenants as a process knows them."""

import asyncio

import pytest
from temporalio.testing import ActivityEnvironment

from everstep.activities.worker_places import Places, WorkerPlaces
from everstep.agent_domain.errors import StoreUnavailable
from everstep.agent_domain.fairness.fairness_keys import fairness_key
from everstep.agent_domain.fairness.shares import Claimant
from everstep.agent_domain.fairness.tenant_limits import LARGEST_LIMIT, TenantLimits
from everstep.client.current_limits import CurrentLimits
from everstep.client.fair_dispatch import FairDispatch
from everstep.store.memory import MemoryStore


async def test_a_changed_weight_applies_to_executions_that_start_later() -> None:
    """18.2.1"""
    store = MemoryStore()
    limits = CurrentLimits(store)
    dispatch = FairDispatch(limits.weight)
    assert dispatch.priority("acme", "ann").fairness_weight == 1.0
    await store.set_limits(TenantLimits("acme", weight=4.0))
    await limits.refresh()
    priority = dispatch.priority("acme", "bob")
    assert (priority.fairness_key, priority.fairness_weight) == (fairness_key("acme", "bob"), 2.0)


async def test_a_raised_limit_of_model_calls_lets_waiting_calls_begin() -> None:
    """18.2.11"""
    store = MemoryStore()
    limits = CurrentLimits(store)
    calls = Places(LARGEST_LIMIT, limits.model_call_terms)
    places = WorkerPlaces(Places(10), calls)
    limits.on_change(places.grant_waiting)
    await store.set_limits(TenantLimits("acme", max_model_calls=2))
    await store.set_limits(TenantLimits("acme", "ann", max_model_calls=1))
    await limits.refresh()
    over, ann, bob = asyncio.Event(), fairness_key("acme", "ann"), fairness_key("acme", "bob")

    async def call(user: str) -> None:
        async with calls.claimed_place(Claimant("acme", user)):
            await over.wait()

    running = [asyncio.create_task(call(user)) for user in (ann, ann, bob, bob)]
    await asyncio.sleep(0)
    assert (calls.held, calls.waiting) == (2, 2)
    await store.set_limits(TenantLimits("acme"))
    await limits.refresh()
    assert (calls.held, calls.waiting) == (3, 1)
    over.set()
    await asyncio.gather(*running)


async def test_a_tool_call_needs_no_place_among_the_model_calls() -> None:
    """18.2.11"""
    places = WorkerPlaces(Places(10), Places(LARGEST_LIMIT))

    async def work() -> tuple[int, int]:
        async with places.place("acme"):
            return places.places.held, places.model_calls.held

    assert await ActivityEnvironment().run(work) == (1, 0)


async def test_the_last_limits_apply_while_the_store_is_away(caplog: pytest.LogCaptureFixture) -> None:
    """18.2.4"""

    class LostStore(MemoryStore):
        async def tenant_limits(self) -> tuple[TenantLimits, ...]:
            raise StoreUnavailable("the database is away")

    limits = CurrentLimits(LostStore())
    reading = asyncio.create_task(limits.run())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    reading.cancel()
    await asyncio.wait([reading])
    assert "the limits of tenants are not read" in caplog.text
    assert limits.weight("acme") == 1.0
