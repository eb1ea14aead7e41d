"""What waits in an installation, in PostgreSQL, and the metrics of ends and of connections."""

import asyncio

from sqlalchemy import text

from everstep.agent_domain.loop.step_facts import CallNeed
from everstep.store.backlog import PostgresBacklog
from everstep.store.engine import create_engine
from everstep.store.postgres import PostgresStore
from everstep.telemetry import metrics
from tests.everstep.store.store_words import (
    a_call,
    a_reply,
    a_step_start,
    accept_execution,
    end_execution,
    run_step,
)


async def test_pending_executions_and_open_requests_are_counted(postgres: PostgresStore) -> None:
    """18.3.1"""
    await accept_execution(postgres)
    await accept_execution(postgres, tenant="other")
    waiting = await accept_execution(postgres)
    await postgres.begin_step(a_step_start(waiting, 1))
    await postgres.record_reply(a_reply(waiting, "May I?", a_call(), needs=CallNeed.APPROVAL))

    found = await PostgresBacklog(postgres.engine).read()

    assert dict(found.pending) == {"acme": 1, "other": 1}
    ((count, age),) = found.open_requests.values()
    assert count == 1
    assert 0 <= age < 60


async def test_an_end_is_counted_once(postgres: PostgresStore) -> None:
    """18.3.2"""
    ended = await accept_execution(postgres)
    await run_step(postgres, ended)
    before = sum(metrics.EXECUTIONS.values.values())

    await end_execution(postgres, ended)
    await end_execution(postgres, ended)

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
