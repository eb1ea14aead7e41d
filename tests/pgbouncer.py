"""A real PgBouncer in transaction mode, as a process that tests kill and start again."""

import asyncio
import os
import pwd
import shutil
import signal
import socket
import subprocess
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from sqlalchemy import make_url

PROGRAM = os.environ.get("EVERSTEP_TEST_PGBOUNCER") or shutil.which(
    "pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin"
)
DEADLINE = 20.0

needs_pgbouncer = pytest.mark.skipif(
    PROGRAM is None and not os.environ.get("CI"),
    reason="PgBouncer is not installed (apt-get install pgbouncer)",
)
"""Where `CI` is set, tests fail without it."""

CONFIGURATION = """
[databases]
* = host={host} port={port}

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {own_port}
unix_socket_dir =
auth_type = scram-sha-256
auth_file = {users}
pool_mode = transaction
default_pool_size = {size}
max_client_conn = 500
server_lifetime = 3600
{more}
"""


def pgbouncer_version() -> str:
    """The version of the installed PgBouncer."""
    assert PROGRAM, "PgBouncer is not installed (apt-get install pgbouncer)"
    said = subprocess.run([PROGRAM, "--version"], capture_output=True, text=True, check=True).stdout  # noqa: S603
    return said.split()[1]


def keeps_statements() -> bool:
    """Whether clients may prepare statements: from 1.21 on."""
    major, minor = pgbouncer_version().split(".")[:2]
    return (int(major), int(minor)) >= (1, 21)


class PgBouncer:
    """PgBouncer in front of the server of a database, at one port for all its processes."""

    def __init__(self, database_url: str, folder: Path, size: int, more: str) -> None:
        url = make_url(database_url)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = int(free.getsockname()[1])
        host, port = url.query.get("host", url.host), url.query.get("port", url.port)
        self._folder = Path(str(host)) if str(host).startswith("/") else folder
        # Its user may not enter the folders above the socket, as PostgreSQL's own may not.
        server = "/proc/self/cwd" if self._folder != folder else host
        users, self._file = folder / "users.txt", folder / "pgbouncer.ini"
        users.write_text(f'"{url.username}" "{url.password}"\n')
        self._file.write_text(
            CONFIGURATION.format(
                host=server, port=port, own_port=self.port, users=users, size=size, more=more
            )
        )
        self._log = folder / "log"
        # It refuses to run as root, and has to reach the server's socket.
        self._user = self._folder.stat().st_uid or pwd.getpwnam("nobody").pw_uid
        if self._user != os.geteuid():
            for each in (folder, users, self._file):
                os.chown(each, self._user, -1)
        self._process: asyncio.subprocess.Process | None = None
        plain = url.difference_update_query(["host", "port"])
        self.url = plain.set(host="127.0.0.1", port=self.port).render_as_string(hide_password=False)

    async def start(self) -> None:
        """Start it, and wait until it accepts connections."""
        assert PROGRAM, "PgBouncer is not installed (apt-get install pgbouncer)"
        user = ["-u", pwd.getpwuid(self._user).pw_name] if self._user != os.geteuid() else []
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                PROGRAM, *user, str(self._file), stdout=log, stderr=log, cwd=self._folder
            )
        async with asyncio.timeout(DEADLINE):
            while True:
                assert self._process.returncode is None, self._log.read_text()
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", self.port)
                except OSError:
                    await asyncio.sleep(0.01)
                else:
                    writer.close()
                    return

    async def kill(self) -> None:
        """Kill it as a crash does."""
        if self._process and self._process.returncode is None:
            self._process.send_signal(signal.SIGKILL)
            await self._process.wait()

    @property
    def log(self) -> str:
        return self._log.read_text()


@asynccontextmanager
async def open_pgbouncer(database_url: str, size: int = 3, more: str = "") -> AsyncGenerator[PgBouncer]:
    """A PgBouncer that runs within the block, with so many connections to the server."""
    with TemporaryDirectory(prefix="everstep-test-") as folder:
        Path(folder).chmod(0o755)
        bouncer = PgBouncer(database_url, Path(folder), size, more)
        await bouncer.start()
        try:
            yield bouncer
        finally:
            await bouncer.kill()
