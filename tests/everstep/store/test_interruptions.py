"""Connections after the work that uses them is interrupted, at any of its awaits.

An interruption may occur at every await. The work that follows has to find connections that respond to what
they are asked, and tables in which nothing is half written.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final
from uuid import uuid4

import psycopg
import psycopg.waiting
import pytest
import pytest_asyncio
from psycopg.errors import DivisionByZero
from sqlalchemy import select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from everstep.agent_domain.errors import StoreUnavailable
from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.store.engine import create_engine
from everstep.store.epochs import renew_epoch
from everstep.store.gateways import PostgresGateways
from everstep.store.journal import JournalTables
from everstep.store.keys import PostgresKeys
from everstep.store.postgres import PostgresStore
from everstep.store.retention import PostgresRetention
from everstep.store.tables import executions
from everstep.store.transaction import BEGIN_SNAPSHOT, transaction
from tests.everstep.store.onlookers import open_admin_connection
from tests.everstep.store.store_words import (
    TENANT,
    a_new_execution,
    a_ref,
    a_reply,
    a_settlement,
    a_step_start,
    accept_execution,
    an_event,
    publishing,
    texts,
)
from tests.swallowing import SwallowingLink, swallowing_link

Work = Callable[[AsyncEngine], Coroutine[Any, Any, Any]]

AWAITS: Final = 200
"""More awaits than any of the works has."""


class InterruptedCoroutine:
    """A coroutine that is interrupted at its n-th await, counted from 0."""

    def __init__(self, work: Coroutine[Any, Any, Any], number: int, interrupt: Callable[[], object]) -> None:
        self.work = work
        self.number = number
        self.interrupt = interrupt
        self.awaits = 0

    def __await__(self) -> Generator[Any, Any, Any]:
        sent: Any = None
        error: BaseException | None = None
        while True:
            try:
                waits_for = self.work.send(sent) if error is None else self.work.throw(error)
            except StopIteration as end:
                return end.value
            sent, error = None, None
            try:
                self.awaits += 1
                if self.awaits == self.number + 1:
                    self.interrupt()
                sent = yield waits_for
            except BaseException as raised:  # noqa: BLE001 -- passed on to the work
                error = raised

    async def run(self) -> Any:
        return await self


def cancel() -> None:
    """Cancel the current task."""
    task = asyncio.current_task()
    assert task
    task.cancel()


async def run_statements(engine: AsyncEngine) -> None:
    """A transaction that awaits each of its statements."""
    async with transaction(engine) as work:
        await work.together((text("SELECT 1 AS a"), {}), (text("SELECT 2 AS a"), {}))
        await work.execute(select(executions.c.id).limit(1))
        await work.execute(text("SELECT pg_sleep(0.001)"))


async def run_batch(engine: AsyncEngine) -> None:
    """A transaction that is sent in one batch."""
    async with transaction(engine) as work:
        await work.together((text("SELECT 1 AS a"), {}), (text("SELECT pg_sleep(0.001)"), {}), last=True)


async def run_snapshot(engine: AsyncEngine) -> None:
    """A transaction whose statements share a snapshot."""
    async with transaction(engine, BEGIN_SNAPSHOT) as work:
        await work.together((text("SELECT 1 AS a"), {}), last=True)


async def run_and_abort(engine: AsyncEngine) -> None:
    """A transaction that the server aborts."""
    try:
        async with transaction(engine) as work:
            await work.together((text("SELECT 1 AS a"), {}), (text("SELECT 1/0 AS a"), {}))
    except DBAPIError as error:
        if not isinstance(error.orig, DivisionByZero):
            raise


async def run_autocommit(engine: AsyncEngine) -> None:
    """A statement outside of a transaction."""
    async with engine.connect() as connection:
        (await connection.execute(text("SELECT pg_sleep(0.001)"))).all()


async def run_activity_calls(engine: AsyncEngine) -> None:
    """The store calls of an activity."""
    store = PostgresStore(engine)
    ref = await accept_execution(store)
    await store.begin_step(a_step_start(ref, events=publishing([an_event("started")])))
    await store.record_reply(a_reply(ref, "Done", events=[an_event("replied")]))


async def run_gateway_queries(engine: AsyncEngine) -> None:
    """The queries of gateways and their feeds."""
    gateways = PostgresGateways(engine)
    await gateways.announce(uuid4(), "ws://127.0.0.1:1")
    await gateways.active_gateways(10)
    await JournalTables(engine).heads([uuid4()])
    await JournalTables(engine).page(uuid4(), None, 10)
    await renew_epoch(engine)


async def run_api_queries(engine: AsyncEngine) -> None:
    """The queries of the API other than sessions."""
    await PostgresKeys(engine).find_response(TENANT, "user", "key")


async def run_prune(engine: AsyncEngine) -> None:
    """The statements of `everstep prune`."""
    async for _ in PostgresRetention(engine).prune_envelopes(datetime.now(UTC)):
        pass


WORKS: Final[dict[str, Work]] = {
    work.__name__: work
    for work in (
        run_statements,
        run_batch,
        run_snapshot,
        run_and_abort,
        run_autocommit,
        run_activity_calls,
        run_gateway_queries,
        run_api_queries,
        run_prune,
    )
}


@pytest_asyncio.fixture
async def engine(database: str) -> AsyncGenerator[AsyncEngine]:
    """A pool of one connection: the next user gets the connection that the last one returned."""
    engine = create_engine(database, pool_size=1, max_overflow=0, pool_timeout=5)
    yield engine
    await engine.dispose()


async def assert_pool_works(engine: AsyncEngine) -> None:
    """Fails unless the pool returns a connection that responds correctly to every kind of statement."""
    assert engine.pool.checkedout() == 0  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    async with engine.connect() as connection:
        assert (await connection.execute(text("SELECT 41 + 1"))).scalar_one() == 42
    async with transaction(engine) as work:
        assert (await work.execute(text("SELECT 41 + 1 AS a"))).scalar_one() == 42
        assert (await work.execute(select(text("42")))).scalar_one() == 42


def assert_no_open_transaction(onlooker: psycopg.Connection[Any]) -> None:
    """Fails if the server still has an open transaction of an idle engine."""
    left = onlooker.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        " AND pid <> pg_backend_pid() AND (xact_start IS NOT NULL AND state <> 'active')"
    ).fetchall()
    assert left == [(0,)], "a transaction was left open"


@pytest.mark.parametrize(
    ("name", "always_yields"),
    # A loop that was frozen has every await of one that was not.
    [
        *((name, False) for name in ("run_statements", "run_batch", "run_activity_calls")),
        *((name, True) for name in WORKS),
    ],
    ids=lambda value: {False: "as it is", True: "with a loop that was frozen"}.get(value, value),
)
async def test_a_cancel_at_any_await_leaves_a_pool_that_works(
    engine: AsyncEngine, name: str, always_yields: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1.3.1: after a process was frozen, the driver yields at points where it otherwise continues at once."""
    await WORKS[name](engine)
    if always_yields:
        monkeypatch.setattr(psycopg.waiting, "MAX_BUSY_TIME", -1.0)
    with open_admin_connection(engine) as onlooker:
        onlooker.autocommit = True
        for number in range(AWAITS):
            work = InterruptedCoroutine(WORKS[name](engine), number, cancel)
            (outcome,) = await asyncio.gather(work.run(), return_exceptions=True)
            await assert_pool_works(engine)
            assert_no_open_transaction(onlooker)
            if work.awaits <= number:
                assert outcome is None
                break
            assert isinstance(outcome, asyncio.CancelledError), (number, outcome)
        else:
            pytest.fail("the work has more awaits than this test tries")
    assert number > 0


