"""The rows of one person: in every table, and of no other person."""

import json
from collections import Counter
from uuid import UUID, uuid4

from sqlalchemy import text

from everstep.store.person_rows import SECRETS, WHOSE, PostgresPersonRows, tables_with_rows
from everstep.store.postgres import PostgresStore
from everstep.store.tables import metadata

PERSON_COLUMNS = ("user_id", "given_by", "subject", "session_id", "stream_id", "execution_id")

FILLED = """
    INSERT INTO agent_sessions (id, tenant_id, user_id) VALUES (:session, :tenant, :user);
    INSERT INTO agent_executions (id, tenant_id, session_id, user_id, agent_type, agent_config, agent_id,
                                  status)
    VALUES (:execution, :tenant, :session, :user, 'helper', '{}', :execution, 'completed'),
           (:lone, :tenant, NULL, :user, 'helper', '{}', :lone, 'completed');
    INSERT INTO agent_executions (id, tenant_id, agent_type, agent_config, agent_id, status,
                                  parent_execution_id)
    VALUES (:child, :tenant, 'helper', '{}', :child, 'completed', :lone);
    INSERT INTO agent_session_messages (id, tenant_id, session_id, role, content)
    VALUES (:message, :tenant, :session, 'user', 'secret words');
    INSERT INTO agent_state_snapshots (id, tenant_id, agent_execution_id, state_json)
    VALUES (:execution, :tenant, :execution, '{}');
    INSERT INTO agent_steps (execution_id, number, tenant_id, attempt) VALUES (:child, 1, :tenant, 1);
    INSERT INTO agent_transcript (execution_id, step, idx, tenant_id, role, content)
    VALUES (:child, 0, 0, :tenant, 'user', '"secret words"');
    INSERT INTO agent_inner_replies (execution_id, key, tenant_id, digest, response)
    VALUES (:lone, 'k', :tenant, 'd', '{}');
    INSERT INTO agent_tool_calls (execution_id, call_id, tenant_id, step, idx, name, args, need, args_digest)
    VALUES (:lone, 'c', :tenant, 1, 0, 'look', '{}', 'run', 'd');
    INSERT INTO agent_requests (id, tenant_id, execution_id, user_id, call_id, kind)
    VALUES (:lone, :tenant, :lone, :user, 'c', 'input');
    INSERT INTO agent_steered (execution_id, key, tenant_id, role, content)
    VALUES (:lone, 'k', :tenant, 'user', '"secret words"');
    INSERT INTO agent_commands (execution_id, key, tenant_id, kind) VALUES (:lone, 'k', :tenant, 'pause');
    INSERT INTO agent_settlements (execution_id, key, tenant_id, status)
    VALUES (:lone, 'k', :tenant, 'running');
    INSERT INTO agent_ledger_heads (execution_id, tenant_id) VALUES (:lone, :tenant);
    INSERT INTO agent_ledger (execution_id, position, tenant_id, key, entry, hash)
    VALUES (:lone, 1, :tenant, 'k', '{}', 'h');
    INSERT INTO agent_model_usage (execution_id, tenant_id, model) VALUES (:lone, :tenant, 'm');
    INSERT INTO agent_session_usage (session_id, tenant_id, agent, model)
    VALUES (:session, :tenant, 'a', 'm');
    INSERT INTO agent_budgets (id, tenant_id, scope, subject, agent, unit, limit_amount, on_exhausted)
    VALUES (:execution, :tenant, 'user', :user, '', 'tokens', 1, 'ask');
    INSERT INTO agent_budget_reservations (execution_id, key, budget_id, tenant_id, amount)
    VALUES (:lone, 'k', :execution, :tenant, 1);
    INSERT INTO agent_places (execution_id, tenant_id, user_id) VALUES (:lone, :tenant, :user);
    INSERT INTO agent_streams (stream_id, tenant_id) VALUES (:session, :tenant);
    INSERT INTO agent_envelopes (stream_id, seq, tenant_id, id, type, execution_id, payload)
    VALUES (:session, 1, :tenant, :execution, 'agent.message', :execution, '{}');
    INSERT INTO agent_attachments (id, tenant_id, user_id, name, media_type, size, sha256)
    VALUES (:execution, :tenant, :user, 'a.txt', 'text/plain', 1, 's');
    INSERT INTO agent_attachment_uses (execution_id, tenant_id, attachment_id)
    VALUES (:execution, :tenant, :execution);
    INSERT INTO agent_feedback (message_id, tenant_id, given_by, rating)
    VALUES (:message, :tenant, :user, 'up');
    INSERT INTO agent_api_keys (id, tenant_id, name, digest, user_id)
    VALUES (:execution, :tenant, 'key', :session, :user);
    INSERT INTO agent_sign_ins (digest, kind, tenant_id, user_id, key_id, expires_at)
    VALUES (:session, 'session', :tenant, :user, :execution, now());
    INSERT INTO agent_answers (tenant_id, user_id, key, digest, status, body)
    VALUES (:tenant, :user, 'k', 'd', 200, '{}');
    INSERT INTO agent_claims (tenant_id, user_id, key, digest, owner, expires_at)
    VALUES (:tenant, :user, 'k', 'd', :execution, now());
    INSERT INTO agent_schedules (id, tenant_id, user_id, agent, content, cadence, overlap)
    VALUES (:execution, :tenant, :user, 'helper', 'secret words', '{}', 'skip');
    INSERT INTO agent_tenant_limits (tenant_id, user_id) VALUES (:tenant, :user);
    INSERT INTO agent_webhook_deliveries (id, tenant_id, webhook_id, event_id, type, data)
    VALUES (:execution, :tenant, :execution, 'e', 't',
            json_build_object('user_id', CAST(:user AS text)));
"""


