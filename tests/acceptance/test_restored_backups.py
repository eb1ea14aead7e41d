"""Both databases are restored from backups: of the same time, and of different times.

The first backup has one execution that has ended, one that waits for an answer, one that waits for a model,
and one that was started between the two backups, as Temporal is always backed up first. Then they go on, and
others start. The second backup has all of that.
"""

import asyncio
import shutil
import sqlite3
import subprocess
from collections.abc import AsyncGenerator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest
import pytest_asyncio
from sqlalchemy import make_url, text

from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.client.client import Execution
from everstep.client.reconciler import Reconciler, Repairs
from everstep.client.stray_workflows import WENT_ON, StrayWorkflows
from everstep.runtime.embedded import EmbeddedServices, open_services
from everstep.runtime.embedded.postgres_server import postgres_binaries
from everstep.runtime.installation import mark_restore, open_installation as open_whole_installation
from everstep.runtime.settings import Settings
from tests.acceptance.harness import (
    AGENTS,
    Installation,
    Nursery,
    Site,
    open_installation,
    site,
    until,
    until_pause,
)
from tests.databases import Databases
from tests.services import careless, data_directory

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.slow]

GATES = "book: turn 2;ask and wait: turn 3"
QUEUE = "backups"


@dataclass(frozen=True)
class Moment:
    """A backup of both databases."""

    temporal: Path
    postgres: Path
    at: datetime


@dataclass
class Backups:
    """An installation, its executions, and two backups of it."""

    services: EmbeddedServices
    installation: Installation
    folder: Path
    executions: dict[str, Execution]
    moments: dict[str, Moment]

    @property
    def temporal_file(self) -> Path:
        return self.services.config.data / "temporal.db"

    @property
    def settings(self) -> Settings:
        return Settings.read(
            database_url=self.installation.database_url,
            temporal_address=self.installation.temporal_address,
            task_queue=QUEUE,
            agents=AGENTS,
        )

    def dump(self, program: str, *arguments: str) -> None:
        """Run one of PostgreSQL's programs for the installation's database."""
        url = make_url(self.installation.database_url).set(drivername="postgresql")
        given = url.render_as_string(hide_password=False)
        subprocess.run([postgres_binaries() / program, "--dbname", given, *arguments], check=True)  # noqa: S603 -- own programs

    async def back_up_temporal(self, name: str) -> Path:
        """Back Temporal's database up while it is in use."""
        copy = self.folder / f"{name}.sqlite"
        with closing(sqlite3.connect(self.temporal_file)) as source, closing(sqlite3.connect(copy)) as target:
            source.backup(target)
        return copy

    async def back_up_postgres(self, name: str) -> Path:
        """Back our database up while it is in use."""
        file = self.folder / f"{name}.dump"
        await asyncio.to_thread(self.dump, "pg_dump", "--format=custom", f"--file={file}")
        return file

    async def restore(self, temporal: str | None, postgres: str) -> None:
        """Restore both databases; without a moment, Temporal begins with an empty one."""
        await self.services.temporal.stop()
        for file in self.temporal_file.parent.glob("temporal.db*"):
            file.unlink()
        if temporal:
            shutil.copy(self.moments[temporal].temporal, self.temporal_file)
        url = self.installation.database_url
        databases = Databases(url)
        await self.installation.store.engine.dispose()
        databases.drop(url)
        databases.run(f"CREATE DATABASE {make_url(url).database}")
        file = self.moments[postgres].postgres
        await asyncio.to_thread(self.dump, "pg_restore", "--no-owner", "--exit-on-error", str(file))
        await self.services.temporal.start()

    async def repair(self) -> Repairs:
        """Repair as `everstep doctor --repair` does, but without waiting for other processes."""
        async with open_whole_installation(self.settings) as whole:
            return await Reconciler(whole.sessions, grace=0).once(thorough=True)

    async def status(self, name: str) -> ExecutionStatus | None:
        """The stored status of an execution, or None if it does not exist."""
        row = await self.installation.store.execution(self.executions[name].ref)
        return row and row.status

    async def is_completed(self, *names: str) -> bool:
        return {await self.status(name) for name in names} == {ExecutionStatus.COMPLETED}

    async def open_workflows(self) -> int:
        found = self.installation.temporal.list_workflows("ExecutionStatus = 'Running'")
        return len([workflow async for workflow in found])

    async def nothing_runs(self) -> bool:
        return await self.open_workflows() == 0

    async def counts(self, name: str) -> tuple[int, int]:
        """The steps and the envelopes of an execution."""
        async with self.installation.store.engine.connect() as connection:
            statement = text(
                "SELECT (SELECT count(*) FROM agent_steps WHERE execution_id = :id), "
                "(SELECT count(*) FROM agent_envelopes WHERE execution_id = :id)"
            )
            row = (await connection.execute(statement, {"id": self.executions[name].id})).one()
        return row[0], row[1]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def backups(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Backups]:
    folder = tmp_path_factory.mktemp("backups")
    with data_directory() as data:
        async with open_services(careless(data)) as services:
            own = Databases(services.database_url).create("template0", "backups")
            async with open_installation(nursery, services, own) as installation:
                made = Backups(services, installation, folder, {}, {})
                async with site(QUEUE, installation, folder / "first") as place:
                    await _fill(made, place)
                yield made


