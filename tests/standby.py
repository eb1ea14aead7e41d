"""A PostgreSQL server with a standby by streaming replication, as processes of their own."""

import asyncio
import os
import signal
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psycopg

from everstep.runtime.embedded.permissions import let_reach, let_read, postgres_user
from everstep.runtime.embedded.postgres_server import INITDB, postgres_binaries
from tests.services import data_directory

DEADLINE = 30.0
ROLE = "everstep"


class Server:
    """A server in a folder, at one port for all its processes."""

    def __init__(self, folder: Path, options: dict[str, Any]) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = int(free.getsockname()[1])
        self.folder = folder
        self._options = options
        self._process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        return f"postgresql://{ROLE}@127.0.0.1:{self.port}/postgres"

    async def run(self, program: str, *arguments: str) -> None:
        """Run a program of PostgreSQL to its end."""
        process = await self._launch(program, *arguments)
        _, errors = await process.communicate()
        assert process.returncode == 0, errors.decode()

    async def start(self) -> None:
        """Start it, and wait until it answers."""
        settings = {"port": self.port, "fsync": "off", "unix_socket_directories": ""}
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        self._process = await self._launch("postgres", "-D", str(self.folder), *options)
        async with asyncio.timeout(DEADLINE):
            while True:
                try:
                    await self.execute("SELECT 1")
                except psycopg.OperationalError:
                    assert self._process.returncode is None, await self._process.communicate()
                    await asyncio.sleep(0.02)
                else:
                    return

    async def execute(self, statement: str) -> None:
        """Execute a statement as the superuser."""
        async with await psycopg.AsyncConnection.connect(self.url, autocommit=True) as connection:
            await connection.execute(statement.encode())

    async def count_sessions(self, application: str) -> int:
        """Count the sessions of an application, by a pattern of its name."""
        async with await psycopg.AsyncConnection.connect(self.url, autocommit=True) as connection:
            statement = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE %s"
            row = await (await connection.execute(statement, [application])).fetchone()
        assert row
        return int(row[0])

    async def kill(self) -> None:
        """End it at once, with all its processes."""
        if self._process and self._process.returncode is None:
            self._process.send_signal(signal.SIGQUIT)
            await self._process.communicate()

    async def _launch(self, program: str, *arguments: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            str(postgres_binaries() / program),
            *arguments,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            cwd="/",
            **self._options,
        )


@asynccontextmanager
async def open_pair() -> AsyncGenerator[tuple[Server, Server]]:
    """A server and its standby."""
    with data_directory() as data:
        user = postgres_user(data)
        options: dict[str, Any] = {}
        if user:
            os.chown(data, user.uid, user.gid)
            package = postgres_binaries().parent.parent
            let_read((package, package.with_name(f"{package.name}.libs")), user)
            let_reach(postgres_binaries() / "postgres", user)
            options = {"user": user.uid, "group": user.gid, "extra_groups": []}
        primary, standby = (Server(data / name, options) for name in ("primary", "standby"))
        try:
            initdb = [*INITDB]
            initdb[initdb.index("--username") + 1], initdb[initdb.index("--auth") + 1] = ROLE, "trust"
            await primary.run("initdb", "--pgdata", str(primary.folder), *initdb, "--no-sync")
            await primary.start()
            source = f"host=127.0.0.1 port={primary.port} user={ROLE}"
            folder = str(standby.folder)
            await standby.run(
                "pg_basebackup", "-D", folder, "-d", source, "-R", "--checkpoint=fast", "--no-sync"
            )
            await standby.start()
            yield primary, standby
        finally:
            await standby.kill()
            await primary.kill()
