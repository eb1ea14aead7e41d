"""PostgreSQL of the operating system: that of the wheel has no extensions, and Temporal's tables need one."""

import os
import pwd
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psycopg
from sqlalchemy import URL

from tests.servers.programs import Here, Place, Server, run

ROLE: Final = "everstep"
INSTALLATIONS: Final = Path("/usr/lib/postgresql")
EXTENSION: Final = "btree_gin.control"
"""Temporal's visibility store has indexes of this extension."""


class NotInstalled(Exception):
    """A program that the run needs is missing; the message says how to get it."""


def find_programs() -> Path:
    """The folder of the newest PostgreSQL that has the extension.

    Raises:
        NotInstalled: There is none.
    """
    found = [
        folder / "bin"
        for folder in INSTALLATIONS.glob("*")
        if (folder / "bin" / "postgres").exists()
        and (Path("/usr/share/postgresql") / folder.name / "extension" / EXTENSION).exists()
    ]
    if not found:
        raise NotInstalled(
            "PostgreSQL with its extension btree_gin is not installed. On Debian: apt-get install postgresql"
        )
    return max(found, key=lambda each: int(re.sub(r"\D", "", each.parent.name) or 0))


def as_user(signal: str = "INT") -> tuple[str, ...]:
    """The prefix of a command that runs as the user of PostgreSQL's package, as it refuses to run as root.

    Args:
        signal: The signal that it gets when the process that started it ends.
    """
    if os.geteuid():
        return ()
    return ("setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", f"--pdeathsig={signal}")


def give_to_user(*paths: Path) -> None:
    """Make the user of PostgreSQL's package own files, if this process is root."""
    if not os.geteuid():
        user = pwd.getpwnam("postgres")
        for path in paths:
            os.chown(path, user.pw_uid, user.pw_gid)


@dataclass
class Postgres:
    """A database server with a role that owns everything."""

    address: str
    port: int
    password: str
    server: Server = field(init=False)

    @classmethod
    async def create(
        cls,
        data: Path,
        address: str,
        port: int,
        settings: Mapping[str, str],
        *,
        client_addresses: str,
        place: Place | None = None,
    ) -> "Postgres":
        """Create its files, which may be reached from these addresses only."""
        programs, password = find_programs(), secrets.token_urlsafe(24)
        cluster, secret = data / "postgres", data / "postgres-password"
        cluster.mkdir()
        secret.write_text(password)
        if not os.geteuid():
            data.chmod(0o711)
        give_to_user(cluster, secret)
        initdb = (
            "--username",
            ROLE,
            "--pwfile",
            str(secret),
            "--auth",
            "scram-sha-256",
            "--encoding",
            "UTF8",
        )
        await run(
            *(
                *as_user(),
                str(programs / "initdb"),
                "-D",
                str(cluster),
                *initdb,
                "--locale",
                "C",
                "--no-sync",
            ),
            folder=cluster,
        )
        (cluster / "pg_hba.conf").write_text(f"host all {ROLE} {client_addresses} scram-sha-256\n")
        given = {
            "listen_addresses": address,
            "port": str(port),
            "unix_socket_directories": "",
            "timezone": "UTC",
            **settings,
        }
        options = [part for name, value in given.items() for part in ("-c", f"{name}={value}")]
        command = (*as_user(), str(programs / "postgres"), "-D", str(cluster), *options)
        made = cls(address, port, password)
        made.server = Server(
            "PostgreSQL",
            (place or Here()).command(*command),
            data / "postgres.log",
            made.answers,
            folder=cluster,
        )
        return made

    def url(self, database: str) -> str:
        """The URL of a database, for SQLAlchemy."""
        url = URL.create("postgresql+psycopg", ROLE, self.password, self.address, self.port, database)
        return url.render_as_string(hide_password=False)

    async def answers(self) -> bool:
        """Whether it accepts clients."""
        try:
            await self.run("SELECT 1")
        except psycopg.OperationalError:
            return False
        return True

    async def run(self, statement: str, database: str = "postgres") -> list[tuple[object, ...]]:
        """Run a statement, outside of a transaction, and return its rows."""
        url = self.url(database).replace("+psycopg", "") + "?connect_timeout=3"
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
            cursor = await connection.execute(statement.encode())
            return await cursor.fetchall() if cursor.description else []
