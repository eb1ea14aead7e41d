"""What waits in an installation, in PostgreSQL, and the metrics of ends and of connections."""

import asyncio
from collections.abc import AsyncGenerator

import pytest_asyncio
from sqlalchemy import text

from everstep.agent_domain.loop.step_facts import CallNeed
from everstep.store.backlog import PostgresBacklog
from everstep.store.engine import create_engine
from everstep.store.sessions import PostgresSessions
from everstep.telemetry import metrics
from tests.everstep.store.store_words import (
    a_call,
    a_reply,
    a_step_start,
    accept_execution,
    end_execution,
    run_step,
)


@pytest_asyncio.fixture
async def store(database: str) -> AsyncGenerator[PostgresSessions]:
    engine = create_engine(database)
    yield PostgresSessions(engine)
    await engine.dispose()


async def test_pending_executions_and_open_requests_are_counted(store: PostgresSessions) -> None:
    """18.3.1"""
    await accept_execution(store)
    await accept_execution(store, tenant="other")
    waiting = await accept_execution(store)
    await store.begin_step(a_step_start(waiting, 1))
    await store.record_reply(a_reply(waiting, "May I?", a_call(), needs=CallNeed.APPROVAL))

    found = await PostgresBacklog(store.engine).read()

    assert dict(found.pending) == {"acme": 1, "other": 1}
    ((count, age),) = found.open_requests.values()
    assert count == 1
    assert 0 <= age < 60


async def test_an_end_is_counted_once(store: PostgresSessions) -> None:
    """18.3.2"""
    ended = await accept_execution(store)
    await run_step(store, ended)
    before = sum(metrics.EXECUTIONS.values.values())

    await end_execution(store, ended)
    await end_execution(store, ended)

    assert sum(metrics.EXECUTIONS.values.values()) == before + 1


async def test_waits_for_a_connection_are_measured(database: str) -> None:
    engine = create_engine(database, pool_size=1, max_overflow=0)
    before = sum(metrics.POOL_WAITS.values[()].counts)

    async def ask() -> None:
        async with engine.connect() as connection:
            await connection.execute(text("SELECT 1"))

    await ask()
    assert sum(metrics.POOL_WAITS.values[()].counts) == before
    await asyncio.gather(ask(), ask())
    assert sum(metrics.POOL_WAITS.values[()].counts) == before + 1
    assert metrics.POOL_CONNECTIONS.values[("idle",)] >= 1
    await engine.dispose()
