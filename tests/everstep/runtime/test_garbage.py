"""When a worker searches for garbage among all objects."""

import asyncio
import gc

from everstep.runtime import garbage
from everstep.runtime.garbage import LEAST_GROWTH, MOST_SECONDS, THRESHOLDS, GarbageCollection


class Machine:
    """A process whose searches take a tenth of a second."""

    def __init__(self, size: int = 10 * LEAST_GROWTH) -> None:
        self.bytes, self.now, self.searches = size, 0.0, 0

    def collect(self) -> None:
        self.now += 0.1
        self.searches += 1

    def collection(self) -> GarbageCollection:
        found = GarbageCollection(lambda: self.bytes, lambda: self.now, self.collect)
        found.search()
        return found


def test_a_process_that_has_grown_is_searched() -> None:
    """18.2.16"""
    machine = Machine()
    collection = machine.collection()
    machine.now += 30
    assert not collection.is_due()
    machine.bytes += 3 * LEAST_GROWTH
    assert collection.is_due()
    collection.search()
    assert not collection.is_due()


def test_a_small_process_may_grow_by_more_than_its_share() -> None:
    """18.2.16"""
    machine = Machine(size=LEAST_GROWTH)
    collection = machine.collection()
    machine.now += 30
    machine.bytes += LEAST_GROWTH // 2
    assert not collection.is_due()
    machine.bytes += LEAST_GROWTH // 2
    assert collection.is_due()


def test_searches_take_a_small_part_of_the_time_however_fast_a_process_grows() -> None:
    """18.2.16"""
    machine = Machine()
    collection = machine.collection()
    machine.bytes *= 100
    machine.now += 4.9
    assert not collection.is_due()
    machine.now += 0.2
    assert collection.is_due()


def test_a_process_that_does_not_grow_is_searched_after_some_minutes() -> None:
    """18.2.16: also on systems that do not say how large a process is."""
    machine = Machine(size=0)
    collection = machine.collection()
    machine.now += MOST_SECONDS
    assert collection.is_due()


async def test_the_interpreter_searches_among_young_objects_only_until_the_end() -> None:
    """18.2.16"""
    before, stop, machine = gc.get_threshold(), asyncio.Event(), Machine()
    running = asyncio.create_task(machine.collection().run(stop))
    await asyncio.sleep(0)
    assert gc.get_threshold() == THRESHOLDS
    assert gc.get_freeze_count() > 0
    stop.set()
    await running
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0
    assert machine.searches == 1


def test_the_memory_of_this_process_is_known() -> None:
    assert garbage.resident_bytes() > 2**20
