"""The bus of one process."""

import asyncio
from datetime import UTC, datetime
from uuid import UUID, uuid4

from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.stream.bus import Chunk, Frame
from everstep.agent_domain.stream.envelopes import Attempt
from everstep.agent_domain.stream.records import StoredEnvelope
from everstep.agent_domain.values import EMPTY
from everstep.streams.memory_bus import Listener, MemoryBus

AT = datetime(2026, 1, 16, 10, 5, tzinfo=UTC)
REF = ExecutionRef(uuid4())
STREAM = REF.stream_id


def stored(seq: int) -> StoredEnvelope:
    return StoredEnvelope(STREAM, seq, UUID(int=seq), "agent.status", REF.execution_id, EMPTY, AT)


def wrote(index: int) -> Chunk:
    return Chunk(REF, Attempt(1), index, index, "x", 1, AT)


async def heard(listener: Listener, count: int) -> list[Frame]:
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
        with bus.listening(STREAM) as one, bus.listening(STREAM) as two, bus.listening(other) as third:
            hearing = asyncio.create_task(heard(one, 3))
            bus.publish(STREAM, [stored(1)])
            await asyncio.sleep(0)
            bus.chunk(STREAM, wrote(0))
            bus.publish(STREAM, [stored(2)])

            assert await hearing == [stored(1), wrote(0), stored(2)]
            assert two.waiting() == (stored(1), wrote(0), stored(2))
            assert third.waiting() == ()

    def test_only_streams_with_a_subscriber_are_wanted(self) -> None:
        bus = MemoryBus()
        assert not bus.wants(STREAM)
        with bus.listening(STREAM):
            with bus.listening(STREAM):
                assert bus.wants(STREAM)
            assert bus.wants(STREAM)
        assert not bus.wants(STREAM)

    async def test_a_slow_subscriber_is_dropped(self) -> None:
        """Follows rule 7.8.2: and delays no other; the others get all of it."""
        bus = MemoryBus(limit=2)
        with bus.listening(STREAM) as slow, bus.listening(STREAM) as quick:
            for seq in range(1, 5):
                bus.publish(STREAM, [stored(seq)])
                assert quick.waiting() == (stored(seq),)

            assert slow.is_overrun
            assert await heard(slow, 1) == []
            assert len(slow.waiting()) == 3
            assert bus.wants(STREAM)
