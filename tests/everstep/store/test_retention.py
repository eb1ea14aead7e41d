"""Which rows are pruned, and which stay: in the real database, with timestamps that are set back."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
import pytest_asyncio
from sqlalchemy import event, text

from everstep.agent_domain.ids import ExecutionRef, Scope
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.storage.keys import StoredResponse
from everstep.agent_domain.storage.sessions import SessionChanges, SessionStatus
from everstep.store import retention
from everstep.store.engine import create_engine
from everstep.store.keys import PostgresKeys
from everstep.store.retention import PostgresRetention
from tests.engines import open_engine
from tests.everstep.store.store_words import (
    OTHERS,
    TENANT,
    a_call,
    a_settlement,
    a_step_start,
    accept_execution,
    an_event,
    end_execution,
    run_step,
)
from tests.everstep.store.test_sessions import a_message, finish_execution, new_session_id, start_execution

LONG_AGO = "clock_timestamp() - interval '100 days'"
CHANGED = {
    "agent_sessions": "updated_at",
    "agent_executions": "completed_at",
    "agent_envelopes": "created_at",
    "agent_answers": "created_at",
}


@pytest_asyncio.fixture
async def store(database: str) -> AsyncGenerator[PostgresRetention]:
    async with open_engine(database) as engine:
        yield PostgresRetention(engine)


def a_month_ago() -> datetime:
    return datetime.now(UTC) - timedelta(days=50)


async def sum_of(counts: AsyncGenerator[int]) -> int:
    return sum([count async for count in counts])


async def rows(store: PostgresRetention, statement: str, **values: Any) -> list[Any]:
    async with store.engine.begin() as connection:
        found = await connection.execute(text(statement), values)
        return [*found] if found.returns_rows else []


async def set_back(store: PostgresRetention, table: str, where: str = "true", **values: Any) -> None:
    """Set back the timestamps of these rows."""
    await rows(store, f"UPDATE {table} SET {CHANGED[table]} = {LONG_AGO} WHERE {where}", **values)  # noqa: S608


async def count_responses(store: PostgresRetention, *tables: str) -> list[int]:
    return [(await rows(store, f"SELECT count(*) FROM {table}"))[0][0] for table in tables]  # noqa: S608


async def store_response(store: PostgresRetention, key: str, **tells_of: UUID) -> None:
    await PostgresKeys(store.engine).remember(
        TENANT, "ann", key, StoredResponse(201, {}, "digest", **tells_of)
    )


async def create_ended_execution(
    store: PostgresRetention, *, old: bool = True, **fields: Any
) -> ExecutionRef:
    """An execution without a session that has published an envelope and has ended."""
    ref = await accept_execution(store, **fields)
    await run_step(store, ref, 1, "Hi", a_call(f"call {ref.execution_id}"))
    await store.settle(a_settlement(ref, ExecutionStatus.COMPLETED, events=[an_event("a"), an_event("b")]))
    if old:
        await set_back(store, "agent_executions", "id = :id", id=ref.execution_id)
    return ref


class TestSessions:
    async def test_idle_sessions_are_deleted_with_all_their_rows(self, store: PostgresRetention) -> None:
        """8.7.2: in every status and tenant."""
        archived = await new_session_id(store)
        await finish_execution(store, await start_execution(store, archived))
        await store.change_session(Scope(TENANT), archived, SessionChanges(status=SessionStatus.ARCHIVED))
        theirs = await new_session_id(store, tenant=OTHERS)
        await store_response(store, "k", session_id=theirs)
        await set_back(store, "agent_sessions")
        lively = await new_session_id(store)

        assert await sum_of(store.prune_sessions(a_month_ago(), dry_run=True)) == 2
        assert await count_responses(store, "agent_sessions") == [3]
        assert await sum_of(store.prune_sessions(a_month_ago())) == 2

        assert [row.id for row in await rows(store, "SELECT id FROM agent_sessions")] == [lively]
        left = (
            "agent_session_messages",
            "agent_executions",
            "agent_streams",
            "agent_envelopes",
            "agent_answers",
        )
        assert await count_responses(store, *left) == [0] * 5

    @pytest.mark.parametrize("status", ["pending", "running", "paused"])
    async def test_a_session_with_an_execution_in_progress_stays(
        self, store: PostgresRetention, status: str
    ) -> None:
        """8.7.2"""
        session_id = await new_session_id(store)
        posted = await store.post(a_message(session_id))
        if status != "pending":
            await store.begin_step(a_step_start(posted.execution))
            await store.settle(a_settlement(posted.execution, ExecutionStatus(status)))
        await set_back(store, "agent_sessions")

        assert await sum_of(store.prune_sessions(a_month_ago(), dry_run=True)) == 0
        assert await sum_of(store.prune_sessions(a_month_ago())) == 0
        assert await store.session(Scope(TENANT), session_id)

    async def test_a_session_that_gets_a_message_during_the_prune_stays(
        self, store: PostgresRetention
    ) -> None:
        session_id = await new_session_id(store)
        looked_at = a_month_ago()
        await finish_execution(store, await start_execution(store, session_id))

        assert not await store.delete_session(Scope(TENANT), session_id, unchanged_since=looked_at)
        assert await store.session(Scope(TENANT), session_id)


class TestExecutions:
    async def test_old_ended_executions_are_deleted_with_all_their_rows(
        self, store: PostgresRetention
    ) -> None:
        """8.7.2"""
        old, late = await create_ended_execution(store), await create_ended_execution(store, old=False)
        await store_response(store, "k", execution_id=old.execution_id)
        running = await accept_execution(store)
        await store.begin_step(a_step_start(running))

        assert await sum_of(store.prune_executions(a_month_ago(), dry_run=True)) == 1
        assert await store.execution(old)
        assert await sum_of(store.prune_executions(a_month_ago())) == 1

        kept = await rows(store, "SELECT id FROM agent_executions")
        assert {row.id for row in kept} == {late.execution_id, running.execution_id}
        assert await count_responses(store, "agent_streams", "agent_envelopes", "agent_tool_calls") == [
            2,
            2,
            1,
        ]
        assert await count_responses(store, "agent_answers") == [0]

    async def test_executions_of_a_session_stay_as_its_conversation(self, store: PostgresRetention) -> None:
        await finish_execution(store, await start_execution(store, await new_session_id(store)))
        await set_back(store, "agent_executions")

        assert await sum_of(store.prune_executions(a_month_ago(), dry_run=True)) == 0
        assert await sum_of(store.prune_executions(a_month_ago())) == 0
        assert await count_responses(store, "agent_executions") == [1]

    async def test_an_execution_of_an_implicit_session_stays(self, store: PostgresRetention) -> None:
        """8.1, 8.7.2: the session is created with it, and deleted with it."""
        await create_ended_execution(store, session_id=uuid4())

        assert await sum_of(store.prune_executions(a_month_ago())) == 0
        assert await count_responses(store, "agent_sessions", "agent_executions") == [1, 1]
        await set_back(store, "agent_sessions")
        assert await sum_of(store.prune_sessions(a_month_ago())) == 1
        assert await count_responses(store, "agent_sessions", "agent_executions", "agent_streams") == [
            0,
            0,
            0,
        ]

    async def test_subagents_are_deleted_with_their_parent(self, store: PostgresRetention) -> None:
        """8.7.2: and not before it."""
        parent = await accept_execution(store)
        child = await create_ended_execution(store, parent_execution_id=parent.execution_id)
        await create_ended_execution(store, parent_execution_id=child.execution_id)
        assert await sum_of(store.prune_executions(a_month_ago())) == 0

        await end_execution(store, parent)
        await set_back(store, "agent_executions")

        assert await sum_of(store.prune_executions(a_month_ago(), dry_run=True)) == 3
        assert await sum_of(store.prune_executions(a_month_ago())) == 3
        assert await count_responses(store, "agent_executions", "agent_streams") == [0, 0]

    async def test_a_subagent_in_progress_keeps_its_parent(self, store: PostgresRetention) -> None:
        parent = await create_ended_execution(store)
        await accept_execution(store, parent_execution_id=parent.execution_id)

        assert await sum_of(store.prune_executions(a_month_ago(), dry_run=True)) == 0
        assert await sum_of(store.prune_executions(a_month_ago())) == 0

    async def test_a_continued_execution_is_deleted_after_its_continuation(
        self, store: PostgresRetention
    ) -> None:
        origin = await create_ended_execution(store)
        fork = ExecutionRef(uuid4(), TENANT)
        await store.fork(origin, 1, fork, "Else")

        assert await sum_of(store.prune_executions(a_month_ago())) == 0
        assert len(await store.transcript(fork)) == 4

        await end_execution(store, fork)
        await set_back(store, "agent_executions", "id = :id", id=fork.execution_id)
        assert await sum_of(store.prune_executions(a_month_ago())) == 1
        assert await sum_of(store.prune_executions(a_month_ago())) == 1
        assert await count_responses(store, "agent_executions") == [0]


FIRST_HELD = """
    SELECT stream.head, coalesce(min(envelope.seq), stream.head + 1) AS first_held
      FROM agent_streams stream LEFT JOIN agent_envelopes envelope USING (stream_id)
     WHERE stream.stream_id = :id GROUP BY stream.stream_id
