"""Measures what partitions of the hot tables cost and save, with ten million envelopes.

Four databases on one server have the same rows. In `plain` the tables are as they are. In `key` envelopes
are partitioned by time, and their unique keys contain the time. In `keys` they are too, and a small table
keeps the ids unique. In `hash` envelopes are partitioned by stream; steps, messages and calls by execution.

Prints per database: PostgreSQL's CPU time and the latency of a step, in turns; those of a read that resumes
a stream; and the time, the log and the effect on a concurrent writer when half of the envelopes are removed.
The decision: docs/decisions/0010-no-partitions.md.

    python bench/partitions.py [--rows N] [--data FOLDER]
"""

import argparse
import asyncio
import json
import os
import random
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from uuid import UUID, uuid4

import psycopg
from sqlalchemy import make_url

TENANT: Final = "acme"
EACH: Final = 50
"""The envelopes of an execution, which has ten steps."""
PARTS: Final = 12
"""The partitions with rows: weeks."""
WEEK: Final = timedelta(days=7)
HASH_PARTS: Final = 16
END: Final = datetime(2026, 1, 5, tzinfo=UTC)
START: Final = END - PARTS * WEEK
MIDDLE: Final = END - PARTS // 2 * WEEK
SHAPES: Final = ("plain", "keys", "key", "hash")
DETAILED: Final = 50_000
"""The executions that have steps, messages and calls as well."""
ROUNDS: Final = 6
STEPS: Final = 300
READS: Final = 1_000

_EXECUTIONS: Final = """
    INSERT INTO agent_streams (stream_id, tenant_id, head, last_at)
    SELECT CAST(md5('e' || s) AS uuid), 'acme', {each}, CAST('{start}' AS timestamptz) + s * {gap}
      FROM generate_series(0, {executions} - 1) AS s;
    INSERT INTO agent_executions (id, tenant_id, agent_type, agent_config, agent_id, status, created_at,
                                  completed_at)
    SELECT CAST(md5('e' || s) AS uuid), 'acme', 'helper', '{{}}', gen_random_uuid(), 'completed',
           CAST('{start}' AS timestamptz) + s * {gap}, CAST('{start}' AS timestamptz) + s * {gap}
      FROM generate_series(0, {executions} - 1) AS s;
"""

_ENVELOPES: Final = """
    INSERT INTO {table} (stream_id, seq, tenant_id, id, type, execution_id, payload, created_at)
    SELECT CAST(md5('e' || s) AS uuid), n, 'acme', CAST(md5(s || '/' || n) AS uuid), 'agent.message',
           CAST(md5('e' || s) AS uuid),
           CAST('{{"content": "' || repeat(md5(n || '-' || s), 6 + n % 9) || '"}}' AS json),
           -- One in five goes on for three weeks.
           least(CAST('{start}' AS timestamptz) + s * {gap}
                 + n * CASE WHEN s % 5 = 0 THEN interval '10 hours' ELSE interval '20 seconds' END,
                 CAST('{end}' AS timestamptz) - interval '1 second')
      FROM generate_series(0, {executions} - 1) AS s, generate_series(1, {each}) AS n
"""

_DETAILS: Final = """
    INSERT INTO agent_steps (execution_id, number, tenant_id, attempt, facts, response)
    SELECT CAST(md5('e' || s) AS uuid), n, 'acme', 1, '{{"step": 1}}',
           CAST('{{"text": "' || repeat(md5(n || '-' || s), 8) || '"}}' AS json)
      FROM generate_series(0, {detailed} - 1) AS s, generate_series(1, 10) AS n;
    INSERT INTO agent_transcript (execution_id, step, idx, tenant_id, role, content)
    SELECT CAST(md5('e' || s) AS uuid), 1 + n / 2, n % 2, 'acme', 'assistant',
           CAST('"' || repeat(md5(n || '-' || s), 8) || '"' AS json)
      FROM generate_series(0, {detailed} - 1) AS s, generate_series(0, 19) AS n;
    INSERT INTO agent_tool_calls (execution_id, call_id, tenant_id, step, idx, name, args, need, args_digest,
                                  state)
    SELECT CAST(md5('e' || s) AS uuid), 'call_' || n, 'acme', n, 0, 'look', '{{"place": "here"}}', 'run',
           md5('a' || n), 'done'
      FROM generate_series(0, {detailed} - 1) AS s, generate_series(1, 10) AS n;
"""

