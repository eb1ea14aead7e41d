"""The gateway's reads of the journal, and how it detects tables of another history."""

import re
from collections.abc import AsyncGenerator, Mapping
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import pytest
import pytest_asyncio
from sqlalchemy.ext.asyncio import AsyncEngine

from everstep.agent_domain.errors import StoreUnavailable
from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.storage.steps import PartialText, PartialTextOutcome
from everstep.agent_domain.stream.envelopes import Envelope
from everstep.agent_domain.stream.reader import MAX_EPOCH, Place
from everstep.agent_domain.values import json_text
from everstep.broadcast_gateway.frames import RelayedEntry
from everstep.broadcast_gateway.ports import Journal, RecordedText
from everstep.runtime.embedded import Postgres
from everstep.runtime.journal import PostgresJournal
from everstep.store.engine import create_engine
from everstep.store.epochs import EpochQuery, renew_epoch
from everstep.store.gateways import PRESENT, PostgresGateways
from everstep.store.journal import HEADS, PAGE, TEXTS
from everstep.store.migrate import upgrade
from everstep.store.postgres import PostgresStore
from everstep.store.retention import PostgresRetention
from tests.everstep.store.onlookers import open_admin_connection, plan_of
from tests.everstep.store.store_words import (
    AT,
    TENANT,
    a_reply,
    a_settlement,
    a_step_start,
    accept_execution,
    an_event,
    end_execution,
)
from tests.services import careless, data_directory

NOWHERE = "postgresql://me@/everstep?host=/nowhere"


@pytest.fixture
def journal(postgres: PostgresStore) -> Journal:
    """The gateway's view of the table."""
    return PostgresJournal(postgres.engine)


async def publish_envelopes(
    store: PostgresStore, count: int, ref: ExecutionRef | None = None
) -> ExecutionRef:
    """An execution with this many envelopes."""
    ref = ref or await accept_execution(store, session_id=uuid4())
    news = [an_event(f"news/{number}", text=f"ö\n{number}", much=1e22) for number in range(count)]
    events = [replace(each, type="agent.step.started") for each in news]
    await store.settle(a_settlement(ref, ExecutionStatus.RUNNING, f"telling/{count}", events=events))
    return ref


class TestPages:
    async def test_stored_envelopes_are_read_in_order(
        self, postgres: PostgresStore, journal: Journal
    ) -> None:
        """7.8.1: byte for byte as its writer would have pushed it."""
        ref = await publish_envelopes(postgres, 5)
        stored = await postgres.envelopes(TENANT, ref.stream_id)

        page = await journal.read_page(ref.stream_id, 2, 2)

        assert page
        assert (page.head, page.oldest) == (5, 1)
        assert [entry.seq for entry in page.entries] == [3, 4]
        pushed = [json_text(Envelope.placed(each).to_dict()).encode() for each in stored]
        assert [entry.body for entry in page.entries] == pushed[2:4]
        assert all(isinstance(entry, RelayedEntry) for entry in page.entries)

    async def test_the_fields_that_routing_needs_are_read_along(
        self, postgres: PostgresStore, journal: Journal
    ) -> None:
        ref = await accept_execution(postgres)
        end = replace(an_event("end", status="completed"), type="agent.status")
        await postgres.settle(a_settlement(ref, ExecutionStatus.COMPLETED, events=[end]))

        page = await journal.read_page(ref.stream_id, 0, 10)

        assert page
        (entry,) = page.entries
        assert (entry.kind, entry.execution_id, bool(entry.fence)) == (
            "agent.status",
            str(ref.execution_id),
            True,
        )
        assert b'"session_id":null' in entry.body

    @pytest.mark.parametrize("after", [None, 3, 99])
    async def test_a_page_without_envelopes_has_the_head_of_the_stream(
        self, postgres: PostgresStore, journal: Journal, after: int | None
    ) -> None:
        ref = await publish_envelopes(postgres, 3)
        page = await journal.read_page(ref.stream_id, after, 10)
        assert page
        assert (page.head, page.oldest, list(page.entries)) == (3, 1, [])

    async def test_a_stream_without_envelopes_exists(self, postgres: PostgresStore, journal: Journal) -> None:
        ref = await accept_execution(postgres)
        page = await journal.read_page(ref.stream_id, 0, 10)
        assert page
        assert (page.head, page.oldest, list(page.entries)) == (0, 1, [])
        assert await journal.read_page(uuid4(), 0, 10) is None

    async def test_pruned_envelopes_are_reported_as_gone(
        self, postgres: PostgresStore, journal: Journal
    ) -> None:
        """8.7.3: those before the first stored `seq` are no longer available."""
        ref = await publish_envelopes(postgres, 3)
        with open_admin_connection(postgres.engine) as connection:
            connection.execute("DELETE FROM agent_envelopes WHERE seq < 3")
        page = await journal.read_page(ref.stream_id, 0, 10)
        assert page
        assert (page.head, page.oldest, [entry.seq for entry in page.entries]) == (3, 3, [3])

        await end_execution(postgres, ref)
        async for _ in PostgresRetention(postgres.engine).prune_envelopes(AT.replace(year=9000)):
            pass
        page = await journal.read_page(ref.stream_id, 0, 10)
        assert page
        assert (page.head, page.oldest, list(page.entries)) == (3, 4, [])

    async def test_heads_of_many_streams_are_one_query(
        self, postgres: PostgresStore, journal: Journal
    ) -> None:
        one, other, silent = (
            await publish_envelopes(postgres, 2),
            await publish_envelopes(postgres, 3),
            uuid4(),
        )
        page = await journal.read_page(one.stream_id, None, 0)
        assert page

        asked = [one.stream_id, silent, other.stream_id]
        assert await journal.read_heads(asked) == (page.epoch, {one.stream_id: 2, other.stream_id: 3})
        assert await journal.read_heads([]) == (page.epoch, {})

    async def test_an_unreachable_server_is_reported(self) -> None:
        journal: Journal = PostgresJournal(create_engine(NOWHERE))
        for attempt in (
            journal.read_page(uuid4(), 0, 1),
            journal.read_heads([]),
            journal.read_texts(uuid4()),
        ):
            with pytest.raises(StoreUnavailable):
                await attempt


