"""What tenants may run at once: places, and the queue of executions that wait for one."""

import asyncio
from uuid import uuid4

import pytest

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.fairness.rate_draws import RateDraw
from everstep.agent_domain.fairness.tenant_limits import EVERYONE, LimitBook, TenantLimits
from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.storage.execution_store import ExecutionStore
from everstep.store.postgres import PostgresStore
from everstep.store.sessions import PostgresSessions
from tests.everstep.store.session_words import a_first_message
from tests.everstep.store.store_words import (
    OTHERS,
    TENANT,
    WAIT,
    a_new_execution,
    a_ref,
    a_settlement,
    a_step_start,
    accept_execution,
    end_execution,
    run_step,
)


async def limit(store: ExecutionStore, running: int | None, *, tenant: str = TENANT, user: str | None = None):
    await store.set_limits(TenantLimits(tenant, user, max_running=running))


async def accept_each(store: ExecutionStore, *users: str) -> list[ExecutionRef]:
    """One waiting execution for each name, in this order."""
    return [await accept_execution(store, user_id=user) for user in users]


async def admit(store: ExecutionStore, tenant: str = TENANT) -> list[ExecutionRef]:
    return sorted([launch.ref for launch in await store.admit(tenant)], key=str)


async def position(store: ExecutionStore, ref: ExecutionRef) -> int | None:
    row = await store.execution(ref)
    assert row
    return row.queue_position


async def test_limits_are_stored_replaced_and_removed(store: ExecutionStore) -> None:
    """18.2.4"""
    await limit(store, 3)
    await limit(store, 0, user="ann")
    await store.set_limits(TenantLimits(TENANT, None, 2.0, 5))
    assert list(await store.tenant_limits()) == [
        TenantLimits(TENANT, None, 2.0, 5),
        TenantLimits(TENANT, "ann", None, 0),
    ]
    assert await store.remove_limits(TENANT, "ann")
    assert not await store.remove_limits(TENANT, "ann")
    assert len(await store.tenant_limits()) == 1


async def test_an_execution_of_a_tenant_without_a_limit_waits_for_nothing(store: ExecutionStore) -> None:
    """18.2.5"""
    await limit(store, 1, tenant=OTHERS)
    row = await store.accept(a_new_execution(a_ref()))
    assert (row.is_waiting, row.queue_position) == (False, None)
    assert not await admit(store)
    assert not list(await store.waiting_tenants())


async def test_executions_beyond_the_limit_wait_and_know_their_position(store: ExecutionStore) -> None:
    """18.2.5"""
    await limit(store, 2)
    first, second, third, fourth = await accept_each(store, *["ann"] * 4)
    assert await admit(store) == sorted([first, second], key=str)
    assert [await position(store, each) for each in (first, second, third, fourth)] == [None, None, 1, 2]
    assert {row.ref: row.queue_position for row in (await store.executions(TENANT)).rows} == {
        first: None,
        second: None,
        third: 1,
        fourth: 2,
    }
    assert list(await store.waiting_tenants()) == [TENANT]
    assert not await admit(store)
    settled = await store.settle(a_settlement(first, ExecutionStatus.COMPLETED))
    assert settled
    assert settled.frees_place
    assert await admit(store) == [third]
    assert await position(store, fourth) == 1


async def test_executions_that_have_not_begun_are_found(store: ExecutionStore) -> None:
    """18.2.17"""
    begun, pending = a_ref(), a_ref()
    for ref in (begun, pending):
        await store.accept(a_new_execution(ref))
    await store.begin_step(a_step_start(begun, 1))
    asked = [begun.execution_id, pending.execution_id, uuid4()]
    assert list(await store.find_pending(asked)) == [pending.execution_id]


async def test_accepting_a_waiting_execution_again_does_not_start_it(store: ExecutionStore) -> None:
    """18.2.5"""
    await limit(store, 0)
    new = a_new_execution(a_ref())
    assert (await store.accept(new)).is_waiting
    assert (await store.accept(new)).is_waiting


async def test_users_of_a_tenant_are_admitted_in_turns(store: ExecutionStore) -> None:
    """18.2.6"""
    await limit(store, 1)
    ann1, ann2, ann3, bob1, bob2, eve1 = await accept_each(store, "ann", "ann", "ann", "bob", "bob", "eve")
    order, expected = list[ExecutionRef](), [ann1, bob1, eve1, ann2, bob2, ann3]
    while found := await admit(store):
        order += found
        waiting = [each for each in expected if each not in order]
        for ref in waiting:
            assert await position(store, ref) is not None
        await end_execution(store, found[0])
    # Each end leaves no places, so who came first is next among the users.
    assert order[0] == ann1
    assert sorted(order, key=str) == sorted(expected, key=str)


