"""The gateway's view of a stream, and its gaps."""

import pytest

from everstep.agent_domain.stream.envelopes import Envelope
from everstep.agent_domain.stream.reader import AFTER_ALL_ATTEMPTS, Place, Position, ReadOutcome
from everstep.agent_domain.values import parse_json
from everstep.broadcast_gateway.frames import RelayedEntry
from everstep.broadcast_gateway.limits import STREAM_LIMITS, StreamLimits
from everstep.broadcast_gateway.streams import CachedStream, StreamCursor
from everstep.broadcast_gateway.wires.websocket import NATIVE
from tests.broadcast_gateway.writers import (
    AT,
    EPOCH,
    EXECUTION,
    OTHER,
    SESSION,
    attempt_end,
    bodies,
    chunk,
    entries,
    entry,
    execution_end,
    in_short,
    step_end,
)

APPLIED, DROPPED, RESYNC = ReadOutcome
ME = str(EXECUTION)


def stream(*rows: RelayedEntry, limits: StreamLimits = STREAM_LIMITS) -> CachedStream:
    """A stream whose table was read."""
    opened = CachedStream(SESSION, limits)
    opened.add_rows(0, rows, epoch=EPOCH, oldest=1)
    return opened


def take_frames(held: CachedStream, cursor: StreamCursor | None = None, room: int = 1_000_000) -> list[str]:
    """The frames for a viewer who was there but has not read since."""
    cursor = cursor or StreamCursor(0, {}, is_joining=False)
    frames = b"".join(held.frames(cursor, NATIVE, room))
    return [in_short(Envelope.from_dict(parse_json(each.decode()))) for each in bodies(frames)]


# Stored envelopes.


def test_envelopes_in_order_are_held() -> None:
    held = stream()
    assert held.add_entries(entries(1, 3), EPOCH)
    assert (held.head, held.hole, take_frames(held)) == (3, None, ["1", "2", "3"])


def test_a_repeated_envelope_is_held_once() -> None:
    held = stream(*entries(1, 3))
    assert not held.add_entries(entries(2, 3), EPOCH)
    assert held.add_entries(entries(3, 4), EPOCH)
    assert take_frames(held) == ["1", "2", "3", "4"]


def test_a_gap_is_read_from_the_table_and_early_envelopes_follow() -> None:
    held = stream(*entries(1, 2))
    assert not held.add_entries([entry(5), entry(4), entry(7)], EPOCH)
    assert (held.head, held.hole) == (2, 2)
    held.add_rows(2, entries(3, 4), epoch=EPOCH, oldest=1)
    assert (held.head, held.hole) == (5, 5)
    assert held.add_entries([entry(6)], EPOCH)
    assert (held.head, held.hole, take_frames(held)) == (7, None, ["1", "2", "3", "4", "5", "6", "7"])


def test_an_envelope_pushed_while_the_table_was_read_is_held_once() -> None:
    held = stream(*entries(1, 2))
    held.add_entries([entry(4)], EPOCH)
    held.add_entries([entry(3)], EPOCH)
    held.add_rows(2, entries(3, 5), epoch=EPOCH, oldest=1)
    assert (held.head, take_frames(held)) == (5, ["1", "2", "3", "4", "5"])


def test_envelopes_far_too_early_are_read_from_the_table() -> None:
    held = stream(limits=StreamLimits(early=2))
    held.add_entries(entries(2, 9), EPOCH)
    held.add_entries([entry(1)], EPOCH)
    assert (held.head, held.hole) == (3, 3)
    held.add_rows(3, entries(4, 9), epoch=EPOCH, oldest=1)
    assert (held.head, held.hole) == (9, None)


def test_a_head_in_the_table_shows_a_gap() -> None:
    held = stream(*entries(1, 2))
    held.note_head(2)
    assert held.hole is None
    held.note_head(3)
    assert held.hole == 2