async def _fill(made: Backups, place: Site) -> None:
    """Run the executions, and make both backups."""
    await place.worker(gates=GATES)
    known = made.executions
    known["ended"] = await place.start("jot")
    await known["ended"].result()
    known["waiting"] = await place.start("ask")
    known["answered"] = await place.start("ask and wait")
    known["running"] = await place.start("book")
    await until_pause(known["waiting"])
    await until_pause(known["answered"])
    await place.until_entry("waiting", "turn 2")
    temporal = await made.back_up_temporal("early")
    known["between"] = await place.start("ask")
    await until_pause(known["between"])
    postgres = await made.back_up_postgres("early")
    made.moments["early"] = Moment(temporal, postgres, datetime.now(UTC))

    await known["waiting"].submit_input("low")
    await known["waiting"].result()
    await known["answered"].submit_input("high")
    await until("it waits again", lambda: place.count("waiting", "turn 3"))
    known["late"] = await place.start("ask")
    await until_pause(known["late"])
    known["late and ended"] = await place.start("jot")
    await known["late and ended"].result()
    temporal = await made.back_up_temporal("late")
    postgres = await made.back_up_postgres("late")
    made.moments["late"] = Moment(temporal, postgres, datetime.now(UTC))


async def test_nothing_in_backups_of_one_time_is_lost(backups: Backups) -> None:
    """18.9.1"""
    await backups.restore("early", "early")
    before = await backups.counts("ended")

    async with site(QUEUE, backups.installation, backups.folder / "same") as place:
        await place.worker()
        repairs = await backups.repair()
        await backups.executions["between"].submit_input("low")
        await backups.executions["waiting"].submit_input("low")
        await backups.executions["answered"].submit_input("low")
        names = ("ended", "running", "between", "waiting", "answered")
        await until("all have ended", lambda: backups.is_completed(*names))
        await until("no workflow is left", backups.nothing_runs)

    assert repairs.launched == 1
    assert await backups.counts("ended") == before
    assert await backups.status("late") is None
    # What is recorded is not asked again: three turns of which the first, or the first two, were made before.
    asked = [(entry.data["about"], entry.where) for entry in place.journal("asked")]
    assert sorted(asked) == [
        ("ask", "turn 3"),
        ("ask", "turn 3"),
        ("ask and wait", "turn 3"),
        ("book", "turn 2"),
        ("book", "turn 3"),
    ]


@pytest.mark.parametrize("temporal", ["early", None], ids=["older", "gone"])
async def test_executions_go_on_from_a_database_that_is_newer_than_temporals(
    backups: Backups, temporal: str | None
) -> None:
    """18.9.1"""
    await backups.restore(temporal, "late")
    before = {name: await backups.counts(name) for name in ("ended", "waiting", "late and ended")}

    async with site(QUEUE, backups.installation, backups.folder / f"newer than {temporal}") as place:
        await place.worker()
        await backups.repair()
        await backups.executions["between"].submit_input("low")
        await backups.executions["late"].submit_input("low")
        await until("all have ended", lambda: backups.is_completed(*backups.executions))

        async def is_quiet() -> bool:
            # As an operator repeats the repair; a workflow of an ended execution closes on its own, too.
            await backups.repair()
            return await backups.nothing_runs()

        await until("no workflow is left", is_quiet)

    assert {name: await backups.counts(name) for name in before} == before
    asked = [entry.where for entry in place.journal("asked")]
    assert sorted(asked) == ["turn 2", "turn 3", "turn 3", "turn 3", "turn 3"]


async def test_executions_that_went_on_after_the_databases_backup_end(backups: Backups) -> None:
    """18.9.2, 7.8.4"""
    await backups.restore("late", "early")
    epoch = text("SELECT epoch FROM agent_journal")
    async with backups.installation.store.engine.connect() as connection:
        before = (await connection.execute(epoch)).scalar_one()

    await mark_restore(backups.settings)
    async with open_whole_installation(backups.settings) as whole:
        ended = await StrayWorkflows(whole.sessions).end_later_than(backups.moments["early"].at)
    async with site(QUEUE, backups.installation, backups.folder / "older") as place:
        await place.worker()
        repairs = await backups.repair()
        await backups.executions["between"].submit_input("low")
        await until("it has ended", lambda: backups.is_completed("between"))
        await until("no workflow is left", backups.nothing_runs)

    answered = await backups.executions["answered"].get()
    assert (answered.status, answered.error_message) == (ExecutionStatus.FAILED, WENT_ON)
    # One waits for a model at both times, so that its workflow has no later event.
    assert (ended, repairs.ended, repairs.closed) == (1, 1, 1)
    waiting = await backups.executions["waiting"].get()
    assert waiting.status is ExecutionStatus.FAILED
    assert waiting.error_message == "Its workflow ended without writing it down"
    assert await backups.is_completed("ended", "running")
    assert await backups.status("late and ended") is None
    async with backups.installation.store.engine.connect() as connection:
        assert (await connection.execute(epoch)).scalar_one() != before
