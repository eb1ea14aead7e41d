"""Guarantees of the PostgreSQL store only: atomic writes, typed errors, few round trips, public columns."""

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
import pytest_asyncio
from sqlalchemy import event, make_url, select, text
from sqlalchemy.ext.asyncio import AsyncEngine

from everstep.agent_domain.errors import InvalidInput, NotFound, StoreUnavailable
from everstep.agent_domain.ids import ExecutionRef, request_id
from everstep.agent_domain.loop.status import ExecutionStatus, StopReason
from everstep.agent_domain.loop.step_facts import CallNeed
from everstep.agent_domain.messages.messages import user
from everstep.agent_domain.storage.executions import ExecutionEnded
from everstep.agent_domain.storage.requests import Resolution
from everstep.agent_domain.storage.steps import BegunStep, RetryWait
from everstep.agent_domain.stream.records import EventRecord
from everstep.agent_domain.values import frozen_map
from everstep.store import bodies
from everstep.store.engine import create_engine
from everstep.store.errors import DatabaseBusy, DatabaseUnreachable, SchemaOutdated, StoreError
from everstep.store.postgres import PostgresStore
from everstep.store.reading import ROW
from everstep.store.tables import metadata
from tests.everstep.store.onlookers import administrator, all_asked, explained, once_blocked, round_trips
from tests.everstep.store.store_words import (
    AT,
    TENANT,
    a_call,
    a_ref,
    accepted,
    answer,
    answers,
    begin,
    ended,
    new,
    reply,
    settled,
    stepped,
    telling,
    texts,
    told,
)


async def rows(store: PostgresStore, statement: str, **values: Any) -> Sequence[Any]:
    async with store.engine.begin() as connection:
        return (await connection.execute(text(statement), values)).all()


async def run(store: PostgresStore, statement: str, **values: Any) -> None:
    async with store.engine.begin() as connection:
        await connection.execute(text(statement), values)


async def contents(store: PostgresStore) -> dict[str, Any]:
    """Every row of every table."""
    tables = await rows(store, "SELECT relname FROM pg_stat_user_tables ORDER BY relname")
    return {name: await rows(store, f"SELECT t::text FROM {name} t ORDER BY 1") for (name,) in tables}  # noqa: S608


@pytest_asyncio.fixture
async def own(own_database: str) -> AsyncGenerator[PostgresStore]:
    """A store whose tables a test may change."""
    engine = create_engine(own_database)
    yield PostgresStore(engine)
    await engine.dispose()


async def asking(store: PostgresStore) -> ExecutionRef:
    """An execution in its first step: one call to run, one to be answered."""
    ref = await accepted(store, session_id=uuid4())
    await store.begin_step(begin(ref))
    await store.record_reply(reply(ref, "?", a_call("c0"), a_call("c1"), needs=CallNeed.INPUT))
    return ref


class TestAborting:
    async def test_a_transaction_that_fails_at_its_end_leaves_nothing(self, own: PostgresStore) -> None:
        """1.1.1: a step is recorded completely or not at all."""
        ref = await asking(own)
        await own.steer(ref, "k", user("Hurry"))
        asked = request_id(ref.execution_id, "c1")
        notes = frozen_map({"a": 1})
        end = settled(
            ref, ExecutionStatus.COMPLETED, snapshot=notes, output=notes, stop_reason=StopReason.GUARD
        )
        last_of_all = [told("fatal")]
        attempts: list[Callable[[], Awaitable[Any]]] = [
            lambda: own.begin_step(begin(ref, 2, hears=1, events=telling(last_of_all))),
            lambda: own.record_reply(reply(ref, "!", a_call("c2"), number=2, events=last_of_all)),
            lambda: own.reserve_call(ref, "c0", 1, telling(last_of_all)),
            lambda: own.record_call(answers(ref, answer("c0"), metadata=notes, events=last_of_all)),
            lambda: own.resolve(ref, asked, Resolution("answer"), last_of_all),
            lambda: own.settle(replace(end, events=last_of_all)),
        ]
        await run(
            own,
            "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN RAISE EXCEPTION 'the disk is on fire'; END $$",
        )
        await run(own, "CREATE TRIGGER fail BEFORE INSERT ON agent_envelopes EXECUTE FUNCTION fail()")
        before = await contents(own)

        for attempt in attempts:
            with pytest.raises(StoreError, match="refused a statement: the disk is on fire"):
                await attempt()
        assert await contents(own) == before

        await run(own, "DROP TRIGGER fail ON agent_envelopes")
        for attempt in attempts:
            await attempt()
            assert await contents(own) != before

    async def test_a_connection_that_breaks_midway_leaves_nothing(self, postgres: PostgresStore) -> None:
        ref = await accepted(postgres)
        await postgres.steer(ref, "k", user("Hurry"))
        before = await contents(postgres)

        def breaking(_: BegunStep) -> Sequence[EventRecord]:
            end_all_connections(postgres.engine)
            return [told("step/1/started")]

        with pytest.raises(DatabaseUnreachable, match="cannot be reached"):
            await postgres.begin_step(begin(ref, hears=1, events=breaking))

        assert await contents(postgres) == before
        await stepped(postgres, ref)

    async def test_an_activity_that_is_cancelled_midway_leaves_nothing(self, postgres: PostgresStore) -> None:
        ref = await accepted(postgres)
        before = await contents(postgres)

        def cancelling(_: BegunStep) -> Sequence[EventRecord]:
            assert task.cancel()
            return [told("step/1/started")]

        task = asyncio.create_task(postgres.begin_step(begin(ref, events=cancelling)))
        with pytest.raises(asyncio.CancelledError):
            await task

        assert await contents(postgres) == before
        await stepped(postgres, ref)

    async def test_idle_connections_that_broke_are_noticed_before_they_are_used(
        self, postgres: PostgresStore
    ) -> None:
        ref = await accepted(postgres)
        await asyncio.gather(*(postgres.execution(ref) for _ in range(5)))

        end_all_connections(postgres.engine)

        for _ in range(5):
            assert await postgres.execution(ref)


