"""The reader's rule: envelopes by `seq`, and text by its attempt and index."""

from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, strategies as st

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.loop.status import WireStatus
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.stream import envelopes
from everstep.agent_domain.stream.envelopes import Attempt, Envelope
from everstep.agent_domain.stream.reader import (
    MAX_DRAFTS,
    MAX_EPOCH,
    MAX_NUMBER,
    MAX_REMEMBERED_ENDS,
    Draft,
    Place,
    Position,
    Reader,
    ReadOutcome,
)
from everstep.agent_domain.stream.records import EventRecord
from everstep.agent_domain.values import FrozenDict

SESSION, EXECUTION, OTHER = (UUID(int=number) for number in range(1, 4))
AT = datetime(2026, 1, 16, 10, 5, tzinfo=UTC)
APPLIED, DROPPED, RESYNC = ReadOutcome


def an_envelope(record: EventRecord, seq: int | None = None, execution_id: UUID = EXECUTION) -> Envelope:
    envelope = Envelope.of(record, SESSION, execution_id, AT)
    return envelope if seq is None else envelope.numbered(seq)


def a_stored_envelope(seq: int) -> Envelope:
    return an_envelope(envelopes.tool_started_record("call_1", "add", {}, step_number=1), seq)


def step_end(seq: int, step: int = 1) -> Envelope:
    record = envelopes.step_completed_record(
        step, has_tool_calls=False, errors=0, finish_reason=None, usage=Usage(), duration_ms=1.0
    )
    return an_envelope(record, seq)


def status(seq: int, now: WireStatus, execution_id: UUID = EXECUTION) -> Envelope:
    record = envelopes.status_changed_record(now, WireStatus.PROCESSING, change=seq, step_count=1)
    return an_envelope(record, seq, execution_id)


def attempt_end(seq: int, attempt: int = 1) -> Envelope:
    return an_envelope(envelopes.attempt_superseded_record(Attempt(1, attempt), attempt + 1), seq)


def chunk(
    index: int, content: str = "x", *, step: int = 1, attempt: int = 1, of: UUID = EXECUTION
) -> Envelope:
    record = envelopes.stream_chunk_record(Attempt(step, attempt), index, content, is_complete=not content)
    return an_envelope(record, execution_id=of)


def snapshot(next_index: int, content: str, *, step: int = 1, attempt: int = 1) -> Envelope:
    return an_envelope(envelopes.stream_snapshot_record(Attempt(step, attempt), next_index, content, None))


def text(reader: Reader, execution_id: UUID = EXECUTION) -> str:
    return reader.drafts[execution_id].content


# Stored envelopes.


def test_stored_envelopes_are_applied_in_order_and_once() -> None:
    """7.8.3: the next is applied, any up to the last dropped, anything higher asks to resync."""
    reader = Reader()
    taken = [reader.take(a_stored_envelope(seq)) for seq in (1, 2, 2, 1, 4, 3, 4)]
    assert taken == [APPLIED, APPLIED, DROPPED, DROPPED, RESYNC, APPLIED, APPLIED]
    assert reader.position == Position(4)


@given(st.lists(st.integers(1, 8), max_size=40))
def test_applied_envelopes_are_consecutive_for_any_input(numbers: list[int]) -> None:
    """7.8.3"""
    reader = Reader()
    applied = [seq for seq in numbers if reader.take(a_stored_envelope(seq)) is APPLIED]
    assert applied == list(range(1, len(applied) + 1))


def test_a_reader_who_resumes_continues_from_its_position() -> None:
    """7.8.4"""
    reader = Reader(Position(5, "of-now"))
    reader.joined("of-now", 5, recovered=True)
    assert reader.take(a_stored_envelope(6)) is APPLIED
    assert reader.position == Position(6, "of-now")


def test_a_reader_who_was_not_recovered_starts_over() -> None:
    """7.8.4: its text belongs to a history that may have changed."""
    reader = Reader(Position(5, "of-then"))
    reader.take(chunk(0))
    reader.take(status(6, WireStatus.FAILED, OTHER))
    reader.joined("of-now", 2, recovered=False)
    assert reader.position == Position(2, "of-now")
    assert reader.take(chunk(0, of=OTHER)) is APPLIED


# Streamed envelopes.


def test_chunks_are_applied_in_order_and_once() -> None:
    """7.8.4: a chunk at the expected index is appended, one below dropped, one above asks to resync."""
    reader = Reader()
    taken = [reader.take(chunk(index, str(index))) for index in (0, 1, 1, 3, 2, 3, 0)]
    assert taken == [APPLIED, APPLIED, DROPPED, RESYNC, APPLIED, APPLIED, DROPPED]
    assert text(reader) == "0123"
    assert reader.position.drafts == {EXECUTION: Place(1, 1, 4)}