"""


class TestEnvelopes:
    async def start_and_publish(self, store: PostgresRetention, session_id: UUID, *keys: str) -> ExecutionRef:
        """A running execution that has published these envelopes."""
        ref = await accept_execution(store, session_id=session_id)
        await store.settle(a_settlement(ref, ExecutionStatus.RUNNING, events=[an_event(key) for key in keys]))
        return ref

    async def held_seqs(self, store: PostgresRetention, session_id: UUID) -> list[int]:
        """The `seq` of each envelope; the query of docs/retention.md has to find the same first one."""
        held = [envelope.seq for envelope in await store.envelopes(TENANT, session_id)]
        (stream,) = await rows(store, FIRST_HELD, id=session_id)
        assert stream.first_held == (held[0] if held else stream.head + 1)
        return held

    async def test_old_envelopes_are_deleted_and_the_stream_continues(self, store: PostgresRetention) -> None:
        """8.7.3"""
        session_id = uuid4()
        ref = await self.start_and_publish(store, session_id, "a", "b", "c")
        await end_execution(store, ref)
        await set_back(store, "agent_envelopes", "seq <= 2")

        assert await sum_of(store.prune_envelopes(a_month_ago(), dry_run=True)) == 2
        assert await self.held_seqs(store, session_id) == [1, 2, 3]
        assert await sum_of(store.prune_envelopes(a_month_ago())) == 2
        assert await self.held_seqs(store, session_id) == [3]

        await set_back(store, "agent_envelopes")
        assert await sum_of(store.prune_envelopes(a_month_ago())) == 1
        assert await self.held_seqs(store, session_id) == []
        await self.start_and_publish(store, session_id, "d")
        assert await self.held_seqs(store, session_id) == [4]
        assert await sum_of(store.prune_envelopes(a_month_ago())) == 0

    async def test_an_execution_in_progress_keeps_its_envelopes_and_all_later_ones(
        self, store: PostgresRetention
    ) -> None:
        """8.7.3: so that a stream has no gap, and no envelope is published twice."""
        session_id = uuid4()
        first = await self.start_and_publish(store, session_id, "a", "b")
        second = await self.start_and_publish(store, session_id, "c")
        await end_execution(store, await self.start_and_publish(store, session_id, "d"))
        await end_execution(store, first)
        await set_back(store, "agent_envelopes")

        assert await sum_of(store.prune_envelopes(a_month_ago(), dry_run=True)) == 2
        assert await sum_of(store.prune_envelopes(a_month_ago())) == 2
        assert await self.held_seqs(store, session_id) == [3, 4]

        await store.settle(
            a_settlement(second, ExecutionStatus.PAUSED, events=[an_event("c"), an_event("e")])
        )
        assert await self.held_seqs(store, session_id) == [3, 4, 5]

    async def test_envelopes_are_deleted_from_the_oldest_on(
        self, store: PostgresRetention, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """8.7.2: an interrupted prune leaves a stream without gaps."""
        monkeypatch.setattr(retention, "BATCH", 2)
        session_id = uuid4()
        await end_execution(store, await self.start_and_publish(store, session_id, *"abcde"))
        await set_back(store, "agent_envelopes")

        counts = store.prune_envelopes(a_month_ago())
        assert await anext(counts) == 2
        await counts.aclose()
        assert await self.held_seqs(store, session_id) == [3, 4, 5]

        assert [count async for count in store.prune_envelopes(a_month_ago())] == [2, 1]

    async def test_a_batch_has_envelopes_of_several_streams(
        self, store: PostgresRetention, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """18.9.5"""
        monkeypatch.setattr(retention, "BATCH", 5)
        for _ in range(3):
            await end_execution(store, await self.start_and_publish(store, uuid4(), *"abc"))
        await set_back(store, "agent_envelopes")

        assert [count async for count in store.prune_envelopes(a_month_ago())] == [5, 4]


class TestAnswers:
    async def test_old_answers_are_deleted(
        self, store: PostgresRetention, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """8.7.2: batch by batch."""
        monkeypatch.setattr(retention, "BATCH", 2)
        for number in range(5):
            await store_response(store, f"old {number}")
        await set_back(store, "agent_answers")
        await store_response(store, "new")

        assert [count async for count in store.prune_answers(a_month_ago(), dry_run=True)] == [5]
        assert [count async for count in store.prune_answers(a_month_ago())] == [2, 2, 1]
        assert [row.key for row in await rows(store, "SELECT key FROM agent_answers")] == ["new"]


async def test_concurrent_prunes_are_safe(store: PostgresRetention, monkeypatch: pytest.MonkeyPatch) -> None:
    """8.7.2: each row is removed once."""
    monkeypatch.setattr(retention, "LOOK", 3)
    for number in range(10):
        await finish_execution(store, await start_execution(store, await new_session_id(store)))
        parent = await create_ended_execution(store)
        await create_ended_execution(store, parent_execution_id=parent.execution_id)
        await store_response(store, f"k {number}")
    for table in CHANGED:
        await set_back(store, table)

    prunes: list[Callable[..., AsyncGenerator[int]]] = [
        store.prune_executions,
        store.prune_envelopes,
        store.prune_sessions,
        store.prune_answers,
    ]
    counts = await asyncio.gather(*(sum_of(prune(a_month_ago())) for prune in prunes for _ in range(4)))

    executions, _, sessions, answers = (sum(counts[n : n + 4]) for n in range(0, 16, 4))
    assert (sessions, answers) == (10, 10)
    assert executions == 20
    assert await count_responses(store, *CHANGED, "agent_streams", "agent_steps") == [0] * 6


MANY = """
    INSERT INTO agent_sessions (id, tenant_id, user_id, metadata)
    SELECT CAST(md5('session ' || i) AS uuid), 'acme', 'ann', json_build_object('note', repeat('x', 500))
      FROM generate_series(2, 8000, 2) AS i;
    INSERT INTO agent_executions (id, tenant_id, session_id, agent_type, agent_config, status, agent_id,
                                  created_at, completed_at)
    SELECT gen_random_uuid(), 'acme', CASE WHEN i % 2 = 0 THEN CAST(md5('session ' || i) AS uuid) END,
           'helper', '{}',
           CASE WHEN i % 10 = 0 THEN 'paused' ELSE 'completed' END, gen_random_uuid(), now(),
           CASE WHEN i % 10 <> 0 THEN now() - i * interval '1 hour' END
      FROM generate_series(1, 8000) AS i;
    INSERT INTO agent_ledger_heads (execution_id, tenant_id) SELECT id, tenant_id FROM agent_executions;
    INSERT INTO agent_streams (stream_id, tenant_id, head)
    SELECT coalesce(session_id, id), tenant_id, 5 FROM agent_executions;
    INSERT INTO agent_envelopes (stream_id, seq, tenant_id, id, type, execution_id, payload)
    SELECT coalesce(session_id, id), seq, tenant_id, gen_random_uuid(), 'agent.status', id, '{}'
      FROM agent_executions, generate_series(1, 5) AS seq;
    INSERT INTO agent_answers (tenant_id, user_id, key, digest, status, body, created_at, execution_id)
    SELECT tenant_id, 'ann', id, '', 201, '{}', coalesce(completed_at, now()), id FROM agent_executions;
    INSERT INTO agent_claims (tenant_id, user_id, key, digest, owner, created_at)
    SELECT tenant_id, 'ann', id, '', id, coalesce(completed_at, now()) FROM agent_executions;
    ANALYZE;