def end_all_connections(engine: AsyncEngine) -> None:
    """Like a restart of the server."""
    with administrator(engine) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


class TestErrors:
    @pytest.mark.parametrize(
        ("url", "reason"),
        [
            ("postgresql://me:secret@/everstep?host=/nowhere", "No such file or directory"),
            ("postgresql://me:secret@127.0.0.1:1/everstep", "Connection refused"),
        ],
    )
    async def test_an_unreachable_server(self, url: str, reason: str) -> None:
        engine = create_engine(url)
        store = PostgresStore(engine)
        ref = a_ref()

        for attempt in (store.execution(ref), store.material(ref), store.steps(ref), store.accept(new(ref))):
            with pytest.raises(DatabaseUnreachable, match="Check that it runs") as caught:
                await attempt
            assert reason in str(caught.value)
            assert "secret" not in str(caught.value)
            assert isinstance(caught.value, StoreUnavailable)

        await engine.dispose()

    async def test_an_unknown_database(self, database: str) -> None:
        engine = create_engine(
            make_url(database).set(database="nowhere").render_as_string(hide_password=False)
        )

        with pytest.raises(DatabaseUnreachable, match='database "nowhere" does not exist'):
            await PostgresStore(engine).execution(a_ref())

        await engine.dispose()

    async def test_missing_tables(self, empty_database: str) -> None:
        engine = create_engine(empty_database)

        with pytest.raises(SchemaOutdated, match="run `everstep db upgrade`"):
            await PostgresStore(engine).accept(new(a_ref()))

        await engine.dispose()

    async def test_a_missing_column(self, own: PostgresStore) -> None:
        await run(own, "ALTER TABLE agent_executions DROP COLUMN plan")

        with pytest.raises(SchemaOutdated, match="run `everstep db upgrade`"):
            await own.accept(new(a_ref()))

    @pytest.mark.parametrize("limit", ["lock_timeout", "statement_timeout"])
    async def test_a_lock_that_another_transaction_holds_for_too_long(
        self, postgres: PostgresStore, database: str, limit: str
    ) -> None:
        ref = await accepted(postgres)
        timeouts = {"lock_timeout": 0.0, "statement_timeout": 0.0, limit: 0.05}
        engine = create_engine(database, **timeouts)  # type: ignore[arg-type]

        with administrator(postgres.engine) as connection:
            connection.execute("SELECT FROM agent_executions FOR UPDATE")
            with pytest.raises(DatabaseBusy, match="Try again") as caught:
                await PostgresStore(engine).begin_step(begin(ref))
        assert isinstance(caught.value, StoreUnavailable)

        await PostgresStore(engine).begin_step(begin(ref))
        await engine.dispose()

    async def test_a_pool_without_a_free_connection(self, postgres: PostgresStore, database: str) -> None:
        ref = await accepted(postgres)
        engine = create_engine(database, pool_size=1, max_overflow=0, pool_timeout=0.01)

        async with engine.connect():
            with pytest.raises(DatabaseBusy, match="every connection of this process's pool is taken"):
                await PostgresStore(engine).execution(ref)

        assert await PostgresStore(engine).execution(ref)
        await engine.dispose()

    async def test_a_number_that_is_out_of_range(self, postgres: PostgresStore) -> None:
        ref = await accepted(postgres)

        with pytest.raises(InvalidInput, match="PostgreSQL cannot hold this value"):
            await postgres.settle(settled(ref, ExecutionStatus.RUNNING, step_count=2**40))

    async def test_a_violated_constraint(self, postgres: PostgresStore) -> None:
        with pytest.raises(StoreError, match=r"refused a statement: new row .* violates check constraint"):
            await postgres.settle(settled(await accepted(postgres), "odd"))  # type: ignore[arg-type]

    async def test_another_constraint_is_not_taken_for_a_duplicate_call_id(self, own: PostgresStore) -> None:
        await run(own, "ALTER TABLE agent_steps ADD CHECK (number < 7)")

        with pytest.raises(StoreError, match="refused a statement: new row"):
            await own.record_reply(reply(await accepted(own), number=7))

    async def test_user_content_is_in_no_error(self, postgres: PostgresStore) -> None:
        ref = await accepted(postgres)

        with pytest.raises(InvalidInput) as caught:
            await postgres.settle(
                settled(ref, ExecutionStatus.FAILED, error_message="a secret", step_count=2**40)
            )

        assert "a secret" not in repr(caught.value)
        assert "a secret" not in repr(caught.value.__cause__)

    async def test_a_write_to_a_deleted_stream_raises(self, postgres: PostgresStore) -> None:
        ref = await accepted(postgres)
        await run(postgres, "DELETE FROM agent_streams")

        with pytest.raises(StoreError, match=f"the stream of execution {ref.execution_id} is gone"):
            await postgres.settle(settled(ref, ExecutionStatus.RUNNING, events=[told("a")]))

        row = await postgres.execution(ref)
        assert row
        assert row.status is ExecutionStatus.PENDING


