"""Executions that wait for a place of their tenant start when others end, whatever process is lost."""

import pytest
from temporalio.client import Client as TemporalClient

from everstep.agent_domain.fairness.tenant_limits import TenantLimits
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.client.reconciler import Repairs
from everstep.client.tenants import Tenants
from everstep.store.sessions import PostgresSessions
from tests.everstep.client.parlour import SessionSetup, a_session_setup, open_session_setup
from tests.workflows.harness import HeldModel, an_agent, eventually
from tests.workflows.test_people import asks, user_input


async def limit(parlour: SessionSetup, running: int) -> None:
    await parlour.sessions.client.store.set_limits(TenantLimits(parlour.scope.tenant_id, max_running=running))


async def test_the_end_of_an_execution_starts_the_one_that_waits(
    temporal: TemporalClient, store: PostgresSessions
) -> None:
    """18.2.5"""
    model = HeldModel("One", "Two", "Three")
    async with open_session_setup(temporal, store, an_agent(model=model)) as parlour:
        await limit(parlour, 1)
        first = await parlour.post(await parlour.session())
        await model.begun.wait()
        second = await parlour.post(await parlour.session())
        third = await parlour.sessions.client.start("agent", "Hello", user_id="bob")
        assert (await parlour.execution(second).get()).queue_position == 2
        assert (await third.get()).queue_position == 1
        assert model.asked == 1
        model.go_on.set()
        for each in (first.execution_id, third.id, second.execution_id):
            row = await parlour.wait_for_completion(each)
            assert row.queue_position is None


async def test_the_reconciler_starts_what_a_lost_worker_left_waiting(
    temporal: TemporalClient, store: PostgresSessions
) -> None:
    """18.2.9"""
    model = HeldModel("One", "Two")
    parlour = a_session_setup(temporal, store, an_agent(model=model))
    async with parlour.worker(forgetful=True):
        await limit(parlour, 1)
        first = await parlour.post(await parlour.session())
        await model.begun.wait()
        second = await parlour.post(await parlour.session())
        assert await parlour.reconciler.once() == Repairs()
        model.go_on.set()
        await parlour.wait_for_completion(first)
        assert await parlour.reconciler.once() == Repairs(admitted=1)
        await parlour.wait_for_completion(second)


async def test_an_admitted_execution_whose_process_is_lost_is_started_by_the_reconciler(
    temporal: TemporalClient, store: PostgresSessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """18.2.9"""

    class ProcessLost(Exception):
        """The process dies here."""

    async def dies(*_: object, **__: object) -> None:
        raise ProcessLost

    async with open_session_setup(temporal, store, an_agent("Done")) as parlour:
        await limit(parlour, 1)
        session_id = await parlour.session()
        with monkeypatch.context() as patch:
            patch.setattr("everstep.client.client.Client.launch", dies)
            with pytest.raises(ProcessLost):
                await parlour.post(session_id)
        assert await parlour.reconciler.once() == Repairs(launched=1)
        (row,) = await parlour.executions(session_id)
        await parlour.wait_for_completion(row.ref.execution_id)


async def test_a_waiting_execution_can_be_cancelled_and_says_why_it_waits(
    temporal: TemporalClient, store: PostgresSessions
) -> None:
    """18.2.7"""
    async with open_session_setup(temporal, store, an_agent("Done")) as parlour:
        await limit(parlour, 0)
        waiting = await parlour.post(await parlour.session())
        execution = parlour.execution(waiting)
        because = await execution.because()
        assert "number 1 in the queue of its tenant" in str(because)
        await parlour.sessions.cancel((await execution.get()).ref)
        await parlour.wait_for_status(waiting, ExecutionStatus.CANCELLED)


async def test_a_raised_limit_starts_a_paused_execution_as_paused(
    temporal: TemporalClient, store: PostgresSessions
) -> None:
    """8.2.9, 18.2.4: without a session as well."""
    model = HeldModel(holds=0)
    async with open_session_setup(temporal, store, an_agent(model=model)) as parlour:
        await limit(parlour, 0)
        sent = await parlour.post(await parlour.session())
        waiting = [parlour.execution(sent), await parlour.sessions.client.start("agent", "Hello")]
        for each in waiting:
            await each.pause()
        await Tenants(parlour.sessions.client).set(TenantLimits(parlour.scope.tenant_id))

        async def is_so() -> bool:
            return {(await each.get()).status for each in waiting} == {ExecutionStatus.PAUSED}

        await eventually(is_so)
        assert model.asked == 0
        for each in waiting:
            await each.resume()
            assert (await parlour.wait_for_completion(each.id)).status is ExecutionStatus.COMPLETED


async def test_an_execution_that_waits_for_a_person_lets_another_one_start(
    temporal: TemporalClient, store: PostgresSessions
) -> None:
    """18.2.8"""
    agent = an_agent(asks("Where?"), "There", "Done", tools=[user_input()])
    async with open_session_setup(temporal, store, agent) as parlour:
        await limit(parlour, 1)
        asking = await parlour.post(await parlour.session())
        await parlour.wait_for_status(asking, ExecutionStatus.PAUSED)
        second = await parlour.post(await parlour.session())
        await parlour.wait_for_completion(second)
        await parlour.execution(asking).submit_input("Here")
        await parlour.wait_for_completion(asking)


async def test_a_message_to_a_waiting_execution_is_read_when_it_starts(
    temporal: TemporalClient, store: PostgresSessions
) -> None:
    """18.2.5"""
    async with open_session_setup(temporal, store, an_agent("Done", "Done")) as parlour:
        await limit(parlour, 0)
        waiting = await parlour.post(await parlour.session())
        await parlour.sessions.steer((await parlour.execution(waiting).get()).ref, "Also this")
        await limit(parlour, 1)
        await parlour.sessions.admit(parlour.scope.tenant_id)
        await parlour.wait_for_completion(waiting)
        assert "Also this" in await parlour.conversation(waiting)
