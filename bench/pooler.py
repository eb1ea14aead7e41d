"""Measures what a step costs in the store: directly, without prepared statements, and through PgBouncer.

The four ways take turns on one PostgreSQL. A step here is what an execution stores for a turn with one tool:
it begins, a reply is recorded, and a call is reserved and recorded.

    PYTHONPATH=. python bench/pooler.py [--rounds N] [--steps N]
"""

import argparse
import asyncio
from collections import defaultdict
from collections.abc import Mapping
from contextlib import AsyncExitStack
from statistics import median
from time import perf_counter, process_time

import psycopg
from figures import line
from sqlalchemy import make_url

from everstep.runtime.embedded import EmbeddedConfig, open_services
from everstep.store.engine import create_engine
from everstep.store.migrate import upgrade
from everstep.store.postgres import PostgresStore
from tests.everstep.store.store_words import (
    a_call,
    a_reply,
    a_result,
    a_step_start,
    accept_execution,
    an_event,
    publishing,
    result_record,
)
from tests.pgbouncer import open_pgbouncer
from tests.services import data_directory

DIRECT = "direct"
ROLE_SETTINGS = {
    "jit": "off",
    "random_page_cost": "1.1",
    "idle_in_transaction_session_timeout": "60s",
    "statement_timeout": "15s",
    "lock_timeout": "10s",
}


async def run_steps(store: PostgresStore, steps: int) -> None:
    """Store the steps of one execution."""
    ref = await accept_execution(store)
    for number in range(1, steps + 1):
        call = f"call_{number}"
        events = publishing([an_event(f"begins {number}")])
        await store.begin_step(a_step_start(ref, number, events=events))
        await store.record_reply(a_reply(ref, "Let me see.", a_call(call), number=number))
        await store.reserve_call(ref, call, 1)
        await store.record_call(result_record(ref, a_result(call)))


async def measure(url: str, steps: int, **options: str) -> tuple[float, float]:
    """Return the milliseconds and the milliseconds of CPU of this process of a step."""
    engine = create_engine(url, **options)  # pyright: ignore[reportArgumentType] -- `preparing`
    store = PostgresStore(engine)
    await run_steps(store, 5)
    began, cpu = perf_counter(), process_time()
    await run_steps(store, steps)
    found = (perf_counter() - began) * 1000 / steps, (process_time() - cpu) * 1000 / steps
    await engine.dispose()
    return found


def create_database(url: str, name: str) -> str:
    """Create another database, whose sessions begin with what Everstep would set in each transaction."""
    parsed = make_url(url).set(drivername="postgresql")
    with psycopg.connect(parsed.render_as_string(hide_password=False), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
        for setting, value in ROLE_SETTINGS.items():
            connection.execute(f"ALTER DATABASE {name} SET {setting} = '{value}'".encode())
    return make_url(url).set(database=name).render_as_string(hide_password=False)


async def run_bench(rounds: int, steps: int) -> None:
    """Measure on servers of its own, and print medians."""
    samples = defaultdict[str, list[tuple[float, float]]](list)
    with data_directory() as data:
        async with AsyncExitStack() as stack:
            services = await stack.enter_async_context(
                open_services(EmbeddedConfig(data, temporal_port=0, ui_port=0))
            )
            url = services.database_url
            with_settings = create_database(url, "with_settings")
            for each in (url, with_settings):
                await upgrade(each)
            pooled, pooled_with_settings = [
                (await stack.enter_async_context(open_pgbouncer(each))).url for each in (url, with_settings)
            ]
            ways = {
                DIRECT: (url, "auto"),
                "direct, not prepared": (url, "off"),
                "PgBouncer": (pooled, "auto"),
                "PgBouncer, settings in the role": (pooled_with_settings, "auto"),
            }
            for number in range(rounds):
                for name, (where, preparing) in [*ways.items()][:: 1 if number % 2 == 0 else -1]:
                    samples[name].append(await measure(where, steps, preparing=preparing))
    print_table(samples)


def print_table(samples: Mapping[str, list[tuple[float, float]]]) -> None:
    """Print medians; a ratio is the median over the rounds."""
    line("", "a step", "CPU", "ratio", "of the CPU")
    for name, found in samples.items():
        pairs = [*zip(found, samples[DIRECT], strict=True)]
        ratios = [median(way[part] / direct[part] for way, direct in pairs) for part in (0, 1)]
        columns = [f"{median(each[part] for each in found):.2f} ms" for part in (0, 1)]
        line(name, *columns, *(f"{each:.2f}" for each in ratios))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="What a step costs in the store, through PgBouncer.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=100)
    arguments = parser.parse_args()
    asyncio.run(run_bench(arguments.rounds, arguments.steps))


if __name__ == "__main__":
    main()