def test_the_closing_chunk_completes_the_text() -> None:
    """7.6.2"""
    reader = Reader()
    reader.take(chunk(0, "done"))
    assert not reader.drafts[EXECUTION].is_complete
    reader.take(chunk(1, ""))
    assert reader.drafts[EXECUTION].is_complete


def test_a_later_attempt_starts_over_and_an_earlier_one_is_ignored() -> None:
    """7.6.3"""
    reader = Reader()
    reader.take(chunk(0, "first"))
    assert reader.take(chunk(0, "second", attempt=2)) is APPLIED
    assert reader.take(chunk(1, "late")) is DROPPED
    assert reader.take(attempt_end(1)) is APPLIED
    assert text(reader) == "second"


def test_a_later_attempt_joined_in_the_middle_has_no_text_yet() -> None:
    """7.8.4"""
    reader = Reader()
    reader.take(chunk(0, "first"))
    assert reader.take(chunk(3, "of it", attempt=2)) is RESYNC
    assert text(reader) == ""
    assert reader.take(snapshot(4, "all of it", attempt=2)) is APPLIED
    assert text(reader) == "all of it"


def test_a_superseded_attempt_has_no_text() -> None:
    """7.6.3: readers drop its text as soon as they learn of it."""
    reader = Reader()
    reader.take(chunk(0, "first"))
    reader.take(attempt_end(1))
    assert text(reader) == ""
    assert reader.take(chunk(1, "late")) is DROPPED
    assert reader.position.drafts == {EXECUTION: Place(1, 2, 0)}


def test_a_snapshot_replaces_the_text() -> None:
    """7.8.4: and the reader continues at its `next_index`."""
    reader = Reader()
    reader.take(chunk(0, "one "))
    assert reader.take(snapshot(3, "one two three ")) is APPLIED
    assert reader.take(chunk(2, "three ")) is DROPPED
    assert reader.take(chunk(3, "four")) is APPLIED
    assert text(reader) == "one two three four"


@pytest.mark.parametrize(
    "old", [snapshot(1, "one "), snapshot(2, "one two "), snapshot(9, "all of it", attempt=1)]
)
def test_a_snapshot_without_news_is_dropped(old: Envelope) -> None:
    """7.8.4: one of the same attempt that is no longer, and any of an earlier one."""
    reader = Reader()
    attempt = 2 if old.payload["next_index"] == 9 else 1
    reader.take(chunk(0, "one ", attempt=attempt))
    reader.take(chunk(1, "two ", attempt=attempt))
    assert reader.take(old) is DROPPED
    assert text(reader) == "one two "


def test_nothing_is_added_to_a_completed_step() -> None:
    """7.8.4: the text stays until its stored message is there."""
    reader = Reader()
    reader.take(chunk(0, "said"))
    reader.take(step_end(1))
    assert reader.take(chunk(1, "late")) is DROPPED
    assert reader.take(snapshot(5, "late")) is DROPPED
    assert text(reader) == "said"
    assert reader.drafts[EXECUTION].is_settled
    assert reader.position.drafts == {}
    assert reader.take(chunk(0, "next", step=2)) is APPLIED
    assert text(reader) == "next"


def test_the_stored_message_wins_over_the_text() -> None:
    """7.8.4: before or after the end of the step."""
    for first in (True, False):
        reader = Reader()
        reader.take(chunk(0, "sa"))
        if first:
            reader.take(step_end(1))
        reader.settle(EXECUTION, 1, "said")
        assert text(reader) == "said"
        assert reader.drafts[EXECUTION].is_complete
        assert reader.take(chunk(1, "id")) is DROPPED


def test_the_message_of_another_step_changes_no_text() -> None:
    reader = Reader()
    reader.settle(EXECUTION, 1, "nobody reads it")
    assert reader.drafts == {}
    reader.take(chunk(0, "second", step=2))
    reader.settle(EXECUTION, 1, "first")
    assert text(reader) == "second"
    assert reader.take(chunk(1, " step", step=2)) is APPLIED


def test_a_step_may_write_before_the_end_of_the_previous_one_arrives() -> None:
    """The end of a step and the beginning of the next are stored together, a moment later."""
    reader = Reader()
    reader.take(chunk(0, "next", step=2))
    assert reader.take(step_end(1, step=1)) is APPLIED
    assert text(reader) == "next"


def test_executions_of_one_session_write_side_by_side() -> None:
    """7.1.1"""
    reader = Reader()
    reader.take(chunk(0, "mine"))
    reader.take(chunk(0, "yours", of=OTHER))
    reader.take(step_end(1))
    assert reader.take(chunk(1, ", too", of=OTHER)) is APPLIED
    assert (text(reader), text(reader, OTHER)) == ("mine", "yours, too")
    assert reader.position.drafts == {OTHER: Place(1, 1, 2)}


def test_of_too_many_drafts_a_position_names_the_last() -> None:
    """7.8.4: the reader's next position is one that the gateway accepts."""
    reader, ids = Reader(), [UUID(int=number) for number in range(1, MAX_DRAFTS + 2)]
    for of in ids:
        reader.take(chunk(0, "text", of=of))
    assert [*reader.position.drafts] == ids[1:]
    assert Position.from_dict(reader.position.to_dict()) == reader.position


