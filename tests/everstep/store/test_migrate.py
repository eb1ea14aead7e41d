"""Upgrades: on an empty database, repeated, concurrent, and never half applied."""

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

from everstep.agent_domain.errors import InvalidInput
from everstep.store import migrate
from everstep.store.engine import create_engine, create_upgrade_engine
from everstep.store.errors import DatabaseUnreachable, SchemaTooNew, StoreError
from everstep.store.migrate import OPTIONS, pending, upgrade
from everstep.store.migrations.versions.search_words import CREATE_FUNCTION
from everstep.store.tables import metadata


async def run_in_database(url: str, work: Any) -> Any:
    engine = create_upgrade_engine(url)
    async with engine.begin() as connection:
        result = await connection.run_sync(work)
    await engine.dispose()
    return result


def tables(connection: Connection) -> set[str]:
    found = connection.execute(text("SELECT relname FROM pg_stat_user_tables"))
    return {name for (name,) in found}


async def test_an_upgrade_creates_every_table(empty_database: str) -> None:
    waiting = await pending(empty_database)
    assert waiting[0] == "0001_initial"

    await upgrade(empty_database)

    assert await pending(empty_database) == []
    assert await run_in_database(empty_database, tables) == {*metadata.tables, "agent_schema_version"}


async def test_an_upgrade_of_a_current_database_changes_nothing(database: str) -> None:
    await upgrade(database)

    assert await pending(database) == []


async def test_concurrent_upgrades_are_safe(empty_database: str) -> None:
    await asyncio.gather(*(upgrade(empty_database) for _ in range(8)))

    assert await pending(empty_database) == []