class TestReading:
    async def test_fields_of_a_later_version_are_ignored(self, postgres: PostgresStore) -> None:
        """0.6: readers ignore unknown fields."""
        ref = await asking(postgres)
        await postgres.resolve(ref, request_id(ref.execution_id, "c1"), Resolution("answer", "yes"))
        before = (
            await postgres.steps(ref),
            await postgres.material(ref),
            await postgres.reserve_call(ref, "c1", 1),
        )

        for table, column in (
            ("agent_steps", "facts"),
            ("agent_executions", "agent_config"),
            ("agent_requests", "resolution"),
        ):
            later = f'({column}::jsonb || \'{{"later": {{"a": 1}}}}\')::json'
            await run(postgres, f"UPDATE {table} SET {column} = {later}")  # noqa: S608

        assert await postgres.steps(ref) == (await changed_attempts(before[0]))
        assert await postgres.material(ref) == before[1]
        assert (await postgres.reserve_call(ref, "c1", 1)).resolution == before[2].resolution

    @pytest.mark.parametrize(
        ("column", "complaint"),
        [
            ("facts", "the facts of the step cannot be read"),
            ("errors", "the errors of the step cannot be read"),
        ],
    )
    async def test_an_unreadable_value_is_named(
        self, postgres: PostgresStore, column: str, complaint: str
    ) -> None:
        ref = await asking(postgres)
        await run(postgres, f"UPDATE agent_steps SET {column} = '[1]'")  # noqa: S608

        with pytest.raises(InvalidInput, match=complaint):
            await postgres.steps(ref)


async def changed_attempts(steps: tuple[Any, ...]) -> tuple[Any, ...]:
    """The same steps after their second call was reserved."""
    (step,) = steps
    first, second = step.calls
    return (replace(step, calls=(first, replace(second, state="reserved", attempts=1))),)


WAIT = RetryWait(1, AT, AT, "provider unavailable, next attempt in 12 s", "503")

# The number of times that each method waits for the server: every step of every agent uses some of them.
ROUND_TRIPS = {
    "accept": 2,
    "material": 1,
    "begin_step": 2,
    "note_partial": 1,
    "note_failure": 1,
    "note_wait": 3,
    "record_reply": 1,
    "preview_step": 1,
    "record_reply with its beginning": 1,
    "preview_call": 1,
    "reserve_call": 2,
    "record_call": 1,
    "record_call with metadata": 1,
    "settle": 3,
    "keep_snapshot": 2,
    "settle at the end": 3,
    "steer": 2,
    "open_requests": 1,
    "request": 1,
    "resolve": 2,
    "execution": 1,
    "executions": 1,
    "steps": 2,
    "transcript": 1,
    "envelopes": 1,
}


class TestRoundTrips:
    async def test_each_method_has_its_number_of_round_trips(self, database: str, tmp_path: Path) -> None:
        postgres = PostgresStore(create_engine(database, pool_size=1))
        waits = round_trips(postgres.engine, tmp_path / "trace")
        counted: dict[str, int] = {}
        await postgres.execution(a_ref())
        ref = a_ref(session_id=uuid4())
        asked = request_id(ref.execution_id, "c1")
        said = frozen_map({"a": 1})
        end = settled(
            ref, ExecutionStatus.COMPLETED, "end", outcome=said, output=said, snapshot=said, is_final=True
        )
        calls: list[tuple[str, Callable[[], Awaitable[Any]]]] = [
            ("accept", lambda: postgres.accept(new(ref))),
            ("material", lambda: postgres.material(ref)),
            ("begin_step", lambda: postgres.begin_step(begin(ref, events=telling([told("1")])))),
            ("note_partial", lambda: postgres.note_partial(ref, 1, 1, "text")),
            ("note_failure", lambda: postgres.note_failure(ref, 1, 1)),
            ("note_wait", lambda: postgres.note_wait(ref, 1, WAIT, [told("wait")])),
            (
                "record_reply",
                lambda: postgres.record_reply(
                    reply(ref, "", *map(a_call, ("c0", "c1", "c2")), needs=CallNeed.INPUT, events=[told("2")])
                ),
            ),
            ("preview_step", lambda: postgres.preview_step(ref, 2)),
            (
                "record_reply with its beginning",
                lambda: postgres.record_reply(replace(reply(ref, number=2), begins=begin(ref, 2))),
            ),
            ("preview_call", lambda: postgres.preview_call(ref, "c0")),
            ("open_requests", lambda: postgres.open_requests(ref)),
            ("request", lambda: postgres.request(ref, asked)),
            ("resolve", lambda: postgres.resolve(ref, asked, Resolution("answer"), [told("3")])),
            ("reserve_call", lambda: postgres.reserve_call(ref, "c0", 1, telling([told("4")]))),
            ("record_call", lambda: postgres.record_call(answers(ref, answer("c0"), events=[told("5")]))),
            (
                "record_call with metadata",
                lambda: postgres.record_call(
                    answers(ref, answer("c1"), metadata=said, events=[told("6")], index=1)
                ),
            ),
            ("settle", lambda: postgres.settle(settled(ref, ExecutionStatus.PAUSED, events=[told("7")]))),
            ("keep_snapshot", lambda: postgres.keep_snapshot(ref, 1, said)),
            ("steer", lambda: postgres.steer(ref, "k", user("Hurry"))),
            ("settle at the end", lambda: postgres.settle(replace(end, events=[told("8")]))),
            ("execution", lambda: postgres.execution(ref)),
            ("executions", lambda: postgres.executions(TENANT)),
            ("steps", lambda: postgres.steps(ref)),
            ("transcript", lambda: postgres.transcript(ref)),
            ("envelopes", lambda: postgres.envelopes(TENANT, ref.stream_id)),
        ]
        for name, call in calls:
            before = waits()
            await call()
            counted[name] = waits() - before
        await postgres.engine.dispose()

        assert counted == ROUND_TRIPS


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
        "metadata json, error_message?, started_at? time, completed_at? time, created_at time, "
        "updated_at time"
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
    "boolean": " flag",
    "uuid": " uuid",
    "json": " json",
}


