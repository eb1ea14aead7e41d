"""Upgrades: from nothing, again, many at once, and never half."""

import asyncio
from importlib.resources import files
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy import Connection, text

from agent_domain.errors import InvalidInput
from everstep.store import migrate
from everstep.store.engine import create_engine, create_upgrade_engine
from everstep.store.errors import DatabaseUnreachable, SchemaTooNew, StoreError
from everstep.store.migrate import OPTIONS, pending, upgrade
from everstep.store.tables import metadata


async def in_database(url: str, work: Any) -> Any:
    engine = create_upgrade_engine(url)
    async with engine.begin() as connection:
        result = await connection.run_sync(work)
    await engine.dispose()
    return result


def tables(connection: Connection) -> set[str]:
    found = connection.execute(text("SELECT relname FROM pg_stat_user_tables"))
    return {name for (name,) in found}


async def test_an_upgrade_makes_every_table(empty_database: str) -> None:
    waiting = await pending(empty_database)
    assert waiting[0] == "0001_initial"

    await upgrade(empty_database)

    assert await pending(empty_database) == []
    assert await in_database(empty_database, tables) == {*metadata.tables, "agent_schema_version"}


async def test_an_upgrade_of_what_is_up_to_date_changes_nothing(database: str) -> None:
    await upgrade(database)

    assert await pending(database) == []


async def test_many_may_upgrade_at_once(empty_database: str) -> None:
    await asyncio.gather(*(upgrade(empty_database) for _ in range(8)))

    assert await pending(empty_database) == []


async def test_an_upgrade_that_fails_leaves_nothing(empty_database: str) -> None:
    def in_the_way(connection: Connection) -> None:
        connection.execute(text("CREATE TABLE agent_envelopes (a int)"))

    await in_database(empty_database, in_the_way)

    with pytest.raises(StoreError, match='relation "agent_envelopes" already exists'):
        await upgrade(empty_database)

    assert await in_database(empty_database, tables) == {"agent_envelopes"}
    assert await pending(empty_database) == [
        "0001_initial",
        "0002_sessions",
        "0003_retention",
        "0004_journal",
        "0005_notes",
        "0006_waits",
        "0007_commands",
    ]


CATALOG = """
    SELECT table_name || '.' || column_name AS name,
           concat_ws(' ', data_type, is_nullable, column_default, identity_generation) AS definition
      FROM information_schema.columns WHERE table_schema = 'public'
 UNION ALL
    SELECT conrelid::regclass || '.' || conname, pg_get_constraintdef(oid)
      FROM pg_constraint WHERE connamespace = 'public'::regnamespace
 UNION ALL
    SELECT tablename || '.' || indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'
"""


def catalog(connection: Connection) -> dict[str, str]:
    """What PostgreSQL itself says that there is, but for the table of revisions."""
    found = connection.execute(text(CATALOG)).all()
    return {name: definition for name, definition in found if not name.startswith("agent_schema_version")}


async def test_the_revisions_make_what_the_tables_say(database: str, empty_database: str) -> None:
    """Whoever changes `tables` writes a revision: this says what it has to do."""

    def differences(connection: Connection) -> list[Any]:
        return compare_metadata(MigrationContext.configure(connection, opts=OPTIONS), metadata)

    assert await in_database(database, differences) == []
    await in_database(empty_database, metadata.create_all)
    assert await in_database(database, catalog) == await in_database(empty_database, catalog)


async def test_a_database_of_a_newer_version_is_left_alone(own_database: str) -> None:
    def newer(connection: Connection) -> None:
        connection.execute(text("UPDATE agent_schema_version SET version_num = '9999_later'"))

    await in_database(own_database, newer)

    for attempt in (pending, upgrade):
        with pytest.raises(SchemaTooNew, match=r"upgraded to '9999_later'.*deploy the version"):
            await attempt(own_database)


@pytest.mark.parametrize("attempt", [pending, upgrade])
async def test_a_server_that_is_not_there_is_said_to_be_so(attempt: Any) -> None:
    with pytest.raises(DatabaseUnreachable, match="Check that it runs"):
        await attempt("postgresql://me@/everstep?host=/nowhere")


async def test_the_host_application_may_use_alembic_too(own_database: str) -> None:
    """Its table of revisions has the name that Alembic gives it, ours has another."""
    assert "alembic_version" not in await in_database(own_database, tables)


def test_revisions_are_not_applied_by_hand() -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(migrate.__file__).with_name("migrations")))

    with pytest.raises(StoreError, match="by `everstep db upgrade`, not by `alembic upgrade`"):
        command.upgrade(config, "head")


def test_the_revisions_are_part_of_the_package() -> None:
    revisions = files("everstep.store.migrations.versions")

    assert any(revision.name == "initial.py" for revision in revisions.iterdir())
    assert Path(migrate.__file__).with_name("migrations").joinpath("env.py").is_file()


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("postgresql://me:pw@db/everstep", "postgresql+psycopg://me:pw@db/everstep"),
        ("postgres://db/everstep", "postgresql+psycopg://db/everstep"),
        (
            "postgresql+psycopg://db/everstep?sslmode=require",
            "postgresql+psycopg://db/everstep?sslmode=require",
        ),
    ],
)
def test_every_usual_url_is_understood(url: str, expected: str) -> None:
    assert create_engine(url).url.render_as_string(hide_password=False) == expected


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("nonsense", "use postgresql://user:password@host:5432/name"),
        ("mysql://me:secret@db/everstep", "is for mysql; Everstep needs postgresql://"),
        ("postgresql+asyncpg://me:secret@db/everstep", "is for postgresql\\+asyncpg"),
    ],
)
def test_any_other_url_is_refused(url: str, complaint: str) -> None:
    with pytest.raises(InvalidInput, match=complaint) as caught:
        create_engine(url)

    assert "secret" not in str(caught.value)