async def test_a_failed_upgrade_leaves_nothing(empty_database: str) -> None:
    def create_conflicting_table(connection: Connection) -> None:
        connection.execute(text("CREATE TABLE agent_envelopes (a int)"))

    await run_in_database(empty_database, create_conflicting_table)

    with pytest.raises(StoreError, match='relation "agent_envelopes" already exists'):
        await upgrade(empty_database)

    assert await run_in_database(empty_database, tables) == {"agent_envelopes"}
    assert await pending(empty_database) == [
        "0001_initial",
        "0002_sessions",
        "0003_retention",
        "0004_journal",
        "0005_notes",
        "0006_waits",
        "0007_commands",
        "0008_references",
        "0009_disclosure",
        "0010_call_texts",
        "0011_approvers",
        "0012_budgets",
        "0013_attachments",
        "0014_feedback",
        "0015_costs",
        "0016_call_progress",
        "0017_ends",
        "0018_boundaries",
        "0019_ledger",
        "0020_sign_ins",
        "0021_session_usage",
        "0022_pruned_ledgers",
        "0023_sign_in_authorities",
        "0024_search_words",
        "0025_schedules",
        "0026_first_texts",
        "0027_tenants",
        "0028_webhooks",
        "0029_rates",
        "0030_vacuum",
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
    """PostgreSQL's catalogue, without the table of revisions."""
    found = connection.execute(text(CATALOG)).all()
    return {name: definition for name, definition in found if not name.startswith("agent_schema_version")}


def create_search_function(connection: Connection) -> None:
    """The index of the tables calls it."""
    connection.execute(text(CREATE_FUNCTION))


async def test_the_revisions_match_the_table_definitions(database: str, empty_database: str) -> None:
    """A change of `tables` needs a revision: the failure of this test lists the missing operations."""

    def differences(connection: Connection) -> list[Any]:
        return compare_metadata(MigrationContext.configure(connection, opts=OPTIONS), metadata)

    assert await run_in_database(database, differences) == []
    await run_in_database(empty_database, create_search_function)
    await run_in_database(empty_database, metadata.create_all)
    assert await run_in_database(database, catalog) == await run_in_database(empty_database, catalog)


async def test_a_database_of_a_newer_version_is_left_alone(own_database: str) -> None:
    def newer(connection: Connection) -> None:
        connection.execute(text("UPDATE agent_schema_version SET version_num = '9999_later'"))

    await run_in_database(own_database, newer)

    for attempt in (pending, upgrade):
        with pytest.raises(SchemaTooNew, match=r"upgraded to '9999_later'.*deploy the version"):
            await attempt(own_database)


@pytest.mark.parametrize("attempt", [pending, upgrade])
async def test_an_unreachable_server_is_reported(attempt: Any) -> None:
    with pytest.raises(DatabaseUnreachable, match="Check that it runs"):
        await attempt("postgresql://me@/everstep?host=/nowhere")


async def test_the_host_application_may_use_alembic_too(own_database: str) -> None:
    """Its table of revisions has Alembic's default name, ours has another."""
    assert "alembic_version" not in await run_in_database(own_database, tables)


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
def test_every_common_url_is_understood(url: str, expected: str) -> None:
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


async def test_every_wait_has_a_timeout(database: str) -> None:
    found = await settings(database, statement_timeout=1.5, lock_timeout=0.25, application_name="a worker")

    assert (found["statement_timeout"], found["lock_timeout"]) == ("1500", "250")
    assert found["idle_in_transaction_session_timeout"] == "60000"
    assert (found["application_name"], found["TimeZone"], found["jit"]) == ("a worker", "UTC", "off")


async def test_the_url_takes_precedence(database: str) -> None:
    own = "&application_name=mine&options=-c%20statement_timeout%3D7s"

    found = await settings(database + own, application_name="a worker")

    assert (found["application_name"], found["statement_timeout"], found["jit"]) == ("mine", "7000", "off")


async def test_a_migration_has_no_statement_timeout(database: str) -> None:
    def limit(connection: Connection) -> Any:
        return connection.execute(text("SHOW statement_timeout")).scalar()

    assert await run_in_database(database, limit) == "0"


BEFORE_BUDGETS = """
    DROP TABLE agent_places, agent_tenant_limits, agent_rates;
    DROP FUNCTION agent_search_vector CASCADE;
    ALTER TABLE agent_executions DROP COLUMN outcome;
    ALTER TABLE agent_steps DROP COLUMN boundary, DROP COLUMN first_text_seconds;
    ALTER TABLE agent_tool_calls DROP COLUMN digest;
    DROP TABLE agent_pruned_ledgers, agent_session_usage, agent_budget_holds, agent_sign_ins, agent_schedules;
    DROP TABLE agent_webhooks, agent_webhook_deliveries;
    DROP FUNCTION agent_queue_end CASCADE;
    DROP FUNCTION agent_queue_request CASCADE;
    DROP TABLE agent_ledger, agent_ledger_heads;
    ALTER TABLE agent_executions DROP COLUMN is_sealed;
    ALTER TABLE agent_tool_calls DROP COLUMN progress;
    DROP TABLE agent_feedback;
    ALTER TABLE agent_answers DROP COLUMN attachment_id;
    ALTER TABLE agent_session_messages DROP COLUMN attachments;
    ALTER TABLE agent_tool_calls DROP COLUMN attachments;
    DROP TABLE agent_attachment_contents, agent_attachment_uses, agent_attachments;
    DROP TABLE agent_budgets, agent_budget_reservations;
    ALTER TABLE agent_requests DROP CONSTRAINT agent_requests_execution_id_owner_fkey;
    UPDATE agent_schema_version SET version_num = '0011_approvers';
"""

BEFORE_CALL_TEXTS = """
    DROP TABLE agent_model_usage;
    ALTER TABLE agent_executions DROP COLUMN cost_usd, DROP COLUMN known_cost_usd;
    ALTER TABLE agent_requests DROP COLUMN policy;
    ALTER TABLE agent_commands DROP COLUMN sent_by;
    ALTER TABLE agent_tool_calls DROP COLUMN note, DROP COLUMN own_text;
    UPDATE agent_schema_version SET version_num = '0009_disclosure';
"""

BEFORE_DISCLOSURE = """
    ALTER TABLE agent_executions DROP COLUMN error_told;
    UPDATE agent_schema_version SET version_num = '0008_references';
"""

BEFORE_REFERENCES = """
    ALTER TABLE agent_session_messages DROP CONSTRAINT agent_session_messages_agent_execution_id_fkey;
    ALTER TABLE agent_sessions
        DROP CONSTRAINT agent_sessions_last_execution_id_fkey,
        DROP CONSTRAINT agent_sessions_last_snapshot_id_fkey,
        DROP COLUMN worked_seconds;
    ALTER TABLE agent_executions
        DROP CONSTRAINT agent_executions_session_id_fkey,
        DROP CONSTRAINT agent_executions_last_snapshot_id_fkey,
        DROP COLUMN worked_seconds, DROP COLUMN session_seconds, DROP COLUMN session_began_at;
    ALTER TABLE agent_state_snapshots
        DROP CONSTRAINT agent_state_snapshots_parent_snapshot_id_fkey,
        DROP COLUMN previous_snapshot_id;
    DROP INDEX agent_sessions_by_last_execution, agent_sessions_by_last_snapshot,
               agent_session_messages_by_execution, agent_executions_by_last_snapshot,
               agent_state_snapshots_by_parent;
    UPDATE agent_schema_version SET version_num = '0007_commands';
"""

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


async def test_answers_stored_before_the_upgrade_are_deleted_with_their_subject(own_database: str) -> None:
    """8.7.1"""
    ids = {"session": UUID(int=1), "execution": UUID(int=2), "gone": UUID(int=3)}
    with psycopg.connect(own_database.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(
            "".join(
                (
                    BEFORE_BUDGETS,
                    BEFORE_CALL_TEXTS,
                    BEFORE_DISCLOSURE,
                    BEFORE_REFERENCES,
                    BEFORE_COMMANDS,
                    BEFORE_WAITS,
                    BEFORE_NOTES,
                    BEFORE_JOURNAL,
                    BEFORE_RETENTION.format(**ids),
                )
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


SESSION, NEVER_MADE, GONE = UUID(int=1), UUID(int=2), UUID(int=3)
PARENT, CHILD, LATER, ALONE = UUID(int=11), UUID(int=12), UUID(int=13), UUID(int=14)
BEFORE, PAUSED, FINAL, OF_CHILD = UUID(int=21), UUID(int=22), UUID(int=23), UUID(int=24)

OLD_ROWS = f"""
    INSERT INTO agent_sessions (id, tenant_id, user_id, last_execution_id, last_snapshot_id)
    VALUES ('{SESSION}', 'acme', 'ann', '{PARENT}', '{GONE}');
    INSERT INTO agent_executions (id, tenant_id, session_id, user_id, agent_type, agent_config, agent_id,
                                  status, parent_execution_id, last_snapshot_id, metadata, created_at)
    SELECT id, 'acme', session_id, user_id, 'helper', '{{}}', gen_random_uuid(), status, parent_id,
           snapshot_id, CAST(metadata AS json), now() + place * interval '1 second'
      FROM (VALUES
             (1, uuid '{PARENT}', uuid '{SESSION}', 'ann', 'completed', NULL, uuid '{FINAL}', '{{}}'),
             (2, '{CHILD}', '{SESSION}', 'ann', 'completed', uuid '{PARENT}', '{OF_CHILD}',
              '{{"parent_execution_id": "{PARENT}", "parent_snapshot_id": "{BEFORE}"}}'),
             (3, '{LATER}', '{SESSION}', 'ann', 'pending', NULL, '{GONE}', '{{}}'),
             (4, '{ALONE}', '{NEVER_MADE}', NULL, 'failed', NULL, NULL, '{{}}')
           ) AS old(place, id, session_id, user_id, status, parent_id, snapshot_id, metadata);
    INSERT INTO agent_state_snapshots (id, tenant_id, agent_execution_id, parent_snapshot_id, state_json)
    VALUES ('{BEFORE}', 'acme', '{PARENT}', NULL, '{{}}'),
           ('{PAUSED}', 'acme', '{PARENT}', '{BEFORE}', '{{}}'),
           ('{FINAL}', 'acme', '{PARENT}', '{PAUSED}', '{{}}'),
           ('{OF_CHILD}', 'acme', '{CHILD}', '{GONE}', '{{}}');
    INSERT INTO agent_session_messages (id, tenant_id, session_id, role, content, agent_execution_id)
    VALUES ('{SESSION}', 'acme', '{SESSION}', 'assistant', 'Hello', '{PARENT}'),
           ('{GONE}', 'acme', '{SESSION}', 'assistant', 'Hello', '{GONE}');
    INSERT INTO agent_steps (execution_id, number, tenant_id, attempt, facts)
    SELECT id, 1, 'acme', 1, '{{"seconds": 1.5}}' FROM agent_executions;
    INSERT INTO agent_tool_calls (execution_id, call_id, tenant_id, step, idx, name, args, need, args_digest,
                                  state, started_at, seconds)
    SELECT '{PARENT}', idx, 'acme', 1, idx, 'look', '{{}}', 'run', '', 'done',
           timestamptz '2026-01-01' + began * interval '1 second', seconds
      FROM (VALUES (0, 0, 4), (1, 1, 5), (2, 10, 1)) AS call(idx, began, seconds);
"""  # noqa: S608 -- our own rows
"""Data of the previous release, with dangling references that it tolerated."""


async def test_old_rows_refer_to_existing_rows_after_the_upgrade(own_database: str) -> None:
    """8.1: dangling references are cleared, missing sessions are created, totals are added up."""
    with psycopg.connect(own_database.replace("+psycopg", ""), autocommit=True) as connection:

        def select_rows(columns: str, table: str) -> list[Any]:
            wanted = f"SELECT {columns} FROM {table} ORDER BY id"  # noqa: S608 -- our own names
            return connection.execute(wanted.encode()).fetchall()

        before = BEFORE_BUDGETS + BEFORE_CALL_TEXTS + BEFORE_DISCLOSURE + BEFORE_REFERENCES
        connection.execute((before + OLD_ROWS).encode())
        await upgrade(own_database)

        assert select_rows("id, parent_snapshot_id, previous_snapshot_id", "agent_state_snapshots") == [
            (BEFORE, None, None),
            (PAUSED, None, BEFORE),
            (FINAL, None, PAUSED),
            (OF_CHILD, BEFORE, GONE),
        ]
        assert select_rows("id, last_snapshot_id, worked_seconds", "agent_executions") == [
            (PARENT, FINAL, 8.5),
            (CHILD, OF_CHILD, 1.5),
            (LATER, None, 0.0),
            (ALONE, None, 1.5),
        ]
        of_sessions = "id, user_id, last_execution_id, last_snapshot_id, worked_seconds"
        assert select_rows(of_sessions, "agent_sessions") == [
            (SESSION, "ann", LATER, None, 8.5),
            (NEVER_MADE, "", ALONE, None, 1.5),
        ]
        assert select_rows("agent_execution_id", "agent_session_messages") == [(PARENT,), (None,)]
        connection.execute("DELETE FROM agent_sessions")
        assert select_rows("id", "agent_executions") == []