async def test_a_cancel_while_a_connection_beyond_the_pool_is_closed_leaves_a_pool_that_works(
    database: str,
) -> None:
    """1.3.1: a pool that has enough connections closes the one that returns, which takes awaits."""
    engine = create_engine(database, pool_size=1, max_overflow=1, pool_timeout=5)
    try:
        number = 0
        for number in range(AWAITS):
            async with transaction(engine) as kept:
                await kept.together((text("SELECT 1 AS a"), {}))
                work = InterruptedCoroutine(run_batch(engine), number, cancel)
                other = asyncio.create_task(work.run())
                # The other work returns its connection second.
                while work.awaits < 1:  # noqa: ASYNC110 -- a turn of the loop, not a time
                    await asyncio.sleep(0)
            (outcome,) = await asyncio.gather(other, return_exceptions=True)
            await assert_pool_works(engine)
            if work.awaits <= number:
                assert outcome is None
                break
            assert isinstance(outcome, asyncio.CancelledError), (number, outcome)
        assert number > 1
    finally:
        await engine.dispose()


class WorkFailed(Exception):
    """An error in the work itself."""


@pytest.mark.parametrize("name", ["run_statements", "run_batch", "run_activity_calls"])
async def test_a_fault_at_any_await_leaves_a_pool_that_works(engine: AsyncEngine, name: str) -> None:
    """1.3.1."""
    await WORKS[name](engine)

    def fail() -> None:
        raise WorkFailed

    for number in range(AWAITS):
        work = InterruptedCoroutine(WORKS[name](engine), number, fail)
        (outcome,) = await asyncio.gather(work.run(), return_exceptions=True)
        await assert_pool_works(engine)
        if work.awaits <= number:
            break
        assert isinstance(outcome, WorkFailed), (number, outcome)


