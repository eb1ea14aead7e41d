"""Fan-out: viewers who are up to date together, all others from their positions."""

import gc

import pytest

from everstep.agent_domain.stream.reader import Place, Position
from everstep.broadcast_gateway.frames import RelayedEntry, Wire
from everstep.broadcast_gateway.limits import STREAM_LIMITS, StreamLimits
from everstep.broadcast_gateway.streams import CachedStream
from everstep.broadcast_gateway.subscriptions import (
    HubRequest,
    Relay,
    RowsNeeded,
    SubscribeReply,
    Viewer,
    ViewerTooSlow,
)
from everstep.broadcast_gateway.wires.closing import Closing
from everstep.broadcast_gateway.wires.pusher import PusherWire
from everstep.broadcast_gateway.wires.websocket import NATIVE
from tests.broadcast_gateway.writers import (
    EPOCH,
    EXECUTION,
    SESSION,
    Screen,
    attempt_end,
    bodies,
    chunk,
    entries,
    entry,
    step_end,
)

CHANNEL = f"agent.session.{SESSION}"


def relay(
    *rows: RelayedEntry, limits: StreamLimits = STREAM_LIMITS, after: int = 0, oldest: int = 1
) -> Relay:
    stream = CachedStream(SESSION, limits)
    stream.add_rows(after, rows, epoch=EPOCH, oldest=oldest)
    return Relay(stream)


def join(
    relay: Relay, screen: Screen, since: Position | None = None, wire: Wire = NATIVE
) -> list[HubRequest]:
    """Subscribe, and receive the missed envelopes."""
    joined = relay.subscribe(screen.viewer, CHANNEL, wire, since)
    assert joined
    need = screen.viewer.subscriptions[CHANNEL].catch_up()
    return [need] if need else []


# Joining.


def test_a_viewer_without_a_position_gets_new_envelopes() -> None:
    """7.8.1: the client has to fetch the history before them."""
    watched, screen = relay(*entries(1, 3)), Screen()
    assert watched.subscribe(screen.viewer, CHANNEL, NATIVE) == SubscribeReply(EPOCH, 3, recovered=False)
    watched.stream.add_entries(entries(4, 5), EPOCH)
    assert watched.send() == []
    assert screen.summaries() == ["4", "5"]


def test_a_viewer_who_resumes_gets_the_missed_envelopes_and_then_new_ones() -> None:
    """7.8.1: without gap or duplicate."""
    watched, screen = relay(*entries(1, 3)), Screen()
    since = Position(1, EPOCH)
    assert watched.subscribe(screen.viewer, CHANNEL, NATIVE, since) == SubscribeReply(
        EPOCH, 1, recovered=True
    )
    watched.stream.add_entries(entries(4, 5), EPOCH)
    watched.send()
    watched.stream.add_entries(entries(6, 6), EPOCH)
    watched.send()
    assert screen.summaries() == ["2", "3", "4", "5", "6"]


@pytest.mark.parametrize("since", [Position(2, "of-then"), Position(2, EPOCH)])
def test_a_viewer_whose_position_is_no_longer_held_has_to_fetch_the_history(since: Position) -> None:
    """7.8.1, 7.8.4: of another epoch, or pruned."""
    watched, screen = relay(*entries(8, 9), after=7, oldest=5), Screen()
    assert watched.subscribe(screen.viewer, CHANNEL, NATIVE, since) == SubscribeReply(
        EPOCH, 9, recovered=False
    )


def test_the_table_is_read_before_a_viewer_joins() -> None:
    watched, screen = Relay(CachedStream(SESSION)), Screen()
    assert watched.subscribe(screen.viewer, CHANNEL, NATIVE) is None


def test_the_table_is_read_for_a_viewer_ahead_of_the_gateway() -> None:
    """Another gateway was faster; or the envelopes that the viewer has were lost, and then it has to fetch
    the history.
    """
    watched, screen = relay(*entries(1, 3)), Screen()
    since = Position(4, EPOCH)
    assert watched.subscribe(screen.viewer, CHANNEL, NATIVE, since) is None
    lost = watched.subscribe(screen.viewer, CHANNEL, NATIVE, since, is_fresh=True)
    assert lost == SubscribeReply(EPOCH, 3, recovered=False)
    watched.stream.add_rows(3, [entry(4)], epoch=EPOCH, oldest=1)
    assert watched.subscribe(screen.viewer, CHANNEL, NATIVE, since) == SubscribeReply(
        EPOCH, 4, recovered=True
    )