_ENVELOPES_BY_TIME: Final = """
    ALTER TABLE agent_envelopes RENAME TO unused;
    CREATE TABLE agent_envelopes (LIKE unused INCLUDING DEFAULTS) PARTITION BY RANGE (created_at)
"""

_ENVELOPES_BY_STREAM: Final = """
    ALTER TABLE agent_envelopes RENAME TO unused;
    CREATE TABLE agent_envelopes (LIKE unused INCLUDING DEFAULTS) PARTITION BY HASH (stream_id)
"""

_REFERENCE: Final = """
    ALTER TABLE agent_envelopes
      ADD FOREIGN KEY (stream_id) REFERENCES agent_streams (stream_id) ON DELETE CASCADE
"""

_HOT: Final = ("agent_steps", "agent_transcript", "agent_tool_calls")

_INDEXES: Final = {
    "plain": ("PRIMARY KEY (stream_id, seq)", "UNIQUE (id)"),
    "key": ("PRIMARY KEY (stream_id, seq, created_at)", "UNIQUE (id, created_at)"),
    "keys": ("PRIMARY KEY (stream_id, seq, created_at)",),
    "hash": ("PRIMARY KEY (stream_id, seq)", "UNIQUE (stream_id, id)"),
}


def shape(connection: psycopg.Connection[Any], name: str) -> None:
    """Change the empty tables to those of a database."""
    for constraint in ("pkey", "id_key", "stream_id_fkey"):
        connection.execute(
            f"ALTER TABLE agent_envelopes DROP CONSTRAINT agent_envelopes_{constraint}".encode()
        )
    if name in {"key", "keys"}:
        connection.execute(_ENVELOPES_BY_TIME)
        # Future weeks exist ahead, and a default takes the rest.
        for number in range(PARTS + 2):
            begin, end = START + number * WEEK, START + (number + 1) * WEEK
            if number == PARTS + 1:
                end = datetime(2030, 1, 1, tzinfo=UTC)  # the bench itself writes today
            values = f"FROM ('{begin}') TO ('{end}')"
            connection.execute(
                f"CREATE TABLE week_{number} PARTITION OF agent_envelopes FOR VALUES {values}".encode()
            )
        connection.execute("CREATE TABLE week_default PARTITION OF agent_envelopes DEFAULT")
    if name == "hash":
        connection.execute(_ENVELOPES_BY_STREAM)
        _add_hash_parts(connection, "agent_envelopes")
        connection.execute("ALTER TABLE agent_requests DROP CONSTRAINT agent_requests_execution_id_fkey")
        for table in _HOT:
            _partition_by_execution(connection, table)
        connection.execute("""
            ALTER TABLE agent_requests ADD FOREIGN KEY (execution_id, call_id)
            REFERENCES agent_tool_calls (execution_id, call_id) ON DELETE CASCADE
        """)


def _partition_by_execution(connection: psycopg.Connection[Any], table: str) -> None:
    for change in (
        f"ALTER TABLE {table} RENAME TO {table}_unused",
        f"CREATE TABLE {table} (LIKE {table}_unused INCLUDING ALL) PARTITION BY HASH (execution_id)",
        f"DROP TABLE {table}_unused",
        f"ALTER TABLE {table} ADD FOREIGN KEY (execution_id) "
        "REFERENCES agent_executions (id) ON DELETE CASCADE",
    ):
        connection.execute(change.encode())
    _add_hash_parts(connection, table)


def _add_hash_parts(connection: psycopg.Connection[Any], table: str) -> None:
    for number in range(HASH_PARTS):
        values = f"WITH (MODULUS {HASH_PARTS}, REMAINDER {number})"
        connection.execute(f"CREATE TABLE {table}_{number} PARTITION OF {table} FOR VALUES {values}".encode())


def fill(connection: psycopg.Connection[Any], name: str, rows: int) -> None:
    """Insert the rows, and build the indexes afterwards."""
    executions = rows // EACH
    given: dict[str, Any] = {
        "executions": executions,
        "each": EACH,
        "start": START,
        "end": END,
        "gap": f"interval '{(END - START).total_seconds() / executions} seconds'",
        "detailed": min(DETAILED, executions),
    }
    connection.execute(_EXECUTIONS.format(**given).encode())
    connection.execute(_ENVELOPES.format(table="agent_envelopes", **given).encode())
    connection.execute(_DETAILS.format(**given).encode())
    connection.execute("SET maintenance_work_mem = '1GB'")
    for index in _INDEXES[name]:
        connection.execute(f"ALTER TABLE agent_envelopes ADD {index}".encode())
    connection.execute(_REFERENCE)
    if name == "keys":
        connection.execute("CREATE TABLE agent_envelope_keys AS SELECT id FROM agent_envelopes")
        connection.execute("ALTER TABLE agent_envelope_keys ADD PRIMARY KEY (id)")
    connection.execute("VACUUM ANALYZE")
    connection.execute(f"CREATE TABLE filled AS SELECT CAST({rows} AS bigint) AS rows".encode())


