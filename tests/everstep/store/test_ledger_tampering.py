"""Ledgers in PostgreSQL: what was changed with SQL is found, and concurrent writers share one chain."""

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from sqlalchemy import text

from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.messages.messages import user
from everstep.agent_domain.storage.audit import Break
from everstep.agent_domain.storage.commands import CommandKind
from everstep.store.postgres import PostgresStore
from tests.everstep.store.store_words import (
    a_call,
    a_reply,
    a_result,
    a_settlement,
    accept_execution,
    result_record,
)
from tests.everstep.store.test_ledger import a_rich_execution, audit_of, entries_of


async def change(store: PostgresStore, statement: str, ref: ExecutionRef) -> None:
    async with store.engine.connect() as connection:
        changed = await connection.execute(text(statement), {"id": ref.execution_id})
        assert changed.rowcount > 0, statement


async def breaks_after(store: PostgresStore, statement: str) -> Sequence[Break]:
    ref = await a_rich_execution(store)
    assert (await audit_of(store, ref)).is_whole
    await change(store, statement, ref)
    return (await audit_of(store, ref)).breaks


def a_change(column: str, table: str, place: str = "execution_id = :id", value: str | None = None) -> str:
    """Change a JSON column by one space, which no reader notices, or set another value."""
    new = value or f"CAST(CAST({column} AS text) || ' ' AS json)"
    return f"UPDATE {table} SET {column} = {new} WHERE {place}"  # noqa: S608 -- constants only