def test_nothing_is_held_before_the_table_was_read() -> None:
    """Pushes wait until then."""
    held = CachedStream(SESSION)
    assert held.hole == 0
    assert not held.add_entries(entries(1, 4), EPOCH)
    assert held.add_chunk(chunk(0, after=4)) is RESYNC
    held.add_rows(0, entries(1, 3), epoch=EPOCH, oldest=1)
    assert (held.head, held.hole, take_frames(held)) == (4, None, ["1", "2", "3", "4", "1.1.0:text "])


def test_a_stream_may_begin_with_its_last_envelopes() -> None:
    held = CachedStream(SESSION)
    held.add_rows(100, entries(101, 103), epoch=EPOCH, oldest=1)
    assert (held.first, held.head) == (101, 103)
    empty = CachedStream(None)
    empty.add_rows(7, (), epoch=EPOCH, oldest=8)
    assert (empty.first, empty.head, empty.is_void) == (8, 7, False)


def test_the_ring_is_bounded_by_its_number() -> None:
    held = stream(*entries(1, 9), limits=StreamLimits(ring=3))
    assert (held.first, held.head) == (7, 9)


def test_the_ring_is_bounded_by_its_bytes() -> None:
    """Except for the last envelope, however large."""
    size = len(entry(1).body)
    assert stream(*entries(1, 9), limits=StreamLimits(ring_bytes=2 * size)).first == 8
    assert stream(*entries(1, 9), limits=StreamLimits(ring_bytes=1)).first == 9


def test_finished_drafts_count_as_well() -> None:
    held = stream(limits=StreamLimits(ring_bytes=3 * len(entry(1).body)))
    held.add_chunk(chunk(0, "many words " * 1000))
    held.add_entries([entry(1, step_end(1))], EPOCH)
    assert take_frames(held) == [f"1.1.0:{'many words ' * 1000}", "1"]
    held.add_entries(entries(2, 4), EPOCH)
    assert (held.first, held.head) == (2, 4)


# Histories.


def test_another_epoch_makes_a_stream_void() -> None:
    """7.8.4: the past may have changed."""
    pushed, read = stream(*entries(1, 2)), stream(*entries(1, 2))
    assert not pushed.add_entries([entry(3)], "of-then")
    read.add_rows(2, [entry(3)], epoch="of-then", oldest=1)
    assert pushed.is_void
    assert read.is_void


def test_a_push_before_the_table_was_read_counts_in_its_own_history() -> None:
    """7.8.4"""
    held = CachedStream(SESSION)
    held.add_entries(entries(1, 3), "of-then")
    held.add_rows(0, [entry(1)], epoch=EPOCH, oldest=1)
    assert (held.head, held.hole, held.is_void) == (1, None, False)


def test_a_stream_whose_next_envelope_was_pruned_is_void() -> None:
    """7.8.1: no viewer can get it without a gap."""
    held = stream(*entries(1, 2))
    held.note_head(9)
    held.add_rows(2, entries(5, 9), epoch=EPOCH, oldest=5)
    assert held.is_void


# Positions.


@pytest.mark.parametrize(
    ("since", "recovers"),
    [
        (Position(0), False),
        (Position(3), False),
        (Position(4), True),
        (Position(4, EPOCH), True),
        (Position(9, EPOCH), True),
        (Position(9, "of-then"), False),
        (Position(10, EPOCH), False),
    ],
)
def test_a_position_is_recovered_if_nothing_after_it_is_gone(since: Position, recovers: bool) -> None:
    """7.8.1, 7.8.4"""
    held = CachedStream(SESSION)
    held.add_rows(6, entries(7, 9), epoch=EPOCH, oldest=5)
    assert held.can_resume_from(since) is recovers
    assert held.is_behind(since) is (since == Position(10, EPOCH))


# Drafts.