async def fill(postgres: PostgresStore, tenant: str, user: str) -> dict[str, UUID]:
    """A row in every table, of one person."""
    ids = {name: uuid4() for name in ("session", "execution", "lone", "child", "message")}
    async with postgres.engine.connect() as connection:
        for statement in FILLED.split(";\n"):
            if statement.strip():
                known = {**ids, "tenant": tenant, "user": user}
                # A UUID where the column is a text.
                if "digest" in statement and "'d'" not in statement:
                    known["session"] = str(ids["session"])  # pyright: ignore[reportArgumentType]
                used = {name: value for name, value in known.items() if f":{name}" in statement}
                await connection.execute(text(statement), used)
    return ids


def test_every_table_is_known() -> None:
    """18.9.3: a new table needs a condition, also if it has no data of persons."""
    assert set(WHOSE) == set(metadata.tables)


def test_a_table_that_refers_to_a_person_has_a_condition() -> None:
    """18.9.3"""
    for table in metadata.tables.values():
        if {column.name for column in table.columns} & set(PERSON_COLUMNS):
            assert WHOSE[table.name] is not None or table.name == "agent_pruned_ledgers"


def test_columns_with_secrets_are_not_exported() -> None:
    """18.9.3"""
    for table, columns in SECRETS.items():
        assert columns <= set(metadata.tables[table].columns.keys())
    assert "digest" in SECRETS["agent_api_keys"]
    assert "signing_key" in SECRETS["agent_sign_ins"]


async def test_the_rows_of_one_person_are_exported_and_counted(postgres: PostgresStore) -> None:
    """18.9.3: and those of no other person, and of no other tenant."""
    mine = await fill(postgres, "acme", "ann")
    others = [
        *(await fill(postgres, "acme", "bob")).values(),
        *(await fill(postgres, "umbrella", "ann")).values(),
    ]
    rows = PostgresPersonRows(postgres.engine, "acme", "ann")

    exported = [(table, row) async for table, row in rows.export()]

    found = Counter(table for table, _ in exported)
    assert set(found) == set(tables_with_rows())
    assert found == await rows.counts()
    assert found["agent_executions"] == 3
    everything = "\n".join(row for _, row in exported)
    assert all(str(each) in everything for each in mine.values())
    assert not [each for each in others if str(each) in everything]
    keys = [row for table, row in exported if table in SECRETS]
    assert len(keys) == 3
    assert not [row for row in keys if "signing_key" in row or '"owner"' in row]
    assert [each.name for each in await rows.attachments()] == ["a.txt"]


async def test_what_belongs_to_no_session_is_erased(postgres: PostgresStore) -> None:
    """18.9.4"""
    await fill(postgres, "acme", "ann")
    await fill(postgres, "acme", "bob")
    rows = PostgresPersonRows(postgres.engine, "acme", "ann")
    before = await PostgresPersonRows(postgres.engine, "acme", "bob").counts()

    await rows.erase_access()
    await rows.erase_rest()
    await rows.erase_rest()

    gone = {
        "agent_api_keys",
        "agent_sign_ins",
        "agent_answers",
        "agent_claims",
        "agent_tenant_limits",
        "agent_webhook_deliveries",
        "agent_feedback",
        "agent_budgets",
        "agent_attachments",
    }
    assert set(tables_with_rows()) - set(await rows.counts()) == gone
    assert await PostgresPersonRows(postgres.engine, "acme", "bob").counts() == before


async def test_decisions_in_executions_of_others_are_counted(postgres: PostgresStore) -> None:
    """18.9.4: they are part of those executions."""
    await fill(postgres, "acme", "bob")
    async with postgres.engine.connect() as connection:
        await connection.execute(
            text("""UPDATE agent_requests SET resolution = '{"by": {"subject": "ann"}}'""")
        )
        await connection.execute(text("""UPDATE agent_commands SET sent_by = '{"subject": "ann"}'"""))

    assert await PostgresPersonRows(postgres.engine, "acme", "ann").count_decisions() == 2
    assert await PostgresPersonRows(postgres.engine, "acme", "bob").count_decisions() == 0


async def test_answers_to_services_that_acted_for_the_person_are_erased(postgres: PostgresStore) -> None:
    """18.9.4: such as the schedule that a service has created, with its text; and no limit of all users."""
    bodies = {
        "schedule": {"user_id": "ann", "content": "secret words"},
        "delivery": {"data": {"user_id": "ann"}},
        "other": {"user_id": "bob", "data": ["ann"]},
        "list": ["ann"],
        "words": "ann",
        "nothing": None,
    }
    stored = text("""
        INSERT INTO agent_answers (tenant_id, user_id, key, digest, status, body)
        VALUES ('acme', 'robot', :key, 'd', 201, CAST(:body AS json))
    """)
    keys = text("SELECT key FROM agent_answers WHERE tenant_id = 'acme' ORDER BY key")
    limits = text("SELECT user_id FROM agent_tenant_limits WHERE tenant_id = 'acme'")
    rows = PostgresPersonRows(postgres.engine, "acme", "ann")
    async with postgres.engine.connect() as connection:
        for key, body in bodies.items():
            await connection.execute(stored, {"key": key, "body": json.dumps(body)})
        await connection.execute(
            text("INSERT INTO agent_tenant_limits (tenant_id, user_id) VALUES ('acme', '*')")
        )

        assert await rows.counts() == {"agent_answers": 2}
        await rows.erase_rest()
        await PostgresPersonRows(postgres.engine, "acme", "*").erase_rest()

        assert [row.key for row in await connection.execute(keys)] == ["list", "nothing", "other", "words"]
        assert [row.user_id for row in await connection.execute(limits)] == ["*"]
