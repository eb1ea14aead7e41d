"""Statements on the tables behind the PostgreSQL store, and an execution with open calls."""

from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from sqlalchemy import text

from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.loop.step_facts import CallNeed
from everstep.store.postgres import PostgresStore
from tests.everstep.store.store_words import (
    a_call,
    a_reply,
    a_step_start,
    accept_execution,
)


async def fetch(store: PostgresStore, statement: str, **values: Any) -> Sequence[Any]:
    async with store.engine.begin() as connection:
        return (await connection.execute(text(statement), values)).all()


async def execute(store: PostgresStore, statement: str, **values: Any) -> None:
    async with store.engine.begin() as connection:
        await connection.execute(text(statement), values)


async def all_rows(store: PostgresStore) -> dict[str, Any]:
    """Every row of every table."""
    tables = await fetch(store, "SELECT relname FROM pg_stat_user_tables ORDER BY relname")
    return {name: await fetch(store, f"SELECT t::text FROM {name} t ORDER BY 1") for (name,) in tables}  # noqa: S608


async def a_waiting_execution(store: PostgresStore) -> ExecutionRef:
    """An execution in its first step: one call to run, one to be answered."""
    ref = await accept_execution(store, session_id=uuid4())
    await store.begin_step(a_step_start(ref))
    await store.record_reply(a_reply(ref, "?", a_call("c0"), a_call("c1"), needs=CallNeed.INPUT))
    return ref
