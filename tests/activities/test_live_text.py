"""The text of a model, on its way to viewers."""

import asyncio
from collections.abc import Sequence
from typing import Any
from uuid import UUID, uuid4

import pytest

from everstep.activities.live_text import LiveTexts
from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.loop.step_facts import StepFacts
from everstep.agent_domain.storage.steps import BeginStep, BegunStep
from everstep.agent_domain.stream.bus import TextChunk
from everstep.agent_domain.stream.chunker import MAX_CHUNK_CHARACTERS
from everstep.agent_domain.stream.records import StoredEnvelope

REF = ExecutionRef(uuid4(), session_id=uuid4())
MATERIAL: Any = None


def begins(attempt: int = 1, number: int = 3) -> BeginStep:
    return BeginStep(REF, number, attempt, None)


def has_begun(previous: int | None = None, recorded: StepFacts | None = None) -> BegunStep:
    return BegunStep(MATERIAL, recorded, previous, after_seq=7)


class RecordingBus:
    """A bus that keeps chunks and notifies the test of each."""

    def __init__(self) -> None:
        self.chunks: list[TextChunk] = []
        self.is_watched = True
        self.came = asyncio.Event()

    def has_subscribers(self, stream_id: UUID) -> bool:
        return self.is_watched and stream_id == REF.stream_id

    def publish(self, stream_id: UUID, envelopes: Sequence[StoredEnvelope]) -> None:
        raise NotImplementedError

    def publish_chunk(self, stream_id: UUID, chunk: TextChunk) -> None:
        assert stream_id == REF.stream_id
        self.chunks.append(chunk)
        self.came.set()

    @property
    def contents(self) -> list[tuple[int, str]]:
        return [(chunk.index, chunk.content) for chunk in self.chunks]


@pytest.fixture
def bus() -> RecordingBus:
    return RecordingBus()


@pytest.fixture
def texts(bus: RecordingBus) -> LiveTexts:
    return LiveTexts(bus)


async def test_nothing_is_published_before_the_step_is_stored(texts: LiveTexts, bus: RecordingBus) -> None:
    """Follows rules 7.2 and 7.6.2: a chunk names its attempt and its predecessor; the last one ends the
    attempt.
    """
    with texts.open_text(begins(), is_public=True) as text:
        text.add_text("Well, ")
        text.add_text("yes")
        assert bus.chunks == []
        text.on_start(has_begun())
        assert bus.contents == [(0, "Well, yes")]
        text.finish()

    assert bus.contents == [(0, "Well, yes"), (1, "")]
    first, last = bus.chunks
    assert (first.ref, first.attempt.step_number, first.attempt.number) == (REF, 3, 1)
    assert (first.offset, last.offset) == (0, 9)
    assert (first.after_seq, last.after_seq) == (7, 7)


async def test_buffered_text_is_published_without_further_input(texts: LiveTexts, bus: RecordingBus) -> None:
    """Follows rule 7.6.1."""
    with texts.open_text(begins(), is_public=True) as text:
        text.on_start(has_begun())
        text.add_text("Well")
        text.add_text(", ")
        text.add_text("yes")
        assert bus.contents == [(0, "Well")]
        bus.came.clear()
        await asyncio.wait_for(bus.came.wait(), 10)
        assert bus.contents == [(0, "Well"), (1, ", yes")]
        text.add_text("x" * MAX_CHUNK_CHARACTERS)
        assert bus.contents[2:] == [(2, "x" * MAX_CHUNK_CHARACTERS)]


async def test_a_silent_attempt_is_not_published(texts: LiveTexts, bus: RecordingBus) -> None:
    """7.6.1, 7.6.2."""
    with texts.open_text(begins(), is_public=True) as text:
        text.on_start(has_begun())
        text.add_text("")
        text.finish()
    assert bus.chunks == []


async def test_text_from_before_the_stored_beginning_may_never_be_published(
    texts: LiveTexts, bus: RecordingBus
) -> None:
    with texts.open_text(begins(), is_public=True) as text:
        text.add_text("Yes")
        text.finish()
    assert bus.chunks == []


async def test_an_attempt_that_failed_has_no_end(texts: LiveTexts, bus: RecordingBus) -> None:
    """7.6.2: only a successful one does; its buffered text is void."""
    with texts.open_text(begins(), is_public=True) as text:
        text.on_start(has_begun())
        text.add_text("Well, ")
        text.add_text("yes")

    text.add_text("!")
    text.finish()
    assert bus.contents == [(0, "Well, ")]


@pytest.mark.parametrize("void", [has_begun(previous=2), has_begun(recorded=StepFacts(3))])
async def test_a_late_attempt_is_not_published(texts: LiveTexts, bus: RecordingBus, void: BegunStep) -> None:
    """7.6.3: another attempt has begun, or the step has its reply."""
    with texts.open_text(begins(), is_public=True) as text:
        text.add_text("Well, ")
        text.on_start(void)
        text.add_text("yes")
        text.finish()
    assert (bus.chunks, text.unrecorded, text.is_published) == ([], "", False)