class TestTables:
    @pytest.mark.parametrize("table", PUBLIC)
    async def test_the_public_tables_have_their_columns(self, postgres: PostgresStore, table: str) -> None:
        """8.1: the columns are a contract."""
        found = await rows(
            postgres,
            "SELECT column_name, is_nullable, data_type, datetime_precision FROM information_schema.columns"
            " WHERE table_name = :name",
            name=table,
        )

        columns = {f"{r.column_name}{'?' * (r.is_nullable == 'YES')}{KINDS[r.data_type]}" for r in found}
        assert set(PUBLIC[table].split(", ")) <= columns
        assert {r.datetime_precision for r in found if r.datetime_precision is not None} == {6}

    async def test_every_row_names_its_tenant(self, postgres: PostgresStore) -> None:
        found = await rows(
            postgres,
            "SELECT relname FROM pg_stat_user_tables"
            " WHERE relname NOT IN ('agent_schema_version', 'agent_journal', 'agent_gateways') AND NOT EXISTS"
            " (SELECT FROM pg_attribute WHERE attrelid = relid AND attname = 'tenant_id' AND attnotnull)",
        )

        assert found == []

    async def test_an_execution_is_stored_as_documented(self, postgres: PostgresStore) -> None:
        """8.1, 8.2.3: literal columns, 4.2.1: literal forms of usage."""
        ref = a_ref(session_id=uuid4())
        await postgres.accept(
            replace(
                new(ref, "Hello", plan=frozen_map({"max_steps": 3})),
                user_id="me",
                metadata=frozen_map({"k": 1}),
            )
        )
        await postgres.begin_step(begin(ref))
        await postgres.record_reply(reply(ref, "Hi", tokens=7))
        output = frozen_map({"response": "Hi", "stop_reason": "completed"})
        await postgres.settle(
            settled(
                ref, ExecutionStatus.COMPLETED, output=output, stop_reason=StopReason.COMPLETED, step_count=1
            )
        )

        (row,) = await rows(postgres, "SELECT * FROM agent_executions")

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
        ref = await accepted(postgres)
        await stepped(postgres, ref)
        paused = frozen_map({"z": 1, "a": 2.0})
        await postgres.settle(settled(ref, ExecutionStatus.PAUSED, snapshot=paused))
        done = frozen_map({"status": "completed"})
        await postgres.settle(
            settled(ref, ExecutionStatus.COMPLETED, snapshot=done, is_final=True, step_count=4)
        )

        first, second = await rows(postgres, "SELECT * FROM agent_state_snapshots ORDER BY created_at")

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
        assert (await rows(postgres, "SELECT last_snapshot_id FROM agent_executions"))[0][0] == second.id

    async def test_snapshots_of_debug_mode_are_in_the_same_chain(self, postgres: PostgresStore) -> None:
        """8.1.3: one for each step, and the final one."""
        ref = await accepted(postgres)
        await stepped(postgres, ref)
        full = frozen_map({"z": 1, "a": 2.0})
        assert await postgres.keep_snapshot(ref, 1, full)
        assert not await postgres.keep_snapshot(ref, 1, frozen_map({"other": 1}))
        await postgres.settle(
            settled(ref, ExecutionStatus.COMPLETED, snapshot=full, is_final=True, is_debug=True, step_count=2)
        )

        first, second = await rows(postgres, "SELECT * FROM agent_state_snapshots ORDER BY created_at")

        assert list(first.state_json.items()) == [("z", 1), ("a", 2.0)]
        assert (first.previous_snapshot_id, second.previous_snapshot_id) == (None, first.id)
        assert [(s.step_number, s.is_final, s.debug_mode) for s in (first, second)] == [
            (1, False, True),
            (2, True, True),
        ]
        assert (first.tenant_id, first.agent_name) == (TENANT, "helper")
        assert (await rows(postgres, "SELECT last_snapshot_id FROM agent_executions"))[0][0] == second.id

    async def test_the_end_of_an_execution_is_recorded_in_its_session(self, postgres: PostgresStore) -> None:
        """8.1, 8.2.3: the session's `last_*`: at acceptance, at each snapshot, at the end."""
        session = await a_session(postgres)
        ref = await accepted(postgres, session_id=session)
        (begun,) = await rows(postgres, "SELECT * FROM agent_sessions")
        await postgres.settle(settled(ref, ExecutionStatus.PAUSED, snapshot=frozen_map({})))
        (paused,) = await rows(postgres, "SELECT id FROM agent_state_snapshots")
        (before,) = await rows(postgres, "SELECT * FROM agent_sessions")

        await postgres.settle(settled(ref, ExecutionStatus.COMPLETED, snapshot=frozen_map({}), is_final=True))

        (after,) = await rows(postgres, "SELECT * FROM agent_sessions")
        (final,) = await rows(postgres, "SELECT id FROM agent_state_snapshots WHERE is_final")
        assert (begun.last_execution_id, begun.last_snapshot_id) == (ref.execution_id, None)
        assert (before.last_execution_id, before.last_snapshot_id) == (ref.execution_id, paused.id)
        assert (after.last_execution_id, after.last_snapshot_id) == (ref.execution_id, final.id)
        assert after.updated_at > before.updated_at

    async def test_an_execution_cannot_join_a_session_of_another_tenant(
        self, postgres: PostgresStore
    ) -> None:
        session = await a_session(postgres, tenant="umbrella")

        with pytest.raises(NotFound, match=f"There is no session {session}"):
            await postgres.accept(new(a_ref(session_id=session)))

    async def test_erasing_an_execution_erases_all_of_it(self, postgres: PostgresStore) -> None:
        ref = await asking(postgres)
        await postgres.steer(ref, "k", user("Hurry"))
        await postgres.keep_snapshot(ref, 1, frozen_map({"a": 1}))
        await postgres.settle(
            settled(ref, ExecutionStatus.COMPLETED, snapshot=frozen_map({"a": 1}), events=[told("a")])
        )

        await run(postgres, "DELETE FROM agent_executions")
        (session,) = await rows(postgres, "SELECT * FROM agent_sessions")
        assert (session.last_execution_id, session.last_snapshot_id) == (None, None)
        for message in await rows(postgres, "SELECT * FROM agent_session_messages"):
            assert message.agent_execution_id is None
        await run(postgres, "DELETE FROM agent_sessions")
        await run(postgres, "DELETE FROM agent_streams")

        left = {table for table, found in (await contents(postgres)).items() if found}
        assert left == {"agent_schema_version", "agent_journal"}

    async def test_an_execution_that_others_continue_cannot_be_erased_alone(
        self, postgres: PostgresStore
    ) -> None:
        first = await accepted(postgres)
        second = await accepted(postgres, continues=first.execution_id)
        erase = "DELETE FROM agent_executions WHERE id = ANY (:ids)"

        with pytest.raises(Exception, match="agent_executions_continues_execution_id_fkey"):
            await run(postgres, erase, ids=[first.execution_id])
        await run(postgres, erase, ids=[first.execution_id, second.execution_id])

    async def test_a_subagent_outlives_its_parents_row(self, postgres: PostgresStore) -> None:
        parent = await accepted(postgres)
        child = await accepted(postgres, parent_execution_id=parent.execution_id)

        await run(postgres, "DELETE FROM agent_executions WHERE id = :id", id=parent.execution_id)

        row = await postgres.execution(child)
        assert row
        assert row.parent_execution_id is None


