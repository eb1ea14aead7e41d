"""The chunks that an adapter sends: their numbers, their attempts, and the end of a stream."""

import pytest
from hypothesis import given, strategies as st

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.state.events import (
    StreamEventReceived,
)
from tests.agent_domain.state.broadcasts import (
    MINIMAL,
    NOW,
    UNTRACKED,
    an_adapter,
    record_envelopes,
    step_start,
    text_event,
)


def test_empty_content_is_dropped_and_not_counted() -> None:
    """7.6.1."""
    events = [text_event(""), text_event("a"), text_event(""), text_event("b")]
    assert record_envelopes(events).summaries() == ["1.1#0 a", "1.1#1 b"]


def test_chunks_are_numbered_from_zero_in_every_attempt_of_every_step() -> None:
    """7.6.1."""
    events = [
        text_event("a"),
        text_event("b"),
        text_event("c", 1, 2),
        text_event("d", 1, 2),
        step_start(2),
        text_event("e", 2),
    ]
    assert [summary for summary in record_envelopes(events, UNTRACKED).summaries() if "#" in summary] == [
        *("1.1#0 a", "1.1#1 b"),
        *("1.2#0 c", "1.2#1 d"),
        "2.1#0 e",
    ]


def test_a_stream_that_ends_well_is_closed_by_one_empty_chunk() -> None:
    """7.6.2: counted, and the only one that is complete."""
    chunks = record_envelopes(
        [text_event("a"), text_event("b"), text_event("", last=True), text_event("", last=True)]
    ).of("agent.stream.chunk")
    assert [(c["content"], c["is_complete"], c["chunk_index"]) for c in chunks] == [
        ("a", False, 0),
        ("b", False, 1),
        ("", True, 2),
    ]


def test_the_last_text_comes_before_the_closing_chunk() -> None:
    """7.6.2: the chunk that closes a stream is empty."""
    assert record_envelopes([text_event("a", last=True)]).summaries() == ["1.1#0 a", "1.1#1 (end)"]


def test_a_stream_without_text_is_not_closed() -> None:
    """7.6.2."""
    assert record_envelopes([text_event("", last=True)]).sent == []


def test_nothing_follows_the_closing_chunk() -> None:
    """7.6.2."""
    assert record_envelopes([text_event("a", last=True), text_event("b")]).summaries() == [
        "1.1#0 a",
        "1.1#1 (end)",
    ]


def test_a_chunk_does_not_contain_the_envelope_that_it_follows() -> None:
    """7.2, 7.1.1: numbers are assigned by the store."""
    (chunk,) = record_envelopes([text_event("a")]).sent
    assert chunk.payload["after_seq"] is None
    assert chunk.seq is None


def test_an_attempt_superseded_after_chunks_is_announced_before_the_next_one_writes() -> None:
    """7.6.3."""
    recorder = record_envelopes([text_event("a"), text_event("b", 1, 2), text_event("", 1, 2, last=True)])
    assert recorder.summaries() == ["1.1#0 a", "superseded 1.1 by 2", "1.2#0 b", "1.2#1 (end)"]


def test_an_attempt_superseded_after_it_was_closed_is_announced_as_well() -> None:
    """7.6.3: its chunks were sent, and readers must drop them."""
    recorder = record_envelopes([text_event("a", last=True), text_event("b", 1, 3)])
    assert recorder.summaries() == ["1.1#0 a", "1.1#1 (end)", "superseded 1.1 by 3", "1.3#0 b"]


def test_an_attempt_superseded_without_chunks_is_not_announced() -> None:
    """7.6.3."""
    assert record_envelopes([text_event(""), text_event("b", 1, 2)]).summaries() == ["1.2#0 b"]


def test_nothing_of_an_attempt_is_sent_after_the_next_one_wrote() -> None:
    """7.6.3, and nothing of a step after the next has begun."""
    late = [text_event("a"), text_event("b", 1, 2), text_event("late"), text_event("", last=True)]
    assert record_envelopes(late).summaries() == ["1.1#0 a", "superseded 1.1 by 2", "1.2#0 b"]
    assert record_envelopes([step_start(2), text_event("late", 1)], UNTRACKED).summaries() == ["step.started"]


