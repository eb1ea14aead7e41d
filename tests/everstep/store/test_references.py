"""Foreign keys: targets exist, deletes cascade, and no reference causes a deadlock."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
import pytest_asyncio
from psycopg.errors import ForeignKeyViolation
from sqlalchemy import text

from everstep.agent_domain.errors import NotFound
from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.storage.sessions import SessionBusy, SessionChanges
from everstep.agent_domain.stream import session_messages
from everstep.agent_domain.values import frozen_map
from everstep.store.sessions import PostgresSessions
from tests.engines import open_engine
from tests.everstep.store.store_words import (
    TENANT,
    a_call,
    a_settlement,
    a_step_start,
    accept_execution,
    an_event,
    run_step,
)
from tests.everstep.store.test_sessions import ALL, HERS, a_message, new_session_id

STATE = frozen_map({"a": 1})

REFERENCES = {
    "agent_executions.session_id": "agent_sessions",
    "agent_executions.last_snapshot_id": "agent_state_snapshots",
    "agent_sessions.last_execution_id": "agent_executions",
    "agent_sessions.last_snapshot_id": "agent_state_snapshots",
    "agent_session_messages.agent_execution_id": "agent_executions",
    "agent_state_snapshots.parent_snapshot_id": "agent_state_snapshots",
}


@pytest_asyncio.fixture
async def store(database: str) -> AsyncGenerator[PostgresSessions]:
    async with open_engine(database) as engine:
        yield PostgresSessions(engine)


async def rows(store: PostgresSessions, query: str, **values: Any) -> list[Any]:
    async with store.engine.connect() as connection:
        return [*(await connection.execute(text(query), values)).all()]


def a_session_event(number: int) -> Any:
    """An event that is also published to the session's readers."""
    return replace(an_event(f"step/{number}"), announces=session_messages.step_started_announcement(number))


async def run_whole_execution(store: PostgresSessions, ref: ExecutionRef, *, ends: bool = True) -> None:
    """An execution with a step, a call, a subagent, and snapshots of each kind."""
    await store.begin_step(a_step_start(ref))
    await run_step(store, ref, 1, "Hi", a_call(f"call {ref.execution_id}"))
    await store.keep_snapshot(ref, 1, STATE)
    child = await accept_execution(store, session_id=ref.session_id, parent_execution_id=ref.execution_id)
    await store.begin_step(a_step_start(child))
    for each in (child, ref):
        paused = a_settlement(
            each, ExecutionStatus.PAUSED, key="pause", snapshot=STATE, events=[a_session_event(1)]
        )
        await store.settle(paused)
        await store.settle(
            a_settlement(each, ExecutionStatus.RUNNING, key="resume", events=[a_session_event(2)])
        )
    if ends:
        for each in (child, ref):
            done = a_settlement(each, ExecutionStatus.COMPLETED, key="end", snapshot=STATE, is_final=True)
            await store.settle(replace(done, worked_seconds=1.5))


@pytest.mark.parametrize("column", REFERENCES)
async def test_every_foreign_key_needs_its_target(
    store: PostgresSessions, database: str, column: str
) -> None:
    """8.1"""
    session_id = await new_session_id(store)
    await run_whole_execution(store, (await store.post(a_message(session_id))).execution)
    table, _, name = column.partition(".")
    change = f"UPDATE {table} SET {name} = gen_random_uuid()"  # noqa: S608 -- our own names
    with (
        psycopg.connect(database.replace("+psycopg", ""), autocommit=True) as connection,
        pytest.raises(ForeignKeyViolation, match=REFERENCES[column]),
    ):
        connection.execute(change.encode())


async def test_a_deleted_session_deletes_its_rows(store: PostgresSessions) -> None:
    """8.1, 8.7.1: and no rows of others."""
    kept, removed = await new_session_id(store), await new_session_id(store)
    for session_id in (kept, removed):
        for _ in range(2):
            await run_whole_execution(store, (await store.post(a_message(session_id))).execution)
            await store.release(TENANT, session_id)
    tables = ("agent_executions", "agent_session_messages", "agent_state_snapshots", "agent_streams")
    before = [(await rows(store, f"SELECT count(*) FROM {table}"))[0][0] for table in tables]  # noqa: S608 -- ours
    assert await store.delete_session(HERS, removed)

    after = [(await rows(store, f"SELECT count(*) FROM {table}"))[0][0] for table in tables]  # noqa: S608 -- ours
    assert [count / 2 for count in before] == after
    session = await store.session(HERS, kept)
    assert session
    assert session.last_execution_id
    assert session.last_snapshot_id


