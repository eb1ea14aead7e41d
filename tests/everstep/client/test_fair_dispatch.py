"""Starting workflows for all tenants and users."""

import asyncio
from collections.abc import Collection
from uuid import UUID, uuid4

import pytest

from everstep.client.beginnings import FindPending
from everstep.client.fair_dispatch import LEAST_STARTS, FairDispatch


async def none_pending(execution_ids: Collection[UUID]) -> Collection[UUID]:
    del execution_ids
    return ()


async def all_pending(execution_ids: Collection[UUID]) -> Collection[UUID]:
    return execution_ids


@pytest.mark.parametrize("find_pending", [None, all_pending])
async def test_a_tenant_that_starts_many_executions_does_not_delay_the_start_of_another_one(
    find_pending: FindPending | None,
) -> None:
    """18.2.17: nor does one user delay another."""
    dispatch, over, started = FairDispatch(find_pending=find_pending), asyncio.Event(), list[str]()

    async def start(tenant: str, user: str) -> None:
        async with dispatch.start(tenant, user, uuid4()):
            started.append(user)
            await over.wait()

    starting = [asyncio.create_task(start("acme", "ann")) for _ in range(50)]
    await asyncio.sleep(0)
    assert started == ["ann"] * 28
    starting += [asyncio.create_task(start("acme", "bob")), asyncio.create_task(start("globex", "eve"))]
    await asyncio.sleep(0)
    assert started[-2:] == ["bob", "eve"]
    over.set()
    await asyncio.gather(*starting)
    assert len(started) == 52


async def test_a_user_starts_fewer_executions_at_once_while_others_start_some() -> None:
    """18.2.17"""
    dispatch, over, started = FairDispatch(), asyncio.Event(), list[str]()

    async def start(user: str) -> None:
        async with dispatch.start("acme", user, uuid4()):
            started.append(user)
            await over.wait()

    first = asyncio.create_task(start("bob"))
    await asyncio.sleep(0)
    starting = [first, *(asyncio.create_task(start("ann")) for _ in range(50))]
    await asyncio.sleep(0)
    assert started == ["bob", "ann"]
    over.set()
    await asyncio.gather(*starting)
    assert len(started) == 51


@pytest.mark.parametrize(
    ("callers", "at_once"),
    [
        ([("acme", f"user {number}") for number in range(50)], 29),
        ([(f"tenant {number}", "ann") for number in range(50)], 32),
        ([("acme", "ann"), *(("globex", f"user {number}") for number in range(50))], 3),
    ],
    ids=["users", "tenants", "one tenant with many users"],
)
async def test_many_start_executions_at_once_and_each_few(
    callers: list[tuple[str, str]], at_once: int
) -> None:
    """18.2.17: a tenant has two starts while another tenant starts executions as well."""
    dispatch, over, started = FairDispatch(), asyncio.Event(), list[tuple[str, str]]()

    async def start(tenant: str, user: str) -> None:
        async with dispatch.start(tenant, user, uuid4()):
            started.append((tenant, user))
            await over.wait()

    starting = [asyncio.create_task(start(*caller)) for caller in callers]
    await asyncio.sleep(0)
    assert len(started) == at_once
    over.set()
    await asyncio.gather(*starting)
    assert len(started) == len(callers)


@pytest.mark.parametrize("find_pending", [None, none_pending])
async def test_a_start_that_fails_gives_its_place_to_another_one(find_pending: FindPending | None) -> None:
    """18.2.17"""
    dispatch = FairDispatch(find_pending=find_pending)
    for _ in range(3 * LEAST_STARTS):
        with pytest.raises(ZeroDivisionError):
            async with dispatch.start("acme", "ann", uuid4()):
                raise ZeroDivisionError
    async with dispatch.start("acme", "ann", uuid4()):
        pass
