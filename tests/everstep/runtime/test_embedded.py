"""The embedded services with the real servers: normal operation, and failures."""

import asyncio
import os
import pwd
import signal
import socket
import sqlite3
import subprocess
import sys
import sysconfig
import urllib.request
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncGenerator, Callable, Generator, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from sqlalchemy import make_url, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool
from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest
from temporalio.client import Client

from everstep.runtime.embedded import (
    ChildExit,
    DataInUse,
    EmbeddedError,
    EmbeddedServices,
    EmbeddedState,
    Postgres,
    ServiceFailed,
    Temporal,
    find_running,
    open_services,
    postgres_server as postgres_module,
)
from tests.services import careless, data_directory

pytestmark = pytest.mark.asyncio(loop_scope="module")

ROOT = Path(__file__).parents[3]

DEADLINE = 20.0

PARENT = """
import asyncio, sys
from pathlib import Path
from everstep.runtime.embedded import EmbeddedConfig, open_services

async def main():
    config = EmbeddedConfig(Path(sys.argv[1]), 0, 0, postgres_settings={"fsync": "off"})
    async with open_services(config) as services:
        print(services.postgres.pid, services.temporal.pid, services.database_url, flush=True)
        await services.death

asyncio.run(main())
"""
"""A process that runs the services until it is killed."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ours() -> AsyncGenerator[EmbeddedServices]:
    with data_directory() as data:
        async with open_services(careless(data)) as services:
            yield services


@pytest.fixture
def data() -> Generator[Path]:
    with data_directory() as folder:
        yield folder


@pytest.fixture
def busy_port() -> Generator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


async def wait_until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE):
        while not condition():  # noqa: ASYNC110 -- there is no event for the end of another process
            await asyncio.sleep(0.01)


async def query(url: str, *statements: str) -> object:
    """The result of the last statement, in its own connection."""
    engine = create_async_engine(url, poolclass=NullPool)
    async with engine.begin() as connection:
        for statement in statements[:-1]:
            await connection.execute(text(statement))
        return await connection.scalar(text(statements[-1]))


async def start_workflow(services: EmbeddedServices, id_: str) -> None:
    client = await Client.connect(services.temporal_address)
    await client.start_workflow("anything", id=id_, task_queue="nobody-listens")


async def workflow_type(services: EmbeddedServices, id_: str) -> str | None:
    client = await Client.connect(services.temporal_address)
    return (await client.get_workflow_handle(id_).describe()).workflow_type


async def search_attributes(temporal: Temporal) -> set[str]:
    client = await Client.connect(temporal.address)
    known = await client.operator_service.list_search_attributes(
        ListSearchAttributesRequest(namespace="default")
    )
    return set(known.custom_attributes)


def is_alive(pid: int) -> bool:
    """A zombie is not alive."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def children_of(pid: int) -> set[int]:
    found: set[int] = set()
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(entry.read_text().rpartition(")")[2].split()[1]) == pid:
                found.add(int(entry.parent.name))
        except OSError:
            continue
    return found


@dataclass(frozen=True)
class PlainUser:
    """A user without root's rights, and an interpreter that this user can run."""

    user: pwd.struct_passwd
    python: str

    @property
    def options(self) -> dict[str, Any]:
        return {
            "user": self.user.pw_uid,
            "group": self.user.pw_gid,
            "extra_groups": [],
            "env": self.environment,
        }

    @property
    def environment(self) -> dict[str, str]:
        return {"PATH": os.defpath, "PYTHONPATH": os.pathsep.join([str(ROOT), sysconfig.get_path("purelib")])}


@pytest.fixture
def plain_user() -> PlainUser:
    if os.geteuid() != 0:
        pytest.skip("only root can become another user; under a plain user all other tests are this one")
    # Ordinary users may be unable to reach root's interpreter.
    for python in (sys.executable, f"/usr/bin/python3.{sys.version_info.minor}"):
        plain = PlainUser(pwd.getpwnam("nobody"), python)
        with suppress(OSError, subprocess.CalledProcessError):
            importing = [python, "-c", "import everstep.runtime.embedded"]
            subprocess.run(importing, check=True, **plain.options)  # noqa: S603 -- our own words
            return plain
    pytest.skip("no other user can reach an interpreter and the packages installed here")


