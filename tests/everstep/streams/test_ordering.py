"""The commits of one process are published in the order of their numbers."""

import asyncio
from datetime import UTC, datetime
from uuid import UUID, uuid4

import pytest
from hypothesis import given, strategies as st

from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.stream.bus import Frame, TextChunk
from everstep.agent_domain.stream.envelopes import Attempt
from everstep.agent_domain.stream.records import StoredEnvelope
from everstep.agent_domain.values import EMPTY
from everstep.streams import ordering
from everstep.streams.memory_bus import MemoryBus
from everstep.streams.ordering import OrderedBus

AT = datetime(2026, 1, 16, 10, 5, tzinfo=UTC)
REF = ExecutionRef(uuid4())
STREAM = REF.stream_id
LONG = 60.0


def an_envelope(seq: int) -> StoredEnvelope:
    return StoredEnvelope(STREAM, seq, UUID(int=seq), "agent.status", REF.execution_id, EMPTY, AT)


def a_chunk(index: int, after_seq: int | None) -> TextChunk:
    return TextChunk(REF, Attempt(1), index, index, "x", after_seq, AT)


async def published_frames(*frames: Frame, moment: float = LONG) -> tuple[Frame, ...]:
    """The output before any wait times out."""
    memory = MemoryBus()
    bus = OrderedBus(memory, moment)
    with memory.open_listener(STREAM) as listener:
        for frame in frames:
            put(bus, frame)
        return listener.take_frames()


def put(bus: OrderedBus, frame: Frame) -> None:
    if isinstance(frame, TextChunk):
        bus.publish_chunk(STREAM, frame)
    else:
        bus.publish(STREAM, [frame])


async def test_an_overtaken_envelope_is_published_first() -> None:
    frames = (an_envelope(1), an_envelope(3), an_envelope(4), an_envelope(2), an_envelope(5))
    assert await published_frames(*frames) == tuple(map(an_envelope, range(1, 6)))


async def test_a_chunk_waits_for_the_envelope_that_it_follows() -> None:
    """Follows rule 7.2: `after_seq`."""
    early = (an_envelope(1), a_chunk(0, None), an_envelope(3), a_chunk(1, 3), a_chunk(2, 3))
    assert await published_frames(*early) == (an_envelope(1), a_chunk(0, None))
    assert await published_frames(*early, an_envelope(2)) == (
        an_envelope(1),
        a_chunk(0, None),
        an_envelope(2),
        an_envelope(3),
        a_chunk(1, 3),
        a_chunk(2, 3),
    )


async def test_a_stream_may_start_in_its_middle() -> None:
    assert await published_frames(a_chunk(7, 3), an_envelope(5), an_envelope(6)) == (
        a_chunk(7, 3),
        an_envelope(5),
        an_envelope(6),
    )


async def test_envelopes_of_another_process_are_not_waited_for() -> None:
    """Follows rule 7.8.1: a reader detects the gap by the numbers."""
    memory, loop = MemoryBus(), asyncio.get_running_loop()
    bus = OrderedBus(memory, wait_seconds=0.001)
    with memory.open_listener(STREAM) as listener:
        for frame in (an_envelope(1), a_chunk(0, 4), an_envelope(4), an_envelope(3)):
            put(bus, frame)
        assert listener.take_frames() == (an_envelope(1),)
        given_up = loop.create_future()
        loop.call_later(0.001, given_up.set_result, None)
        await given_up
        assert listener.take_frames() == (an_envelope(3), an_envelope(4), a_chunk(0, 4))

        for frame in (an_envelope(2), an_envelope(5)):
            put(bus, frame)
        assert listener.take_frames() == (an_envelope(2), an_envelope(5))


@given(st.permutations(range(2, 12)))
def test_commits_may_complete_in_any_order(order: list[int]) -> None:
    assert asyncio.run(published_frames(an_envelope(1), *map(an_envelope, order))) == tuple(
        map(an_envelope, range(1, 12))
    )


async def test_streams_without_a_subscriber_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ordering, "MAX_STREAMS", 1)
    memory = MemoryBus()
    bus, other = OrderedBus(memory, LONG), uuid4()
    bus.publish(other, [an_envelope(1)])
    with memory.open_listener(STREAM) as listener:
        for frame in (an_envelope(1), an_envelope(3), an_envelope(2)):
            put(bus, frame)
        assert listener.take_frames() == (an_envelope(1), an_envelope(2), an_envelope(3))
    with memory.open_listener(other) as listener:
        bus.publish(other, [an_envelope(9)])
        assert listener.take_frames() == (an_envelope(9),)
