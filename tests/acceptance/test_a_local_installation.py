"""`everstep up` in a project's folder: where its data are, and who can access them and its servers."""

import asyncio
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import urllib.error
import urllib.request
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import make_url

from everstep.runtime.embedded.process_table import command_lines
from tests.acceptance.harness import Nursery, Process, environment, until
from tests.services import data_directory

pytestmark = pytest.mark.asyncio(loop_scope="session")

ANY_PORT = ("--temporal-port", "0", "--ui-port", "0", "--http-port", "0", "--gateway-port", "0")


@dataclass(frozen=True)
class Place:
    """A user's home with projects in it."""

    root: Path
    nursery: Nursery

    @property
    def state(self) -> Path:
        """The folder with the data of all projects."""
        return self.root / "state" / "everstep"

    @property
    def environment(self) -> dict[str, str]:
        """The environment of every process here."""
        return environment(XDG_STATE_HOME=str(self.root / "state"), HOME=str(self.root))

    def project(self, name: str) -> Path:
        """Create a project's folder."""
        folder = self.root / name
        folder.mkdir()
        return folder

    def data(self) -> list[Path]:
        """The data folders that exist."""
        return sorted(self.state.glob("*"))

    async def says(self, project: Path, *arguments: str) -> str:
        """Run a command that succeeds and return its output."""
        out, err = self.new_file("out"), self.new_file("err")
        process = await self.start(project, *arguments, out=out, err=err)
        assert await process.wait() == 0, err.read_text()
        return out.read_text()

    async def start(self, project: Path, *arguments: str, out: Path, err: Path) -> Process:
        """Start a command in a project's folder."""
        return await self.nursery.start(
            *arguments, log=out, errors=err, environment=self.environment, folder=project
        )

    def new_file(self, name: str) -> Path:
        """An empty file."""
        file = self.root / f"{name}-{len(list(self.root.iterdir()))}"
        file.touch()
        return file


@dataclass(frozen=True)
class Up:
    """A running installation, by what it printed."""

    out: str
    err: str

    @property
    def database_url(self) -> str:
        return json.loads(self.out)["database_url"]

    @property
    def ui_url(self) -> str:
        """Temporal's UI."""
        return json.loads(self.out)["ui_url"]


@pytest.fixture
def place(nursery: Nursery) -> Generator[Place]:
    with data_directory() as root:
        yield Place(root, nursery)


@asynccontextmanager
async def up(place: Place, project: Path, *options: str) -> AsyncGenerator[Up]:
    """Start it as a user does, and stop it with Ctrl-C."""
    out, err = place.new_file("up"), place.new_file("up")
    process = await place.start(project, *options, "up", "--json", *ANY_PORT, out=out, err=err)
    try:
        await until("it is up", lambda: out.read_text().endswith("}\n") or process.code is not None)
        assert process.code is None, err.read_text()
        yield Up(out.read_text(), err.read_text())
    finally:
        if process.code is None:
            process.signal(signal.SIGINT)
        await process.wait()


async def test_data_are_outside_the_project_and_found_again(place: Place) -> None:
    """13.1.1, 13.1.3 and 13.1.4: by every command; a project that was moved or cloned says where they are."""
    project = place.project("project")
    subprocess.run(["git", "init", "-q"], cwd=project, check=True)  # noqa: ASYNC221, S607
    who = ("-c", "user.name=me", "-c", "user.email=me@example.com")
    commit = ["git", *who, "commit", "-q", "--allow-empty", "-m", "first"]
    subprocess.run(commit, cwd=project, check=True)  # noqa: ASYNC221, S603
    async with up(place, project) as first:
        [data] = place.data()
        assert f"This project has no data yet. Its data will be stored in {data} (" in first.err
        assert [path.name for path in project.iterdir()] == [".git"]
        link = place.root / "link"
        link.symlink_to(project)
        assert "I am the scripted demo model" in await place.says(link, "run", "Hello")
        assert "ok     Temporal answers" in await place.says(project, "doctor")
    shutil.copytree(project, place.root / "clone")
    project.rename(place.root / "moved")
    for name in ("moved", "clone"):
        async with up(place, place.root / name) as elsewhere:
            assert f"To use them: everstep --data {data} up" in elsewhere.err
    async with up(place, place.root / "moved", "--data", str(data)):
        assert "completed" in await place.says(place.root / "moved", "--data", str(data), "executions")