async def settings(url: str, **options: Any) -> dict[str, str]:
    engine = create_engine(url, **options)
    async with engine.connect() as connection:
        found = (await connection.execute(text("SELECT name, setting FROM pg_settings"))).all()
    await engine.dispose()
    return {row.name: row.setting for row in found}


async def test_every_wait_has_an_end(database: str) -> None:
    found = await settings(database, statement_timeout=1.5, lock_timeout=0.25, application_name="a worker")

    assert (found["statement_timeout"], found["lock_timeout"]) == ("1500", "250")
    assert found["idle_in_transaction_session_timeout"] == "60000"
    assert (found["application_name"], found["TimeZone"], found["jit"]) == ("a worker", "UTC", "off")


async def test_what_the_url_says_has_precedence(database: str) -> None:
    own = "&application_name=mine&options=-c%20statement_timeout%3D7s"

    found = await settings(database + own, application_name="a worker")

    assert (found["application_name"], found["statement_timeout"], found["jit"]) == ("mine", "7000", "off")


async def test_a_migration_takes_as_long_as_it_takes(database: str) -> None:
    def limit(connection: Connection) -> Any:
        return connection.execute(text("SHOW statement_timeout")).scalar()

    assert await in_database(database, limit) == "0"


BEFORE_COMMANDS = """
    DROP TABLE agent_commands, agent_claims;
    DROP INDEX agent_steered_unheard;
    UPDATE agent_schema_version SET version_num = '0006_waits';
"""

BEFORE_WAITS = """
    ALTER TABLE agent_steps DROP COLUMN wait;
    UPDATE agent_schema_version SET version_num = '0005_notes';
"""

BEFORE_NOTES = """
    ALTER TABLE agent_executions DROP COLUMN listed;
    ALTER TABLE agent_steps DROP COLUMN processed;
    ALTER TABLE agent_tool_calls DROP COLUMN besides;
    DROP INDEX agent_transcript_notes;
    DROP TABLE agent_inner_replies;
    UPDATE agent_schema_version SET version_num = '0004_journal';
"""

BEFORE_JOURNAL = """
    ALTER TABLE agent_steps DROP COLUMN next_index, DROP COLUMN after_seq, DROP COLUMN noted_at;
    ALTER TABLE agent_streams ADD COLUMN epoch uuid DEFAULT gen_random_uuid() NOT NULL;
    DROP TABLE agent_journal, agent_gateways;
    UPDATE agent_schema_version SET version_num = '0003_retention';
"""

BEFORE_RETENTION = """
    ALTER TABLE agent_answers DROP COLUMN session_id, DROP COLUMN execution_id;
    DROP INDEX agent_executions_ended;
    UPDATE agent_schema_version SET version_num = '0002_sessions';
    INSERT INTO agent_sessions (id, tenant_id, user_id) VALUES ('{session}', 'acme', 'ann');
    INSERT INTO agent_executions (id, tenant_id, agent_type, agent_config, agent_id)
    VALUES ('{execution}', 'acme', 'helper', '{{}}', gen_random_uuid());
    INSERT INTO agent_answers (tenant_id, user_id, key, digest, status, body)
    SELECT 'acme', 'ann', key, '', 201, CAST(body AS json)
      FROM (VALUES ('session', '{{"id": "{session}"}}'),
                   ('message', '{{"session_id": "{session}", "execution_id": "{gone}"}}'),
                   ('execution', '{{"id": "{execution}", "session_id": null}}'),
                   ('request', '{{"id": "{gone}", "execution_id": "{execution}", "session_id": null}}'),
                   ('deleted', '{{"id": "{gone}", "session_id": "{gone}"}}'),
                   ('channel', '{{"auth": "x"}}')) AS told(key, body);
"""


async def test_answers_that_were_stored_before_go_with_what_they_tell_of(own_database: str) -> None:
    """8.7.1"""
    ids = {"session": UUID(int=1), "execution": UUID(int=2), "gone": UUID(int=3)}
    with psycopg.connect(own_database.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(
            (
                BEFORE_COMMANDS
                + BEFORE_WAITS
                + BEFORE_NOTES
                + BEFORE_JOURNAL
                + BEFORE_RETENTION.format(**ids)
            ).encode()
        )
        await upgrade(own_database)
        found = connection.execute("SELECT key, session_id, execution_id FROM agent_answers ORDER BY key")

        assert found.fetchall() == [
            ("execution", None, ids["execution"]),
            ("message", ids["session"], None),
            ("request", None, ids["execution"]),
            ("session", ids["session"], None),
        ]
        connection.execute("DELETE FROM agent_sessions")
        connection.execute("DELETE FROM agent_executions")
        assert connection.execute("SELECT count(*) FROM agent_answers").fetchall() == [(0,)]
