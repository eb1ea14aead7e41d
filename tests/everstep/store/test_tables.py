"""The public tables of the PostgreSQL store: columns, references and erasure."""

from dataclasses import replace
from uuid import UUID, uuid4

import pytest

from everstep.agent_domain.errors import NotFound
from everstep.agent_domain.loop.status import ExecutionStatus, StopReason
from everstep.agent_domain.messages.messages import user
from everstep.agent_domain.values import frozen_map
from everstep.store.postgres import PostgresStore
from tests.everstep.store.queries import a_waiting_execution, all_rows, execute, fetch
from tests.everstep.store.store_words import (
    TENANT,
    a_new_execution,
    a_ref,
    a_reply,
    a_settlement,
    a_step_start,
    accept_execution,
    an_event,
    run_step,
)

# As documented; `?` is nullable. Every table also has a tenant_id, and executions have some more columns.
PUBLIC = {
    "agent_sessions": (
        "id uuid, user_id, related_type?, related_id?, initial_context_url?, title?, status, metadata json, "
        "last_execution_id? uuid, last_snapshot_id? uuid, created_at time, updated_at time"
    ),
    "agent_session_messages": (
        "id uuid, session_id uuid, role, content, agent_execution_id? uuid, related_type?, related_id?, "
        "context_url?, metadata json, created_at time, sequence? number"
    ),
    "agent_executions": (
        "id uuid, session_id? uuid, user_id?, agent_type, agent_config json, status, input json, "
        "output json, last_snapshot_id? uuid, step_count number, token_usage number, token_breakdown json, "
        "cost_usd? number, known_cost_usd number, metadata json, error_message?, started_at? time, "
        "completed_at? time, created_at time, updated_at time"
    ),
    "agent_state_snapshots": (
        "id uuid, agent_execution_id uuid, parent_snapshot_id? uuid, agent_id? uuid, agent_name?, "
        "step_number? number, is_final flag, debug_mode flag, state_json json, created_at time"
    ),
}


KINDS = {
    "text": "",
    "integer": " number",
    "bigint": " number",
    "timestamp with time zone": " time",
    "double precision": " number",
    "numeric": " number",
    "boolean": " flag",
    "uuid": " uuid",
    "json": " json",
}