class TestTexts:
    async def test_a_new_subscriber_finds_the_current_text(
        self, postgres: PostgresStore, journal: Journal
    ) -> None:
        """7.8.4: with the position of the chunk that continues it."""
        session = uuid4()
        writes, waits, is_over, elsewhere = [
            await accept_execution(postgres, session_id=each) for each in (session, session, session, uuid4())
        ]
        await end_execution(postgres, is_over)
        for ref in (writes, elsewhere):
            await postgres.begin_step(a_step_start(ref, 2, 3))
            await postgres.note_partial(ref, 2, 3, "Once upon", next_index=4, after_seq=7)

        texts = await journal.read_texts(session)

        assert texts.keys() == {str(writes.execution_id), str(waits.execution_id)}
        assert texts[str(waits.execution_id)] is None
        noted = texts[str(writes.execution_id)]
        assert noted == RecordedText(Place(2, 3, 4), "Once upon", 7, noted.timestamp if noted else AT)

    async def test_a_step_that_is_held_does_not_hold_up_the_texts_of_others(
        self, postgres: PostgresStore, journal: Journal
    ) -> None:
        """18.1.2."""
        held, free = await accept_execution(postgres), await accept_execution(postgres)
        for ref in (held, free):
            await postgres.begin_step(a_step_start(ref))
        texts = [PartialText(ref, 1, 1, "Once", 1, 7) for ref in (held, free)]

        with open_admin_connection(postgres.engine) as connection:
            connection.execute(
                "SELECT 1 FROM agent_steps WHERE execution_id = %s FOR UPDATE", [held.execution_id]
            )
            outcomes = await postgres.note_partials(texts)

        assert outcomes == [PartialTextOutcome.BUSY, PartialTextOutcome.STORED]
        assert (await journal.read_texts(held.stream_id))[str(held.execution_id)] is None
        assert (await journal.read_texts(free.stream_id))[str(free.execution_id)] is not None
        assert await postgres.note_partials(texts) == [PartialTextOutcome.STORED] * 2

    async def test_an_execution_without_a_session_has_its_own_stream(
        self, postgres: PostgresStore, journal: Journal
    ) -> None:
        """7.1.1"""
        alone, talks = await accept_execution(postgres), await accept_execution(postgres, session_id=uuid4())

        assert await journal.read_texts(alone.execution_id) == {str(alone.execution_id): None}
        assert await journal.read_texts(talks.execution_id) == {}

    async def test_a_text_that_viewers_may_not_see_is_not_there(
        self, postgres: PostgresStore, journal: Journal
    ) -> None:
        """7.5: without chunks it is stored without a position."""
        ref = await accept_execution(postgres)
        await postgres.begin_step(a_step_start(ref))
        await postgres.note_partial(ref, 1, 1, "Once upon", after_seq=7)

        assert await journal.read_texts(ref.stream_id) == {str(ref.execution_id): None}

    async def test_a_step_that_has_its_reply_or_a_new_attempt_has_no_text(
        self, postgres: PostgresStore, journal: Journal
    ) -> None:
        """7.6.3"""
        ref = await accept_execution(postgres)

        async def is_there() -> bool:
            return (await journal.read_texts(ref.stream_id))[str(ref.execution_id)] is not None

        await postgres.begin_step(a_step_start(ref))
        await postgres.note_partial(ref, 1, 1, "Once", next_index=1)
        assert await is_there()
        await postgres.begin_step(a_step_start(ref, attempt=2))
        assert not await is_there()
        await postgres.note_partial(ref, 1, 2, "There", next_index=1)
        assert await is_there()
        await postgres.record_reply(a_reply(ref, "There was", attempt=2))
        assert not await is_there()
        await postgres.begin_step(a_step_start(ref, 2))
        assert not await is_there()