async def a_session(store: PostgresStore, tenant: str = TENANT) -> UUID:
    session = uuid4()
    await run(
        store,
        "INSERT INTO agent_sessions (id, tenant_id, user_id) VALUES (:id, :tenant, 'me')",
        id=session,
        tenant=tenant,
    )
    return session


MANY = """
    INSERT INTO agent_sessions (id, tenant_id, user_id)
    SELECT CAST(md5('session ' || i) AS uuid), 'tenant ' || i % 5, 'ann'
      FROM generate_series(1, {executions}) AS i;
    INSERT INTO agent_executions
           (id, tenant_id, session_id, agent_type, agent_config, status, agent_id, created_at)
    SELECT gen_random_uuid(), 'tenant ' || i % 5, CAST(md5('session ' || i) AS uuid), 'helper',
           '{{"agent": "helper"}}',
           CASE i % 3 WHEN 0 THEN 'completed' WHEN 1 THEN 'failed' ELSE 'running' END, gen_random_uuid(),
           now() - i * interval '1 second'
      FROM generate_series(1, {executions}) AS i;
    INSERT INTO agent_steps (execution_id, tenant_id, number, attempt)
    SELECT id, tenant_id, number, 1 FROM agent_executions, generate_series(1, 5) AS number;
    INSERT INTO agent_transcript (execution_id, tenant_id, step, idx, role, content)
    SELECT id, tenant_id, step, idx, 'user', '"text"'
      FROM agent_executions, generate_series(1, 5) AS step, generate_series(0, 1) AS idx;
    INSERT INTO agent_transcript (execution_id, tenant_id, step, idx, role, content)
    SELECT id, tenant_id, step, {notes}, 'note', '{{"values": {{"a": 1}}, "removed": ["b"]}}'
      FROM agent_executions, generate_series(1, 5) AS step;
    INSERT INTO agent_inner_replies (execution_id, tenant_id, key, digest, response)
    SELECT id, tenant_id, 'call/' || number, '', '{{}}'
      FROM agent_executions, generate_series(1, 5) AS number;
    INSERT INTO agent_tool_calls (execution_id, tenant_id, call_id, step, idx, name, args, need, args_digest)
    SELECT id, tenant_id, 'call ' || step, step, 0, 'look', '{{}}', 'input', ''
      FROM agent_executions, generate_series(1, 5) AS step;
    INSERT INTO agent_requests (id, tenant_id, execution_id, call_id, kind)
    SELECT gen_random_uuid(), tenant_id, execution_id, call_id, 'input' FROM agent_tool_calls WHERE step = 1;
    INSERT INTO agent_streams (stream_id, tenant_id) SELECT session_id, tenant_id FROM agent_executions;
    INSERT INTO agent_envelopes (stream_id, seq, tenant_id, id, type, execution_id, payload)
    SELECT session_id, seq, tenant_id, gen_random_uuid(), 'agent.status', id, '{{}}'
      FROM agent_executions, generate_series(1, 5) AS seq;
    INSERT INTO agent_envelopes (stream_id, seq, tenant_id, id, type, execution_id, payload)
    SELECT session_id, seq, tenant_id, gen_random_uuid(), 'agent.status', id, '{{}}'
      FROM (SELECT * FROM agent_executions ORDER BY created_at OFFSET {executions} / 2 LIMIT 1) AS busy,
           generate_series(6, 5000) AS seq;
    ANALYZE;
"""


