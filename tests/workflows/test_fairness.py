"""Tenants and users share the workers: Temporal's fairness keys, and the places of a worker."""

import asyncio
from dataclasses import replace

import pytest
from temporalio import activity
from temporalio.client import Client as TemporalClient

from everstep.activities.worker_places import Places
from everstep.agent_domain.agents.drivers import OnText
from everstep.agent_domain.fairness.fairness_keys import fairness_key
from everstep.agent_domain.fairness.shares import Claimant
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.messages.cached_context import InferenceRequest
from everstep.agent_domain.state.steps import InferenceResponse
from everstep.agent_domain.testing import MockTool, ScriptedModel, calls, says
from everstep.runtime.embedded.temporal_server import DYNAMIC_CONFIG
from everstep.workflows import agent_execution
from tests.workflows.harness import (
    DEADLINE,
    HeldModel,
    Office,
    an_agent,
    an_office,
    at_work,
    final_result,
    runs_of,
)
from tests.workflows.test_subagents import a_boss, a_hand, hires


class PriorityModel(ScriptedModel):
    """Records the priority of the activity that asks."""

    def __init__(self, *script: InferenceResponse | str) -> None:
        super().__init__(*script)
        self.seen: list[str | None] = []

    async def respond(self, request: InferenceRequest, on_text: OnText) -> InferenceResponse:
        self.seen.append(activity.info().priority.fairness_key)
        return await super().respond(request, on_text)


class SlowModel:
    """Answers when it is released."""

    def __init__(self) -> None:
        self.asked = 0
        self.go_on = asyncio.Event()

    async def respond(self, request: InferenceRequest, on_text: OnText) -> InferenceResponse:
        del request, on_text
        self.asked += 1
        await self.go_on.wait()
        return says("Done")


def with_places(office: Office, places: int) -> Office:
    """The office with workers that run this many activities at once."""
    return replace(office, settings=office.settings.model_copy(update={"worker_activities": places}))


def test_the_embedded_server_dispatches_fairly() -> None:
    """18.2.1"""
    assert DYNAMIC_CONFIG["matching.enableFairness"] is True


async def test_activities_subagents_and_later_runs_have_the_key_of_tenant_and_user(
    temporal: TemporalClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """18.2.1"""
    monkeypatch.setattr(agent_execution, "ROLL_OVER_EVENTS", 1)
    model, hand = PriorityModel(calls(("look", {})), "Done"), PriorityModel("Seen")
    boss = a_boss(hires("hand"), "Done")
    looking = an_agent(tools=[MockTool("look")], model=model).with_name("looking")
    async with at_work(temporal, boss, a_hand(model=hand), looking) as office:
        execution = await office.start(agent="looking", user_id="ann")
        await final_result(execution)
        assert len(await runs_of(execution)) > 1
        await final_result(await office.start(agent="boss", user_id="bob"))
    assert model.seen == [fairness_key("default", "ann")] * 2
    assert hand.seen == [fairness_key("default", "bob")]


async def test_a_tenant_whose_calls_fill_a_worker_delays_no_other_one(temporal: TemporalClient) -> None:
    """18.2.2"""
    slow = SlowModel()
    office = an_office(temporal, an_agent(model=slow).with_name("slow"), an_agent("Done").with_name("quick"))
    office = with_places(office, 4)
    async with office.worker():
        flood = [await office.start(agent="slow", user_id="ann") for _ in range(12)]
        async with asyncio.timeout(DEADLINE):
            await final_result(await office.start(agent="quick", user_id="bob"))
            assert slow.asked < 4
            slow.go_on.set()
            for execution in flood:
                await final_result(execution)
    assert slow.asked == 12


class TestPlaces:
    async def test_an_activity_that_is_cancelled_while_it_waits_leaves_the_queue(self) -> None:
        """18.2.3"""
        places, ann = Places(1), Claimant("acme", "ann")

        async def work() -> str:
            async with places.claimed_place(ann):
                return "done"

        async with places.claimed_place(ann):
            cancelled, waiting = asyncio.create_task(work()), asyncio.create_task(work())
            await asyncio.sleep(0)
            assert (places.held, places.waiting) == (1, 2)
            cancelled.cancel()
            await asyncio.wait([cancelled])
            assert (places.held, places.waiting) == (1, 1)
        assert await waiting == "done"
        assert (places.held, places.waiting) == (0, 0)

    async def test_a_place_that_is_granted_to_a_cancelled_activity_goes_to_the_next_one(self) -> None:
        """18.2.3"""
        places, ann = Places(1), Claimant("acme", "ann")

        async def work() -> str:
            async with places.claimed_place(ann):
                return "done"

        async with places.claimed_place(ann):
            cancelled, waiting = asyncio.create_task(work()), asyncio.create_task(work())
            await asyncio.sleep(0)
        cancelled.cancel()
        assert await waiting == "done"
        assert cancelled.cancelled() or await cancelled == "done"
        assert (places.held, places.waiting) == (0, 0)


async def test_an_execution_that_waits_for_a_place_is_cancelled_at_once(temporal: TemporalClient) -> None:
    """18.2.3"""
    model = HeldModel("Done")
    office = an_office(temporal, an_agent(model=model))
    office = with_places(office, 1)
    async with office.worker():
        held = await office.start()
        await model.begun.wait()
        waiting = await office.start()
        await waiting.cancel()
        await final_result(waiting)
        assert (await waiting.get()).status is ExecutionStatus.CANCELLED
        assert model.asked == 1
        model.go_on.set()
        await final_result(held)
