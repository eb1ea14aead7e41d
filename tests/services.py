"""The real servers, once per run of the tests.

The processes of a parallel run share the servers of one host process, so each test has databases and task
queues with names of its own. A test that stops or changes a server opens others.
"""

import asyncio
import os
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Final, Protocol

import pytest
import pytest_asyncio
from sqlalchemy import make_url

from everstep.runtime.embedded import EmbeddedConfig, find_running, open_services
from tests.databases import MIGRATED, Databases
from tests.programs import open_programs, start_programs, wait_for_programs

ROOT: Final = Path(__file__).parents[1]

POSTGRES: Final = {
    "fsync": "off",
    "full_page_writes": "off",
    # All tests of a parallel run have their pools on one server.
    "max_connections": "500",
    # Autovacuum visits hundreds of databases in turn, and a database that it visits cannot be dropped.
    "autovacuum": "off",
}
"""PostgreSQL without waiting for the disk. Committed data survive a killed server, but no power cut; without
`synchronous_commit` they would not even survive the former.
"""

SQLITE: Final = {"journal_mode": "wal", "synchronous": "off"}
"""The same for Temporal."""

DYNAMIC_CONFIG: Final[dict[str, object]] = {
    # Each test has its own task queue, and the server would make several parts of it, with metrics of each.
    "matching.numTaskqueueReadPartitions": 1,
    "matching.numTaskqueueWritePartitions": 1,
    "metrics.breakdownByTaskQueue": False,
    "metrics.breakdownByPartition": False,
    # It would store the state of each task queue every minute, also of those whose tests have ended.
    "matching.updateAckInterval": "1h",
}

DEADLINE: Final = 120.0

PREFIX: Final = "everstep-test-"

IN_MEMORY: Final = Path("/dev/shm")  # noqa: S108 -- only folders of random names are made there
ROOM: Final = 4 * 2**30
"""The free bytes that the data of a whole run needs, with room to spare."""


class Servers(Protocol):
    """The addresses of PostgreSQL and Temporal."""

    @property
    def database_url(self) -> str:
        """The URL of a database, for SQLAlchemy."""
        ...

    @property
    def temporal_address(self) -> str:
        """The address for Temporal's clients."""
        ...


def data_parent() -> str | None:
    """The folder for directories with servers' data: in memory where there is room, else None, the usual one.

    Each database consists of 300 files. To create and remove those of hundreds of databases on ext4 took a
    quarter of the CPU time of the store's tests.
    """
    if not os.access(IN_MEMORY, os.W_OK | os.X_OK):
        return None
    system = os.statvfs(IN_MEMORY)
    # Containers may have little of it, or refuse to run programs there.
    has_room = system.f_bavail * system.f_frsize > ROOM and not system.f_flag & getattr(os, "ST_NOEXEC", 0)
    return str(IN_MEMORY) if has_room else None


@contextmanager
def data_directory() -> Generator[Path]:
    """A directory that is removed afterwards.

    Not below pytest's: each session of pytest closes that one to other users, and under root PostgreSQL, also
    one of another session, runs as such a user.
    """
    with TemporaryDirectory(prefix=PREFIX, dir=data_parent()) as folder:
        yield Path(folder)


def careless(data: Path) -> EmbeddedConfig:
    """Servers on free ports that do not wait for the disk."""
    return EmbeddedConfig(
        data,
        temporal_port=0,
        ui_port=0,
        dynamic_config=DYNAMIC_CONFIG,
        temporal_pragmas=SQLITE,
        postgres_settings=POSTGRES,
    )


async def make_template(servers: Servers) -> None:
    """Create the database with empty tables, from which the databases of tests are copied."""
    from everstep.store.migrate import upgrade  # noqa: PLC0415 -- its imports take a second, for tests without servers

    databases = Databases(servers.database_url)
    # Each log-in hashes 4,096 times, to slow down guesses, and tests open thousands of connections.
    url = make_url(servers.database_url)
    databases.run(f"SET scram_iterations = 1; ALTER ROLE {url.username} PASSWORD '{url.password}'")
    databases.run(f"CREATE DATABASE {MIGRATED}")
    await upgrade(databases.url_of(MIGRATED))


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def services(request: pytest.FixtureRequest) -> AsyncGenerator[Servers]:
    """PostgreSQL and Temporal."""
    folder = getattr(request.config, "workerinput", {}).get("servers")
    if folder is not None:
        yield await _shared_servers(Path(folder))
        return
    with data_directory() as data:
        async with open_services(careless(data)) as running:
            await make_template(running)
            yield running


@pytest.fixture(scope="session")
def programs(request: pytest.FixtureRequest) -> Generator[Path]:
    """A folder for PATH, with a command `everstep` that starts fast."""
    folder = getattr(request.config, "workerinput", {}).get("servers")
    if folder is not None:
        yield wait_for_programs(Path(folder) / PROGRAMS)
        return
    with data_directory() as data, open_programs(data / PROGRAMS) as opened:
        yield opened


@pytest.fixture(scope="session")
def interpreter(request: pytest.FixtureRequest) -> Path:
    """A command that is called like `python -m pytest`; in a parallel run it has imported everything."""
    folder = getattr(request.config, "workerinput", {}).get("servers")
    return Path(sys.executable) if folder is None else Path(folder) / INTERPRETERS / "python"


@pytest.fixture(scope="session")
def databases(services: Servers) -> Databases:
    """The databases of the tests' server."""
    return Databases(services.database_url)


def make_database(services: Servers, name: str, template: str = MIGRATED) -> str:
    """Create a database whose name begins like this, with empty tables, and return its URL."""
    return Databases(services.database_url).create(template, name)


# The servers of a parallel run.

DATA, READY, LOG, PROGRAMS, INTERPRETERS = "data", "ready", "log", "programs", "interpreters"


class ServerHost:
    """The process of the servers. They end with it, and it ends with this process."""

    def __init__(self) -> None:
        self.folder = Path(mkdtemp(prefix=PREFIX, dir=data_parent()))
        with (self.folder / LOG).open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603 -- fixed arguments
                [sys.executable, "-m", "tests.services", self.folder],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=ROOT,
                # Ctrl-C is for the tests, which need the servers until their end.
                start_new_session=True,
            )
        self._programs = start_programs(self.folder / PROGRAMS)

    def close(self) -> None:
        """Stop the servers, and remove their data."""
        self._programs.communicate()
        self._process.communicate()
        shutil.rmtree(self.folder, ignore_errors=True)


async def _host(folder: Path) -> None:
    """Run the servers until the standard input ends, also because the tests were killed."""
    try:
        async with open_services(careless(folder / DATA)) as running:
            await make_template(running)
            (folder / READY).touch()
            await asyncio.to_thread(sys.stdin.read)
            # An orderly stop would wait for connections.
            await running.temporal.kill()
    finally:
        shutil.rmtree(folder / DATA, ignore_errors=True)


async def _shared_servers(folder: Path) -> Servers:
    """Wait until the host's servers answer."""
    deadline = time.monotonic() + DEADLINE
    while not (folder / READY).exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"the servers of the tests did not start: {(folder / LOG).read_text()}")
        await asyncio.sleep(0.05)
    running = find_running(folder / DATA)
    assert running, (folder / LOG).read_text()
    return running


if __name__ == "__main__":
    asyncio.run(_host(Path(sys.argv[1])))