def is_filled(url: str, rows: int) -> bool:
    """Whether an earlier run has filled the database."""
    try:
        with psycopg.connect(_libpq(url)) as connection:
            return connection.execute("SELECT rows FROM filled").fetchone() == (rows,)
    except psycopg.Error:
        return False


# The measuring process, whose statements are those of its database.


def use_shape(name: str) -> None:
    """Change the statements that append, before they are composed."""
    from everstep.store import stream_statements  # noqa: PLC0415 -- before the modules that compose statements

    original = stream_statements.append_sql

    def append_sql(stream: str, condition: str = "true") -> str:
        sql = original(stream, condition)
        known = "FROM agent_envelopes known WHERE known.id = e.id"
        assert known in sql
        if name == "hash":
            return sql.replace(known, f"{known} AND known.stream_id = {stream}")
        told = ", told AS ("
        assert told in sql
        sql = sql.replace(known, "FROM agent_envelope_keys known WHERE known.id = e.id")
        keyed = ", keyed AS (INSERT INTO agent_envelope_keys (id) SELECT id FROM placed WHERE id IS NOT NULL)"
        return sql.replace(told, f"{keyed}{told}")

    if name in {"keys", "hash"}:
        stream_statements.append_sql = append_sql
        stream_statements.APPEND = type(stream_statements.APPEND)(
            f"WITH {append_sql(':stream_id')} SELECT {stream_statements.POSITIONS} FROM placed ORDER BY seq"  # noqa: S608 -- constants only
        )


