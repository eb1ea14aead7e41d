"""Deleting old data, from a terminal or on a schedule."""

import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest

from tests.acceptance.harness import Nursery, until
from tests.everstep.cli.desk import Desk

pytestmark = pytest.mark.asyncio(loop_scope="session")

OLD = UUID(int=1), UUID(int=2)
A_MONTH = {"EVERSTEP_KEEP_SESSIONS_DAYS": "30"}


@asynccontextmanager
async def connected(desk: Desk) -> AsyncGenerator[psycopg.AsyncConnection[Any]]:
    url = desk.installation.database_url.replace("+psycopg", "")
    async with await psycopg.AsyncConnection.connect(url) as connection:
        yield connection


async def two_old_sessions(desk: Desk) -> None:
    async with connected(desk) as connection:
        for session_id in OLD:
            await connection.execute(
                "INSERT INTO agent_sessions (id, tenant_id, user_id, updated_at) "
                "VALUES (%s, 'acme', 'ann', now() - interval '31 days') ON CONFLICT DO NOTHING",
                [session_id],
            )


async def left(desk: Desk) -> list[UUID]:
    async with connected(desk) as connection:
        found = await connection.execute("SELECT id FROM agent_sessions WHERE id = ANY (%s)", [[*OLD]])
        return sorted([id_ for (id_,) in await found.fetchall()])


async def test_old_data_are_deleted_table_by_table(desk: Desk) -> None:
    """8.7.2: data without a configured limit stay."""
    await two_old_sessions(desk)

    counted = await desk.says("prune", "--dry-run", **A_MONTH)
    assert await left(desk) == [*OLD]
    removed = await desk.says("prune", **A_MONTH)

    assert counted.splitlines()[0] == "agent_sessions    2 would be removed, older than 30 days"
    assert removed.splitlines() == [
        "agent_sessions    2 removed, older than 30 days",
        "agent_executions  kept: EVERSTEP_KEEP_EXECUTIONS_DAYS is not set",
        "agent_envelopes   kept: EVERSTEP_KEEP_ENVELOPES_DAYS is not set",
        "agent_answers     0 removed, older than a day",
    ]
    assert await left(desk) == []


async def test_it_needs_only_the_database(desk: Desk) -> None:
    said = await desk.says("prune", TEMPORAL_ADDRESS=None)

    assert said.startswith("agent_sessions    kept")


async def test_an_interrupted_prune_keeps_its_completed_part(
    desk: Desk, nursery: Nursery, tmp_path: Path
) -> None:
    """8.7.2"""
    await two_old_sessions(desk)
    log = tmp_path / "log"
    log.touch()

    async with connected(desk) as connection, connected(desk) as looking:
        # In a transaction, PostgreSQL reads the activity of other sessions only once.
        await looking.set_autocommit(True)
        await connection.execute("SELECT 1 FROM agent_sessions WHERE id = %s FOR UPDATE", [OLD[1]])
        process = await nursery.start("prune", log=log, environment={**desk.environment, **A_MONTH})

        async def is_at_the_second() -> bool:
            found = await looking.execute(
                "SELECT wait_event_type FROM pg_stat_activity WHERE application_name = 'everstep prune'"
            )
            return ("Lock",) in await found.fetchall()

        await until("it waits for the second session", is_at_the_second)
        process.signal(signal.SIGINT)
        assert await process.death() == 130

    assert log.read_text() == "agent_sessions    1 removed, older than 30 days\n"
    assert await left(desk) == [OLD[1]]
    await desk.says("prune", **A_MONTH)
    assert await left(desk) == []


@pytest.mark.parametrize("days", ["0", "-1", "soon", "inf", "nan"])
async def test_an_invalid_duration_is_refused(desk: Desk, days: str) -> None:
    complaint = await desk.complains("prune", EVERSTEP_KEEP_ANSWERS_DAYS=days)

    assert complaint.startswith("the settings cannot be used: keep_answers_days")
