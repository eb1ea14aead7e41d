"""Reporting that the database was restored."""

from uuid import UUID

import psycopg
import pytest

from tests.everstep.cli.desk import CommandLine

pytestmark = pytest.mark.asyncio(loop_scope="session")


def current_epoch(desk: CommandLine) -> UUID:
    with psycopg.connect(desk.installation.database_url.replace("+psycopg", "")) as connection:
        ((found,),) = connection.execute("SELECT epoch FROM agent_journal").fetchall()
    return found


async def test_an_operator_reports_that_the_database_was_restored(desk: CommandLine) -> None:
    """7.8.4: the epoch changes when stored history may have changed."""
    before = current_epoch(desk)
    complaint = await desk.error_of("db", "restored", "--as-of", "2100-01-01")
    assert complaint.startswith("--as-of is 2100-01-01 00:00:00 UTC, which is in the future; name the time")
    assert current_epoch(desk) == before

    said = await desk.output_of("db", "restored")

    assert said == "the journal has a new epoch: viewers that reconnect reload everything\n"
    assert current_epoch(desk) != before