class TestGateways:
    async def test_an_announced_gateway_is_present_until_it_leaves(self, postgres: PostgresStore) -> None:
        gateways, one, other = PostgresGateways(postgres.engine), UUID(int=1), UUID(int=2)
        await gateways.announce(other, "ws://b/link")
        await gateways.announce(one, "ws://old/link")
        await gateways.announce(one, "ws://a/link")

        epoch, present = await gateways.active_gateways(60)
        assert present == [(one, "ws://a/link"), (other, "ws://b/link")]
        assert epoch == (await PostgresJournal(postgres.engine).read_heads([]))[0]

        await gateways.withdraw(one)
        await gateways.withdraw(one)
        assert await gateways.active_gateways(60) == (epoch, [(other, "ws://b/link")])

    async def test_a_silent_gateway_is_not_present_and_is_deleted_after_a_day(
        self, postgres: PostgresStore
    ) -> None:
        gateways = PostgresGateways(postgres.engine)
        for number in range(1, 4):
            await gateways.announce(UUID(int=number), f"ws://{number}/link")

        with open_admin_connection(postgres.engine) as connection:
            connection.execute("UPDATE agent_gateways SET seen_at = seen_at - interval '1 hour'")
            connection.execute(
                "UPDATE agent_gateways SET seen_at = seen_at - interval '1 day' WHERE url = 'ws://2/link'"
            )
        assert (await gateways.active_gateways(60))[1] == []
        await gateways.announce(UUID(int=1), "ws://1/link")

        assert (await gateways.active_gateways(60))[1] == [(UUID(int=1), "ws://1/link")]
        assert [each for each, _ in (await gateways.active_gateways(1e6))[1]] == [UUID(int=1), UUID(int=3)]


async def epoch_of(engine: AsyncEngine) -> str:
    epoch, _ = await PostgresGateways(engine).active_gateways(1)
    return epoch


class AnonymousServer(Postgres):
    """A server that does not reveal its identity."""

    async def _create_database(self) -> None:
        await super()._create_database()
        await self._run_single_user(
            "everstep", ["REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC;"]
        )


@pytest_asyncio.fixture
async def secretive() -> AsyncGenerator[AsyncEngine]:
    """The database of such a server."""
    with data_directory() as data:
        server = AnonymousServer(careless(data), None, print)
        await server.start()
        await upgrade(server.url)
        engine = create_engine(server.url)
        yield engine
        await engine.dispose()
        await server.stop()


@pytest_asyncio.fixture
async def own(own_database: str) -> AsyncGenerator[AsyncEngine]:
    """A database that a test may change."""
    engine = create_engine(own_database)
    yield engine
    await engine.dispose()