async def measure(name: str, url: str, work: str) -> None:
    """Measure in this process, and print the numbers."""
    use_shape(name)
    from everstep.store.engine import create_engine  # noqa: PLC0415 -- after `use_shape`
    from everstep.store.postgres import PostgresStore  # noqa: PLC0415

    store = PostgresStore(create_engine(url, application_name="bench", statement_timeout=600))
    try:
        if work == "write":
            await _write_continuously(store)
        elif work == "prune":
            await _prune(url)
        else:
            act = _step_runner(store) if work == "steps" else _reader(url)
            count = STEPS if work == "steps" else READS
            for _ in range(count // 5):
                await act()
            before, took = _server_seconds(url), list[float]()
            for _ in range(count):
                began = time.perf_counter()
                await act()
                took.append(time.perf_counter() - began)
            print(json.dumps({"cpu": (_server_seconds(url) - before) / count, "took": took}))
    finally:
        await store.engine.dispose()


def _step_runner(store: Any) -> Any:
    """Return a function that runs a step: its beginning, a reply with a call, the call and its result."""
    from everstep.agent_domain.ids import ExecutionRef  # noqa: PLC0415 -- after `use_shape`
    from everstep.agent_domain.loop.step_facts import CallFacts, CallNeed, StepFacts  # noqa: PLC0415
    from everstep.agent_domain.messages.messages import (  # noqa: PLC0415
        assistant,
        call_entry,
        tool_message,
        user,
    )
    from everstep.agent_domain.state.steps import InferenceResponse  # noqa: PLC0415
    from everstep.agent_domain.storage.calls import CallRecord, RecordCall  # noqa: PLC0415
    from everstep.agent_domain.storage.executions import ExecutionSpec, NewExecution  # noqa: PLC0415
    from everstep.agent_domain.storage.metadata_changes import MetadataChanges  # noqa: PLC0415
    from everstep.agent_domain.storage.steps import BeginStep, CallToRecord, RecordReply  # noqa: PLC0415
    from everstep.agent_domain.stream.records import EventRecord  # noqa: PLC0415
    from everstep.agent_domain.tools.tools import ToolCall  # noqa: PLC0415
    from everstep.agent_domain.values import EMPTY, frozen_map  # noqa: PLC0415

    text = "Words of a reply. " * 15
    ref, number = ExecutionRef(uuid4(), TENANT, None), 0

    def events(*kinds: str) -> list[EventRecord]:
        return [EventRecord(f"{kind}/{number}", f"agent.{kind}", {"content": text}) for kind in kinds]

    def begin_events(_begun: object) -> list[EventRecord]:
        return events("step")

    def start_events(_reserved: object) -> list[EventRecord]:
        return events("start")

    async def run_step() -> None:
        nonlocal ref, number
        if number % 10 == 0:
            ref, number = ExecutionRef(uuid4(), TENANT, None), 0
            await store.accept(NewExecution(ref, ExecutionSpec(agent="helper"), (user("Hello"),)))
        number += 1
        call = ToolCall(f"call_{number}", "look", frozen_map({"place": "here"}))
        facts = StepFacts(number, (CallFacts(call.id, call.name, CallNeed.RUN),), "stop", seconds=0.5)
        said = assistant(text, tool_calls=[call_entry(call.id, call.name, call.arguments)])
        response = frozen_map(InferenceResponse(text, (call,), "stop").to_dict())
        await store.begin_step(BeginStep(ref, number, 1, None, events=begin_events))
        calls = [CallToRecord(call, CallNeed.RUN, f"digest of {call.id}", None)]
        await store.record_reply(
            RecordReply(ref, number, 1, facts, (), response, (said,), calls, events("message", "calls"))
        )
        await store.reserve_call(ref, call.id, 1, start_events)
        now = datetime.now(UTC)
        record = CallRecord(call.id, text, None, text, now, now, 0.1)
        message = (tool_message(text, call.id, "look"),)
        await store.record_call(
            RecordCall(ref, number, 0, record, message, MetadataChanges(EMPTY), events("end"))
        )

    return run_step


def _reader(url: str) -> Any:
    """Return a function that reads on in an old stream, as a viewer that resumes."""
    from everstep.store.engine import create_engine  # noqa: PLC0415 -- after `use_shape`
    from everstep.store.journal import JournalTables  # noqa: PLC0415

    journal = JournalTables(create_engine(url, application_name="bench"))
    chosen = random.Random(1)  # noqa: S311 -- rows
    with psycopg.connect(_libpq(url)) as connection:
        found = connection.execute("SELECT stream_id FROM agent_streams ORDER BY random() LIMIT 2000")
        ids: list[UUID] = [row[0] for row in found.fetchall()]

    async def read() -> None:
        page = await journal.page(chosen.choice(ids), 30, 100)
        assert page
        assert page.head >= len(page.envelopes)

    return read


async def _write_continuously(store: Any) -> None:
    """Run steps, one every 20 ms, until the standard input is closed; print their seconds."""
    run_step, took = _step_runner(store), list[float]()
    for _ in range(50):
        await run_step()
    print("ready", flush=True)
    closed = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    while not closed.done():
        began = time.perf_counter()
        await run_step()
        took.append(time.perf_counter() - began)
        await asyncio.sleep(max(0, 0.02 - took[-1]))
    print(json.dumps({"took": took}))


async def _prune(url: str) -> None:
    from everstep.store.engine import create_engine  # noqa: PLC0415 -- after `use_shape`
    from everstep.store.retention import PostgresRetention  # noqa: PLC0415

    engine = create_engine(url, application_name="bench", statement_timeout=300)
    began, removed = time.perf_counter(), 0
    async for count in PostgresRetention(engine).prune_envelopes(MIDDLE):
        removed += count
    print(json.dumps({"removed": removed, "seconds": time.perf_counter() - began}))
    await engine.dispose()


def _server_seconds(url: str) -> float:
    """The CPU time of the server's processes for this bench."""
    with psycopg.connect(_libpq(url)) as connection:
        found = connection.execute("SELECT pid FROM pg_stat_activity WHERE application_name = 'bench'")
        ticks = 0
        for (pid,) in found.fetchall():
            fields = re.sub(r"^.*\) ", "", Path(f"/proc/{pid}/stat").read_text()).split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def _libpq(url: str) -> str:
    return make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)


# The controlling process.