def test_an_execution_that_has_ended_writes_no_more() -> None:
    """7.4.2: its terminal status is its last envelope."""
    reader = Reader()
    reader.take(chunk(0))
    reader.take(status(1, WireStatus.PAUSED))
    assert reader.take(chunk(1)) is APPLIED
    reader.take(status(2, WireStatus.CANCELLED))
    assert reader.take(chunk(2)) is DROPPED
    assert reader.drafts == {}


def test_the_number_of_remembered_ends_is_limited() -> None:
    reader = Reader()
    for number in range(MAX_REMEMBERED_ENDS + 1):
        reader.take(status(number + 1, WireStatus.COMPLETED, UUID(int=number + 10)))
    assert reader.take(chunk(0, of=UUID(int=11))) is DROPPED
    assert reader.take(chunk(0, of=UUID(int=10))) is APPLIED


def test_unknown_streamed_types_are_dropped() -> None:
    """Later versions may stream other types."""
    thought = replace(chunk(0), type="agent.stream.thought")
    assert Reader().take(thought) is DROPPED


@pytest.mark.parametrize(
    "changed",
    [
        {"chunk_index": -1},
        {"chunk_index": None},
        {"chunk_index": MAX_NUMBER + 1},
        {"attempt": 0},
        {"step_number": True},
        {"content": 5},
    ],
)
def test_a_payload_that_cannot_be_read_is_refused(changed: dict[str, Any]) -> None:
    good = chunk(0)
    bad = Envelope.from_dict(good.to_dict() | {"payload": {**good.payload, **changed}})
    with pytest.raises(InvalidInput, match=r"the payload of agent\.stream\.chunk cannot be read"):
        Reader().take(bad)


@pytest.mark.parametrize("envelope", [chunk(0), snapshot(1, "text")])
@pytest.mark.parametrize("missing", ["content", "is_complete"])
def test_unreadable_input_leaves_no_trace(envelope: Envelope, missing: str) -> None:
    """7.8.4: the reader's next position is one that the gateway accepts."""
    payload = {name: value for name, value in envelope.payload.items() if name != missing}
    reader = Reader()
    with suppress(InvalidInput):
        reader.take(replace(envelope, payload=FrozenDict(payload)))
    assert Position.from_dict(reader.position.to_dict()) == reader.position


def test_a_draft_may_begin_with_a_later_attempt() -> None:
    draft = Draft((3, 2))
    assert draft.take(Place(3, 1, 0), "late", False) is DROPPED
    assert draft.take(Place(3, 2, 0), "now", False) is APPLIED
    draft.fence((3, 1))
    assert draft.content == "now"


# Positions.


PLACES = st.builds(Place, st.integers(0, MAX_NUMBER), st.integers(1, MAX_NUMBER), st.integers(0, MAX_NUMBER))
POSITIONS = st.builds(
    Position,
    st.integers(0, MAX_NUMBER),
    st.none() | st.text(st.characters(codec="ascii", exclude_characters="\0"), max_size=MAX_EPOCH),
    st.dictionaries(st.uuids(), PLACES, max_size=3),
)


@given(POSITIONS)
def test_a_position_reads_back_as_it_was_written(position: Position) -> None:
    """7.8.4"""
    assert Position.from_dict(position.to_dict()) == position


def test_a_position_is_written_with_its_drafts() -> None:
    """7.8.4"""
    assert Position(7, "of-now").to_dict() == {"epoch": "of-now", "seq": 7}
    assert Position(7, None, {EXECUTION: Place(2, 1, 40)}).to_dict() == {
        "epoch": None,
        "seq": 7,
        "drafts": [{"execution_id": str(EXECUTION), "step_number": 2, "attempt": 1, "next_index": 40}],
    }


DRAFT = {"execution_id": str(EXECUTION), "step_number": 1, "attempt": 1, "next_index": 0}


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"seq": None},
        {"seq": -1},
        {"seq": 1.0},
        {"seq": MAX_NUMBER + 1},
        {"seq": 1, "epoch": 7},
        {"seq": 1, "epoch": "e" * (MAX_EPOCH + 1)},
        {"seq": 1, "drafts": {}},
        {"seq": 1, "drafts": [7]},
        {"seq": 1, "drafts": [DRAFT | {"execution_id": 7}]},
        {"seq": 1, "drafts": [DRAFT | {"attempt": 0}]},
        {"seq": 1, "drafts": [DRAFT] * (MAX_DRAFTS + 1)},
        [],
        "seq",
    ],
)
def test_a_position_that_cannot_be_read_is_refused(data: Any) -> None:
    """7.8.4"""
    with pytest.raises(InvalidInput, match="the position cannot be read"):
        Position.from_dict(data)
