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
from tests.everstep.cli.desk import CommandLine

pytestmark = pytest.mark.asyncio(loop_scope="session")

OLD = UUID(int=1), UUID(int=2)
A_MONTH = {"EVERSTEP_KEEP_SESSIONS_DAYS": "30"}


@asynccontextmanager
async def open_connection(desk: CommandLine) -> AsyncGenerator[psycopg.AsyncConnection[Any]]:
    url = desk.installation.database_url.replace("+psycopg", "")
    async with await psycopg.AsyncConnection.connect(url) as connection:
        yield connection


async def create_two_old_sessions(desk: CommandLine) -> None:
    async with open_connection(desk) as connection:
        for session_id in OLD:
            await connection.execute(
                "INSERT INTO agent_sessions (id, tenant_id, user_id, updated_at) "
                "VALUES (%s, 'acme', 'ann', now() - interval '31 days') ON CONFLICT DO NOTHING",
                [session_id],
            )


async def remaining_sessions(desk: CommandLine) -> list[UUID]:
    async with open_connection(desk) as connection:
        found = await connection.execute("SELECT id FROM agent_sessions WHERE id = ANY (%s)", [[*OLD]])
        return sorted([id_ for (id_,) in await found.fetchall()])


async def test_old_data_are_deleted_table_by_table(desk: CommandLine) -> None:
    """8.7.2: data without a configured limit stay."""
    await create_two_old_sessions(desk)

    counted = await desk.output_of("prune", "--dry-run", **A_MONTH)
    assert await remaining_sessions(desk) == [*OLD]
    removed = await desk.output_of("prune", **A_MONTH)

    assert counted.splitlines()[0] == "agent_sessions     2 would be removed, older than 30 days"
    assert removed.splitlines() == [
        "agent_sessions     2 removed, older than 30 days",
        "agent_executions   kept: EVERSTEP_KEEP_EXECUTIONS_DAYS is not set",
        "agent_envelopes    kept: EVERSTEP_KEEP_ENVELOPES_DAYS is not set",
        "agent_answers      0 removed, older than a day",
        "agent_webhook_deliveries  0 removed, older than 30 days",
        "agent_attachments  0 removed, older than a day",
    ]
    assert await remaining_sessions(desk) == []


async def test_it_needs_only_the_database(desk: CommandLine) -> None:
    said = await desk.output_of("prune", TEMPORAL_ADDRESS=None)

    assert said.startswith("agent_sessions     kept")


async def test_an_interrupted_prune_keeps_its_completed_part(
    desk: CommandLine, nursery: Nursery, tmp_path: Path
) -> None:
    """8.7.2"""
    await create_two_old_sessions(desk)
    log = tmp_path / "log"
    log.touch()

    async with open_connection(desk) as connection, open_connection(desk) as looking:
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
        assert await process.wait() == 130

    assert log.read_text() == "agent_sessions     1 removed, older than 30 days\n"
    assert await remaining_sessions(desk) == [OLD[1]]
    await desk.output_of("prune", **A_MONTH)
    assert await remaining_sessions(desk) == []


@pytest.mark.parametrize("days", ["0", "-1", "soon", "inf", "nan"])
async def test_an_invalid_duration_is_refused(desk: CommandLine, days: str) -> None:
    complaint = await desk.error_of("prune", EVERSTEP_KEEP_ANSWERS_DAYS=days)

    assert complaint.startswith("the settings cannot be used: keep_answers_days")
