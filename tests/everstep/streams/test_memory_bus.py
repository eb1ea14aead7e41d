"""The bus of one process."""

import asyncio
from datetime import UTC, datetime
from uuid import UUID, uuid4

from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.stream.bus import Frame, TextChunk
from everstep.agent_domain.stream.envelopes import Attempt
from everstep.agent_domain.stream.records import StoredEnvelope
from everstep.agent_domain.values import EMPTY
from everstep.streams.memory_bus import MemoryBus, StreamListener

AT = datetime(2026, 1, 16, 10, 5, tzinfo=UTC)
REF = ExecutionRef(uuid4())
STREAM = REF.stream_id


def an_envelope(seq: int) -> StoredEnvelope:
    return StoredEnvelope(STREAM, seq, UUID(int=seq), "agent.status", REF.execution_id, EMPTY, AT)


def a_chunk(index: int) -> TextChunk:
    return TextChunk(REF, Attempt(1), index, index, "x", 1, AT)


async def receive_frames(listener: StreamListener, count: int) -> list[Frame]:
    frames = list[Frame]()
    async with asyncio.timeout(10):
        async for frame in listener:
            frames.append(frame)
            if len(frames) == count:
                break
    return frames


class TestMemoryBus:
    async def test_subscribers_get_their_stream_in_order(self) -> None:
        bus, other = MemoryBus(), uuid4()
        with (
            bus.open_listener(STREAM) as one,
            bus.open_listener(STREAM) as two,
            bus.open_listener(other) as third,
        ):
            hearing = asyncio.create_task(receive_frames(one, 3))
            bus.publish(STREAM, [an_envelope(1)])
            await asyncio.sleep(0)
            bus.publish_chunk(STREAM, a_chunk(0))
            bus.publish(STREAM, [an_envelope(2)])

            assert await hearing == [an_envelope(1), a_chunk(0), an_envelope(2)]
            assert two.take_frames() == (an_envelope(1), a_chunk(0), an_envelope(2))
            assert third.take_frames() == ()

    def test_only_streams_with_a_subscriber_are_wanted(self) -> None:
        bus = MemoryBus()
        assert not bus.has_subscribers(STREAM)
        with bus.open_listener(STREAM):
            with bus.open_listener(STREAM):
                assert bus.has_subscribers(STREAM)
            assert bus.has_subscribers(STREAM)
        assert not bus.has_subscribers(STREAM)

    async def test_a_slow_subscriber_is_dropped(self) -> None:
        """Follows rule 7.8.2: and delays no other; the others get all of it."""
        bus = MemoryBus(limit=2)
        with bus.open_listener(STREAM) as slow, bus.open_listener(STREAM) as quick:
            for seq in range(1, 5):
                bus.publish(STREAM, [an_envelope(seq)])
                assert quick.take_frames() == (an_envelope(seq),)

            assert slow.is_overrun
            assert await receive_frames(slow, 1) == []
            assert len(slow.take_frames()) == 3
            assert bus.has_subscribers(STREAM)