@pytest.mark.parametrize("name", WORKS)
async def test_a_connection_that_is_cut_at_any_await_is_replaced(engine: AsyncEngine, name: str) -> None:
    """1.3.1."""
    await WORKS[name](engine)
    with open_admin_connection(engine) as operator:
        operator.autocommit = True

        def cut() -> None:
            operator.execute(
                "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )

        for number in range(AWAITS):
            work = InterruptedCoroutine(WORKS[name](engine), number, cut)
            (outcome,) = await asyncio.gather(work.run(), return_exceptions=True)
            await assert_pool_works(engine)
            if work.awaits <= number:
                break
            assert outcome is None or isinstance(outcome, StoreUnavailable | DBAPIError), (number, outcome)


@pytest_asyncio.fixture
async def link(database: str) -> AsyncGenerator[SwallowingLink]:
    """A proxy in front of the test server."""
    async with swallowing_link(database) as link:
        yield link


@pytest_asyncio.fixture
async def impatient(link: SwallowingLink) -> AsyncGenerator[AsyncEngine]:
    """An engine with a short response timeout, behind that proxy."""
    engine = create_engine(
        link.url, pool_size=1, max_overflow=0, pool_timeout=5, statement_timeout=0.2, answer_timeout=0.1
    )
    yield engine
    await engine.dispose()


@pytest.mark.parametrize("name", ["run_statements", "run_batch", "run_activity_calls", "run_autocommit"])
async def test_a_link_that_swallows_traffic_from_any_await_ends_the_work(
    link: SwallowingLink, impatient: AsyncEngine, name: str
) -> None:
    """1.3.2: and the next work gets a connection that responds."""
    await WORKS[name](impatient)
    for number in range(AWAITS):
        work = InterruptedCoroutine(WORKS[name](impatient), number, lambda: link.swallow(new=False))
        async with asyncio.timeout(10):
            (outcome,) = await asyncio.gather(work.run(), return_exceptions=True)
        if work.awaits <= number:
            break
        assert outcome is None or isinstance(outcome, StoreUnavailable | DBAPIError), (number, outcome)
        if outcome is None:
            # The work had its response already; the next user of the connection detects the failure.
            with suppress(DBAPIError):
                await run_autocommit(impatient)
        await assert_pool_works(impatient)


async def test_one_silent_connection_marks_all_of_its_age_as_broken(
    link: SwallowingLink, database: str
) -> None:
    """1.3.2: a pool of broken connections does not cost one timeout each."""
    engine = create_engine(link.url, pool_size=5, statement_timeout=0.2, answer_timeout=0.1)
    await asyncio.gather(*(run_autocommit(engine) for _ in range(5)))
    link.swallow(new=False)

    with pytest.raises(DBAPIError, match=r"has not answered for 0\.3 seconds"):
        await run_autocommit(engine)
    for _ in range(5):
        await run_autocommit(engine)
    await engine.dispose()


async def test_a_cancel_completes_although_the_link_swallows_traffic(
    link: SwallowingLink, impatient: AsyncEngine
) -> None:
    """1.3.2: the server cannot be notified, and no caller waits for it."""
    asked = asyncio.Event()

    async def work() -> None:
        async with transaction(impatient) as current:
            await current.execute(text("SELECT 1"))
            link.swallow()
            asked.set()
            await current.execute(text("SELECT pg_sleep(100)"))

    task = asyncio.create_task(work())
    await asked.wait()
    task.cancel()
    async with asyncio.timeout(5):
        with pytest.raises(asyncio.CancelledError):
            await task
    link.flow()
    await assert_pool_works(impatient)


async def readable_outcome(store: PostgresStore, ref: ExecutionRef) -> tuple[object, ...]:
    """The fields of an execution that readers see."""
    envelopes = await store.envelopes(TENANT, ref.stream_id)
    said = texts(await store.transcript(ref))
    steps = [step.facts for step in await store.steps(ref)]
    return said, steps, [(each.seq, each.type) for each in envelopes]


@pytest.mark.parametrize("how", ["cancelled", "cut"])
async def test_a_retry_after_an_interruption_anywhere_finds_one_outcome(
    engine: AsyncEngine, how: str
) -> None:
    """1.1.3: also where the commit was in progress, so that its result is unknown."""
    store = PostgresStore(engine)

    done = 0

    async def run(ref: ExecutionRef) -> None:
        nonlocal done
        activities = (
            lambda: store.accept(a_new_execution(ref)),
            lambda: store.begin_step(a_step_start(ref, events=publishing([an_event("started")]))),
            lambda: store.record_reply(a_reply(ref, "Done", events=[an_event("replied")])),
            lambda: store.settle(a_settlement(ref, ExecutionStatus.COMPLETED, events=[an_event("ended")])),
        )
        while done < len(activities):
            await activities[done]()
            done += 1

    usual = a_ref(session_id=uuid4())
    await run(usual)
    expected = await readable_outcome(store, usual)
    with open_admin_connection(engine) as operator:
        operator.autocommit = True

        def cut() -> None:
            operator.execute(
                "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )

        for number in range(AWAITS):
            ref, done = a_ref(session_id=uuid4()), 0
            work = InterruptedCoroutine(run(ref), number, cut if how == "cut" else cancel)
            await asyncio.gather(work.run(), return_exceptions=True)
            await run(ref)
            assert await readable_outcome(store, ref) == expected
            if work.awaits <= number:
                break
