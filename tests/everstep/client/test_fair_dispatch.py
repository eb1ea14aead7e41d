"""Starting workflows for all tenants and users."""

import asyncio

import pytest

from everstep.client.fair_dispatch import LEAST_STARTS, FairDispatch


async def test_a_tenant_that_starts_many_executions_does_not_delay_the_start_of_another_one() -> None:
    """18.2.17: nor does one user delay another."""
    dispatch, over, started = FairDispatch(), asyncio.Event(), list[str]()

    async def start(tenant: str, user: str) -> None:
        async with dispatch.start(tenant, user):
            started.append(user)
            await over.wait()

    starting = [asyncio.create_task(start("acme", "ann")) for _ in range(50)]
    await asyncio.sleep(0)
    assert started == ["ann"] * (LEAST_STARTS - 2)
    starting += [asyncio.create_task(start("acme", "bob")), asyncio.create_task(start("globex", "eve"))]
    await asyncio.sleep(0)
    assert started[-2:] == ["bob", "eve"]
    over.set()
    await asyncio.gather(*starting)
    assert len(started) == 52


async def test_a_start_that_fails_gives_its_place_to_another_one() -> None:
    """18.2.17"""
    dispatch = FairDispatch()
    for _ in range(3 * LEAST_STARTS):
        with pytest.raises(ZeroDivisionError):
            async with dispatch.start("acme", "ann"):
                raise ZeroDivisionError
    async with dispatch.start("acme", "ann"):
        pass
