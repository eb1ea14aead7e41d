"""The rates that processes share, in both stores. The rates are so low that time adds nothing."""

import asyncio
from dataclasses import replace

import pytest
from sqlalchemy import text

from everstep.agent_domain.fairness.rate_draws import RateDraw
from everstep.agent_domain.storage.execution_store import ExecutionStore
from everstep.store.postgres import PostgresStore

REQUESTS = RateDraw("preset/fast/requests", 0.06, need=1.0)
TOKENS = RateDraw("preset/fast/tokens", 60.0, need=5.0)


async def test_a_bucket_that_is_not_known_is_full_and_then_empties(store: ExecutionStore) -> None:
    """18.2.12"""
    assert (await store.draw_rate(REQUESTS)).amount == 1.0
    refused = await store.draw_rate(REQUESTS)
    assert (refused.amount, refused.wait) == (0.0, pytest.approx(1000, rel=0.01))


async def test_a_debt_delays_the_next_draw(store: ExecutionStore) -> None:
    """18.2.12"""
    assert (await store.draw_rate(replace(TOKENS, need=0.0, debt=1005.0))).amount == 0.0
    assert (await store.draw_rate(TOKENS)).wait == pytest.approx(1001, rel=0.01)


async def test_a_pause_ends_the_draws_of_all_processes_and_is_never_shortened(store: ExecutionStore) -> None:
    """18.2.14"""
    await store.pause_rate(TOKENS.name, 500.0)
    await store.pause_rate(TOKENS.name, 1.0)
    refused = await store.draw_rate(TOKENS)
    assert (refused.amount, refused.wait) == (0.0, pytest.approx(500, rel=0.01))
    await store.draw_rate(REQUESTS)
    await store.pause_rate(REQUESTS.name, 2000.0)
    assert (await store.draw_rate(REQUESTS)).wait == pytest.approx(2000, rel=0.01)


async def test_draws_at_the_same_moment_never_exceed_the_bucket(postgres: PostgresStore) -> None:
    """18.2.12"""
    draw = replace(REQUESTS, per_minute=600.0 / 1e6, name="preset/slow/requests")
    drawn = await asyncio.gather(*(postgres.draw_rate(draw) for _ in range(15)))
    assert sorted(each.amount for each in drawn) == [0.0] * 14 + [1.0]


async def test_a_bucket_that_was_not_used_for_a_day_is_removed(own_store: PostgresStore) -> None:
    """18.2.12"""
    await own_store.draw_rate(REQUESTS)
    await own_store.draw_rate(TOKENS)
    async with own_store.engine.connect() as connection:
        old = "UPDATE agent_rates SET filled_at = filled_at - interval '2 days' WHERE name = :name"
        await connection.execute(text(old), {"name": TOKENS.name})
        # Drawing from a known bucket removes nothing.
        await own_store.draw_rate(REQUESTS)
        names = text("SELECT name FROM agent_rates ORDER BY name")
        assert len((await connection.execute(names)).all()) == 2
        await own_store.draw_rate(replace(REQUESTS, name="preset/other/requests"))
        assert [row.name for row in await connection.execute(names)] == [
            REQUESTS.name,
            "preset/other/requests",
        ]
