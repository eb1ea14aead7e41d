"""A queue to be sent, and its behaviour when full."""

from datetime import UTC, datetime, timedelta, timezone
from uuid import UUID

import pytest
from hypothesis import given, strategies as st

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.stream.bus import NULL_BUS, Frame, SendQueue, TextChunk, encode_frame
from everstep.agent_domain.stream.envelopes import Attempt
from everstep.agent_domain.stream.records import StoredEnvelope
from everstep.agent_domain.values import EMPTY

AT = datetime(2026, 1, 16, 10, 5, tzinfo=UTC)
REF = ExecutionRef(UUID(int=2), session_id=UUID(int=1))
LIMIT = 4


def an_entry(seq: int) -> StoredEnvelope:
    return StoredEnvelope(REF.stream_id, seq, UUID(int=seq), "agent.status", REF.execution_id, EMPTY, AT)


def a_chunk(index: int, content: str = "Hi") -> TextChunk:
    return TextChunk(REF, Attempt(3, 2), index, 2 * index, content, 7, AT)


def test_a_chunk_is_published_like_any_envelope_and_has_no_number() -> None:
    """7.1.1, 7.2, 7.6.2: the last one is empty."""
    envelope = a_chunk(1).envelope
    assert (envelope.type, envelope.session_id, envelope.seq) == ("agent.stream.chunk", REF.session_id, None)
    assert envelope.payload == {
        "content": "Hi",
        "is_complete": False,
        "chunk_index": 1,
        "step_number": 3,
        "attempt": 2,
        "after_seq": 7,
    }
    assert a_chunk(2, "").envelope.payload["is_complete"]


@given(
    st.text(st.characters(exclude_characters="\x00")),
    st.booleans(),
    st.one_of(st.none(), st.integers(1, 10**12)),
    st.integers(-(10**16), 10**16),
    st.sampled_from([UTC, timezone(timedelta(hours=5, minutes=30))]),
)
def test_a_chunk_is_encoded_like_any_envelope(
    content: str, has_session: bool, after_seq: int | None, later: int, zone: timezone
) -> None:
    """7.1.1, 7.6.2: by a shorter way, as there are thousands in a second."""
    ref = ExecutionRef(UUID(int=3), session_id=UUID(int=4) if has_session else None)
    at = (AT + timedelta(microseconds=later)).astimezone(zone)
    chunk = TextChunk(ref, Attempt(3, 2), 5, 9, content, after_seq, at)

    assert encode_frame(chunk) == chunk.envelope.to_json()


@pytest.mark.parametrize("content", ["\x00", "\ud800"])
def test_a_chunk_that_no_store_could_hold_is_not_encoded(content: str) -> None:
    """7.1.1."""
    with pytest.raises(InvalidInput):
        encode_frame(a_chunk(1, content))


def test_without_viewers_nothing_is_wanted() -> None:
    NULL_BUS.publish(REF.stream_id, [an_entry(1)])
    NULL_BUS.publish_chunk(REF.stream_id, a_chunk(0))
    assert not NULL_BUS.has_subscribers(REF.stream_id)


def put(outbox: SendQueue[Frame], frame: Frame) -> None:
    outbox.put(frame, is_chunk=isinstance(frame, TextChunk))


class TestOutbox:
    def test_envelopes_are_taken_once_and_in_order(self) -> None:
        outbox, frames = SendQueue[Frame](LIMIT), (an_entry(1), a_chunk(0), a_chunk(1), an_entry(2))
        for frame in frames:
            put(outbox, frame)

        assert outbox.take() == frames
        assert outbox.take() == ()

    def test_a_chunk_that_does_not_fit_is_dropped(self) -> None:
        """Follows rule 7.8.4: a viewer that misses a chunk gets the text so far."""
        outbox = SendQueue[Frame](LIMIT)
        for index in range(LIMIT + 1):
            put(outbox, a_chunk(index))

        assert outbox.take() == tuple(map(a_chunk, range(LIMIT)))

    def test_chunks_give_way_to_envelopes(self) -> None:
        outbox = SendQueue[Frame](LIMIT)
        for frame in (an_entry(1), a_chunk(0), an_entry(2), a_chunk(1), an_entry(3)):
            put(outbox, frame)

        assert outbox.take() == (an_entry(1), an_entry(2), an_entry(3))

    def test_a_writer_with_too_many_waiting_envelopes_is_too_late(self) -> None:
        """Follows rule 7.8.2: the link is closed, and the table has them all."""
        outbox = SendQueue[Frame](LIMIT)
        for seq in range(LIMIT):
            put(outbox, an_entry(seq + 1))
        assert not outbox.is_overrun

        put(outbox, an_entry(LIMIT + 1))
        assert outbox.is_overrun
        assert len(outbox) == LIMIT + 1

    @given(st.lists(st.sampled_from(["envelope", "chunk", "take"]), max_size=60))
    def test_no_envelope_is_ever_dropped_and_waiting_chunks_are_limited(self, acts: list[str]) -> None:
        outbox, taken, given = SendQueue[Frame](LIMIT), list[Frame](), list[Frame]()
        for number, act in enumerate(acts, 1):
            if act == "take":
                taken += outbox.take()
            else:
                given.append(an_entry(number) if act == "envelope" else a_chunk(number))
                put(outbox, given[-1])
            envelopes = sum(isinstance(frame, StoredEnvelope) for frame in given)
            assert len(outbox) <= max(LIMIT, envelopes)
        taken += outbox.take()

        assert [f for f in taken if isinstance(f, StoredEnvelope)] == [
            f for f in given if isinstance(f, StoredEnvelope)
        ]
        assert taken == [frame for frame in given if frame in taken]