async def test_a_folder_in_the_project_is_used_on_request_and_found_again(place: Place) -> None:
    """13.1.2"""
    project = place.project("project")
    inside = project / ".everstep"
    async with up(place, project, "--data", ".everstep") as asked:
        assert str(inside) not in asked.err
    async with up(place, project) as found:
        assert f"The data of this project are in {inside}, inside the project." in found.err
    assert place.data() == []

    # A copy of the project includes the folder, and there it is another project's data.
    theirs = place.project("theirs")
    shutil.copytree(inside, theirs / ".everstep")
    async with up(place, theirs) as fresh:
        assert f"{theirs / '.everstep'} holds data that were not created here, and is not used." in fresh.err
    assert len(place.data()) == 1


async def test_only_the_owner_can_access_the_data_and_the_servers(place: Place) -> None:
    """13.1.6, 13.2.1, 13.2.2, 13.3.3 and 13.3.4: also where umask and modes allow others to read."""
    project = place.project("project")
    before = os.umask(0)
    try:
        async with up(place, project) as here:
            [data] = place.data()
            await place.says(project, "run", "Hello")
            assert open_to_others(data) == []
            check_database(here, place.root / "ran")
            await check_data_for_password(here, data)
            await check_temporal_ui(here)
    finally:
        os.umask(before)
    data.chmod(0o755)
    (data / "temporal.db").chmod(0o644)
    async with up(place, project) as again:
        assert "no data" not in again.err
        assert open_to_others(data) == []
        assert again.database_url == here.database_url
        # Temporal's file is written through a log that is flushed with each commit.
        with sqlite3.connect(data / "temporal.db") as connection:
            assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        connection.close()
        assert "completed" in await place.says(project, "executions")


def open_to_others(data: Path) -> list[str]:
    """Files that other users can access; a journal may go while they are listed."""
    found: list[str] = []
    for each in (data, *data.rglob("*")):
        with suppress(FileNotFoundError):
            if each.lstat().st_mode & 0o077:
                found.append(str(each))
    return found


def connection_error(url: str, **other: str | None) -> str:
    """PostgreSQL's refusal."""
    parts = make_url(url)
    given = {"user": parts.username, "password": parts.password, "dbname": parts.database, **other}
    try:
        psycopg.connect(host=str(parts.query["host"]), **given).close()  # type: ignore[arg-type]
    except psycopg.OperationalError as error:
        return str(error)
    return "it let them in"


def check_database(here: Up, ran: Path) -> None:
    """It has a password, and its user is no superuser."""
    url, password = here.database_url, make_url(here.database_url).password
    assert isinstance(password, str)
    assert "rejects connection" in connection_error(url, user="postgres", dbname="postgres")
    assert "rejects connection" in connection_error(url, user="postgres", password=None)
    assert "password" in connection_error(url, password=None)
    assert "password authentication failed" in connection_error(url, password="wrong")  # noqa: S106
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        for attack in (
            f"COPY (SELECT 1) TO PROGRAM 'touch {ran}'",
            f"COPY (SELECT 1) TO '{ran}'",
            "SELECT pg_read_file('/etc/passwd')",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(attack.encode())
    assert not ran.exists()


async def check_data_for_password(here: Up, data: Path) -> None:
    """Its password is in two files, and nowhere else."""
    password = make_url(here.database_url).password
    assert isinstance(password, str)
    assert not [line for line in (await command_lines()).values() if password in line]
    assert password not in here.err
    holders = [each for each in data.rglob("*") if each.is_file() and password.encode() in each.read_bytes()]
    assert sorted(each.name for each in holders) == ["database-password", "services.json"]


def response_status(url: str, *headers: tuple[str, str]) -> int:
    """The status of the response."""
    request = urllib.request.Request(url, headers=dict(headers))  # noqa: S310 -- a fixed URL
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


async def check_temporal_ui(here: Up) -> None:
    """Web pages cannot reach Temporal through it."""
    ui = f"{here.ui_url}/api/v1/namespaces"

    async def reaches_temporal() -> bool:
        # The UI answers before it is connected to its Temporal.
        return await asyncio.to_thread(response_status, ui) == 200

    await until("the UI reaches Temporal", reaches_temporal)
    assert await asyncio.to_thread(response_status, here.ui_url) == 200
    for header in (("Host", "evil.com"), ("Origin", "http://evil.com"), ("Host", "evil.com:80")):
        assert await asyncio.to_thread(response_status, ui, header) == 403
        assert await asyncio.to_thread(response_status, here.ui_url, header) == 403