def test_a_viewer_who_joins_in_the_middle_of_a_step_continues_from_a_snapshot() -> None:
    """7.8.4"""
    watched, screen = relay(*entries(1, 1)), Screen()
    for index, word in enumerate(["a ", "b "]):
        watched.stream.add_chunk(chunk(index, word, after=1))
    join(watched, screen)
    watched.stream.add_chunk(chunk(2, "c ", after=1))
    watched.send()
    assert screen.summaries() == ["1.1.0-2:a b ", "1.1.2:c "]


def test_a_viewer_who_resumes_in_the_middle_of_a_step_gets_the_rest() -> None:
    """7.8.4"""
    watched, screen = relay(*entries(1, 1)), Screen()
    for index, word in enumerate(["a ", "b ", ""]):
        watched.stream.add_chunk(chunk(index, word, after=1))
    watched.stream.add_entries([entry(2, step_end(1))], EPOCH)
    join(watched, screen, Position(1, EPOCH, {EXECUTION: Place(1, 1, 1)}))
    assert screen.summaries() == ["1.1.1:b ", "1.1.2:", "2"]


def test_a_viewer_who_joins_twice_is_subscribed_once() -> None:
    watched, screen = relay(), Screen()
    join(watched, screen)
    join(watched, screen)
    watched.stream.add_entries([entry(1)], EPOCH)
    watched.send()
    assert screen.summaries() == ["1"]


# Sending.


def test_viewers_who_are_up_to_date_get_the_same_bytes_framed_once() -> None:
    watched, screens = relay(), [Screen() for _ in range(3)]
    for screen in screens:
        join(watched, screen)
    watched.stream.add_entries(entries(1, 2), EPOCH)
    watched.stream.add_chunk(chunk(0, after=2))
    watched.send()
    first = screens[0].writes
    assert len(first) == 1
    assert all(screen.writes[0] is first[0] for screen in screens)
    watched.send()
    assert all(len(screen.writes) == 1 for screen in screens)


def test_each_wire_frames_the_same_envelopes_in_its_own_format() -> None:
    watched, native, pushed = relay(), Screen(), Screen()
    join(watched, native)
    join(watched, pushed, wire=PusherWire(f"private-{CHANNEL}"))
    watched.stream.add_entries([entry(1)], EPOCH)
    watched.send()
    assert native.writes == [entry(1).frame(NATIVE)]
    assert pushed.writes == [entry(1).frame(PusherWire(f"private-{CHANNEL}"))]


def test_a_viewer_who_joins_between_two_turns_gets_nothing_twice() -> None:
    watched, early, late = relay(), Screen(), Screen()
    join(watched, early)
    watched.stream.add_entries([entry(1)], EPOCH)
    join(watched, late, Position(0))
    assert (early.summaries(), late.summaries()) == ([], ["1"])
    watched.stream.add_entries([entry(2)], EPOCH)
    watched.send()
    assert (early.summaries(), late.summaries()) == (["1", "2"], ["2"])
    watched.stream.add_entries([entry(3)], EPOCH)
    watched.send()
    assert early.writes[0] is late.writes[0]


def test_one_viewer_may_watch_several_channels() -> None:
    one, other, screen = relay(), relay(), Screen()
    assert one.subscribe(screen.viewer, "one", NATIVE)
    assert other.subscribe(screen.viewer, "other", NATIVE)
    other.stream.add_entries([entry(1)], EPOCH)
    other.send()
    screen.viewer.unsubscribe("other")
    screen.viewer.unsubscribe("never joined")
    other.stream.add_entries([entry(2)], EPOCH)
    other.send()
    one.stream.add_entries([entry(1)], EPOCH)
    one.send()
    assert screen.summaries() == ["1", "1"]
    assert (one.viewers, other.viewers) == ({screen.viewer}, set())


