"""Steps of an execution, read by a client."""

from typing import Any, cast
from uuid import uuid4

import pytest

from everstep.agent_domain.errors import NotFound
from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.storage.executions import Page
from everstep.agent_domain.storage.steps import StepRow
from everstep.client.client import Client
from everstep.store.memory import MemoryStore
from tests.everstep.store.store_words import TENANT, accept_execution, run_step


async def test_a_long_execution_is_read_page_by_page() -> None:
    store = MemoryStore()
    ref = await accept_execution(store)
    for number in range(1, 121):
        await run_step(store, ref, number)
    execution = _client(store).execution(ref.execution_id)

    assert [step.number async for step in execution.each_step()] == list(range(1, 121))
    assert [step.number async for step in execution.each_step(after=118)] == [119, 120]
    page = await execution.steps_after(10, limit=5)
    assert ([step.number for step in page.rows], page.cursor) == ([11, 12, 13, 14, 15], "15")


async def test_an_execution_is_explained_with_its_steps_in_one_reading() -> None:
    """15.1.6"""
    store = CountingStore()
    ref = await accept_execution(store)
    for number in range(1, 121):
        await run_step(store, ref, number)
    execution = _client(store).execution(ref.execution_id)
    because, pages = await execution.because(), store.pages

    row = await execution.get()
    explained = [each async for each in execution.each_explained_step(row)]

    assert [step.number for step, _ in explained] == list(range(1, 121))
    assert tuple(reason for _, reason in explained) == because.steps
    assert await execution.sentence(row) == because.sentence
    assert store.pages == 2 * pages


class CountingStore(MemoryStore):
    """Counts the pages of steps that are read."""

    pages = 0

    async def steps_after(self, ref: ExecutionRef, after: int = 0, limit: int = 50) -> Page[StepRow]:
        self.pages += 1
        return await super().steps_after(ref, after, limit)


async def test_an_unknown_execution_has_no_steps() -> None:
    unknown = _client(MemoryStore()).execution(uuid4())

    with pytest.raises(NotFound):
        await unknown.steps_after()
    with pytest.raises(NotFound):
        await anext(unknown.each_step())


def _client(store: MemoryStore) -> Client:
    return Client(cast("Any", None), store, tenant_id=TENANT)