def test_chunks_are_sent_one_by_one_to_viewers_who_were_there() -> None:
    held = stream(*entries(1, 1))
    cursor = StreamCursor(0, {}, is_joining=False)
    assert held.add_chunk(chunk(0, "a ", after=1)) is APPLIED
    assert held.add_chunk(chunk(1, "b ", after=1)) is APPLIED
    assert held.add_chunk(chunk(1, "b ", after=1)) is DROPPED
    assert take_frames(held, cursor) == ["1", "1.1.0:a ", "1.1.1:b "]
    held.add_chunk(chunk(2, "", after=1))
    assert take_frames(held, cursor) == ["1.1.2:"]
    assert take_frames(held, cursor) == []


def test_a_chunk_waits_for_the_envelope_that_it_follows() -> None:
    """7.2: `after_seq`. The envelope may be lost, so there is a gap."""
    held = stream(*entries(1, 1))
    assert held.add_chunk(chunk(0, after=2)) is RESYNC
    assert (held.hole, held.lacking, take_frames(held)) == (1, [], ["1"])
    held.add_entries([entry(2)], EPOCH)
    assert (held.hole, take_frames(held)) == (None, ["1", "2", "1.1.0:text "])


def test_a_chunk_waits_for_the_previous_one() -> None:
    held = stream()
    held.add_chunk(chunk(0, "a "))
    assert held.add_chunk(chunk(2, "c ")) is RESYNC
    assert held.lacking == [(ME, Place(1, 1, 1))]
    assert take_frames(held) == ["1.1.0:a "]
    held.add_chunk(chunk(1, "b "))
    assert held.lacking == []
    assert take_frames(held) == ["1.1.0:a ", "1.1.1:b ", "1.1.2:c "]


def test_the_number_of_waiting_chunks_is_limited() -> None:
    held = stream(limits=StreamLimits(early_chunks=2))
    for index in (1, 2, 3):
        held.add_chunk(chunk(index))
    held.add_chunk(chunk(0))
    assert take_frames(held) == ["1.1.0:text "]
    held.add_chunk(chunk(1))
    assert len(take_frames(held)) == 4


def test_missing_text_comes_from_the_row_of_its_step() -> None:
    """7.8.4: chunks streamed in the meantime follow."""
    held = stream()
    held.add_chunk(chunk(4, "e "))
    taken = held.add_text(ME, Place(1, 1, 3), "a b c ", after_seq=0, timestamp=AT)
    assert (taken, held.lacking) == (APPLIED, [(ME, Place(1, 1, 3))])
    held.add_text(ME, Place(1, 1, 4), "a b c d ", after_seq=0, timestamp=AT)
    assert held.lacking == []
    assert take_frames(held) == ["1.1.0-5:a b c d e "]


def test_a_row_that_is_shorter_than_the_stream_is_dropped() -> None:
    held = stream()
    for index, word in enumerate("abc"):
        held.add_chunk(chunk(index, word))
    assert held.add_text(ME, Place(1, 1, 2), "ab", after_seq=0, timestamp=AT) is DROPPED
    assert take_frames(held) == ["1.1.0:a", "1.1.1:b", "1.1.2:c"]


def test_a_row_waits_for_the_envelope_that_it_follows() -> None:
    held = stream(*entries(1, 1))
    assert held.add_text(ME, Place(1, 1, 3), "a b c ", after_seq=2, timestamp=AT) is RESYNC
    assert (held.hole, take_frames(held)) == (1, ["1"])


def test_an_attempt_is_ignored_after_a_later_one_or_its_end() -> None:
    """7.8.4, 7.6.3"""
    held = stream()
    held.add_chunk(chunk(0, "first "))
    held.add_chunk(chunk(0, "second ", attempt=2))
    assert held.add_chunk(chunk(1, "late ")) is DROPPED
    assert held.add_text(ME, Place(1, 1, 9), "late ", after_seq=0, timestamp=AT) is DROPPED
    held.add_entries([entry(1, attempt_end(1, 1)), entry(2, attempt_end(1, 2))], EPOCH)
    assert held.add_chunk(chunk(1, "late ", attempt=2)) is DROPPED
    assert take_frames(held) == ["1", "2"]
    held.add_chunk(chunk(0, "third ", attempt=3))
    assert take_frames(held) == ["1", "2", "1.3.0:third "]


