"""What stays of the ledger of an execution that was pruned, and the check of an export against it."""

import json
from collections.abc import AsyncGenerator, Callable
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio

from everstep.agent_domain.errors import NotFound
from everstep.agent_domain.ids import ExecutionRef, Scope
from everstep.agent_domain.storage.ledger import canonical_json
from everstep.client.errors import Pruned
from everstep.client.ledgers import audit_execution, audit_lines, each_entry
from everstep.store.memory import MemoryStore
from everstep.store.retention import PostgresRetention
from tests.engines import open_engine
from tests.everstep.store.store_words import (
    TENANT,
    accept_execution,
    end_execution,
    of_another_tenant,
    run_step,
)
from tests.everstep.store.test_ledger import a_rich_execution
from tests.everstep.store.test_retention import a_month_ago, rows, set_back, sum_of
from tests.everstep.store.test_sessions import finish_execution, new_session_id, start_execution

Lines = list[dict[str, Any]]


@pytest_asyncio.fixture
async def store(database: str) -> AsyncGenerator[PostgresRetention]:
    async with open_engine(database) as engine:
        yield PostgresRetention(engine)


async def export_lines(store: PostgresRetention, ref: ExecutionRef) -> Lines:
    """The lines of an export."""
    return [json.loads(canonical_json(entry.to_dict())) async for entry in each_entry(store, ref)]


async def pruned_execution(store: PostgresRetention) -> tuple[ExecutionRef, Lines]:
    """An execution that was pruned, with the export from before."""
    ref = await a_rich_execution(store)
    lines = await export_lines(store, ref)
    await set_back(store, "agent_executions")
    assert await sum_of(store.prune_executions(a_month_ago())) == 1
    return ref, lines


async def test_an_export_is_checked_after_its_execution_was_pruned(store: PostgresRetention) -> None:
    """15.7.7, 15.7.9"""
    ref, lines = await pruned_execution(store)

    assert await rows(store, "SELECT * FROM agent_ledger") == []
    report = await audit_lines(store, ref, lines)
    assert (report.is_whole, report.is_closed, report.entries) == (True, True, len(lines))
    assert report.hash == lines[-1]["hash"]
    kept = await store.pruned_ledger(ref)
    assert kept is not None
    assert (kept.entries, kept.hash) == (len(lines), lines[-1]["hash"])
    assert await store.pruned_ledger(of_another_tenant(ref)) is None


async def test_what_stays_names_no_one(store: PostgresRetention) -> None:
    """15.7.7"""
    ref, lines = await pruned_execution(store)
    (row,) = await rows(store, "SELECT * FROM agent_pruned_ledgers")

    found = row._mapping  # noqa: SLF001 -- SQLAlchemy's name
    assert set(found) == {"execution_id", "tenant_id", "entries", "hash", "pruned_at"}
    assert (found["execution_id"], found["entries"]) == (ref.execution_id, len(lines))


CHANGES: tuple[tuple[Callable[[list[Any]], object], str], ...] = (
    (lambda lines: lines[2]["facts"].update(attempt=9), "The text of the entry was changed"),
    (lambda lines: lines.pop(2), "An entry is missing before this one"),
    (lambda lines: lines.pop(), "The chain does not end where its head says"),
    (lambda lines: lines.clear(), "The export has no entry of the execution"),
    (lambda lines: lines[0].update(execution_id=str(uuid4())), "The entry is that of another place"),
    (lambda lines: lines[1].update(hash="0" * 64), "The text of the entry was changed"),
    (lambda lines: lines[1].pop("position"), "cannot be read|another place|changed"),
)


@pytest.mark.parametrize(("change", "problem"), CHANGES)
async def test_an_export_that_was_changed_is_found(
    store: PostgresRetention, change: Callable[[list[Any]], object], problem: str
) -> None:
    """15.7.9"""
    ref, lines = await pruned_execution(store)
    change(lines)

    report = await audit_lines(store, ref, lines)

    assert not report.is_whole
    assert any(part in each.problem for each in report.breaks for part in problem.split("|")), report.breaks


async def test_an_export_of_a_stored_execution_may_be_older_than_its_end(store: PostgresRetention) -> None:
    """15.7.9"""
    ref = await accept_execution(store)
    await run_step(store, ref, 1)
    lines = await export_lines(store, ref)
    await end_execution(store, ref)

    assert (await audit_lines(store, ref, lines)).is_whole
    assert (await audit_lines(store, ref, await export_lines(store, ref))).is_whole
    lines[-1]["facts"] = {}
    assert not (await audit_lines(store, ref, lines)).is_whole
    with pytest.raises(NotFound):
        await audit_lines(store, ExecutionRef(uuid4(), TENANT), lines)


async def test_the_heads_of_a_pruned_session_stay_and_those_of_an_erased_one_do_not(
    store: PostgresRetention,
) -> None:
    """15.7.7"""
    pruned, erased = [await new_session_id(store) for _ in range(2)]
    refs = [await start_execution(store, session) for session in (pruned, erased)]
    for ref in refs:
        await finish_execution(store, ref)
    await set_back(store, "agent_sessions", "id = :id", id=pruned)

    assert await sum_of(store.prune_sessions(a_month_ago())) == 1
    assert await store.delete_session(Scope(TENANT), erased)

    assert await store.pruned_ledger(refs[0]) is not None
    assert await store.pruned_ledger(refs[1]) is None


async def test_commands_about_a_pruned_execution_say_that_it_was_pruned(store: PostgresRetention) -> None:
    """15.7.9"""
    ref, lines = await pruned_execution(store)

    with pytest.raises(
        Pruned, match=f"was pruned on 20.*: its rows were removed. Its ledger had {len(lines)} ent"
    ):
        await audit_execution(store, ref)
    with pytest.raises(Pruned):
        await anext(each_entry(store, ref))


async def test_nothing_is_pruned_from_memory() -> None:
    """15.7.7"""
    memory = MemoryStore()
    assert await memory.pruned_ledger(await accept_execution(memory)) is None