async def test_a_user_with_places_comes_after_users_without_any(store: ExecutionStore) -> None:
    """18.2.6"""
    await limit(store, 2)
    ann1, ann2, ann3 = await accept_each(store, "ann", "ann", "ann")
    assert len(await admit(store)) == 2
    (bob1,) = await accept_each(store, "bob")
    assert (await position(store, bob1), await position(store, ann3)) == (1, 2)
    await end_execution(store, ann1)
    assert await admit(store) == [bob1]
    await end_execution(store, ann2)
    assert await admit(store) == [ann3]


async def test_a_user_has_a_limit_of_the_own_within_that_of_the_tenant(store: ExecutionStore) -> None:
    """18.2.6"""
    await limit(store, 3)
    await limit(store, 1, user=EVERYONE)
    await limit(store, 2, user="bob")
    ann1, _, bob1, bob2, _ = await accept_each(store, "ann", "ann", "bob", "bob", "bob")
    assert await admit(store) == sorted([ann1, bob1, bob2], key=str)
    await end_execution(store, ann1)
    await end_execution(store, bob1)
    assert len(await admit(store)) == 2


async def test_a_limit_of_every_tenant_holds_for_those_without_their_own(
    store: ExecutionStore,
) -> None:
    """18.2.4"""
    await limit(store, 0, tenant=EVERYONE)
    await limit(store, None)
    mine, other = await accept_execution(store), await accept_execution(store, tenant=OTHERS)
    assert await admit(store) == [mine]
    assert not await admit(store, OTHERS)
    await store.remove_limits(EVERYONE)
    assert await admit(store, OTHERS) == [other]


async def test_a_paused_tenant_starts_nothing_until_its_limit_is_raised(store: ExecutionStore) -> None:
    """18.2.7"""
    await limit(store, 0)
    (ref,) = await accept_each(store, "ann")
    assert not await admit(store)
    assert await position(store, ref) == 1
    await limit(store, 1)
    assert await admit(store) == [ref]


async def test_an_execution_that_pauses_frees_its_place_and_one_that_resumes_takes_it_without_waiting(
    store: ExecutionStore,
) -> None:
    """18.2.8"""
    await limit(store, 1)
    first, second, third = await accept_each(store, "ann", "ann", "ann")
    assert await admit(store) == [first]
    paused = await store.settle(a_settlement(first, ExecutionStatus.PAUSED, key="status/1"))
    assert paused
    assert (paused.frees_place, paused.has_ended) == (True, False)
    assert await admit(store) == [second]
    resumed = await store.settle(a_settlement(first, ExecutionStatus.RUNNING, key="status/2"))
    assert resumed
    assert not resumed.frees_place
    await end_execution(store, second)
    assert not await admit(store)
    await end_execution(store, first)
    assert await admit(store) == [third]


async def test_subagents_take_no_place(store: ExecutionStore) -> None:
    """18.2.8"""
    await limit(store, 1)
    (parent,) = await accept_each(store, "ann")
    assert await admit(store) == [parent]
    child = a_new_execution(a_ref(), parent_execution_id=parent.execution_id, user_id="ann")
    assert not (await store.accept(child)).is_waiting


async def test_what_began_before_a_limit_counts(store: ExecutionStore) -> None:
    """18.2.4"""
    (before,) = await accept_each(store, "ann")
    await limit(store, 1)
    (after,) = await accept_each(store, "ann")
    assert not await admit(store)
    await end_execution(store, before)
    assert await admit(store) == [after]


async def test_a_waiting_execution_that_is_cancelled_leaves_the_queue(store: ExecutionStore) -> None:
    """18.2.5"""
    await limit(store, 0)
    first, second = await accept_each(store, "ann", "ann")
    await end_execution(store, first, ExecutionStatus.CANCELLED)
    assert await position(store, second) == 1