def test_a_viewer_who_leaves_creates_no_garbage() -> None:
    """A gateway switches the garbage collector off."""

    def come_and_go(watched: Relay) -> None:
        for _ in range(3):
            viewer = Viewer(list[bytes]().append, list[Closing]().append)
            watched.subscribe(viewer, CHANNEL, NATIVE, Position(0))
            viewer.subscriptions[CHANNEL].catch_up()
            watched.stream.add_entries([entry(watched.stream.head + 1)], EPOCH)
            watched.send()
            viewer.end()

    watched = relay(*entries(1, 2))
    gc.collect()
    gc.disable()
    try:
        come_and_go(watched)
        assert gc.collect() == 0
    finally:
        gc.enable()
    assert watched.viewers == set()


# Slow viewers.


def test_a_slow_viewer_does_not_slow_others_and_continues_from_its_position() -> None:
    """7.8.2"""
    watched, slow, fast = relay(), Screen(room=1), Screen()
    join(watched, slow)
    join(watched, fast)
    for seq in (1, 2, 3):
        watched.stream.add_entries([entry(seq)], EPOCH)
        assert watched.send() == []
    assert (slow.summaries(), fast.summaries()) == (["1"], ["1", "2", "3"])
    slow.viewer.resume()
    assert slow.summaries() == ["2", "3"]
    slow.viewer.resume()
    watched.stream.add_entries([entry(4)], EPOCH)
    watched.send()
    assert slow.writes[0] is fast.writes[0]


def test_a_slow_viewer_gets_no_more_than_its_transport_takes() -> None:
    """7.8.2"""
    watched, slow = relay(*entries(1, 9), limits=StreamLimits(room=1)), Screen(room=2)
    join(watched, slow, Position(0))
    assert slow.summaries() == ["1", "2"]
    slow.viewer.resume()
    assert slow.summaries() == ["3", "4"]


def test_a_slow_viewer_gets_all_of_the_text() -> None:
    watched, slow = relay(), Screen(room=1)
    join(watched, slow)
    watched.stream.add_chunk(chunk(0, "a "))
    watched.send()
    watched.stream.add_chunk(chunk(1, "b "))
    watched.stream.add_entries([entry(1, step_end(1))], EPOCH)
    watched.stream.add_chunk(chunk(0, "c ", step=2, after=1))
    watched.send()
    assert slow.summaries() == ["1.1.0:a "]
    slow.viewer.resume()
    assert slow.summaries() == ["1.1.1:b ", "1", "2.1.0:c "]


def test_a_slow_viewer_gets_nothing_of_a_superseded_attempt() -> None:
    """7.8.4"""
    watched, slow = relay(), Screen(room=1)
    join(watched, slow)
    watched.stream.add_chunk(chunk(0, "first "))
    watched.send()
    watched.stream.add_chunk(chunk(1, "attempt "))
    watched.stream.add_entries([entry(1, attempt_end(1, 1))], EPOCH)
    watched.stream.add_chunk(chunk(0, "second ", attempt=2, after=1))
    watched.send()
    assert slow.summaries() == ["1.1.0:first "]
    slow.viewer.resume()
    assert slow.summaries() == ["1", "1.2.0:second "]


def test_a_slow_viewer_who_falls_off_the_ring_is_closed() -> None:
    """7.8.2: with a code that invites it to resume."""
    watched, slow, fast = relay(limits=StreamLimits(ring=2)), Screen(room=1), Screen()
    join(watched, slow)
    join(watched, fast)
    for seq in (1, 2, 3):
        watched.stream.add_entries([entry(seq)], EPOCH)
        assert watched.send() == []
    watched.stream.add_entries([entry(4)], EPOCH)
    assert watched.send() == [ViewerTooSlow(slow.viewer)]
    assert fast.summaries() == ["1", "2", "3", "4"]


def test_a_viewer_who_takes_nothing_for_ten_seconds_is_stuck() -> None:
    """7.8.2"""
    watched, slow = relay(), Screen(room=1, now=100.0)
    join(watched, slow)
    assert not slow.viewer.is_stuck(110.0, 0, 10.0)
    watched.stream.add_entries([entry(1)], EPOCH)
    watched.send()
    unsent = len(slow.writes[0])
    assert not slow.viewer.is_stuck(109.0, unsent, 10.0)
    assert not slow.viewer.is_stuck(109.5, unsent - 1, 10.0)
    assert not slow.viewer.is_stuck(119.0, unsent - 1, 10.0)
    assert slow.viewer.is_stuck(119.5, unsent - 1, 10.0)
    slow.viewer.resume()
    assert not slow.viewer.is_stuck(200.0, 0, 10.0)