async def test_a_hung_attempt_is_not_published_once_the_next_one_has_begun_here(
    texts: LiveTexts, bus: RecordingBus
) -> None:
    """7.6.3: nor after that one has ended."""
    with texts.open_text(begins(), is_public=True) as hung:
        hung.on_start(has_begun())
        hung.add_text("Well, ")
        with texts.open_text(begins(2), is_public=True) as text:
            hung.add_text("no")
            text.on_start(has_begun(previous=1))
            text.add_text("Yes")
            text.finish()
            hung.add_text("!")
        hung.add_text("?")
        hung.finish()

    assert [(c.attempt.number, c.index, c.content) for c in bus.chunks] == [
        (1, 0, "Well, "),
        (2, 0, "Yes"),
        (2, 1, ""),
    ]


class Notes:
    """A store that keeps partial texts, each with its place."""

    def __init__(self) -> None:
        self.kept: list[tuple[str, int | None, int | None]] = []
        self.received = 0

    async def note_partial(
        self,
        ref: ExecutionRef,
        number: int,
        attempt: int,
        text: str,
        *,
        next_index: int | None = None,
        after_seq: int | None = None,
        offset: int = 0,
    ) -> bool:
        assert (ref, number, attempt) == (REF, 3, 1)
        before = self.kept[-1][0][:offset] if self.kept else ""
        assert len(before) == offset
        self.received += len(text)
        self.kept.append((before + text, next_index, after_seq))
        return True


async def test_text_is_kept_without_publishing(texts: LiveTexts, bus: RecordingBus) -> None:
    """7.5: without chunks the text so far is there for readers of the row, and has no place for viewers."""
    notes: Any = Notes()
    with texts.open_text(begins(), is_public=False) as text:
        text.on_start(has_begun())
        text.add_text("Yes")
        text.finish()
        await text.record(notes)
    assert (bus.chunks, text.is_published) == ([], False)
    assert notes.kept == [("Yes", None, 7)]


async def test_a_viewer_who_joins_in_the_middle_continues_from_the_kept_text(
    texts: LiveTexts, bus: RecordingBus
) -> None:
    """7.8.4: the text of an unwatched step is chunked all the same, and kept up to a chunk's end."""
    notes: Any = Notes()
    bus.is_watched = False
    with texts.open_text(begins(), is_public=True) as text:
        text.on_start(has_begun())
        text.add_text("Well")
        text.add_text(", ")
        await text.record(notes)
        text.add_text("x" * MAX_CHUNK_CHARACTERS)
        assert bus.chunks == []
        bus.is_watched = True
        await text.record(notes)
        text.finish()
        assert text.is_published

    cut = "Well, " + "x" * MAX_CHUNK_CHARACTERS
    # Each part is sent once, and not kept here.
    assert notes.received == 4 + MAX_CHUNK_CHARACTERS
    assert notes.kept == [("Well", 1, 7), (cut[: 4 + MAX_CHUNK_CHARACTERS], 2, 7)]
    assert bus.contents == [(2, "xx"), (3, "")]


async def test_the_kept_text_and_the_chunks_after_it_are_the_whole_text(
    texts: LiveTexts, bus: RecordingBus
) -> None:
    """7.8.4: wherever a viewer joins."""
    notes: Any = Notes()
    with texts.open_text(begins(), is_public=True) as text:
        text.on_start(has_begun())
        for length in (1, 7, MAX_CHUNK_CHARACTERS, 3, 2 * MAX_CHUNK_CHARACTERS + 1):
            text.add_text("abc"[: length % 3] + "x" * length)
            await text.record(notes)
        text.finish()

    whole = "".join(chunk.content for chunk in bus.chunks)
    for content, index, _ in notes.kept:
        assert index is not None
        assert content + "".join(chunk.content for chunk in bus.chunks[index:]) == whole


class Unreachable(RecordingBus):
    def publish_chunk(self, stream_id: UUID, chunk: TextChunk) -> None:
        super().publish_chunk(stream_id, chunk)
        raise ConnectionResetError


async def test_a_failing_bus_does_not_cost_the_reply() -> None:
    bus, notes = Unreachable(), Notes()
    store: Any = notes
    with LiveTexts(bus).open_text(begins(), is_public=True) as text:
        text.on_start(has_begun())
        text.add_text("x" * 3 * MAX_CHUNK_CHARACTERS)
        text.finish()
        await text.record(store)
    assert len(bus.chunks) == 1
    assert notes.kept == [("x" * 3 * MAX_CHUNK_CHARACTERS, 4, 7)]
