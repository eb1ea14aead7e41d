"""The places of executions between their start and their first step."""

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field
from uuid import UUID, uuid4

import pytest

from everstep.agent_domain.background import FAILURES
from everstep.agent_domain.fairness.shares import Claimant, equal_terms
from everstep.client import beginnings
from everstep.client.beginnings import BeginningPlaces

ANN = Claimant("acme", "ann")


@dataclass
class Rows:
    """The rows of executions, and the number of reads."""

    pending: set[UUID] = field(default_factory=set[UUID])
    reads: int = 0
    is_away: bool = False

    async def find_pending(self, execution_ids: Collection[UUID]) -> Collection[UUID]:
        self.reads += 1
        if self.is_away:
            raise ZeroDivisionError
        return self.pending & {*execution_ids}

    def begin_all(self) -> None:
        self.pending.clear()


def places_on(rows: Rows) -> BeginningPlaces:
    """Places of which one user takes two."""
    return BeginningPlaces(4, 4, equal_terms, rows.find_pending)


async def start(places: BeginningPlaces, rows: Rows) -> None:
    execution_id = uuid4()
    async with places.start(ANN, execution_id):
        rows.pending.add(execution_id)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beginnings, "LEAST_PATIENCE", 60.0)


@pytest.mark.usefixtures("patient")
async def test_an_execution_holds_its_place_until_it_has_begun() -> None:
    """18.2.17"""
    rows = Rows()
    places = places_on(rows)
    await start(places, rows)
    await start(places, rows)
    assert rows.reads == 0
    third = asyncio.create_task(start(places, rows))
    async with asyncio.timeout(20):
        while rows.reads < 3:  # noqa: ASYNC110 -- no signal
            await asyncio.sleep(0.001)
        assert not third.done()
        rows.begin_all()
        await third
    assert places.held == 1


@pytest.mark.usefixtures("patient")
async def test_an_execution_that_is_started_again_holds_one_place() -> None:
    """18.2.17"""
    places, execution_id = places_on(Rows()), uuid4()
    for _ in range(9):
        async with places.start(ANN, execution_id):
            pass
    assert places.held == 1


async def test_without_a_worker_executions_start_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """18.2.17: they wait in Temporal."""
    monkeypatch.setattr(beginnings, "LEAST_PATIENCE", 0.02)
    rows = Rows()
    places = places_on(rows)
    async with asyncio.timeout(20):
        await asyncio.gather(*(start(places, rows) for _ in range(20)))
    assert len(rows.pending) == 20


@pytest.mark.usefixtures("patient")
async def test_while_the_rows_cannot_be_read_executions_start_without_them() -> None:
    """18.2.17 and 1.3.3: the failure is counted."""
    rows = Rows(is_away=True)
    places, before = places_on(rows), FAILURES.counts["beginnings of executions"]
    async with asyncio.timeout(20):
        await asyncio.gather(*(start(places, rows) for _ in range(5)))
    assert FAILURES.counts["beginnings of executions"] > before
