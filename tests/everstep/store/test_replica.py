"""Lists are read from a real standby, and contain all that was committed before."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
import pytest_asyncio

from everstep.agent_domain.ids import Scope
from everstep.agent_domain.storage.usage_report import TimeRange
from everstep.runtime.replica_choice import probe_replica
from everstep.runtime.settings import Settings
from everstep.store.accounts import PostgresAccounts
from everstep.store.engine import create_engine
from everstep.store.migrate import upgrade
from everstep.store.replica import Replica, WrongReplica
from everstep.store.sessions import PostgresSessions
from everstep.telemetry.metrics import REPLICA_READS
from tests.everstep.store.store_words import TENANT
from tests.everstep.store.test_sessions import new_session_id
from tests.standby import Server, open_pair

pytestmark = pytest.mark.asyncio(loop_scope="module")

SCOPE = Scope(TENANT, None)


@dataclass
class Pair:
    """A store that reads lists from a standby."""

    primary: Server
    standby: Server
    store: PostgresSessions
    replica: Replica

    async def ids(self) -> set[object]:
        """The sessions in a list."""
        return {row.id for row in (await self.store.sessions(SCOPE, limit=1000)).rows}


@asynccontextmanager
async def open_store(primary: Server, standby: Server) -> AsyncGenerator[Pair]:
    engine, other = create_engine(primary.url), create_engine(standby.url)
    store = PostgresSessions(engine)
    store.replica = Replica(engine, other)
    yield Pair(primary, standby, store, store.replica)
    await engine.dispose()
    await other.dispose()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pair() -> AsyncGenerator[Pair]:
    async with open_pair() as servers:
        await upgrade(servers[0].url)
        async with open_store(*servers) as opened:
            yield opened


def reads() -> dict[str, float]:
    """How often each was read so far."""
    return {outcome: REPLICA_READS.values.get((outcome,), 0.0) for outcome in ("replica", "late", "away")}


async def test_a_list_contains_what_was_just_written(pair: Pair) -> None:
    """Follows rule 1.3.7: it is read from the standby, as soon as that has it."""
    before = reads()
    for _ in range(10):
        session = await new_session_id(pair.store)
        assert session in await pair.ids()
    assert reads()["replica"] > before["replica"]
    assert reads()["away"] == before["away"]


async def test_usage_is_read_there_too(pair: Pair) -> None:
    """1.3.7"""
    before = reads()["replica"]
    accounts = PostgresAccounts(pair.store.engine, pair.replica)
    now = datetime.now(UTC)
    assert await accounts.accounts(SCOPE, TimeRange(now - timedelta(days=1), now)) == []
    assert reads()["replica"] > before


async def test_a_standby_that_is_late_is_not_read(pair: Pair) -> None:
    """Follows rule 1.3.7: the list comes from the primary instead."""
    await pair.standby.execute("SELECT pg_wal_replay_pause()")
    try:
        session, before = await new_session_id(pair.store), reads()["late"]
        assert session in await pair.ids()
        assert reads()["late"] == before + 1
    finally:
        await pair.standby.execute("SELECT pg_wal_replay_resume()")


async def test_a_standby_that_is_away_is_left_alone(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Follows rule 1.3.7: lists come from the primary, and from the standby once it is back."""
    await pair.standby.kill()
    session, before = await new_session_id(pair.store), reads()["away"]
    for _ in range(3):
        assert session in await pair.ids()
    assert reads()["away"] == before + 3
    assert caplog.text.count("lists are read from the primary") == 1
    await pair.standby.start()
    monkeypatch.setattr(pair.replica, "_left_until", 0.0)
    before = reads()["replica"]
    assert session in await pair.ids()
    assert reads()["replica"] + reads()["late"] > before


async def test_another_server_is_no_replica(pair: Pair) -> None:
    """Follows rule 1.3.7: neither the primary itself, nor a standby of another one."""
    async with open_store(pair.primary, pair.primary) as wrong:
        session = await new_session_id(wrong.store)
        assert session in await wrong.ids()
        with pytest.raises(WrongReplica, match="DATABASE_REPLICA_URL"):
            await wrong.replica.check()
    assert await pair.replica.check() == "up to date"
    settings = Settings(database_url=pair.primary.url, database_replica_url=pair.standby.url)
    assert await probe_replica(settings) == "up to date"
