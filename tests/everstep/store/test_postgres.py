"""Guarantees of the PostgreSQL store only: atomic writes, typed errors, and transactions that wait."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import make_url
from sqlalchemy.ext.asyncio import AsyncEngine

from everstep.agent_domain.errors import InvalidInput, StoreUnavailable
from everstep.agent_domain.fairness.tenant_limits import TenantLimits
from everstep.agent_domain.ids import request_id
from everstep.agent_domain.loop.status import ExecutionStatus, StopReason
from everstep.agent_domain.messages.messages import user
from everstep.agent_domain.storage.executions import ExecutionEnded
from everstep.agent_domain.storage.requests import Resolution
from everstep.agent_domain.storage.sessions import Settled
from everstep.agent_domain.storage.steps import BegunStep
from everstep.agent_domain.stream.records import EventRecord
from everstep.agent_domain.values import frozen_map
from everstep.store import bodies
from everstep.store.engine import create_engine
from everstep.store.errors import DatabaseBusy, DatabaseUnreachable, SchemaOutdated, StoreError
from everstep.store.postgres import PostgresStore
from everstep.store.tables import metadata
from tests.everstep.store.onlookers import open_admin_connection, run_behind_lock
from tests.everstep.store.queries import a_waiting_execution, all_rows, execute
from tests.everstep.store.store_words import (
    TENANT,
    a_call,
    a_new_execution,
    a_ref,
    a_reply,
    a_result,
    a_settlement,
    a_step_start,
    accept_execution,
    an_event,
    end_execution,
    publishing,
    result_record,
    run_step,
    texts,
)


class TestAborting:
    async def test_a_transaction_that_fails_at_its_end_leaves_nothing(self, own_store: PostgresStore) -> None:
        """1.1.1: a step is recorded completely or not at all."""
        ref = await a_waiting_execution(own_store)
        await own_store.steer(ref, "k", user("Hurry"))
        asked = request_id(ref.execution_id, "c1")
        notes = frozen_map({"a": 1})
        end = a_settlement(
            ref, ExecutionStatus.COMPLETED, snapshot=notes, output=notes, stop_reason=StopReason.GUARD
        )
        last_of_all = [an_event("fatal")]
        attempts: list[Callable[[], Awaitable[Any]]] = [
            lambda: own_store.begin_step(a_step_start(ref, 2, hears=1, events=publishing(last_of_all))),
            lambda: own_store.record_reply(a_reply(ref, "!", a_call("c2"), number=2, events=last_of_all)),
            lambda: own_store.reserve_call(ref, "c0", 1, publishing(last_of_all)),
            lambda: own_store.record_call(
                result_record(ref, a_result("c0"), metadata=notes, events=last_of_all)
            ),
            lambda: own_store.resolve(ref, asked, Resolution("answer"), last_of_all),
            lambda: own_store.settle(replace(end, events=last_of_all)),
        ]
        await execute(
            own_store,
            "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN RAISE EXCEPTION 'the disk is on fire'; END $$",
        )
        await execute(
            own_store, "CREATE TRIGGER fail BEFORE INSERT ON agent_envelopes EXECUTE FUNCTION fail()"
        )
        before = await all_rows(own_store)

        for attempt in attempts:
            with pytest.raises(StoreError, match="refused a statement: the disk is on fire"):
                await attempt()
        assert await all_rows(own_store) == before

        await execute(own_store, "DROP TRIGGER fail ON agent_envelopes")
        for attempt in attempts:
            await attempt()
            assert await all_rows(own_store) != before

    async def test_a_connection_that_breaks_midway_leaves_nothing(self, postgres: PostgresStore) -> None:
        ref = await accept_execution(postgres)
        await postgres.steer(ref, "k", user("Hurry"))
        before = await all_rows(postgres)

        def breaking(_: BegunStep) -> Sequence[EventRecord]:
            end_all_connections(postgres.engine)
            return [an_event("step/1/started")]

        with pytest.raises(DatabaseUnreachable, match="cannot be reached"):
            await postgres.begin_step(a_step_start(ref, hears=1, events=breaking))

        assert await all_rows(postgres) == before
        await run_step(postgres, ref)

    async def test_an_activity_that_is_cancelled_midway_leaves_nothing(self, postgres: PostgresStore) -> None:
        ref = await accept_execution(postgres)
        before = await all_rows(postgres)

        def cancelling(_: BegunStep) -> Sequence[EventRecord]:
            assert task.cancel()
            return [an_event("step/1/started")]

        task = asyncio.create_task(postgres.begin_step(a_step_start(ref, events=cancelling)))
        with pytest.raises(asyncio.CancelledError):
            await task

        assert await all_rows(postgres) == before
        await run_step(postgres, ref)

    async def test_idle_connections_that_broke_are_noticed_before_they_are_used(
        self, postgres: PostgresStore
    ) -> None:
        ref = await accept_execution(postgres)
        await asyncio.gather(*(postgres.execution(ref) for _ in range(5)))

        end_all_connections(postgres.engine)

        for _ in range(5):
            assert await postgres.execution(ref)


def end_all_connections(engine: AsyncEngine) -> None:
    """Like a restart of the server."""
    with open_admin_connection(engine) as connection:
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

        for attempt in (
            store.execution(ref),
            store.material(ref),
            store.steps(ref),
            store.accept(a_new_execution(ref)),
        ):
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
            await PostgresStore(engine).accept(a_new_execution(a_ref()))

        await engine.dispose()

    async def test_a_missing_column(self, own_store: PostgresStore) -> None:
        await execute(own_store, "ALTER TABLE agent_executions DROP COLUMN plan")

        with pytest.raises(SchemaOutdated, match="run `everstep db upgrade`"):
            await own_store.accept(a_new_execution(a_ref()))

    @pytest.mark.parametrize("limit", ["lock_timeout", "statement_timeout"])
    async def test_a_lock_that_another_transaction_holds_for_too_long(
        self, postgres: PostgresStore, database: str, limit: str
    ) -> None:
        ref = await accept_execution(postgres)
        timeouts = {"lock_timeout": 0.0, "statement_timeout": 0.0, limit: 0.05}
        engine = create_engine(database, **timeouts)  # type: ignore[arg-type]

        with open_admin_connection(postgres.engine) as connection:
            connection.execute("SELECT FROM agent_executions FOR UPDATE")
            with pytest.raises(DatabaseBusy, match="Try again") as caught:
                await PostgresStore(engine).begin_step(a_step_start(ref))
        assert isinstance(caught.value, StoreUnavailable)

        await PostgresStore(engine).begin_step(a_step_start(ref))
        await engine.dispose()

    async def test_a_pool_without_a_free_connection(self, postgres: PostgresStore, database: str) -> None:
        ref = await accept_execution(postgres)
        engine = create_engine(database, pool_size=1, max_overflow=0, pool_timeout=0.01)

        async with engine.connect():
            with pytest.raises(DatabaseBusy, match="all connections of this process's pool are in use"):
                await PostgresStore(engine).execution(ref)

        assert await PostgresStore(engine).execution(ref)
        await engine.dispose()

    async def test_a_number_that_is_out_of_range(self, postgres: PostgresStore) -> None:
        ref = await accept_execution(postgres)

        with pytest.raises(InvalidInput, match="PostgreSQL cannot hold this value"):
            await postgres.settle(a_settlement(ref, ExecutionStatus.RUNNING, step_count=2**40))

    async def test_a_text_that_an_index_cannot_hold(self, postgres: PostgresStore) -> None:
        name = "".join(chr(0x4E00 + n * n * 7919 % 20_000) for n in range(1900))

        # Not an outage: a retry would fail forever.
        with pytest.raises(InvalidInput, match="PostgreSQL cannot hold this value: index row size"):
            await postgres.set_limits(TenantLimits(name, max_running=1))

    async def test_a_violated_constraint(self, own_store: PostgresStore) -> None:
        await execute(own_store, "ALTER TABLE agent_executions ADD CHECK (step_count < 7)")

        with pytest.raises(StoreError, match=r"refused a statement: new row .* violates check constraint"):
            await own_store.settle(
                a_settlement(await accept_execution(own_store), ExecutionStatus.FAILED, step_count=7)
            )

    async def test_another_constraint_is_not_taken_for_a_duplicate_call_id(
        self, own_store: PostgresStore
    ) -> None:
        await execute(own_store, "ALTER TABLE agent_steps ADD CHECK (number < 7)")

        with pytest.raises(StoreError, match="refused a statement: new row"):
            await own_store.record_reply(a_reply(await accept_execution(own_store), number=7))

    async def test_user_content_is_in_no_error(self, postgres: PostgresStore) -> None:
        ref = await accept_execution(postgres)

        with pytest.raises(InvalidInput) as caught:
            await postgres.settle(
                a_settlement(ref, ExecutionStatus.FAILED, error_message="a secret", step_count=2**40)
            )

        assert "a secret" not in repr(caught.value)
        assert "a secret" not in repr(caught.value.__cause__)

    async def test_a_write_to_a_deleted_stream_raises(self, postgres: PostgresStore) -> None:
        ref = await accept_execution(postgres)
        await execute(postgres, "DELETE FROM agent_streams")

        with pytest.raises(StoreError, match=f"the stream of execution {ref.execution_id} is gone"):
            await postgres.settle(a_settlement(ref, ExecutionStatus.RUNNING, events=[an_event("a")]))

        row = await postgres.execution(ref)
        assert row
        assert row.status is ExecutionStatus.PENDING


class TestReading:
    async def test_fields_of_a_later_version_are_ignored(self, postgres: PostgresStore) -> None:
        """0.6: readers ignore unknown fields."""
        ref = await a_waiting_execution(postgres)
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
            await execute(postgres, f"UPDATE {table} SET {column} = {later}")  # noqa: S608

        assert await postgres.steps(ref) == (await with_reserved_attempt(before[0]))
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
        ref = await a_waiting_execution(postgres)
        await execute(postgres, f"UPDATE agent_steps SET {column} = '[1]'")  # noqa: S608

        with pytest.raises(InvalidInput, match=complaint):
            await postgres.steps(ref)


async def with_reserved_attempt(steps: tuple[Any, ...]) -> tuple[Any, ...]:
    """The same steps after their second call was reserved."""
    (step,) = steps
    first, second = step.calls
    return (replace(step, calls=(first, replace(second, state="reserved", attempts=1))),)


class TestUpgradesUnderway:
    async def test_a_new_column_does_not_disturb_open_connections(self, own_store: PostgresStore) -> None:
        """Statements are prepared, and a prepared `*` fails when its columns change."""

        async def whole_run() -> None:
            ref = await a_waiting_execution(own_store)
            await own_store.reserve_call(ref, "c0", 1, publishing([an_event("a")]))
            await own_store.record_call(result_record(ref, a_result("c0"), metadata=frozen_map({"a": 1})))
            await own_store.settle(a_settlement(ref, ExecutionStatus.PAUSED, events=[an_event("b")]))
            await own_store.steer(ref, "k", user("Hurry"))
            await own_store.resolve(
                ref, request_id(ref.execution_id, "c1"), Resolution("answer"), [an_event("c")]
            )
            await end_execution(own_store, ref)
            await own_store.material(ref)
            await own_store.steps(ref)
            await own_store.executions(TENANT)
            await own_store.envelopes(TENANT, ref.stream_id)

        for _ in range(8):
            await whole_run()
        # From another connection: a connection drops its prepared statements when it alters a table itself.
        with open_admin_connection(own_store.engine) as connection:
            for table in metadata.tables:
                connection.execute(f"ALTER TABLE {table} ADD COLUMN later int".encode())
        await whole_run()


class TestWaiting:
    """A transaction that waited for another one has to see its changes."""

    async def test_of_concurrent_attempts_one_reserves_a_call_with_certainty(
        self, postgres: PostgresStore
    ) -> None:
        """1.1.3: the others know that the call may have run."""
        ref = await a_waiting_execution(postgres)
        with open_admin_connection(postgres.engine) as holder:
            holder.execute("SELECT FROM agent_tool_calls FOR UPDATE")
            attempts = (postgres.reserve_call(ref, "c0", attempt) for attempt in (1, 2, 3))
            reserved = await run_behind_lock(postgres.engine, holder.commit, *attempts)

        assert sorted(each.is_uncertain for each in reserved) == [False, True, True]

    async def test_a_call_that_gets_its_result_at_the_last_moment_keeps_it(
        self, postgres: PostgresStore
    ) -> None:
        """1.1.3: exactly one result."""
        ref = await a_waiting_execution(postgres)
        with open_admin_connection(postgres.engine) as holder:
            holder.execute(
                "UPDATE agent_tool_calls SET state = 'done', result = '1', text = '1', success = true,"
                " started_at = now(), completed_at = now(), seconds = 0 WHERE call_id = 'c0'"
            )
            end = a_settlement(ref, ExecutionStatus.CANCELLED)
            assert await run_behind_lock(postgres.engine, holder.commit, postgres.settle(end)) == [Settled()]

        records = [call.record for call in (await postgres.steps(ref))[0].calls]
        assert [record.text for record in records if record] == ["1", "Error: Cancelled before it finished"]
        # The first message belongs to the transaction that recorded the result.
        assert texts(await postgres.transcript(ref))[2:] == ["Error: Cancelled before it finished"]

    async def test_a_result_that_arrives_while_the_call_is_closed_is_too_late(
        self, postgres: PostgresStore
    ) -> None:
        """1.1.3: exactly one result."""
        ref = await a_waiting_execution(postgres)
        with open_admin_connection(postgres.engine) as holder:
            holder.execute(
                "UPDATE agent_tool_calls SET state = 'done', result = 'null', text = 'closed',"
                " success = false, started_at = now(), completed_at = now(), seconds = 0 WHERE call_id = 'c0'"
            )
            record = result_record(ref, a_result("c0"), events=[an_event("done")])
            (seen,) = await run_behind_lock(postgres.engine, holder.commit, postgres.record_call(record))

        assert seen.text == "closed"
        assert await postgres.envelopes(TENANT, ref.stream_id) == ()

    @pytest.mark.parametrize("method", ["steer", "begin_step", "record_reply", "settle"])
    async def test_a_message_that_arrives_while_an_execution_ends_is_too_late(
        self, postgres: PostgresStore, method: str
    ) -> None:
        """8.3.1: an accepted message is never dropped, so it is not accepted."""
        ref = await accept_execution(postgres)
        work: dict[str, Callable[[], Awaitable[Any]]] = {
            "steer": lambda: postgres.steer(ref, "k", user("Hurry")),
            "begin_step": lambda: postgres.begin_step(a_step_start(ref)),
            "record_reply": lambda: postgres.record_reply(a_reply(ref)),
            "settle": lambda: postgres.settle(a_settlement(ref, ExecutionStatus.RUNNING)),
        }
        with open_admin_connection(postgres.engine) as holder:
            holder.execute("UPDATE agent_executions SET status = 'completed'")
            (result,) = await run_behind_lock(postgres.engine, holder.commit, work[method]())

        assert result is None if method == "settle" else isinstance(result, ExecutionEnded)
        row = await postgres.execution(ref)
        assert row
        assert row.status is ExecutionStatus.COMPLETED

    async def test_metadata_of_a_call_wait_for_no_lock(self, postgres: PostgresStore) -> None:
        ref = await a_waiting_execution(postgres)
        with open_admin_connection(postgres.engine) as holder:
            holder.execute("SELECT FROM agent_executions FOR NO KEY UPDATE")
            await postgres.record_call(result_record(ref, a_result("c0"), metadata=frozen_map({"ours": 2})))

        assert (await postgres.material(ref)).metadata == {"ours": 2}

    async def test_a_retry_waits_for_the_attempt_that_is_recording(self, postgres: PostgresStore) -> None:
        """1.1.1: and then returns the recorded reply."""
        ref = await accept_execution(postgres)
        await postgres.begin_step(a_step_start(ref))
        given = a_reply(ref, "From the first attempt")
        with open_admin_connection(postgres.engine) as holder:
            holder.execute("SELECT FROM agent_executions FOR UPDATE")
            holder.execute("UPDATE agent_steps SET facts = %s", [bodies.dump_facts(given.facts)])
            late = postgres.record_reply(a_reply(ref, "From the second", a_call(), attempt=2))
            retry = postgres.begin_step(a_step_start(ref, attempt=2))
            facts, begun = await run_behind_lock(postgres.engine, holder.commit, late, retry)

        assert facts == begun.recorded == given.facts


class TestConcurrency:
    async def test_numbers_have_no_gaps_when_several_processes_write(self, database: str) -> None:
        """7.1.1: gapless and in the order of commits, with any number of writers."""
        engines = [create_engine(database, pool_size=25) for _ in range(2)]
        stores = [PostgresStore(engine) for engine in engines]
        session = uuid4()
        refs = [await accept_execution(stores[0], session_id=session) for _ in range(20)]

        async def whole_run(index: int) -> None:
            store, other, ref = stores[index % 2], stores[1 - index % 2], refs[index]
            await store.begin_step(a_step_start(ref, events=publishing([an_event("started")])))
            calls = [a_call("c0"), a_call("c1")]
            await other.record_reply(a_reply(ref, "Look", *calls, events=[an_event("replied")]))
            await asyncio.gather(
                *(
                    each.record_call(
                        result_record(ref, a_result(f"c{i}"), index=i, events=[an_event(f"done {i}")])
                    )
                    for i, each in enumerate(stores)
                )
            )
            await asyncio.gather(
                *(
                    each.settle(
                        a_settlement(ref, ExecutionStatus.COMPLETED, "end", events=[an_event("ended")])
                    )
                    for each in stores
                )
            )

        await asyncio.gather(*map(whole_run, range(20)))

        stored = await stores[0].envelopes(TENANT, session)
        assert [e.seq for e in stored] == list(range(1, 101))
        assert sorted(stored, key=lambda e: e.created_at) == list(stored)
        assert len({e.created_at for e in stored}) == 100
        for engine in engines:
            await engine.dispose()

    async def test_the_conversation_of_a_thousand_messages_is_read_in_order(
        self, postgres: PostgresStore
    ) -> None:
        ref = await accept_execution(postgres)
        for number in range(1, 101):
            said = tuple(user(f"{number}/{i}") for i in range(10))
            await postgres.record_reply(replace(a_reply(ref, number=number), messages=said))
        await end_execution(postgres, ref)

        expected = ["Hello", *(f"{number}/{i}" for number in range(1, 101) for i in range(10))]
        assert texts(await postgres.transcript(ref)) == expected
