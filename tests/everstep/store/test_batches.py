"""Requests that arrive while a batch is carried out form the next one."""

import asyncio
from collections.abc import Sequence

import pytest

from everstep.store.batches import Batches


class Doubling:
    """Doubles numbers once it may go on; it keeps the batches."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.begun, self.go_on = asyncio.Event(), asyncio.Event()

    async def run(self, numbers: Sequence[int]) -> list[int]:
        self.batches.append([*numbers])
        self.begun.set()
        await self.go_on.wait()
        if 13 in numbers:
            raise ValueError("no 13")
        return [2 * number for number in numbers]


async def test_requests_that_arrive_during_a_batch_are_the_next_one() -> None:
    doubling = Doubling()
    batches = Batches(doubling.run, most=3)
    first = asyncio.create_task(batches.request(1))
    await doubling.begun.wait()
    others = [asyncio.create_task(batches.request(number)) for number in range(2, 7)]
    await asyncio.sleep(0)
    doubling.go_on.set()

    assert await asyncio.gather(first, *others) == [2, 4, 6, 8, 10, 12]
    assert doubling.batches == [[1], [2, 3, 4], [5, 6]]
    assert await batches.request(7) == 14


async def test_a_batch_that_fails_fails_for_its_callers_only() -> None:
    doubling = Doubling()
    doubling.go_on.set()
    batches = Batches(doubling.run, most=2)

    answers = await asyncio.gather(*map(batches.request, (1, 13, 3)), return_exceptions=True)

    assert [str(each) for each in answers] == ["no 13", "no 13", "6"]


async def test_a_caller_that_is_cancelled_takes_nothing_from_the_others() -> None:
    doubling = Doubling()
    batches = Batches(doubling.run, most=2)
    cancelled, other = (asyncio.create_task(batches.request(number)) for number in (1, 2))
    await doubling.begun.wait()
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    doubling.go_on.set()

    assert await other == 4