class TestTables:
    @pytest.mark.parametrize("table", PUBLIC)
    async def test_the_public_tables_have_their_columns(self, postgres: PostgresStore, table: str) -> None:
        """8.1: the columns are a contract."""
        found = await fetch(
            postgres,
            "SELECT column_name, is_nullable, data_type, datetime_precision FROM information_schema.columns"
            " WHERE table_name = :name",
            name=table,
        )

        columns = {f"{r.column_name}{'?' * (r.is_nullable == 'YES')}{KINDS[r.data_type]}" for r in found}
        assert set(PUBLIC[table].split(", ")) <= columns
        assert {r.datetime_precision for r in found if r.datetime_precision is not None} == {6}

    async def test_every_row_names_its_tenant(self, postgres: PostgresStore) -> None:
        found = await fetch(
            postgres,
            "SELECT relname FROM pg_stat_user_tables"
            " WHERE relname NOT IN ('agent_schema_version', 'agent_journal', 'agent_gateways', 'agent_rates')"
            " AND NOT EXISTS"
            " (SELECT FROM pg_attribute WHERE attrelid = relid AND attname = 'tenant_id' AND attnotnull)",
        )

        assert found == []

    async def test_an_execution_is_stored_as_documented(self, postgres: PostgresStore) -> None:
        """8.1, 8.2.3: literal columns, 4.2.1: literal forms of usage."""
        ref = a_ref(session_id=uuid4())
        await postgres.accept(
            replace(
                a_new_execution(ref, "Hello", plan=frozen_map({"max_steps": 3})),
                user_id="me",
                metadata=frozen_map({"k": 1}),
            )
        )
        await postgres.begin_step(a_step_start(ref))
        await postgres.record_reply(a_reply(ref, "Hi", tokens=7))
        output = frozen_map({"response": "Hi", "stop_reason": "completed"})
        await postgres.settle(
            a_settlement(
                ref, ExecutionStatus.COMPLETED, output=output, stop_reason=StopReason.COMPLETED, step_count=1
            )
        )

        (row,) = await fetch(postgres, "SELECT * FROM agent_executions")

        assert (row.tenant_id, row.session_id, row.user_id) == (TENANT, ref.session_id, "me")
        assert (row.agent_type, row.agent_config["agent"], row.status) == ("helper", "helper", "completed")
        assert row.input == {"messages": [{"role": "user", "content": "Hello"}]}
        assert row.output == {"response": "Hi", "stop_reason": "completed"}
        assert (row.step_count, row.token_usage) == (1, 7)
        assert row.token_breakdown == {"input": 7, "output": 0, "cached": 0, "reasoning": 0, "total": 7}
        assert row.metadata == {"stop_reason": "completed"}
        assert row.agent_metadata == {"k": 1}
        assert (row.stop_reason, row.plan) == ("completed", {"max_steps": 3})
        assert row.created_at <= row.started_at <= row.completed_at <= row.updated_at

    async def test_snapshots_form_a_chain_and_the_last_one_is_the_executions(
        self, postgres: PostgresStore
    ) -> None:
        """8.1.3: one on a pause, and the final one."""
        ref = await accept_execution(postgres)
        await run_step(postgres, ref)
        paused = frozen_map({"z": 1, "a": 2.0})
        await postgres.settle(a_settlement(ref, ExecutionStatus.PAUSED, snapshot=paused))
        done = frozen_map({"status": "completed"})
        await postgres.settle(
            a_settlement(ref, ExecutionStatus.COMPLETED, snapshot=done, is_final=True, step_count=4)
        )

        first, second = await fetch(postgres, "SELECT * FROM agent_state_snapshots ORDER BY created_at")

        agent_id = (await postgres.material(ref)).agent_id
        assert (first.agent_execution_id, first.agent_id, first.agent_name) == (
            ref.execution_id,
            agent_id,
            "helper",
        )
        assert (first.previous_snapshot_id, first.step_number, first.is_final) == (None, 1, False)
        assert list(first.state_json.items()) == [("z", 1), ("a", 2.0)]
        assert (second.previous_snapshot_id, second.step_number, second.is_final) == (first.id, 4, True)
        assert (first.parent_snapshot_id, second.parent_snapshot_id) == (None, None)
        assert (first.tenant_id, second.tenant_id, second.debug_mode) == (TENANT, TENANT, False)
        assert (await fetch(postgres, "SELECT last_snapshot_id FROM agent_executions"))[0][0] == second.id

    async def test_snapshots_of_debug_mode_are_in_the_same_chain(self, postgres: PostgresStore) -> None:
        """8.1.3: one for each step, and the final one."""
        ref = await accept_execution(postgres)
        await run_step(postgres, ref)
        full = frozen_map({"z": 1, "a": 2.0})
        assert await postgres.keep_snapshot(ref, 1, full)
        assert not await postgres.keep_snapshot(ref, 1, frozen_map({"other": 1}))
        await postgres.settle(
            a_settlement(
                ref, ExecutionStatus.COMPLETED, snapshot=full, is_final=True, is_debug=True, step_count=2
            )
        )

        first, second = await fetch(postgres, "SELECT * FROM agent_state_snapshots ORDER BY created_at")

        assert list(first.state_json.items()) == [("z", 1), ("a", 2.0)]
        assert (first.previous_snapshot_id, second.previous_snapshot_id) == (None, first.id)
        assert [(s.step_number, s.is_final, s.debug_mode) for s in (first, second)] == [
            (1, False, True),
            (2, True, True),
        ]
        assert (first.tenant_id, first.agent_name) == (TENANT, "helper")
        assert (await fetch(postgres, "SELECT last_snapshot_id FROM agent_executions"))[0][0] == second.id

    async def test_the_end_of_an_execution_is_recorded_in_its_session(self, postgres: PostgresStore) -> None:
        """8.1, 8.2.3: the session's `last_*`: at acceptance, at each snapshot, at the end."""
        session = await insert_session(postgres)
        ref = await accept_execution(postgres, session_id=session)
        (begun,) = await fetch(postgres, "SELECT * FROM agent_sessions")
        await postgres.settle(a_settlement(ref, ExecutionStatus.PAUSED, snapshot=frozen_map({})))
        (paused,) = await fetch(postgres, "SELECT id FROM agent_state_snapshots")
        (before,) = await fetch(postgres, "SELECT * FROM agent_sessions")

        await postgres.settle(
            a_settlement(ref, ExecutionStatus.COMPLETED, snapshot=frozen_map({}), is_final=True)
        )

        (after,) = await fetch(postgres, "SELECT * FROM agent_sessions")
        (final,) = await fetch(postgres, "SELECT id FROM agent_state_snapshots WHERE is_final")
        assert (begun.last_execution_id, begun.last_snapshot_id) == (ref.execution_id, None)
        assert (before.last_execution_id, before.last_snapshot_id) == (ref.execution_id, paused.id)
        assert (after.last_execution_id, after.last_snapshot_id) == (ref.execution_id, final.id)
        assert after.updated_at > before.updated_at

    async def test_an_execution_cannot_join_a_session_of_another_tenant(
        self, postgres: PostgresStore
    ) -> None:
        session = await insert_session(postgres, tenant="umbrella")

        with pytest.raises(NotFound, match=f"There is no session {session}"):
            await postgres.accept(a_new_execution(a_ref(session_id=session)))

    async def test_erasing_an_execution_erases_all_of_it(self, postgres: PostgresStore) -> None:
        ref = await a_waiting_execution(postgres)
        await postgres.steer(ref, "k", user("Hurry"))
        await postgres.keep_snapshot(ref, 1, frozen_map({"a": 1}))
        await postgres.settle(
            a_settlement(
                ref, ExecutionStatus.COMPLETED, snapshot=frozen_map({"a": 1}), events=[an_event("a")]
            )
        )

        await execute(postgres, "DELETE FROM agent_executions")
        (session,) = await fetch(postgres, "SELECT * FROM agent_sessions")
        assert (session.last_execution_id, session.last_snapshot_id) == (None, None)
        for message in await fetch(postgres, "SELECT * FROM agent_session_messages"):
            assert message.agent_execution_id is None
        await execute(postgres, "DELETE FROM agent_sessions")
        await execute(postgres, "DELETE FROM agent_streams")

        left = {table for table, found in (await all_rows(postgres)).items() if found}
        assert left == {"agent_schema_version", "agent_journal"}

    async def test_an_execution_that_others_continue_cannot_be_erased_alone(
        self, postgres: PostgresStore
    ) -> None:
        first = await accept_execution(postgres)
        second = await accept_execution(postgres, continues=first.execution_id)
        erase = "DELETE FROM agent_executions WHERE id = ANY (:ids)"

        with pytest.raises(Exception, match="agent_executions_continues_execution_id_fkey"):
            await execute(postgres, erase, ids=[first.execution_id])
        await execute(postgres, erase, ids=[first.execution_id, second.execution_id])

    async def test_a_subagent_outlives_its_parents_row(self, postgres: PostgresStore) -> None:
        parent = await accept_execution(postgres)
        child = await accept_execution(postgres, parent_execution_id=parent.execution_id)

        await execute(postgres, "DELETE FROM agent_executions WHERE id = :id", id=parent.execution_id)

        row = await postgres.execution(child)
        assert row
        assert row.parent_execution_id is None


async def insert_session(store: PostgresStore, tenant: str = TENANT) -> UUID:
    session = uuid4()
    await execute(
        store,
        "INSERT INTO agent_sessions (id, tenant_id, user_id) VALUES (:id, :tenant, 'me')",
        id=session,
        tenant=tenant,
    )
    return session