class TestEpochs:
    async def test_all_gateways_get_the_same_epoch(self, postgres: PostgresStore, journal: Journal) -> None:
        """7.8.4: all streams share one history."""
        ref = await publish_envelopes(postgres, 1)
        page = await journal.read_page(ref.stream_id, 0, 1)
        assert page
        assert page.epoch == await epoch_of(postgres.engine) == (await journal.read_heads([]))[0]
        assert 0 < len(page.epoch) <= MAX_EPOCH

    async def test_it_changes_on_an_operators_request(self, own: AsyncEngine) -> None:
        before = await epoch_of(own)
        await renew_epoch(own)
        after = await epoch_of(own)
        with open_admin_connection(own) as connection:
            connection.execute("TRUNCATE agent_journal")
        nothing = await epoch_of(own)
        await renew_epoch(own)
        assert len({before, after, nothing, await epoch_of(own)}) == 4

    @pytest.mark.parametrize(
        "says",
        [
            "pg_control_system(OUT system_identifier bigint) LANGUAGE sql AS 'SELECT 700000000{}'",
            "pg_walfile_name(pg_lsn) RETURNS text LANGUAGE sql AS $$SELECT '0000000{}0000000000000001'$$",
        ],
    )
    async def test_it_changes_with_the_server_and_its_timeline(
        self, own: AsyncEngine, own_database: str, says: str
    ) -> None:
        """7.8.4: a dump that was restored on another server, a failover, a point-in-time recovery."""
        epochs = {await epoch_of(own)}
        there = create_engine(f"{own_database}&options=-c%20search_path%3Dother%2Cpg_catalog%2Cpublic")
        with open_admin_connection(own) as connection:
            connection.autocommit = True
            connection.execute("CREATE SCHEMA other")
            for number in (8, 9):
                # The functions of another server, ahead of this server's in the search path.
                connection.execute(f"CREATE OR REPLACE FUNCTION other.{says.format(number)}".encode())
                epochs.add(await epoch_of(there))

        assert len(epochs) == 3
        await there.dispose()

    async def test_missing_privileges_are_reported(self, own: AsyncEngine) -> None:
        with open_admin_connection(own) as connection:
            asked = connection.execute("SELECT rolsuper FROM pg_roles WHERE rolname = current_user")
            assert asked.fetchone() == (False,)
            told = connection.execute("SELECT system_identifier FROM pg_control_system()").fetchone()
        assert told
        assert await epoch_of(own)

    async def test_without_a_server_identity_our_own_number_is_enough(
        self, secretive: AsyncEngine, own: AsyncEngine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """7.8.4: that is detected once, and not queried again."""
        gateways = PostgresGateways(secretive)
        before, _ = await gateways.active_gateways(1)
        assert before != await epoch_of(own)

        monkeypatch.setattr("everstep.store.epochs.EPOCH", None)
        assert await gateways.active_gateways(1) == (before, [])
        await renew_epoch(secretive)
        assert (await gateways.active_gateways(1))[0] != before

    async def test_a_server_that_is_unreachable_at_first_is_asked_again(
        self, own: AsyncEngine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        gateways = PostgresGateways(own)
        with monkeypatch.context() as patch:
            patch.setattr("everstep.store.epochs.EPOCH", EpochQuery.of("SELECT 1 / 0"))
            with pytest.raises(Exception, match="division by zero"):
                await gateways.active_gateways(1)
        assert await gateways.active_gateways(1) == (await epoch_of(own), [])


MANY = """
    INSERT INTO agent_sessions (id, tenant_id, user_id)
    SELECT CAST(md5(CAST(n AS text)) AS uuid), 'acme', 'ann' FROM generate_series(0, 99) AS n;
    INSERT INTO agent_executions (id, tenant_id, session_id, agent_type, agent_config, agent_id, status)
    SELECT gen_random_uuid(), 'acme', CASE WHEN n % 3 > 0 THEN CAST(md5(CAST(n % 100 AS text)) AS uuid) END,
           'helper', '{}', gen_random_uuid(), CASE WHEN n % 50 = 0 THEN 'running' ELSE 'completed' END
      FROM generate_series(1, 6000) AS n;
    INSERT INTO agent_steps (execution_id, number, tenant_id, attempt)
    SELECT id, n, tenant_id, 1 FROM agent_executions, generate_series(1, 3) AS n;
    INSERT INTO agent_streams (stream_id, tenant_id, head)
    SELECT coalesce(session_id, id), 'acme', 10 FROM agent_executions ON CONFLICT DO NOTHING;
    INSERT INTO agent_envelopes (stream_id, seq, tenant_id, id, type, execution_id, payload)
    SELECT stream_id, n, tenant_id, gen_random_uuid(), 'agent.status', stream_id, '{}'
      FROM agent_streams, generate_series(1, 10) AS n;
    ANALYZE;
"""


async def test_every_query_uses_an_index(own: AsyncEngine) -> None:
    with open_admin_connection(own) as connection:
        connection.execute(MANY)
    stream_id = uuid4()
    asked: Mapping[str, Any] = {
        "page": (PAGE.with_server, {"stream_id": stream_id, "after": 3, "limit": 100}),
        "heads": (HEADS.with_server, {"stream_ids": [stream_id, uuid4()]}),
        "texts": (TEXTS, {"stream_id": stream_id}),
    }
    plans = {name: plan_of(own, each) for name, each in asked.items()}

    for plan in plans.values():
        scans = re.findall(r"Seq Scan on (\w+)", plan)
        assert set(scans) <= {"agent_journal"}, plan
    assert len(re.findall("agent_envelopes_pkey", plans["page"])) == 2, plans["page"]
    assert "agent_streams_pkey" in plans["heads"], plans["heads"]
    for index in ("agent_executions_under_way", "agent_executions_pkey", "agent_steps_pkey"):
        assert index in plans["texts"], plans["texts"]
    assert "InitPlan" in plan_of(own, (PRESENT.with_server, {"within": 5.0}))