def test_an_attempt_can_be_superseded_manually() -> None:
    """7.6.3: announced if it wrote; the next begins at index 0."""
    adapter, recorder = an_adapter(UNTRACKED)
    adapter.on_agent_step_started(step_start())
    adapter.on_attempt_superseded()
    adapter.on_stream_chunk("a")
    adapter.on_attempt_superseded()
    adapter.on_stream_chunk("b")
    adapter.on_attempt_superseded(7)
    adapter.on_stream_chunk("c", is_complete=True)
    assert recorder.summaries() == [
        "step.started",
        "1.2#0 a",
        "superseded 1.2 by 3",
        "1.3#0 b",
        "superseded 1.3 by 7",
        "1.7#0 c",
        "1.7#1 (end)",
    ]


@pytest.mark.parametrize("next_attempt", [0, 1])
def test_an_attempt_is_superseded_by_a_later_one(next_attempt: int) -> None:
    """7.6.3."""
    adapter, _ = an_adapter()
    with pytest.raises(InvalidInput, match="next_attempt"):
        adapter.on_attempt_superseded(next_attempt)


def test_text_belongs_to_the_step_and_attempt_under_way_by_default() -> None:
    """7.1.2, 7.6.1."""
    adapter, recorder = an_adapter(UNTRACKED)
    adapter.on_stream_chunk("before any step")
    adapter.on_agent_step_started(step_start(1))
    adapter.on_stream_chunk("a")
    adapter.on_stream_chunk("b", attempt=2)
    adapter.on_stream_chunk("c")
    adapter.on_stream_chunk("d", step_number=2)
    adapter.on_stream_chunk("e", step_number=3, attempt=4, is_complete=True)
    assert recorder.summaries() == [
        "1.1#0 before any step",
        "step.started",
        "1.1#1 a",
        "superseded 1.1 by 2",
        "1.2#0 b",
        "1.2#1 c",
        "2.1#0 d",
        "3.4#0 e",
        "3.4#1 (end)",
    ]
    assert {e.timestamp for e in recorder.sent if e.type == "agent.stream.chunk"} == {NOW}


def test_without_chunks_no_attempt_is_announced_either() -> None:
    """7.5, 7.6.3: readers received nothing that they would have to drop."""
    adapter, recorder = an_adapter(MINIMAL)
    for event in (text_event("a"), text_event("b", 1, 2, last=True)):
        adapter.on_stream_chunk(event)
    adapter.on_attempt_superseded()
    assert recorder.sent == []


STREAMS = st.lists(
    st.builds(
        text_event,
        st.sampled_from(["", "a", "漢", "🙂b"]),
        st.integers(1, 3),
        st.integers(1, 4),
        last=st.booleans(),
    ),
    max_size=40,
)


@given(STREAMS)
def test_a_reader_can_follow_any_stream(events: list[StreamEventReceived]) -> None:
    """7.6.1, 7.6.2, 7.6.3: for any events, in any order."""
    recorder = record_envelopes(events)
    next_index: dict[tuple[int, int], int] = {}
    over: set[tuple[int, int]] = set()
    for envelope in recorder.sent:
        payload = envelope.payload
        attempt = (payload["step_number"], payload["attempt"])
        if envelope.type == "agent.attempt.superseded":
            assert attempt in next_index
            assert payload["next_attempt"] > payload["attempt"]
            over.add(attempt)
            continue
        assert payload["chunk_index"] == next_index.get(attempt, 0)
        assert attempt not in over
        assert attempt >= max(next_index, default=attempt)
        assert payload["is_complete"] == (payload["content"] == "")
        next_index[attempt] = payload["chunk_index"] + 1
        if payload["is_complete"]:
            assert payload["chunk_index"] > 0
            over.add(attempt)
    latest_attempts = {step: max(a for s, a in next_index if s == step) for step, _ in next_index}
    superseded = {(p["step_number"], p["attempt"]) for p in recorder.of("agent.attempt.superseded")}
    assert {attempt for attempt in next_index if attempt[1] < latest_attempts[attempt[0]]} <= superseded
    assert len({envelope.id for envelope in recorder.sent}) == len(recorder.sent)