NOTES = 2_000_000_000
"""The position of the metadata of a step's first call."""

PAGES = {"executions", "executions of a status", "envelopes", "steps page by page"}

LONG = """
    INSERT INTO agent_steps (execution_id, tenant_id, number, attempt)
    SELECT '{id}', '{tenant}', number, 1 FROM generate_series(1, 1000) AS number;
    INSERT INTO agent_transcript (execution_id, tenant_id, step, idx, role, content)
    SELECT '{id}', '{tenant}', step, idx, 'user', to_json(repeat('text', 2000))
      FROM generate_series(1, 1000) AS step, generate_series(0, 1) AS idx;
    INSERT INTO agent_tool_calls (execution_id, tenant_id, call_id, step, idx, name, args, need, args_digest)
    SELECT '{id}', '{tenant}', 'call ' || step, step, 0, 'look', '{{}}', 'run', ''
      FROM generate_series(1, 1000) AS step;
    ANALYZE;
"""

NOTED = """
    INSERT INTO agent_transcript (execution_id, tenant_id, step, idx, role, content)
    SELECT '{id}', '{tenant}', step, {notes}, 'note',
           json_build_object('values', json_build_object('a', step), 'removed', json_build_array('b'))
      FROM generate_series(1, 1000) AS step;
"""


