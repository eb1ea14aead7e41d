"""Measures full-text search in a million messages, and what the index costs a step.

Prints medians for words of different frequency, for a caller who sees the tenant and for one of a thousand
users. Then it records steps with and without the index, in turns, and prints the medians of both. Fails if a
search takes longer than its limit.

    python bench/search.py [--messages N]
"""

import argparse
import asyncio
import random
import statistics
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final
from uuid import uuid4

import psycopg
from figures import line, mark
from sqlalchemy import make_url

from everstep.agent_domain.ids import ExecutionRef, Scope
from everstep.agent_domain.loop.step_facts import StepFacts
from everstep.agent_domain.messages.messages import assistant, user
from everstep.agent_domain.state.steps import InferenceResponse
from everstep.agent_domain.storage.executions import ExecutionSpec, NewExecution
from everstep.agent_domain.storage.sessions import ExecutionFilter
from everstep.agent_domain.storage.steps import BeginStep, RecordReply
from everstep.agent_domain.storage.text_query import TextQuery
from everstep.agent_domain.values import frozen_map
from everstep.runtime.embedded import EmbeddedConfig, open_services
from everstep.store.engine import create_engine
from everstep.store.migrate import upgrade
from everstep.store.postgres import PostgresStore

TENANT: Final = "acme"
PER_EXECUTION: Final = 20
WORDS: Final = [
    f"{start}{end}" for start in ("ba", "de", "ki", "lo", "mu") for end in ("ran", "tes", "vol", "xim")
]
ROUNDS: Final = 5
MOST_SECONDS: Final = 1.5

FILL: Final = """
    INSERT INTO agent_executions (id, tenant_id, user_id, agent_type, agent_config, agent_id, created_at,
                                  status)
    SELECT gen_random_uuid(), %(tenant)s, 'user ' || i %% 1000, 'helper', '{}', gen_random_uuid(),
           now() - i * interval '1 minute', 'completed'
      FROM generate_series(1, %(executions)s) AS i;
    INSERT INTO agent_transcript (execution_id, step, idx, tenant_id, role, content)
    SELECT id, n / 2, n %% 2, %(tenant)s, 'user',
           to_json((CAST(%(texts)s AS text[]))[1 + number %% 1000] || ' number' || number
                   || CASE WHEN number %% 20 = 0 THEN ' twentieth' ELSE '' END)
      FROM (SELECT id, n, floor(random() * 100000)::int AS number
              FROM agent_executions, generate_series(0, %(each)s - 1) AS n) AS said;
"""


async def measure_searches(store: PostgresStore) -> bool:
    """Print how long searches take; return whether one took too long."""
    missed = False
    for name, words in (
        ("a word of ten messages", "number4711"),
        ("a word of 5 % of the messages", "twentieth"),
        ("a word of most messages", WORDS[0]),
        ("two such words", f"{WORDS[0]} {WORDS[1]}"),
        ("a prefix", "number47*"),
        ("a phrase of two such words", f'"{WORDS[0]} {WORDS[1]}"'),
        ("no match", "nothing"),
    ):
        took: list[float] = []
        for scope in (Scope(TENANT), Scope(TENANT, "user 7")):
            seconds: list[float] = []
            for _ in range(ROUNDS):
                began = time.perf_counter()
                await store.search_text(scope, TextQuery.parse(words), ExecutionFilter())
                seconds.append(time.perf_counter() - began)
            took.append(statistics.median(seconds))
        is_missed = max(took) > MOST_SECONDS
        missed |= is_missed
        values = (f"{seconds * 1000:,.0f} ms" for seconds in took)
        line(name, *values, f"<= {MOST_SECONDS * 1000:,.0f} ms", mark(is_missed))
    return missed


async def run_steps(store: PostgresStore, text: str) -> float:
    """Return the seconds of a step: its beginning, and its reply."""
    ref = ExecutionRef(uuid4(), TENANT, None)
    await store.accept(NewExecution(ref, ExecutionSpec(agent="helper"), (user(text),)))
    began = time.perf_counter()
    for number in range(1, 11):
        response = frozen_map(InferenceResponse(text).to_dict())
        await store.begin_step(BeginStep(ref, number, 1, None))
        await store.record_reply(
            RecordReply(ref, number, 1, StepFacts(number), (), response, (assistant(text),))
        )
    return (time.perf_counter() - began) / 10


async def open_store(database_url: str, name: str, texts: list[str], messages: int) -> PostgresStore:
    """Create a database: with messages and the index, or empty and without it."""
    own = make_url(database_url).set(database=name)
    url, libpq = (
        each.render_as_string(hide_password=False) for each in (own, own.set(drivername="postgresql"))
    )
    with psycopg.connect(database_url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    await upgrade(url)
    with psycopg.connect(libpq, autocommit=True, cursor_factory=psycopg.ClientCursor) as connection:
        connection.execute("DROP INDEX agent_transcript_search")
        if name == "indexed":
            values = {"tenant": TENANT, "texts": texts, "each": PER_EXECUTION}
            connection.execute(FILL, {**values, "executions": messages // PER_EXECUTION})
            began = time.perf_counter()
            await upgrade(url)
            print(f"the index was built in {time.perf_counter() - began:.0f} s", flush=True)
            connection.execute("VACUUM ANALYZE")
    return PostgresStore(create_engine(url))


async def run_bench(messages: int) -> bool:
    """Measure on a server of its own; return whether a target was missed."""
    with TemporaryDirectory(prefix="everstep-bench-") as folder:
        async with open_services(EmbeddedConfig(Path(folder), temporal_port=0, ui_port=0)) as services:
            chosen = random.Random(1)  # noqa: S311 -- texts
            texts = [" ".join(chosen.choices(WORDS, k=40)) for _ in range(1000)]
            stores = {
                name: await open_store(services.database_url, name, texts, messages)
                for name in ("indexed", "plain")
            }
            print(f"in {messages:,} messages")
            line("", "tenant", "one user", "target")
            missed = await measure_searches(stores["indexed"])
            took: dict[str, list[float]] = {name: [] for name in stores}
            for _ in range(40):
                for name, store in stores.items():
                    took[name].append(await run_steps(store, texts[0]))
            line("", *took)
            line("a step", *(f"{statistics.median(seconds) * 1000:.2f} ms" for seconds in took.values()))
            for store in stores.values():
                await store.engine.dispose()
            return missed


def main() -> None:
    """Measure, print, and exit with 1 if a target was missed."""
    parser = argparse.ArgumentParser(description="How long searches take, and what the index costs.")
    parser.add_argument("--messages", type=int, default=1_000_000, help="messages (1,000,000)")
    sys.exit(asyncio.run(run_bench(parser.parse_args().messages)))


if __name__ == "__main__":
    main()