async def start_parent(
    data: Path, plain: PlainUser | None = None
) -> tuple[asyncio.subprocess.Process, set[int], str]:
    """A process that runs the services, all processes of the services, and the database's URL."""
    parent = await asyncio.create_subprocess_exec(
        *(plain.python if plain else sys.executable, "-c", PARENT, data),
        stdin=DEVNULL,
        stdout=PIPE,
        **(plain.options if plain else {}),
    )
    assert parent.stdout
    postgres, temporal, url = (await asyncio.wait_for(parent.stdout.readline(), DEADLINE)).decode().split()
    pids = {int(postgres), int(temporal), *children_of(int(postgres))}
    assert len(pids) > 3
    return parent, pids, url


class TestBothServers:
    async def test_the_database_answers(self, ours: EmbeddedServices) -> None:
        assert make_url(ours.database_url).drivername == "postgresql+psycopg"
        assert await query(ours.database_url, "SELECT current_database()") == "everstep"
        assert str(await query(ours.database_url, "SHOW server_version")).startswith("18")
        assert await query(ours.database_url, "SHOW listen_addresses") == ""
        assert await query(ours.database_url, "SELECT lower('Ä')") == "ä"

    async def test_temporal_and_its_ui_answer(self, ours: EmbeddedServices) -> None:
        client = await Client.connect(ours.temporal_address)
        assert await client.service_client.check_health()
        page = await asyncio.to_thread(urllib.request.urlopen, ours.ui_url)
        with page:
            assert page.status == 200

    async def test_they_have_the_given_settings(self, ours: EmbeddedServices) -> None:
        assert await query(ours.database_url, "SHOW fsync") == "off"
        with sqlite3.connect(ours.config.data / "temporal.db") as connection:
            assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        connection.close()

    async def test_other_processes_can_find_them(self, ours: EmbeddedServices) -> None:
        assert find_running(ours.config.data) == ours.state
        assert ours.state.pid == os.getpid()

    async def test_a_second_start_on_their_data_is_refused_and_names_the_process(
        self, ours: EmbeddedServices
    ) -> None:
        with pytest.raises(DataInUse, match=f"in use by process {os.getpid()}; stop it first"):
            async with open_services(ours.config):
                pass
        assert await query(ours.database_url, "SELECT 1") == 1

    async def test_a_restarted_database_has_its_data_and_its_url(self, ours: EmbeddedServices) -> None:
        url = ours.database_url
        await query(url, "CREATE TABLE kept AS SELECT 7 AS n", "SELECT 1")
        for end in (ours.postgres.kill, ours.postgres.stop):
            pid = ours.postgres.pid
            await end()
            assert ours.postgres.pid is None
            with pytest.raises(OperationalError):
                await query(url, "SELECT 1")
            await ours.postgres.start()
            assert ours.postgres.pid not in {None, pid}
            assert ours.database_url == url
            assert await query(url, "SELECT n FROM kept") == 7

    async def test_a_restarted_temporal_has_its_workflows_and_its_address(
        self, ours: EmbeddedServices
    ) -> None:
        before = ours.temporal_address, ours.ui_url
        for end in (ours.temporal.kill, ours.temporal.stop):
            await start_workflow(ours, id_ := f"kept-{end.__name__}")
            await end()
            assert ours.temporal.pid is None
            await ours.temporal.start()
            assert (ours.temporal_address, ours.ui_url) == before
            assert await workflow_type(ours, id_) == "anything"

    async def test_an_intended_stop_is_not_a_crash(self, ours: EmbeddedServices) -> None:
        died = asyncio.ensure_future(ours.death)
        await ours.postgres.kill()
        await ours.postgres.stop()
        await ours.postgres.start()
        assert not died.done()

    async def test_a_crash_is_reported_with_the_exit_code_and_the_end_of_the_log(
        self, ours: EmbeddedServices
    ) -> None:
        for service in (ours.postgres, ours.temporal):
            pid = service.pid
            assert pid is not None
            waiting, impatient = asyncio.ensure_future(ours.death), asyncio.ensure_future(ours.death)
            impatient.cancel()
            os.kill(pid, signal.SIGKILL)

            death = await asyncio.wait_for(waiting, DEADLINE)

            assert (death.service, death.pid, death.code) == (service.name, pid, -signal.SIGKILL)
            assert death.log_tail == service.log.read_text().rstrip("\n")
            assert f"{service.name} (process {pid}) was killed by SIGKILL" in str(death)
            assert service.pid is None
            assert (await ours.death) == death
            await service.start()
        assert "ready to accept connections" in ours.postgres.log.read_text()

    async def test_a_new_log_is_started_and_the_previous_one_is_kept(self, ours: EmbeddedServices) -> None:
        await ours.postgres.stop()
        before = ours.postgres.log.read_text()
        await ours.postgres.start()
        assert ours.postgres.log.with_name("postgres.log.1").read_text() == before
        assert before not in ours.postgres.log.read_text()

    async def test_a_stale_pid_file_of_a_reused_pid_is_recovered_from(self, ours: EmbeddedServices) -> None:
        await ours.postgres.stop()
        owner = ours.postgres.user
        other = await asyncio.create_subprocess_exec("sleep", "600", user=owner.uid if owner else None)
        pid_file = ours.postgres.cluster / "postmaster.pid"
        pid_file.write_text(f"{other.pid}\n{ours.postgres.cluster}\n1\n5432\n\n\n\nready\n")
        (ours.postgres.sockets / ".s.PGSQL.5432.lock").write_text(f"{other.pid}\n")

        await ours.postgres.start()

        assert other.returncode is None
        assert await query(ours.database_url, "SELECT 1") == 1
        other.kill()
        await other.wait()

    async def test_an_orphaned_server_is_replaced(
        self, ours: EmbeddedServices, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(postgres_module, "LEFTOVER_GRACE", 0.1)
        left = ours.postgres.pid
        deaths: list[ChildExit] = []
        again = Postgres(ours.config, None, deaths.append)

        await again.start()

        assert left
        assert not is_alive(left)
        assert again.url == ours.database_url
        assert await query(again.url, "SELECT 1") == 1
        await again.stop()
        assert deaths == []
        await wait_until(lambda: ours.postgres.pid is None)
        await ours.postgres.start()


class TestTwoInstallations:
    async def test_run_side_by_side_even_with_long_closed_and_unusual_paths(
        self, ours: EmbeddedServices, data: Path
    ) -> None:
        closed = data
        data = closed / ("a 'very', %41 long: näme?#" * 4)
        config = replace(careless(data), postgres_port=0, search_attributes={"Tenant": "Keyword"})

        async with open_services(config) as theirs:
            sockets = theirs.postgres.sockets
            assert not sockets.is_relative_to(data)
            assert sockets.stat().st_mode & 0o077 == 0
            assert closed.stat().st_mode & 0o007 == 0
            assert ours.temporal_address != theirs.temporal_address
            assert ours.ui_url != theirs.ui_url
            assert await search_attributes(theirs.temporal) == {"Tenant"}
            assert await search_attributes(ours.temporal) == set()
            await query(theirs.database_url, "CREATE TABLE theirs AS SELECT 1", "SELECT 1")
            assert await query(ours.database_url, "SELECT to_regclass('theirs')") is None

            assert theirs.postgres.tcp_url
            assert await query(theirs.postgres.tcp_url, "SELECT count(*) FROM theirs") == 1
            wrong = make_url(theirs.postgres.tcp_url).set(password="wrong")  # noqa: S106 -- a fake password
            with pytest.raises(OperationalError, match="password authentication failed"):
                await query(wrong.render_as_string(hide_password=False), "SELECT 1")
            left = [theirs.postgres.pid, theirs.temporal.pid]

        assert not sockets.exists()
        assert not [pid for pid in left if pid and is_alive(pid)]
        assert find_running(data) is None
        assert EmbeddedState.read(data)


class TestPorts:
    async def test_a_busy_port_is_replaced_by_a_free_one_also_at_the_last_moment(
        self, data: Path, busy_port: int
    ) -> None:
        temporal = Temporal(replace(careless(data), temporal_port=busy_port), None, print)
        assert temporal.port != busy_port

        temporal.port = busy_port
        await temporal.start()

        assert temporal.port != busy_port
        assert await search_attributes(temporal) == set()
        await temporal.kill()

    async def test_a_new_search_attribute_is_registered_on_old_files(self, data: Path) -> None:
        first = Temporal(replace(careless(data), search_attributes={"First": "Int"}), None, print)
        await first.start()
        await first.kill()
        both = Temporal(
            replace(careless(data), search_attributes={"First": "Int", "Second": "KeywordList"}),
            None,
            print,
        )
        await both.start()
        assert await search_attributes(both) == {"First", "Second"}
        await both.kill()


class TestFailures:
    async def test_a_failed_start_has_its_reason_and_stops_the_other_server(self, data: Path) -> None:
        config = replace(careless(data), postgres_settings={"fsync": "off", "shared_buffers": "many"})
        before = children_of(os.getpid())

        with pytest.raises(
            ServiceFailed, match='invalid value for parameter "shared_buffers": "many"'
        ) as failed:
            async with open_services(config):
                pass

        assert str(failed.value).startswith("postgres did not start: it exited with code 1; the end of ")
        assert children_of(os.getpid()) == before
        assert find_running(data) is None

    async def test_a_server_that_does_not_answer_in_time_has_failed(self, data: Path) -> None:
        temporal = Temporal(replace(careless(data), start_timeout=0.05), None, print)
        before = children_of(os.getpid())

        with pytest.raises(ServiceFailed, match=r"temporal did not answer within 0\.05 seconds"):
            await temporal.start()

        assert temporal.pid is None
        assert children_of(os.getpid()) == before

    @pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
    async def test_a_socket_is_not_put_in_a_directory_of_another_user(self, data: Path) -> None:
        postgres = Postgres(careless(data / ("long" * 20)), None, print)
        postgres.config.data.mkdir()
        postgres.sockets.mkdir(mode=0o700)
        os.chown(postgres.sockets, 54_321, 54_321)

        with pytest.raises(EmbeddedError, match=f"{postgres.sockets} belongs to another user; remove it"):
            await postgres.start()

        postgres.forget()
        postgres.sockets.rmdir()

    async def test_files_in_use_by_another_server_are_left_unchanged(self, data: Path) -> None:
        postgres = Postgres(careless(data), None, print)
        postgres.cluster.mkdir()
        (postgres.cluster / "PG_VERSION").write_text("18\n")
        stranger = await asyncio.create_subprocess_exec(
            "tail", "-f", "/dev/null", postgres.cluster / "PG_VERSION"
        )
        (postgres.cluster / "postmaster.pid").write_text(f"{stranger.pid}\n")

        with pytest.raises(EmbeddedError, match=f"in use by process {stranger.pid}, which is not ours: tail"):
            await postgres.start()

        assert (postgres.cluster / "postmaster.pid").exists()
        stranger.kill()
        await stranger.wait()


def owners(pids: Iterable[int]) -> set[int]:
    """The owners of these processes; PostgreSQL's helper processes may have ended."""
    found = set[int]()
    for pid in pids:
        with suppress(FileNotFoundError):
            found.add(Path(f"/proc/{pid}").stat().st_uid)
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
class TestAKilledParent:
    async def test_leaves_no_server_and_data_that_the_next_start_recovers(self, data: Path) -> None:
        parent, pids, url = await start_parent(data)
        await query(url, "CREATE TABLE kept AS SELECT 7 AS n", "SELECT 1")

        parent.kill()
        await parent.wait()

        await wait_until(lambda: not any(map(is_alive, pids)))
        assert (data / "lock").read_text() == f"{parent.pid}\n"
        assert find_running(data) is None
        async with open_services(careless(data)) as services:
            assert await query(services.database_url, "SELECT n FROM kept") == 7
            assert find_running(data) == services.state

    async def test_behaves_the_same_under_a_plain_user(self, data: Path, plain_user: PlainUser) -> None:
        os.chown(data, plain_user.user.pw_uid, plain_user.user.pw_gid)
        parent, pids, _ = await start_parent(data, plain_user)
        assert owners(pids) == {plain_user.user.pw_uid}

        parent.kill()
        await parent.wait()

        await wait_until(lambda: not any(map(is_alive, pids)))

    @pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
    async def test_under_root_the_database_runs_as_another_user(self, ours: EmbeddedServices) -> None:
        pid = ours.postgres.pid
        assert pid
        assert 0 not in owners({pid, *children_of(pid)})