def run_child(name: str, url: str, work: str) -> dict[str, Any]:
    """Measure in a process of its own, whose statements are those of the database."""
    done = subprocess.run(  # noqa: S603 -- own program
        [sys.executable, __file__, "--child", name, url, work], check=True, capture_output=True, text=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def drop_weeks(url: str) -> None:
    """Remove the partitions before the middle, each in a transaction.

    `DETACH ... CONCURRENTLY` is refused, because there is a default partition.
    """
    with psycopg.connect(_libpq(url), autocommit=True) as connection:
        for number in range(PARTS // 2):
            connection.execute(f"DROP TABLE week_{number}".encode())


def remove_half(name: str, url: str) -> None:
    """Remove half of the envelopes while a writer runs steps; print time, log, space, the writer's times."""
    quiet = _while_writing(name, url, lambda: time.sleep(10))
    sql = "SELECT pg_current_wal_lsn() - '0/0', pg_database_size(current_database())"
    with psycopg.connect(_libpq(url), autocommit=True) as connection:
        log, size = connection.execute(sql).fetchone() or (0, 0)
        began = time.perf_counter()
        by_weeks = name in {"key", "keys"}
        busy = _while_writing(
            name, url, lambda: drop_weeks(url) if by_weeks else run_child(name, url, "prune")
        )
        seconds = time.perf_counter() - began
        log_after, size_after = connection.execute(sql).fetchone() or (0, 0)
    print(
        f"{name:<8} {seconds:7.1f} s  {float(log_after - log) / 2**20:7,.0f} MB of log  "
        f"{(size - size_after) / 2**20:7,.0f} MB less on disk  "
        f"writer p50/p99 {quiet} alone, {busy} during it",
        flush=True,
    )


def _while_writing(name: str, url: str, act: Any) -> str:
    command = [sys.executable, __file__, "--child", name, url, "write"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:  # noqa: S603 -- own program
        assert writer.stdout
        assert writer.stdout.readline() == "ready\n"
        act()
        out, _ = writer.communicate()
    took = json.loads(out)["took"]
    return f"{_milliseconds(took, 50)}/{_milliseconds(took, 99)} ms"


def _milliseconds(took: Sequence[float], percent: int) -> str:
    return f"{sorted(took)[int(len(took) * percent / 100)] * 1000:.2f}"


def compare(urls: dict[str, str], work: str) -> None:
    """Measure all databases in turns, and print medians and their ratio to the first."""
    cpu: dict[str, list[float]] = {name: [] for name in urls}
    took: dict[str, list[float]] = {name: [] for name in urls}
    for _ in range(ROUNDS):
        for name, url in urls.items():
            found = run_child(name, url, work)
            cpu[name].append(found["cpu"])
            took[name] += found["took"]
    first_cpu, first_took = (statistics.median(each["plain"]) for each in (cpu, took))
    for name in urls:
        middle, p50 = statistics.median(cpu[name]), statistics.median(took[name])
        print(
            f"{work:<6} {name:<8} {middle * 1000:6.3f} ms of server CPU ({middle / first_cpu:5.2f})  "
            f"p50 {p50 * 1000:6.3f} ms ({p50 / first_took:5.2f})  p99 {_milliseconds(took[name], 99)} ms",
            flush=True,
        )


async def run_bench(data: Path, rows: int, phases: Sequence[str]) -> None:
    """Run the phases on a server whose data are in the folder."""
    from everstep.runtime.embedded import EmbeddedConfig, open_services  # noqa: PLC0415 -- not in children
    from everstep.store.migrate import upgrade  # noqa: PLC0415

    config = EmbeddedConfig(
        data, temporal_port=0, ui_port=0, postgres_settings={"max_wal_size": "8GB", "shared_buffers": "1GB"}
    )
    async with open_services(config) as services:
        urls = {
            name: make_url(services.database_url).set(database=name).render_as_string(hide_password=False)
            for name in SHAPES
        }
        if "fill" in phases:
            for name, url in urls.items():
                began = time.perf_counter()
                if is_filled(url, rows):
                    continue
                with psycopg.connect(_libpq(services.database_url), autocommit=True) as connection:
                    connection.execute(f"DROP DATABASE IF EXISTS {name}".encode())
                    connection.execute(f"CREATE DATABASE {name}".encode())
                await upgrade(url)
                with psycopg.connect(_libpq(url), autocommit=True) as connection:
                    shape(connection, name)
                    fill(connection, name, rows)
                print(f"{name}: {rows:,} envelopes in {time.perf_counter() - began:.0f} s", flush=True)
        for work in ("steps", "reads"):
            if work in phases:
                await asyncio.to_thread(compare, urls, work)
        if "prune" in phases:
            for name in ("plain", "keys"):
                await asyncio.to_thread(remove_half, name, urls[name])


def main() -> None:
    """Read the arguments, and run the bench or a child of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--data", type=Path, help="a folder that keeps the databases")
    parser.add_argument("--phases", nargs="+", default=["fill", "steps", "reads", "prune"])
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        asyncio.run(measure(*given.child))
        return
    with nullcontext(given.data) if given.data else TemporaryDirectory(prefix="everstep-bench-") as folder:
        asyncio.run(run_bench(Path(folder), given.rows, given.phases))


if __name__ == "__main__":
    main()