def test_a_step_is_ignored_after_its_end() -> None:
    held = stream()
    held.add_chunk(chunk(0))
    held.add_entries([entry(1, step_end(1))], EPOCH)
    assert held.add_chunk(chunk(1)) is DROPPED


def test_an_execution_is_ignored_after_its_end() -> None:
    held = stream()
    held.add_chunk(chunk(0))
    held.add_chunk(chunk(0, execution_id=OTHER))
    held.add_entries([entry(1, execution_end())], EPOCH)
    assert held.add_chunk(chunk(1)) is DROPPED
    assert held.add_text(ME, Place(1, 1, 2), "late ", after_seq=0, timestamp=AT) is DROPPED
    assert held.add_chunk(chunk(1, execution_id=OTHER)) is APPLIED


def test_viewers_receive_the_last_words_before_the_end() -> None:
    """All of it may arrive in one turn of the loop."""
    held = stream()
    for index, word in enumerate(["a ", "b ", ""]):
        held.add_chunk(chunk(index, word))
    held.add_entries([entry(1), entry(2, step_end(1)), entry(3)], EPOCH)
    assert take_frames(held) == ["1", "1.1.0:a ", "1.1.1:b ", "1.1.2:", "2", "3"]
    assert take_frames(held, StreamCursor(1, {ME: Place(1, 1, 2)})) == ["1.1.2:", "2", "3"]


def test_nothing_is_sent_of_a_superseded_attempt() -> None:
    """7.8.4"""
    held = stream()
    held.add_chunk(chunk(0, "first "))
    held.add_entries([entry(1, attempt_end(1, 1)), entry(2, execution_end())], EPOCH)
    assert take_frames(held) == ["1", "2"]


def test_a_step_may_begin_to_write_before_the_end_of_the_previous_one() -> None:
    """They are stored together, a moment later; nothing of either is lost or out of order."""
    held = stream()
    cursor = StreamCursor(0, {}, is_joining=False)
    held.add_chunk(chunk(0, "one "))
    held.add_chunk(chunk(0, "two ", step=2))
    assert take_frames(held, cursor) == ["1.1.0:one ", "2.1.0:two "]
    assert take_frames(held, StreamCursor(0, {})) == ["1.1.0-1:one ", "2.1.0-1:two "]
    held.add_entries([entry(1, step_end(1))], EPOCH)
    held.add_chunk(chunk(1, "", step=2))
    assert take_frames(held, cursor) == ["1", "2.1.1:"]
    assert take_frames(held) == ["1.1.0:one ", "1", "2.1.0:two ", "2.1.1:"]


def test_a_chunk_that_waits_for_the_end_of_a_step_is_accepted_after_it() -> None:
    held = stream()
    held.add_chunk(chunk(0, "one "))
    assert held.add_chunk(chunk(0, "two ", step=2, after=1)) is RESYNC
    held.add_entries([entry(1, step_end(1))], EPOCH)
    assert take_frames(held) == ["1.1.0:one ", "1", "2.1.0:two "]


def test_a_draft_older_than_the_ring_continues_only_if_its_row_says_so() -> None:
    """Its execution may have ended before anything that was read."""
    held = CachedStream(SESSION)
    held.add_rows(6, entries(7, 9), epoch=EPOCH, oldest=1)
    assert held.add_chunk(chunk(1, "b ", after=5)) is RESYNC
    assert held.add_chunk(chunk(0, after=5, execution_id=OTHER)) is RESYNC
    assert [of for of, _ in held.lacking] == [ME, str(OTHER)]
    held.add_text(ME, Place(1, 1, 1), "a ", after_seq=5, timestamp=AT)
    held.end_execution(str(OTHER))
    assert held.lacking == []
    assert held.add_chunk(chunk(2, "c ", after=5)) is APPLIED
    assert take_frames(held, StreamCursor(9, {})) == ["1.1.0-3:a b c "]
    assert held.add_chunk(chunk(1, after=5, execution_id=OTHER)) is DROPPED