# Reads of the table.


def test_envelopes_that_left_the_ring_are_read_from_the_table() -> None:
    """7.8.1"""
    watched, screen = relay(*entries(1, 9), limits=StreamLimits(ring=3)), Screen()
    (need,) = join(watched, screen, Position(1))
    assert isinstance(need, RowsNeeded)
    assert need.after == 1
    assert watched.send() == []
    more = need.subscription.add_rows(entries(2, 4), oldest=1)
    assert more == RowsNeeded(need.subscription, 4)
    assert need.subscription.add_rows(entries(5, 7), oldest=1) is None
    watched.stream.add_entries([entry(10)], EPOCH)
    watched.send()
    assert screen.summaries() == [str(seq) for seq in range(2, 11)]


def test_a_page_of_the_table_is_sent_as_fast_as_the_viewer_takes_it() -> None:
    """7.8.2: the ring may advance in the meantime; a viewer that reads the table is not closed for that."""
    watched, slow = relay(*entries(1, 9), limits=StreamLimits(ring=2, room=1)), Screen(room=1)
    (need,) = join(watched, slow, Position(0))
    assert isinstance(need, RowsNeeded)
    need.subscription.add_rows(entries(1, 3), oldest=1)
    watched.stream.add_entries([entry(10)], EPOCH)
    assert watched.send() == []
    assert slow.summaries() == ["1"]
    assert slow.viewer.resume() == []
    assert slow.viewer.resume() == []
    assert slow.summaries() == ["2", "3"]
    assert slow.viewer.resume() == [RowsNeeded(need.subscription, 3)]


def test_a_page_may_reach_into_the_ring() -> None:
    watched, screen = relay(*entries(1, 9), limits=StreamLimits(ring=5, room=1)), Screen()
    (need,) = join(watched, screen, Position(3))
    assert isinstance(need, RowsNeeded)
    assert need.subscription.add_rows(entries(4, 9), oldest=1) is None
    assert screen.summaries() == ["4", "5", "6", "7", "8", "9"]


@pytest.mark.parametrize("rows", [[], entries(5, 7)])
def test_a_viewer_who_needs_pruned_envelopes_is_closed_and_not_recovered(rows: list[RelayedEntry]) -> None:
    """7.8.1"""
    watched, screen = relay(*entries(1, 9), limits=StreamLimits(ring=3)), Screen()
    since = Position(1, EPOCH)
    (need,) = join(watched, screen, since)
    assert isinstance(need, RowsNeeded)
    assert need.subscription.add_rows(rows, oldest=5) == ViewerTooSlow(screen.viewer)
    assert watched.subscribe(Screen().viewer, CHANNEL, NATIVE, since) == SubscribeReply(
        EPOCH, 9, recovered=False
    )


def test_rows_for_a_viewer_who_has_left_are_dropped() -> None:
    watched, screen = relay(*entries(1, 9), limits=StreamLimits(ring=3)), Screen()
    (need,) = join(watched, screen, Position(1))
    assert isinstance(need, RowsNeeded)
    screen.viewer.end()
    assert need.subscription.add_rows(entries(2, 4), oldest=1) is None
    assert screen.summaries() == []


def test_every_viewer_reads_from_the_table_if_there_is_more_at_once_than_the_ring_holds() -> None:
    watched, screen = relay(limits=StreamLimits(ring=3)), Screen()
    join(watched, screen)
    watched.stream.add_entries(entries(1, 5), EPOCH)
    (need,) = watched.send()
    assert isinstance(need, RowsNeeded)
    need.subscription.add_rows(entries(1, 2), oldest=1)
    assert screen.summaries() == ["1", "2", "3", "4", "5"]


def test_bytes_are_whole_frames() -> None:
    watched, screen = relay(*entries(1, 3)), Screen()
    join(watched, screen, Position(0))
    assert list(bodies(b"".join(screen.writes))) == [each.body for each in entries(1, 3)]