async def test_many_processes_at_once_admit_exactly_as_many_as_the_limit(postgres: PostgresStore) -> None:
    """18.2.5"""
    await limit(postgres, 5)

    async def accept_and_admit(number: int) -> list[ExecutionRef]:
        await accept_execution(postgres, user_id=f"user {number % 7}")
        return await admit(postgres)

    found = await asyncio.gather(*(accept_and_admit(number) for number in range(40)))
    running = [ref for refs in found for ref in refs]
    assert len(running) == len(set(running)) == 5

    async def end_and_admit(ref: ExecutionRef) -> list[ExecutionRef]:
        await end_execution(postgres, ref)
        return await admit(postgres)

    while running:
        found = await asyncio.gather(*map(end_and_admit, running))
        running = [ref for refs in found for ref in refs]
        assert len(running) <= 5
    assert not list(await postgres.waiting_tenants())


async def test_places_that_an_older_worker_left_are_freed_by_a_repair(postgres: PostgresStore) -> None:
    """18.2.9"""
    await limit(postgres, 1)
    first, second = await accept_each(postgres, "ann", "ann")
    assert await admit(postgres) == [first]
    async with postgres.engine.begin() as connection:
        await connection.exec_driver_sql(
            "UPDATE agent_executions SET status = 'completed' WHERE id = %s", (first.execution_id,)
        )
    assert not await admit(postgres)
    assert [each.ref for each in await postgres.admit(TENANT, is_repair=True)] == [second]


async def test_a_message_of_a_session_waits_for_a_place_as_well(postgres: PostgresStore) -> None:
    """18.2.5"""
    sessions = PostgresSessions(postgres.engine)
    await limit(postgres, 0)
    posted = await sessions.post(a_first_message())
    assert posted.launch
    assert posted.launch.is_waiting
    launch = await sessions.launch(posted.execution)
    assert launch
    assert launch.is_waiting
    assert not (await sessions.repair_candidates("desk", -1)).launches
    await limit(postgres, 1)
    assert [each.ref for each in await postgres.admit(TENANT)] == [posted.execution]
    launch = await sessions.launch(posted.execution)
    assert launch
    assert not launch.is_waiting
    assert [each.ref for each in (await sessions.repair_candidates("desk", -1)).launches] == [
        posted.execution
    ]


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({"max_running": -1}, "max_running is -1; use a number from 0"),
        ({"weight": 0}, "the weight is 0; use one from 0.001 to 1000"),
        ({"user_id": "ann", "weight": 2}, "only tenants have a weight"),
        ({"requests_per_second": 0}, "requests_per_second is 0; use a number above 0"),
        ({"tenant_id": " "}, "not blank"),
    ],
)
def test_limits_that_cannot_be_used_are_refused(given: dict[str, object], fault: str) -> None:
    """18.2.4"""
    with pytest.raises(InvalidInput, match=fault):
        TenantLimits(**{"tenant_id": TENANT, **given})  # type: ignore[arg-type]


def test_own_limits_replace_those_of_every_tenant_and_every_user() -> None:
    """18.2.4"""
    every = TenantLimits(EVERYONE, None, 1.0, 5)
    own = TenantLimits(TENANT, None, 2.0)
    users = TenantLimits(EVERYONE, EVERYONE, max_running=2)
    ann = TenantLimits(TENANT, "ann", max_running=0)
    book = LimitBook([every, own, users, ann])
    assert (book.tenant(TENANT), book.tenant(OTHERS)) == (own, every)
    assert (book.user(TENANT, "ann"), book.user(TENANT, "bob"), book.user(OTHERS, None)) == (
        ann,
        users,
        users,
    )
    assert (book.weight(TENANT), book.weight(str(uuid4()))) == (2.0, 1.0)
    assert ann.text == "paused: nothing starts until max_running is raised; max running 0"


async def test_the_use_of_limits_is_the_calls_that_are_made_and_what_is_left_of_rates(
    store: ExecutionStore,
) -> None:
    """18.2.18"""
    asking, answered, failed, _pending = await accept_each(store, "ann", "ann", "bob", "bob")
    other = await accept_execution(store, tenant=OTHERS)
    for each in (asking, failed, other):
        await store.begin_step(a_step_start(each))
    await run_step(store, answered)
    await store.note_wait(failed, 1, WAIT)
    await store.draw_rate(RateDraw("tokens", 0.06, debt=7.0))

    use = await store.limit_use([TENANT], ["tokens", "unknown"])

    assert use.model_calls == {(TENANT, "ann"): 1}
    assert use.levels.keys() == {"tokens"}
    assert use.levels["tokens"] == (pytest.approx(-6.0), pytest.approx(0.0, abs=5.0))
    await store.begin_step(a_step_start(failed, attempt=2))
    assert (await store.limit_use([TENANT], [])).model_calls == {(TENANT, "ann"): 1, (TENANT, "bob"): 1}
