"""The commits of one process are published in the order of their numbers."""

import asyncio
from datetime import UTC, datetime
from uuid import UUID, uuid4

import pytest
from hypothesis import given, strategies as st

from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.stream.bus import Chunk, Frame
from everstep.agent_domain.stream.envelopes import Attempt
from everstep.agent_domain.stream.records import StoredEnvelope
from everstep.agent_domain.values import EMPTY
from everstep.streams import ordering
from everstep.streams.memory_bus import MemoryBus
from everstep.streams.ordering import InOrder

AT = datetime(2026, 1, 16, 10, 5, tzinfo=UTC)
REF = ExecutionRef(uuid4())
STREAM = REF.stream_id
LONG = 60.0


def stored(seq: int) -> StoredEnvelope:
    return StoredEnvelope(STREAM, seq, UUID(int=seq), "agent.status", REF.execution_id, EMPTY, AT)


def wrote(index: int, after_seq: int | None) -> Chunk:
    return Chunk(REF, Attempt(1), index, index, "x", after_seq, AT)


async def passed_on(*frames: Frame, moment: float = LONG) -> tuple[Frame, ...]:
    """The output before any wait times out."""
    memory = MemoryBus()
    bus = InOrder(memory, moment)
    with memory.listening(STREAM) as listener:
        for frame in frames:
            put(bus, frame)
        return listener.waiting()


def put(bus: InOrder, frame: Frame) -> None:
    if isinstance(frame, Chunk):
        bus.chunk(STREAM, frame)
    else:
        bus.publish(STREAM, [frame])


async def test_an_overtaken_envelope_is_published_first() -> None:
    frames = (stored(1), stored(3), stored(4), stored(2), stored(5))
    assert await passed_on(*frames) == tuple(map(stored, range(1, 6)))


async def test_a_chunk_waits_for_the_envelope_that_it_follows() -> None:
    """Follows rule 7.2: `after_seq`."""
    early = (stored(1), wrote(0, None), stored(3), wrote(1, 3), wrote(2, 3))
    assert await passed_on(*early) == (stored(1), wrote(0, None))
    assert await passed_on(*early, stored(2)) == (
        stored(1),
        wrote(0, None),
        stored(2),
        stored(3),
        wrote(1, 3),
        wrote(2, 3),
    )


async def test_a_stream_may_start_in_its_middle() -> None:
    assert await passed_on(wrote(7, 3), stored(5), stored(6)) == (wrote(7, 3), stored(5), stored(6))


async def test_envelopes_of_another_process_are_not_waited_for() -> None:
    """Follows rule 7.8.1: a reader detects the gap by the numbers."""
    memory, loop = MemoryBus(), asyncio.get_running_loop()
    bus = InOrder(memory, moment=0.001)
    with memory.listening(STREAM) as listener:
        for frame in (stored(1), wrote(0, 4), stored(4), stored(3)):
            put(bus, frame)
        assert listener.waiting() == (stored(1),)
        given_up = loop.create_future()
        loop.call_later(0.001, given_up.set_result, None)
        await given_up
        assert listener.waiting() == (stored(3), stored(4), wrote(0, 4))

        for frame in (stored(2), stored(5)):
            put(bus, frame)
        assert listener.waiting() == (stored(2), stored(5))


@given(st.permutations(range(2, 12)))
def test_commits_may_complete_in_any_order(order: list[int]) -> None:
    assert asyncio.run(passed_on(stored(1), *map(stored, order))) == tuple(map(stored, range(1, 12)))


async def test_streams_without_a_subscriber_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ordering, "MOST_STREAMS", 1)
    memory = MemoryBus()
    bus, other = InOrder(memory, LONG), uuid4()
    bus.publish(other, [stored(1)])
    with memory.listening(STREAM) as listener:
        for frame in (stored(1), stored(3), stored(2)):
            put(bus, frame)
        assert listener.waiting() == (stored(1), stored(2), stored(3))
    with memory.listening(other) as listener:
        bus.publish(other, [stored(9)])
        assert listener.waiting() == (stored(9),)
