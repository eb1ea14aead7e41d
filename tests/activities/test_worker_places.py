"""The places of a worker, for model calls whose steps are loaded first."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace

import pytest
from temporalio.common import Priority
from temporalio.testing import ActivityEnvironment

from everstep.activities.worker_places import LEAST_OPENINGS, WorkerPlaces, equal_places
from everstep.agent_domain.fairness.fairness_keys import fairness_key

Call = Callable[[], Coroutine[None, None, None]]


async def let_others_run() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def begin(call: Call, tenant: str, user: str) -> "asyncio.Task[None]":
    """Run a call as an activity of this user."""
    environment = ActivityEnvironment()
    environment.info = replace(environment.info, priority=Priority(fairness_key=fairness_key(tenant, user)))
    return asyncio.create_task(environment.run(call))


def a_call(
    places: WorkerPlaces, tenant: str, loaded: list[str], load: asyncio.Event, model: asyncio.Event
) -> Call:
    async def call() -> None:
        async with places.model_place(tenant) as (_, finish):
            loaded.append(tenant)
            await load.wait()
            finish()
            await model.wait()

    return call


async def test_steps_are_loaded_a_few_at_a_time_and_then_wait_for_the_model_together() -> None:
    """18.2.17: the steps of another user and of another tenant are not behind those of one user."""
    places, loaded, load, model = equal_places(100), list[str](), asyncio.Event(), asyncio.Event()
    calls = [begin(a_call(places, "acme", loaded, load, model), "acme", "ann") for _ in range(50)]
    await let_others_run()
    assert loaded == ["acme"] * (LEAST_OPENINGS - 2)
    calls.append(begin(a_call(places, "acme", loaded, load, model), "acme", "bob"))
    calls.append(begin(a_call(places, "globex", loaded, load, model), "globex", "eve"))
    await let_others_run()
    assert loaded[-2:] == ["acme", "globex"]
    load.set()
    while len(loaded) < len(calls):
        await let_others_run()
    assert places.openings.held <= LEAST_OPENINGS
    assert places.places.held == len(calls)
    model.set()
    await asyncio.gather(*calls)
    assert (places.places.held, places.openings.held) == (0, 0)


async def test_a_call_that_is_cancelled_while_its_step_waits_to_be_loaded_holds_nothing() -> None:
    """18.2.17"""
    places, loaded, load, model = equal_places(100), list[str](), asyncio.Event(), asyncio.Event()
    calls = [begin(a_call(places, "acme", loaded, load, model), "acme", "ann") for _ in range(10)]
    await let_others_run()
    for call in calls:
        call.cancel()
    for call in calls:
        with pytest.raises(asyncio.CancelledError):
            await call
    assert (places.places.held, places.openings.held, places.openings.waiting) == (0, 0, 0)
