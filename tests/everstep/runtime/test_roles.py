"""Roles and permissions in the embedded PostgreSQL: the real server, attacked over its socket."""

import os
import shutil
import subprocess
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, cast

import psycopg
import pytest
import pytest_asyncio
from sqlalchemy import make_url

from everstep.runtime.embedded import EmbeddedServices, Postgres, open_services
from everstep.runtime.embedded.child import Child
from everstep.runtime.embedded.postgres_server import WORKING_DIRECTORY, postgres_binaries
from everstep.runtime.embedded.process_table import command_lines
from everstep.runtime.embedded.roles import make_password, scram_verifier
from tests.services import careless, data_directory

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ours() -> AsyncGenerator[EmbeddedServices]:
    with data_directory() as data:
        async with open_services(careless(data)) as services:
            yield services


def open_connection(services: EmbeddedServices, **other: str | None) -> psycopg.Connection[Any]:
    url = make_url(services.database_url)
    given: dict[str, Any] = {"user": url.username, "password": url.password, "dbname": url.database, **other}
    return psycopg.connect(
        host=str(services.postgres.sockets), autocommit=True, connect_timeout=5, **cast("Any", given)
    )


class TestAuthentication:
    """Rule 13.2.1."""

    async def test_the_role_of_the_product_is_not_a_superuser(self, ours: EmbeddedServices) -> None:
        """13.2.1"""
        with open_connection(ours) as connection:
            said = connection.execute(
                "SELECT current_user, rolsuper, rolcreaterole, rolreplication, rolbypassrls FROM pg_roles "
                "WHERE rolname = current_user"
            ).fetchone()
        assert said == ("everstep", False, False, False, False)

    @pytest.mark.parametrize(
        "how",
        [
            {"user": "postgres", "password": None, "dbname": "postgres"},
            {"user": "postgres", "dbname": "postgres"},
            {"user": "postgres", "password": "postgres", "dbname": "everstep"},
            {"password": None},
            {"password": ""},
            {"password": "wrong"},
            {"user": "root", "password": None},
            {"replication": "database"},
            {"user": "postgres", "replication": "true"},
        ],
        ids=str,
    )
    async def test_no_other_role_can_connect_not_even_the_superuser(
        self, ours: EmbeddedServices, how: dict[str, str | None], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """13.2.1"""
        monkeypatch.setenv("PGPASSFILE", os.devnull)
        with pytest.raises(
            psycopg.OperationalError, match=r"reject|password|no pg_hba.conf entry|permission denied"
        ):
            open_connection(ours, **how)

    @pytest.mark.parametrize(
        "attack",
        [
            "COPY (SELECT 1) TO PROGRAM 'touch {ran}'",
            "COPY (SELECT 1) TO '{ran}'",
            "SELECT pg_read_file('/etc/passwd')",
            "SELECT lo_import('/etc/passwd')",
            "ALTER SYSTEM SET archive_command = 'touch {ran}'",
            "ALTER ROLE everstep SUPERUSER",
            "SET ROLE postgres",
            "SET SESSION AUTHORIZATION postgres",
            "GRANT pg_execute_server_program TO everstep",
            "CREATE ROLE other SUPERUSER LOGIN",
            "CREATE FUNCTION f() RETURNS int LANGUAGE c AS '/lib/x86_64-linux-gnu/libc.so.6', 'getpid'",
            "LOAD '/tmp/evil.so'",
            "SELECT rolpassword FROM pg_authid",
        ],
    )
    async def test_a_client_runs_no_programs_and_reads_no_files(
        self, ours: EmbeddedServices, attack: str, tmp_path: Path
    ) -> None:
        """13.2.1"""
        ran = tmp_path / "ran"
        with (
            open_connection(ours) as connection,
            pytest.raises(psycopg.Error, match=r"denied|must be|cannot|not allowed"),
        ):
            connection.execute(attack.format(ran=ran).encode())
        assert not ran.exists()


class TestThePassword:
    """Rule 13.2.2."""

    async def test_it_is_in_private_files_and_nowhere_else(self, ours: EmbeddedServices) -> None:
        """13.2.2"""
        password = make_url(ours.database_url).password
        assert isinstance(password, str)
        holders = set[str]()
        for path in ours.config.data.rglob("*"):
            if path.is_file() and password.encode() in path.read_bytes():
                holders.add(str(path.relative_to(ours.config.data)))
                assert path.stat().st_mode & 0o077 == 0
        assert holders == {"database-password", "services.json"}
        assert not [line for line in (await command_lines()).values() if password in line]

    async def test_it_stays_and_a_lost_one_is_replaced(self) -> None:
        """13.2.2"""
        with data_directory() as data:
            urls = list[str]()
            for lose in (False, True, False):
                if lose:
                    (data / "database-password").unlink()
                server = Postgres(careless(data), None, print)
                await server.start()
                urls.append(server.url)
                await server.stop()
        first, second, third = urls
        assert first != second == third

    async def test_an_invalid_password_is_replaced(self, tmp_path: Path) -> None:
        (tmp_path / "database-password").write_text("'; DROP TABLE x; --\n")
        assert len(make_password(tmp_path)) == 32
        assert make_password(tmp_path) == make_password(tmp_path)

    async def test_the_server_gets_a_verifier_only(self) -> None:
        """Per RFC 7677, whose example has these numbers."""
        salt = b"[m\x99h\x9d\x125\x8e\xec\xa0K\x14\x126\xfa\x81"
        assert scram_verifier("pencil", salt) == (
            "SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$"
            "WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU="
        )


OLD = """\
CREATE DATABASE everstep;
"""

OLD_TABLES = """\
CREATE TABLE kept (id serial PRIMARY KEY, words text);
INSERT INTO kept (words) VALUES ('kept');
CREATE TABLE numbered (id int GENERATED ALWAYS AS IDENTITY);
CREATE VIEW seen AS SELECT * FROM kept;
CREATE MATERIALIZED VIEW counted AS SELECT count(*) FROM kept;
CREATE SEQUENCE alone;
CREATE FUNCTION one() RETURNS int LANGUAGE sql AS 'SELECT 1';
CREATE PROCEDURE two() LANGUAGE sql AS 'SELECT 2';
CREATE TYPE mood AS ENUM ('good');
CREATE TYPE pair AS (a int, b int);
CREATE DOMAIN small AS int;
CREATE SCHEMA "Another one";
CREATE TABLE "Another one"."T 1" (i int);
"""


async def create_old_cluster(server: Postgres, data: Path) -> None:
    """Like an earlier release: the superuser owns everything, and the socket trusts every role."""

    async def run(*command: str | Path, given: str = "") -> None:
        child = await Child.launch(
            command,
            log=data / "by-hand.log",
            directory=server.cluster,
            user=server.user,
            standard_input=given.encode(),
        )
        assert await child.wait() == 0, child.log_tail()

    server.cluster.mkdir(mode=0o700)
    if server.user:
        os.chown(server.cluster, server.user.uid, server.user.gid)
    binaries = postgres_binaries()
    await run(
        binaries / "initdb",
        "-D",
        WORKING_DIRECTORY,
        "-U",
        "postgres",
        "--auth",
        "trust",
        "-E",
        "UTF8",
        "--no-sync",
    )
    single = (binaries / "postgres", "--single", "-D", WORKING_DIRECTORY, "-c", "exit_on_error=on")
    await run(*single, "postgres", given=OLD)
    await run(*single, "everstep", given=OLD_TABLES)
    (data / "by-hand.log").unlink()


@pytest.mark.installation
async def test_an_installation_of_an_earlier_release_is_upgraded_in_place() -> None:
    """13.2.3"""
    with data_directory() as data:
        server = Postgres(careless(data), None, print)
        await create_old_cluster(server, data)
        (data / "run").mkdir()

        async with open_services(careless(data)) as services:
            hba = (data / "postgres" / "pg_hba.conf").read_text()
            assert "trust" not in hba
            with pytest.raises(psycopg.OperationalError, match="reject"):
                open_connection(services, user="postgres", password=None)
            with open_connection(services) as connection:
                for use in (
                    "INSERT INTO kept (words) VALUES ('more')",
                    "ALTER TABLE kept ADD COLUMN n int",
                    "ALTER TABLE numbered ADD COLUMN n int",
                    "DROP VIEW seen",
                    "REFRESH MATERIALIZED VIEW counted",
                    "ALTER SEQUENCE alone RESTART",
                    "DROP FUNCTION one()",
                    "DROP PROCEDURE two()",
                    "ALTER TYPE mood ADD VALUE 'better'",
                    "DROP TYPE pair",
                    "DROP DOMAIN small",
                    'DROP SCHEMA "Another one" CASCADE',
                ):
                    connection.execute(use.encode())
                assert connection.execute("SELECT words FROM kept ORDER BY id").fetchall() == [
                    ("kept",),
                    ("more",),
                ]
            assert not (data / "run").exists()


@pytest.mark.skipif(shutil.which("setpriv") is None or os.geteuid() != 0, reason="becomes another user")
async def test_under_root_no_other_user_can_enter_the_data_folder(ours: EmbeddedServices) -> None:
    """13.1.6: not even PostgreSQL's own user, which runs in the cluster's folder and needs no path to it."""
    data, user = ours.config.data, ours.postgres.user
    assert user
    assert data.stat().st_mode & 0o777 == 0o700
    for name in (user.name, "nobody"):
        looking = ["setpriv", f"--reuid={name}", "--clear-groups", "ls", str(data / "postgres")]
        looked = subprocess.run(looking, capture_output=True, check=False)  # noqa: ASYNC221, S603
        assert looked.returncode != 0