CHANGES = {
    "config": (a_change("agent_config", "agent_executions", "id = :id"), "execution/config"),
    "plan": (a_change("plan", "agent_executions", "id = :id"), "execution/plan"),
    "input": (a_change("input", "agent_executions", "id = :id"), "execution/input"),
    "metadata": (a_change("agent_metadata", "agent_executions", "id = :id"), "execution/metadata"),
    "owner": (a_change("user_id", "agent_executions", "id = :id", "'mallory'"), "execution/owner"),
    "agent": (a_change("agent_type", "agent_executions", "id = :id", "'other'"), "execution/owner"),
    "tools": (a_change("listed", "agent_executions", "id = :id"), "execution/tools"),
    "output": (a_change("output", "agent_executions", "id = :id"), "execution/end"),
    "stop reason": (a_change("stop_reason", "agent_executions", "id = :id", "'completed'"), "execution/end"),
    "error": (a_change("error_message", "agent_executions", "id = :id", "NULL"), "execution/end"),
    "tokens": (a_change("token_usage", "agent_executions", "id = :id", "token_usage + 1"), "execution/end"),
    "cost": (a_change("cost_usd", "agent_executions", "id = :id", "5"), "execution/end"),
    "facts": (a_change("facts", "agent_steps", "execution_id = :id AND number = 1"), "facts/1"),
    "errors": (a_change("errors", "agent_steps", "execution_id = :id AND number = 1"), "facts/1"),
    "response": (a_change("response", "agent_steps", "execution_id = :id AND number = 1"), "response/1"),
    "outcome": (a_change("outcome", "agent_steps", "execution_id = :id AND number = 1"), "outcome/1"),
    "processed": (a_change("processed", "agent_steps", "execution_id = :id AND number = 1"), "processed/1"),
    "wait": (a_change("wait", "agent_steps", "execution_id = :id AND number = 1"), "wait/1"),
    "message": (a_change("content", "agent_transcript", "execution_id = :id AND step = 0"), "message/0/0"),
    "role": (
        a_change("role", "agent_transcript", "execution_id = :id AND step = 1 AND idx = 0", "'user'"),
        "message/1/0",
    ),
    "args": (a_change("args", "agent_tool_calls", "execution_id = :id AND call_id = 'c1'"), "call/c1"),
    "tool": (
        a_change("name", "agent_tool_calls", "execution_id = :id AND call_id = 'c1'", "'look'"),
        "call/c1",
    ),
    "result": (a_change("result", "agent_tool_calls", "execution_id = :id AND call_id = 'c1'"), "result/c1"),
    "text": (
        a_change("text", "agent_tool_calls", "execution_id = :id AND call_id = 'c1'", "'nothing'"),
        "result/c1",
    ),
    "success": (
        a_change("success", "agent_tool_calls", "execution_id = :id AND call_id = 'c2'", "true"),
        "result/c2",
    ),
    "call's error": (
        a_change("error", "agent_tool_calls", "execution_id = :id AND call_id = 'c2'"),
        "result/c2",
    ),
    "cancelled result": (
        a_change("text", "agent_tool_calls", "execution_id = :id AND call_id = 'c3'", "'done'"),
        "result/c3",
    ),
    "inner reply": (a_change("response", "agent_inner_replies"), "inner/c2/1"),
    "steering": (a_change("content", "agent_steered"), "steering/k1"),
    "command": (
        a_change("sent_by", "agent_commands", "execution_id = :id AND key = 'pause/x'"),
        "command/pause/x",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
async def test_a_changed_row_is_found(postgres: PostgresStore, name: str) -> None:
    """15.7.4: with the entry that recorded it, and what differs."""
    statement, body = CHANGES[name]

    (found,) = await breaks_after(postgres, statement)

    assert found.body == body
    assert found.position is not None
    assert found.recorded != found.found
    assert found.problem.startswith(f"{body} was changed")


@pytest.mark.parametrize(("column", "body"), [("resolution", "resolution/"), ("request", "request/")])
async def test_a_changed_decision_is_found(postgres: PostgresStore, column: str, body: str) -> None:
    """15.7.4"""
    place = "execution_id = :id AND resolution IS NOT NULL"
    (found,) = await breaks_after(postgres, a_change(column, "agent_requests", place))

    assert found.body is not None
    assert found.body.startswith(body)


@pytest.mark.parametrize(
    ("statement", "problem", "position"),
    [
        (
            "UPDATE agent_ledger SET entry = replace(entry, 'ann', 'bob') WHERE execution_id = :id",
            "changed",
            1,
        ),
        (
            "UPDATE agent_ledger SET hash = repeat('0', 64) WHERE execution_id = :id AND position = 3",
            "hash",
            3,
        ),
        ("DELETE FROM agent_ledger WHERE execution_id = :id AND position = 4", "missing before", 5),
        ("DELETE FROM agent_ledger WHERE execution_id = :id AND position > 20", "does not end where", 20),
        ("DELETE FROM agent_ledger WHERE execution_id = :id", "was removed", None),
        ("DELETE FROM agent_ledger_heads WHERE execution_id = :id", "head of the chain was removed", 22),
        ("UPDATE agent_executions SET status = 'running' WHERE id = :id", "has not ended", 22),
        ("UPDATE agent_ledger SET entry = '' WHERE execution_id = :id AND position = 2", "cannot be read", 2),
    ],
)
async def test_a_changed_ledger_is_found(
    postgres: PostgresStore, statement: str, problem: str, position: int | None
) -> None:
    """15.7.4"""
    found = await breaks_after(postgres, statement)

    assert [each for each in found if problem in each.problem and each.position == position], found


async def test_a_rewritten_entry_breaks_the_chain_after_it(postgres: PostgresStore) -> None:
    """15.7.4: also if its own hash was computed anew."""
    found = await breaks_after(
        postgres,
        """UPDATE agent_ledger
              SET entry = replace(entry, 'ann', 'bob'),
                  hash = encode(sha256(convert_to(replace(entry, 'ann', 'bob'), 'UTF8')), 'hex')
            WHERE execution_id = :id AND position = 1""",
    )

    assert [(each.position, each.problem) for each in found] == [
        (2, "The entry does not follow the one before it")
    ]


async def test_an_added_row_is_found(postgres: PostgresStore) -> None:
    """15.7.4"""
    (found,) = await breaks_after(
        postgres,
        """INSERT INTO agent_transcript (execution_id, step, idx, tenant_id, role, content)
           SELECT id, 1, 7000, tenant_id, 'user', '"I agree"' FROM agent_executions WHERE id = :id""",
    )

    assert (found.body, found.problem) == ("message/1/7000", "message/1/7000 was added: no entry records it")


async def test_removed_bodies_are_named_and_break_nothing(postgres: PostgresStore) -> None:
    """15.7.4"""
    ref = await a_rich_execution(postgres)
    await change(postgres, "DELETE FROM agent_transcript WHERE execution_id = :id AND step = 0", ref)
    await change(postgres, "DELETE FROM agent_inner_replies WHERE execution_id = :id", ref)

    report = await audit_of(postgres, ref)

    assert (report.is_whole, report.gone) == (True, ("message/0/0", "inner/c2/1"))


async def test_a_removed_ledger_is_not_taken_for_that_of_an_older_release(postgres: PostgresStore) -> None:
    """15.7.4"""
    ref = await a_rich_execution(postgres)
    await change(postgres, "DELETE FROM agent_ledger WHERE execution_id = :id", ref)
    await change(postgres, "DELETE FROM agent_ledger_heads WHERE execution_id = :id", ref)

    report = await audit_of(postgres, ref)

    assert report.is_sealed
    assert [each.problem for each in report.breaks][:1] == [
        "The ledger was removed: the execution was accepted with one"
    ]


async def test_an_erased_session_erases_its_ledgers(postgres: PostgresStore) -> None:
    """15.7.7: the rows of an execution and its ledger are removed together."""
    ref = await a_rich_execution(postgres)
    await change(postgres, "DELETE FROM agent_executions WHERE id = :id", ref)

    async with postgres.engine.connect() as connection:
        for table in ("agent_ledger", "agent_ledger_heads"):
            found = await connection.execute(text(f"SELECT count(*) FROM {table}"))  # noqa: S608
            assert found.scalar_one() == 0


WRITES = ("call", "steer", "command", "failure", "inner", "reply")


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.sampled_from(WRITES), st.integers(1, 4)), min_size=6, max_size=24))
async def test_concurrent_writers_share_one_chain(
    postgres: PostgresStore, writes: list[tuple[str, int]]
) -> None:
    """15.7.3: no fork, no gap, no entry twice, and no deadlock, whoever writes at the same time."""
    ref = await accept_execution(postgres)
    calls = [a_call(f"c{number}") for number in range(1, 5)]
    await postgres.record_reply(a_reply(ref, "Hi", *calls))

    async def write(kind: str, number: int) -> None:
        match kind:
            case "call":
                record = a_result(f"c{number}")
                await postgres.record_call(result_record(ref, record, index=number - 1))
            case "steer":
                await postgres.steer(ref, f"k{number}", user("Hurry"))
            case "command":
                await postgres.command(ref, f"pause/{number}", CommandKind.PAUSE)
            case "failure":
                await postgres.note_failure(ref, 1, number)
            case "inner":
                settlement = a_settlement(ref, ExecutionStatus.PAUSED, f"pause/{number}")
                await postgres.settle(settlement)
            case _:
                await postgres.record_reply(a_reply(ref, "Hi", number=2))

    await asyncio.gather(*(write(kind, number) for kind, number in writes))
    await postgres.settle(a_settlement(ref, ExecutionStatus.COMPLETED))

    entries = await entries_of(postgres, ref)
    assert (await audit_of(postgres, ref)).breaks == ()
    assert [entry["position"] for entry in entries] == [*range(1, len(entries) + 1)]
    written = {(kind, 2 if kind == "reply" else number) for kind, number in writes}
    closed = 4 - sum(kind == "call" for kind, _ in written)
    # Accepted, the first reply, what was written, the calls that the end closed, and the end.
    assert len(entries) == 2 + len(written) + closed + 1