async def test_references_to_a_removed_execution_become_null(store: PostgresSessions) -> None:
    """8.1: messages stay, because users may have read them."""
    session_id = await new_session_id(store)
    ref = (await store.post(a_message(session_id))).execution
    await run_whole_execution(store, ref)
    async with store.engine.begin() as connection:
        await connection.execute(text("DELETE FROM agent_executions"))

    session = await store.session(HERS, session_id)
    assert session
    assert (session.last_execution_id, session.last_snapshot_id) == (None, None)
    messages = (await store.messages(HERS, session_id)).rows
    assert len(messages) > 2
    assert {message.execution_id for message in messages} == {None}


async def test_a_session_has_its_last_accepted_execution_and_latest_snapshot(
    store: PostgresSessions,
) -> None:
    """8.1.5: queued executions included, subagents not; an unprocessed steered message counts too."""
    session_id = await new_session_id(store)
    first = (await store.post(a_message(session_id))).execution
    second = (await store.post(a_message(session_id))).execution
    await run_whole_execution(store, first, ends=False)

    session = await store.session(HERS, session_id)
    snapshots = (await store.snapshots(first)).rows
    assert session
    assert (session.last_execution_id, session.last_snapshot_id) == (second.execution_id, snapshots[0].id)
    row = await store.execution(first)
    assert row
    assert row.last_snapshot_id == snapshots[0].id


async def test_snapshots_of_a_subagent_refer_to_the_latest_of_its_parent(store: PostgresSessions) -> None:
    """8.1.2: the one at the subagent's start, or otherwise the latest one now."""
    session_id = await new_session_id(store)
    parent = (await store.post(a_message(session_id))).execution
    early = await accept_execution(store, session_id=session_id, parent_execution_id=parent.execution_id)
    await store.settle(a_settlement(early, ExecutionStatus.PAUSED, key="before", snapshot=STATE))
    await store.settle(a_settlement(parent, ExecutionStatus.PAUSED, key="one", snapshot=STATE))
    late = await accept_execution(store, session_id=session_id, parent_execution_id=parent.execution_id)
    await store.settle(a_settlement(parent, ExecutionStatus.PAUSED, key="two", snapshot=STATE))
    for child in (early, late):
        await store.settle(a_settlement(child, ExecutionStatus.COMPLETED, key="end", snapshot=STATE))

    two, one = (await store.snapshots(parent)).rows
    assert (one.parent_snapshot_id, two.parent_snapshot_id) == (None, None)
    assert [row.parent_snapshot_id for row in (await store.snapshots(early)).rows] == [two.id, None]
    assert [row.parent_snapshot_id for row in (await store.snapshots(late)).rows] == [one.id]


async def test_an_execution_that_names_a_session_creates_it(store: PostgresSessions) -> None:
    """8.1.5: for its own user; a session of another user is left unchanged."""
    named, hers = uuid4(), await new_session_id(store, title="Hers")
    for session_id in (named, hers):
        await accept_execution(store, session_id=session_id, user_id="ben")

    made, other = await store.session(ALL, named), await store.session(ALL, hers)
    assert made
    assert other
    assert (made.user_id, made.title) == ("ben", None)
    assert (other.user_id, other.title) == ("ann", "Hers")


async def post_until_deletion(store: PostgresSessions, session_id: UUID) -> None:
    for _ in range(3):
        posted = await store.post(a_message(session_id))
        await store.release(TENANT, session_id)
        await run_whole_execution(store, posted.execution)


async def change_until_deletion(store: PostgresSessions, session_id: UUID) -> None:
    for number in range(10):
        await store.change_session(HERS, session_id, SessionChanges(title=f"{number}"))
        ref = await accept_execution(store, session_id=session_id)
        await store.settle(a_settlement(ref, ExecutionStatus.CANCELLED, key="end"))
        await store.release(TENANT, session_id)


async def delete_when_idle(store: PostgresSessions, session_id: UUID) -> None:
    """As soon as no execution is in progress."""
    is_left = True
    while is_left:
        with suppress(SessionBusy):
            is_left = await store.delete_session(HERS, session_id)
        await asyncio.sleep(0)


async def test_concurrent_writers_of_many_sessions_never_deadlock(
    store: PostgresSessions, database: str
) -> None:
    """8.1, 8.3.1: references are locked as well, in any order of writes."""
    sessions = [await new_session_id(store) for _ in range(4)]
    await asyncio.gather(
        *(
            work(store, each)
            for each in sessions
            for work in (post_until_deletion, post_until_deletion, change_until_deletion)
        )
    )

    works = [
        work(store, each)
        for each in sessions
        for work in (delete_when_idle, delete_when_idle, post_until_deletion)
    ]
    ends = await asyncio.gather(*works, return_exceptions=True)

    # The other writers got the error that the session is gone.
    assert [end for end in ends if end is not None and not isinstance(end, NotFound)] == []
    assert [await store.session(ALL, each) for each in sessions] == [None] * len(sessions)
    with psycopg.connect(database.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute("SELECT pg_stat_force_next_flush()")
        query = b"SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        assert connection.execute(query).fetchall() == [(0,)]