"""


async def test_no_prune_is_a_sequential_scan(own_database: str) -> None:
    """A query reads its own rows, and the rows to delete are found by an index."""
    engine = create_engine(own_database)
    store, plans = PostgresRetention(engine), set[str]()
    with psycopg.connect(own_database.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(MANY.encode())
        root = connection.execute(
            "SELECT id FROM agent_executions WHERE session_id IS NULL AND status = 'completed' LIMIT 1"
        ).fetchall()[0][0]
        for statement in (retention.LOCK_FAMILY, retention.REMOVE_FAMILY):
            found = connection.execute(f"EXPLAIN {statement}".replace(":root", "%s").encode(), [root])
            plans.add("\n".join(line for (line,) in found.fetchall()))

    @event.listens_for(engine.sync_engine, "before_cursor_execute", retval=True)
    def explain(*given: Any) -> tuple[str, Any]:  # pyright: ignore[reportUnusedFunction] -- SQLAlchemy calls it
        _, cursor, statement, parameters, *_ = given
        cursor.execute(f"EXPLAIN {statement}", parameters)
        plans.add("\n".join(line for (line,) in cursor.fetchall()))
        return statement, parameters

    # A dry run counts old answers, and counting most of a table reads it.
    looks = [prune(a_month_ago(), dry_run=True) for prune in (store.prune_executions, store.prune_envelopes)]
    for counts in (*looks, store.prune_sessions(a_month_ago()), store.prune_answers(a_month_ago())):
        await anext(counts, None)
        await counts.aclose()
    assert len(plans) > 6
    for plan in plans:
        assert "Seq Scan" not in plan, plan
    await engine.dispose()
