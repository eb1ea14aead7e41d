"""The cost of the PostgreSQL store: round trips and query plans."""

import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import event, select

from everstep.agent_domain.ids import ExecutionRef, request_id
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.loop.step_facts import CallNeed
from everstep.agent_domain.messages.messages import user
from everstep.agent_domain.storage.requests import Resolution
from everstep.agent_domain.storage.steps import PartialText
from everstep.agent_domain.values import frozen_map
from everstep.store.engine import create_engine
from everstep.store.postgres import PostgresStore
from everstep.store.reading import ROW
from tests.everstep.store.onlookers import (
    count_round_trips,
    open_admin_connection,
    plan_of,
    record_statements,
)
from tests.everstep.store.queries import fetch
from tests.everstep.store.store_words import (
    TENANT,
    WAIT,
    a_call,
    a_new_execution,
    a_ref,
    a_reply,
    a_result,
    a_settlement,
    a_step_start,
    accept_execution,
    an_event,
    publishing,
    result_record,
    run_step,
)

# The number of times that each method waits for the server: every step of every agent uses some of them.
ROUND_TRIPS = {
    "accept": 2,
    "material": 1,
    "begin_step": 2,
    "note_partial": 1,
    "note_partials": 1,
    "note_failure": 1,
    "note_wait": 2,
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
        waits = count_round_trips(postgres.engine, tmp_path / "trace")
        counted: dict[str, int] = {}
        await postgres.execution(a_ref())
        ref = a_ref(session_id=uuid4())
        asked = request_id(ref.execution_id, "c1")
        said = frozen_map({"a": 1})
        end = a_settlement(
            ref, ExecutionStatus.COMPLETED, "end", outcome=said, output=said, snapshot=said, is_final=True
        )
        calls: list[tuple[str, Callable[[], Awaitable[Any]]]] = [
            ("accept", lambda: postgres.accept(a_new_execution(ref))),
            ("material", lambda: postgres.material(ref)),
            (
                "begin_step",
                lambda: postgres.begin_step(a_step_start(ref, events=publishing([an_event("1")]))),
            ),
            ("note_partial", lambda: postgres.note_partial(ref, 1, 1, "text")),
            ("note_partials", lambda: postgres.note_partials([PartialText(ref, 1, 1, "text")])),
            ("note_failure", lambda: postgres.note_failure(ref, 1, 1)),
            ("note_wait", lambda: postgres.note_wait(ref, 1, WAIT, [an_event("wait")])),
            (
                "record_reply",
                lambda: postgres.record_reply(
                    a_reply(
                        ref,
                        "",
                        *map(a_call, ("c0", "c1", "c2")),
                        needs=CallNeed.INPUT,
                        events=[an_event("2")],
                    )
                ),
            ),
            ("preview_step", lambda: postgres.preview_step(ref, 2)),
            (
                "record_reply with its beginning",
                lambda: postgres.record_reply(replace(a_reply(ref, number=2), begins=a_step_start(ref, 2))),
            ),
            ("preview_call", lambda: postgres.preview_call(ref, "c0")),
            ("open_requests", lambda: postgres.open_requests(ref)),
            ("request", lambda: postgres.request(ref, asked)),
            ("resolve", lambda: postgres.resolve(ref, asked, Resolution("answer"), [an_event("3")])),
            ("reserve_call", lambda: postgres.reserve_call(ref, "c0", 1, publishing([an_event("4")]))),
            (
                "record_call",
                lambda: postgres.record_call(result_record(ref, a_result("c0"), events=[an_event("5")])),
            ),
            (
                "record_call with metadata",
                lambda: postgres.record_call(
                    result_record(ref, a_result("c1"), metadata=said, events=[an_event("6")], index=1)
                ),
            ),
            (
                "settle",
                lambda: postgres.settle(a_settlement(ref, ExecutionStatus.PAUSED, events=[an_event("7")])),
            ),
            ("keep_snapshot", lambda: postgres.keep_snapshot(ref, 1, said)),
            ("steer", lambda: postgres.steer(ref, "k", user("Hurry"))),
            ("settle at the end", lambda: postgres.settle(replace(end, events=[an_event("8")]))),
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
    INSERT INTO agent_commands (execution_id, tenant_id, key, kind, delivered_at)
    SELECT execution_id, tenant_id, 'cancel/' || number, 'cancel', now() FROM agent_steps;
    INSERT INTO agent_steered (execution_id, tenant_id, key, role, content, heard_at)
    SELECT execution_id, tenant_id, 'message/' || number, 'user', '""', number FROM agent_steps;
    INSERT INTO agent_budgets (id, tenant_id, scope, subject, agent, unit, limit_amount, on_exhausted)
    SELECT gen_random_uuid(), 'tenant ' || i % 5, 'user', 'user ' || i, '', 'usd', 1, 'stop'
      FROM generate_series(1, {executions}) AS i;
    INSERT INTO agent_places (execution_id, tenant_id, user_id)
    SELECT id, tenant_id, '' FROM agent_executions;
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
        self, own_store: PostgresStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Among many others, each list is found by an index, and pages are sorted by it."""
        with open_admin_connection(own_store.engine) as connection:
            connection.execute(MANY.format(executions=2500, notes=NOTES).encode())
        running = (
            "SELECT * FROM agent_executions WHERE status = 'running' ORDER BY created_at OFFSET 400 LIMIT 1"
        )
        (some,) = await fetch(own_store, running)
        ref = ExecutionRef(some.id, some.tenant_id, some.session_id)
        first = await own_store.executions(some.tenant_id, limit=20)
        plans, asked = list[str](), record_statements(monkeypatch)

        @event.listens_for(own_store.engine.sync_engine, "before_cursor_execute", retval=True)
        def explain(*given: Any) -> tuple[str, Any]:  # pyright: ignore[reportUnusedFunction] -- SQLAlchemy calls it
            _, cursor, statement, parameters, *_ = given
            cursor.execute(f"EXPLAIN {statement}", parameters)
            plans.append("\n".join(line for (line,) in cursor.fetchall()))
            return statement, parameters

        lists: dict[str, Callable[[], Awaitable[Any]]] = {
            "executions": lambda: own_store.executions(some.tenant_id, cursor=first.cursor, limit=20),
            "executions of a status": lambda: own_store.executions(
                some.tenant_id, status=ExecutionStatus.FAILED, cursor=first.cursor, limit=20
            ),
            "envelopes": lambda: own_store.envelopes(some.tenant_id, some.session_id, after=2000, limit=100),
            "transcript": lambda: own_store.transcript(ref),
            "steps": lambda: own_store.steps(ref),
            "steps page by page": lambda: own_store.steps_after(ref, 2, limit=2),
            "open requests": lambda: own_store.open_requests(ref),
            "an execution": lambda: own_store.execution(ref),
            "what a step is made from": lambda: own_store.material(ref),
            "what a call is shown": lambda: own_store.preview_call(ref, "call 5"),
            "what processors made of a step": lambda: own_store.processing(ref, 3),
            "what was asked in the midst of a step": lambda: own_store.inner_reply(ref, "call/3"),
            "what toolsets listed": lambda: own_store.recorded_tools(ref),
        }
        for name, read in lists.items():
            plans.clear()
            asked.clear()
            await read()
            plans += [plan_of(own_store.engine, each) for each, _ in asked]
            assert plans
            for plan in plans:
                assert "Seq Scan" not in plan, f"{name}:\n{plan}"
                # The remaining scans read the metadata of one execution: few keys.
                page, _, _ = plan.partition("SubPlan")
                assert name not in PAGES or "Sort" not in page, f"{name}:\n{plan}"

    async def test_an_entry_of_the_ledger_is_found_by_its_key(
        self, own_store: PostgresStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Otherwise each step of a long execution would read the whole chain."""
        ref = await accept_execution(own_store)
        await run_step(own_store, ref)
        asked = record_statements(monkeypatch)

        await own_store.note_failure(ref, 1, 1)

        (plan,) = [plan_of(own_store.engine, each) for each, _ in asked if "ledger_head" in each[0].text]
        reads = [line for line in plan.splitlines() if "Scan" in line and " on agent_ledger " in line]
        assert reads, plan
        assert len(re.findall(r"Index Cond: .*\(key = ", plan)) == len(reads), plan

    async def test_a_page_of_a_long_execution_reads_its_own_rows_only(
        self, own_store: PostgresStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Of 1,000 steps: the page's steps, and one more that shows whether there is a next page."""
        ref = await accept_execution(own_store)
        with open_admin_connection(own_store.engine) as connection:
            connection.execute(LONG.format(id=ref.execution_id, tenant=ref.tenant_id).encode())
        asked = record_statements(monkeypatch)

        page = await own_store.steps_after(ref, 500, limit=10)

        assert [step.number for step in page.rows] == list(range(501, 511))
        assert page.cursor == "510"
        assert {(len(step.messages), len(step.calls)) for step in page.rows} == {(2, 1)}
        assert [len(answer.rows) for _, answer in asked] == [11, 20, 10, 0]
        plans = [plan_of(own_store.engine, each) for each, _ in asked[:3]]
        for plan, place in zip(plans, ("number", "step", "step"), strict=True):
            assert "Index Scan" in plan, plan
            assert re.search(rf"Index Cond: .*{place} >", plan), plan
            assert "Sort" not in plan, plan

    async def test_a_list_reads_the_merged_metadata_not_a_thousand_changes(
        self, own_store: PostgresStore
    ) -> None:
        """Otherwise the cost of a page would grow with all metadata ever written in its executions."""
        ref = await accept_execution(own_store, metadata=frozen_map({"a": 0, "b": 1, "c": 2}))
        with open_admin_connection(own_store.engine) as connection:
            connection.execute(NOTED.format(id=ref.execution_id, tenant=ref.tenant_id, notes=NOTES).encode())

        async with own_store.engine.connect() as connected:
            (row,) = (await connected.execute(select(*ROW))).all()
        (listed,) = (await own_store.executions(ref.tenant_id)).rows

        assert row.notes == {"values": {"a": 1000}, "removed": ["b"]}
        assert listed.metadata == {"a": 1000, "c": 2}
