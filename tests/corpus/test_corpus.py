"""Executions that were recorded once, of many kinds: their decisions are repeated from their rows."""

import json
from collections.abc import AsyncGenerator

import pytest
import pytest_asyncio

from everstep.agent_domain.loop.status import ExecutionStatus, StopReason
from everstep.store.engine import create_engine
from everstep.store.postgres import PostgresStore
from tests.corpus.policies import POLICIES, RECORDED, examine
from tests.corpus.rows import EXPECTED, load, write_rows
from tests.databases import Databases
from tests.repeating import each_record, require_repeatable

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def corpus(databases: Databases) -> AsyncGenerator[PostgresStore]:
    """A store with the recorded executions."""
    url = databases.take()
    write_rows(url, load())
    engine = create_engine(url)
    yield PostgresStore(engine)
    await engine.dispose()
    databases.give_back(url)


async def test_the_corpus_has_every_stop_reason_and_every_end(corpus: PostgresStore) -> None:
    """15.2.2"""
    records = [record async for record in each_record(corpus)]

    assert {record.stop_reason for record in records} == {*StopReason, None}
    assert {record.status for record in records} >= {each for each in ExecutionStatus if each.is_terminal}


async def test_the_recorded_policy_reproduces_every_recorded_decision(corpus: PostgresStore) -> None:
    """15.2.2: 0 differences."""
    assert await require_repeatable(corpus) == json.loads(EXPECTED.read_text())[RECORDED]["decisions"]


@pytest.mark.parametrize("policy", POLICIES)
async def test_other_policies_change_what_they_changed_when_it_was_recorded(
    corpus: PostgresStore, policy: str
) -> None:
    """15.2.1, 15.2.3"""
    assert await examine(corpus, policy) == json.loads(EXPECTED.read_text())[policy]