class TestIndexes:
    async def test_no_list_is_a_sequential_scan(
        self, own: PostgresStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Among many others, each list is found by an index, and pages are sorted by it."""
        with administrator(own.engine) as connection:
            connection.execute(MANY.format(executions=5000, notes=NOTES).encode())
        running = (
            "SELECT * FROM agent_executions WHERE status = 'running' ORDER BY created_at OFFSET 800 LIMIT 1"
        )
        (some,) = await rows(own, running)
        ref = ExecutionRef(some.id, some.tenant_id, some.session_id)
        first = await own.executions(some.tenant_id, limit=20)
        plans, asked = list[str](), all_asked(monkeypatch)

        @event.listens_for(own.engine.sync_engine, "before_cursor_execute", retval=True)
        def explain(*given: Any) -> tuple[str, Any]:  # pyright: ignore[reportUnusedFunction] -- SQLAlchemy calls it
            _, cursor, statement, parameters, *_ = given
            cursor.execute(f"EXPLAIN {statement}", parameters)
            plans.append("\n".join(line for (line,) in cursor.fetchall()))
            return statement, parameters

        lists: dict[str, Callable[[], Awaitable[Any]]] = {
            "executions": lambda: own.executions(some.tenant_id, cursor=first.cursor, limit=20),
            "executions of a status": lambda: own.executions(
                some.tenant_id, status=ExecutionStatus.FAILED, cursor=first.cursor, limit=20
            ),
            "envelopes": lambda: own.envelopes(some.tenant_id, some.session_id, after=2000, limit=100),
            "transcript": lambda: own.transcript(ref),
            "steps": lambda: own.steps(ref),
            "steps page by page": lambda: own.steps_after(ref, 2, limit=2),
            "open requests": lambda: own.open_requests(ref),
            "an execution": lambda: own.execution(ref),
            "what a step is made from": lambda: own.material(ref),
            "what a call is shown": lambda: own.preview_call(ref, "call 5"),
            "what processors made of a step": lambda: own.processing(ref, 3),
            "what was asked in the midst of a step": lambda: own.inner_reply(ref, "call/3"),
            "what toolsets listed": lambda: own.listed(ref),
        }
        for name, read in lists.items():
            plans.clear()
            asked.clear()
            await read()
            plans += [explained(own.engine, each) for each, _ in asked]
            assert plans
            for plan in plans:
                assert "Seq Scan" not in plan, f"{name}:\n{plan}"
                # The remaining scans read the metadata of one execution: few keys.
                page, _, _ = plan.partition("SubPlan")
                assert name not in PAGES or "Sort" not in page, f"{name}:\n{plan}"

    async def test_a_page_of_a_long_execution_reads_its_own_rows_only(
        self, own: PostgresStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Of 1,000 steps: the page's steps, and one more that shows whether there is a next page."""
        ref = await accepted(own)
        with administrator(own.engine) as connection:
            connection.execute(LONG.format(id=ref.execution_id, tenant=ref.tenant_id).encode())
        asked = all_asked(monkeypatch)

        page = await own.steps_after(ref, 500, limit=10)

        assert [step.number for step in page.rows] == list(range(501, 511))
        assert page.cursor == "510"
        assert {(len(step.messages), len(step.calls)) for step in page.rows} == {(2, 1)}
        assert [answer.rowcount for _, answer in asked] == [11, 20, 10]
        plans = [explained(own.engine, each) for each, _ in asked]
        for plan, place in zip(plans, ("number", "step", "step"), strict=True):
            assert "Index Scan" in plan, plan
            assert re.search(rf"Index Cond: .*{place} >", plan), plan
            assert "Sort" not in plan, plan

    async def test_a_list_reads_the_merged_metadata_not_a_thousand_changes(self, own: PostgresStore) -> None:
        """Otherwise the cost of a page would grow with all metadata ever written in its executions."""
        ref = await accepted(own, metadata=frozen_map({"a": 0, "b": 1, "c": 2}))
        with administrator(own.engine) as connection:
            connection.execute(NOTED.format(id=ref.execution_id, tenant=ref.tenant_id, notes=NOTES).encode())

        async with own.engine.connect() as connected:
            (row,) = (await connected.execute(select(*ROW))).all()
        (listed,) = (await own.executions(ref.tenant_id)).rows

        assert row.notes == {"values": {"a": 1000}, "removed": ["b"]}
        assert listed.metadata == {"a": 1000, "c": 2}


class TestUpgradesUnderway:
    async def test_a_new_column_does_not_disturb_open_connections(self, own: PostgresStore) -> None:
        """Statements are prepared, and a prepared `*` fails when its columns change."""

        async def whole_run() -> None:
            ref = await asking(own)
            await own.reserve_call(ref, "c0", 1, telling([told("a")]))
            await own.record_call(answers(ref, answer("c0"), metadata=frozen_map({"a": 1})))
            await own.settle(settled(ref, ExecutionStatus.PAUSED, events=[told("b")]))
            await own.steer(ref, "k", user("Hurry"))
            await own.resolve(ref, request_id(ref.execution_id, "c1"), Resolution("answer"), [told("c")])
            await ended(own, ref)
            await own.material(ref)
            await own.steps(ref)
            await own.executions(TENANT)
            await own.envelopes(TENANT, ref.stream_id)

        for _ in range(8):
            await whole_run()
        # From another connection: a connection drops its prepared statements when it alters a table itself.
        with administrator(own.engine) as connection:
            for table in metadata.tables:
                connection.execute(f"ALTER TABLE {table} ADD COLUMN later int".encode())
        await whole_run()


class TestWaiting:
    """A transaction that waited for another one has to see its changes."""

    async def test_of_concurrent_attempts_one_reserves_a_call_with_certainty(
        self, postgres: PostgresStore
    ) -> None:
        """1.1.3: the others know that the call may have run."""
        ref = await asking(postgres)
        with administrator(postgres.engine) as holder:
            holder.execute("SELECT FROM agent_tool_calls FOR UPDATE")
            attempts = (postgres.reserve_call(ref, "c0", attempt) for attempt in (1, 2, 3))
            reserved = await once_blocked(postgres.engine, holder.commit, *attempts)

        assert sorted(each.is_uncertain for each in reserved) == [False, True, True]

    async def test_a_call_that_gets_its_result_at_the_last_moment_keeps_it(
        self, postgres: PostgresStore
    ) -> None:
        """1.1.3: exactly one result."""
        ref = await asking(postgres)
        with administrator(postgres.engine) as holder:
            holder.execute(
                "UPDATE agent_tool_calls SET state = 'done', result = '1', text = '1', success = true,"
                " started_at = now(), completed_at = now(), seconds = 0 WHERE call_id = 'c0'"
            )
            end = settled(ref, ExecutionStatus.CANCELLED)
            assert await once_blocked(postgres.engine, holder.commit, postgres.settle(end)) == [True]

        records = [call.record for call in (await postgres.steps(ref))[0].calls]
        assert [record.text for record in records if record] == ["1", "Error: Cancelled before it finished"]
        # The first message belongs to the transaction that recorded the result.
        assert texts(await postgres.transcript(ref))[2:] == ["Error: Cancelled before it finished"]

    async def test_a_result_that_arrives_while_the_call_is_closed_is_too_late(
        self, postgres: PostgresStore
    ) -> None:
        """1.1.3: exactly one result."""
        ref = await asking(postgres)
        with administrator(postgres.engine) as holder:
            holder.execute(
                "UPDATE agent_tool_calls SET state = 'done', result = 'null', text = 'closed',"
                " success = false, started_at = now(), completed_at = now(), seconds = 0 WHERE call_id = 'c0'"
            )
            record = answers(ref, answer("c0"), events=[told("done")])
            (seen,) = await once_blocked(postgres.engine, holder.commit, postgres.record_call(record))

        assert seen.text == "closed"
        assert await postgres.envelopes(TENANT, ref.stream_id) == ()

    @pytest.mark.parametrize("method", ["steer", "begin_step", "record_reply", "settle"])
    async def test_a_message_that_arrives_while_an_execution_ends_is_too_late(
        self, postgres: PostgresStore, method: str
    ) -> None:
        """8.3.1: an accepted message is never dropped, so it is not accepted."""
        ref = await accepted(postgres)
        work: dict[str, Callable[[], Awaitable[Any]]] = {
            "steer": lambda: postgres.steer(ref, "k", user("Hurry")),
            "begin_step": lambda: postgres.begin_step(begin(ref)),
            "record_reply": lambda: postgres.record_reply(reply(ref)),
            "settle": lambda: postgres.settle(settled(ref, ExecutionStatus.RUNNING)),
        }
        with administrator(postgres.engine) as holder:
            holder.execute("UPDATE agent_executions SET status = 'completed'")
            (result,) = await once_blocked(postgres.engine, holder.commit, work[method]())

        assert result is False if method == "settle" else isinstance(result, ExecutionEnded)
        row = await postgres.execution(ref)
        assert row
        assert row.status is ExecutionStatus.COMPLETED

    async def test_metadata_of_a_call_wait_for_no_lock(self, postgres: PostgresStore) -> None:
        ref = await asking(postgres)
        with administrator(postgres.engine) as holder:
            holder.execute("SELECT FROM agent_executions FOR NO KEY UPDATE")
            await postgres.record_call(answers(ref, answer("c0"), metadata=frozen_map({"ours": 2})))

        assert (await postgres.material(ref)).metadata == {"ours": 2}

    async def test_a_retry_waits_for_the_attempt_that_is_recording(self, postgres: PostgresStore) -> None:
        """1.1.1: and then returns the recorded reply."""
        ref = await accepted(postgres)
        await postgres.begin_step(begin(ref))
        given = reply(ref, "From the first attempt")
        with administrator(postgres.engine) as holder:
            holder.execute("SELECT FROM agent_executions FOR UPDATE")
            holder.execute("UPDATE agent_steps SET facts = %s", [bodies.facts_written(given.facts)])
            late = postgres.record_reply(reply(ref, "From the second", a_call(), attempt=2))
            retry = postgres.begin_step(begin(ref, attempt=2))
            facts, begun = await once_blocked(postgres.engine, holder.commit, late, retry)

        assert facts == begun.recorded == given.facts


class TestConcurrency:
    async def test_numbers_have_no_gaps_when_several_processes_write(self, database: str) -> None:
        """7.1.1: gapless and in the order of commits, with any number of writers."""
        engines = [create_engine(database, pool_size=25) for _ in range(2)]
        stores = [PostgresStore(engine) for engine in engines]
        session = uuid4()
        refs = [await accepted(stores[0], session_id=session) for _ in range(50)]

        async def whole_run(index: int) -> None:
            store, other, ref = stores[index % 2], stores[1 - index % 2], refs[index]
            await store.begin_step(begin(ref, events=telling([told("started")])))
            calls = [a_call("c0"), a_call("c1")]
            await other.record_reply(reply(ref, "Look", *calls, events=[told("replied")]))
            await asyncio.gather(
                *(
                    each.record_call(answers(ref, answer(f"c{i}"), index=i, events=[told(f"done {i}")]))
                    for i, each in enumerate(stores)
                )
            )
            await asyncio.gather(
                *(
                    each.settle(settled(ref, ExecutionStatus.COMPLETED, "end", events=[told("ended")]))
                    for each in stores
                )
            )

        await asyncio.gather(*map(whole_run, range(50)))

        stored = await stores[0].envelopes(TENANT, session)
        assert [e.seq for e in stored] == list(range(1, 251))
        assert sorted(stored, key=lambda e: e.created_at) == list(stored)
        assert len({e.created_at for e in stored}) == 250
        for engine in engines:
            await engine.dispose()

    async def test_the_conversation_of_a_thousand_messages_is_read_in_order(
        self, postgres: PostgresStore
    ) -> None:
        ref = await accepted(postgres)
        for number in range(1, 101):
            said = tuple(user(f"{number}/{i}") for i in range(10))
            await postgres.record_reply(replace(reply(ref, number=number), messages=said))
        await ended(postgres, ref)

        expected = ["Hello", *(f"{number}/{i}" for number in range(1, 101) for i in range(10))]
        assert texts(await postgres.transcript(ref)) == expected
