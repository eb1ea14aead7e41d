"""What runs now, over all tenants, in PostgreSQL."""

from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta

import pytest_asyncio

from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.storage.steps import RetryWait
from everstep.agent_domain.tools.tools import ToolCall
from everstep.store.overview import PostgresOverview
from everstep.store.sessions import PostgresSessions
from tests.engines import open_engine
from tests.everstep.store.session_words import a_message, new_session_id, start_execution
from tests.everstep.store.store_words import (
    TENANT,
    a_reply,
    a_step_start,
    accept_execution,
    end_execution,
    run_step,
)


@pytest_asyncio.fixture
async def store(database: str) -> AsyncGenerator[PostgresSessions]:
    async with open_engine(database) as engine:
        yield PostgresSessions(engine)


async def test_all_tenants_are_counted_by_agent_and_status(store: PostgresSessions) -> None:
    """15.5.6"""
    await accept_execution(store)
    running = await start_execution(store, await new_session_id(store))
    other = await accept_execution(store, tenant="other")
    ended = await accept_execution(store)
    await run_step(store, ended)
    await end_execution(store, ended)
    reader = PostgresOverview(store.engine)

    found = await reader.overview()

    loads = {(load.tenant_id, load.agent): dict(load.counts) for load in found.loads}
    assert loads[TENANT, "helper"] == {ExecutionStatus.PENDING: 1, ExecutionStatus.RUNNING: 1}
    assert loads["other", "helper"] == {ExecutionStatus.PENDING: 1}
    ids = [each.row.ref.execution_id for each in found.executions]
    assert ids[-1] == other.execution_id
    assert running.execution_id in ids
    assert ended.execution_id not in ids
    assert [each.row.ref for each in (await reader.overview(tenant_id="other")).executions] == [other]
    assert (await reader.overview(agent="another")).loads == ()


async def test_an_execution_has_what_it_does(store: PostgresSessions) -> None:
    """15.5.6"""
    session = await new_session_id(store)
    running = await start_execution(store, session)
    queued = (await store.post(a_message(session, "Later"))).execution
    reader = PostgresOverview(store.engine)

    asked, waiting = (await reader.overview()).executions
    assert asked.step
    assert (asked.step.number, asked.step.has_reply, asked.is_queued) == (1, False, False)
    assert (waiting.row.ref, waiting.step, waiting.is_queued) == (queued, None, True)

    now = datetime.now(UTC)
    wait = RetryWait(1, now, now + timedelta(seconds=8), "provider unavailable", "503")
    await store.note_wait(running, 1, wait)
    delayed = (await reader.overview(limit=1)).executions[0]
    assert delayed.step
    assert delayed.step.wait == wait
    await store.begin_step(a_step_start(running, attempt=2))
    again = (await reader.overview(limit=1)).executions[0]
    assert again.step
    assert (again.step.attempt, again.step.wait) == (2, None)

    await store.record_reply(a_reply(running, "Let me see", ToolCall("c1", "look"), attempt=2))
    replied = (await reader.overview(limit=1)).executions[0]
    assert replied.step
    assert replied.step.has_reply
    assert replied.calls == ("look",)