# Viewers who join late or are behind.


def test_a_viewer_who_joins_in_the_middle_of_a_step_gets_a_snapshot() -> None:
    """7.8.4"""
    held = stream()
    for index, word in enumerate(["a ", "b "]):
        held.add_chunk(chunk(index, word))
    cursor = StreamCursor(0, {})
    assert take_frames(held, cursor) == ["1.1.0-2:a b "]
    held.add_chunk(chunk(2, "c "))
    assert take_frames(held, cursor) == ["1.1.2:c "]


def test_a_snapshot_leaves_it_to_the_closing_chunk_to_complete_it() -> None:
    """7.6.2"""
    held = stream()
    for index, word in enumerate(["a ", "b ", ""]):
        held.add_chunk(chunk(index, word))
    assert take_frames(held, StreamCursor(0, {})) == ["1.1.0-2:a b ", "1.1.2:"]


def test_a_snapshot_is_an_envelope_like_any_other() -> None:
    """7.1.1, 7.2"""
    held = stream(*entries(1, 1))
    held.add_chunk(chunk(0, "a ", after=1))
    (body,) = bodies(b"".join(held.frames(StreamCursor(1, {}), NATIVE, 1)))
    snapshot = Envelope.from_dict(parse_json(body.decode()))
    assert (snapshot.type, snapshot.session_id, snapshot.execution_id, snapshot.seq) == (
        "agent.stream.snapshot",
        SESSION,
        EXECUTION,
        None,
    )
    assert snapshot.payload == {
        "content": "a ",
        "next_index": 1,
        "step_number": 1,
        "attempt": 1,
        "after_seq": 1,
    }
    assert snapshot.timestamp == AT


def test_a_snapshot_is_built_once_for_all_who_need_it() -> None:
    held = stream()
    held.add_chunk(chunk(0, "a "))
    one, other = (held.frames(StreamCursor(0, {}), NATIVE, 1) for _ in range(2))
    assert one[0] is other[0]
    held.add_chunk(chunk(1, "b "))
    assert take_frames(held, StreamCursor(0, {})) == ["1.1.0-2:a b "]


def test_an_empty_draft_is_not_sent() -> None:
    held = stream(entry(1, step_end(1)))
    assert take_frames(held, StreamCursor(1, {})) == []


def test_a_viewer_far_behind_in_a_draft_gets_a_snapshot() -> None:
    """7.8.4"""
    held = stream(limits=StreamLimits(chunks=2))
    for index, word in enumerate("abcd"):
        held.add_chunk(chunk(index, word))
    assert take_frames(held, StreamCursor(0, {ME: Place(1, 1, 2)})) == ["1.1.2:c", "1.1.3:d"]
    assert take_frames(held, StreamCursor(0, {ME: Place(1, 1, 1)})) == ["1.1.0-4:abcd"]


def test_a_viewer_who_has_read_more_elsewhere_gets_nothing_twice() -> None:
    """7.8.4: another gateway may have received it first."""
    held = stream()
    held.add_chunk(chunk(0, "a "))
    cursor = StreamCursor(0, {ME: Place(1, 1, 2)})
    assert take_frames(held, cursor) == []
    held.add_chunk(chunk(1, "b "))
    held.add_chunk(chunk(2, "c "))
    assert take_frames(held, cursor) == ["1.1.2:c "]


def test_frames_end_where_the_room_ends() -> None:
    held = stream(*entries(1, 3))
    held.add_chunk(chunk(0))
    cursor = StreamCursor(0, {})
    assert [take_frames(held, cursor, room=1) for _ in range(5)] == [
        ["1"],
        ["2"],
        ["3"],
        ["1.1.0-1:text "],
        [],
    ]


def test_a_fence_is_above_every_attempt() -> None:
    assert Place(2**62, 2**62, 0).attempted < AFTER_ALL_ATTEMPTS
