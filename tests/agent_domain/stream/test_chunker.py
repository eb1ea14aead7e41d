"""Text split into chunks, with a controlled clock."""

from itertools import accumulate, pairwise

from hypothesis import given, strategies as st

from everstep.agent_domain.stream.chunker import CHUNK_INTERVAL_SECONDS, MAX_CHUNK_CHARACTERS, Chunker, Piece

WORDS = st.text(max_size=3 * MAX_CHUNK_CHARACTERS) | st.sampled_from(
    ["", "a", "Well, ", "x" * MAX_CHUNK_CHARACTERS]
)
WAITS = st.sampled_from([0.0, 0.001, CHUNK_INTERVAL_SECONDS / 2, CHUNK_INTERVAL_SECONDS, 1.0])


def contents(pieces: list[Piece]) -> list[str]:
    return [piece.content for piece in pieces]


def feed(cutter: Chunker, text: str, now: float) -> list[str]:
    cutter.feed(text)
    return contents(cutter.take_due(now))


def test_the_first_text_is_due_at_once_and_the_next_after_an_interval() -> None:
    """Follows rule 7.6.1."""
    cutter = Chunker()
    assert cutter.due_at is None
    assert feed(cutter, "Well", 10.0) == ["Well"]
    assert cutter.due_at is None
    assert feed(cutter, ", ", 10.001) == []
    assert feed(cutter, "yes", 10.01) == []
    assert cutter.due_at == 10.0 + CHUNK_INTERVAL_SECONDS
    assert contents(cutter.take_due(10.0 + CHUNK_INTERVAL_SECONDS)) == [", yes"]
    assert cutter.due_at is None


def test_after_a_silence_text_is_due_at_once() -> None:
    cutter = Chunker()
    assert feed(cutter, "Well", 10.0) == ["Well"]
    assert feed(cutter, ", yes", 11.0) == [", yes"]


def test_much_text_does_not_wait() -> None:
    cutter = Chunker()
    assert feed(cutter, "a", 10.0) == ["a"]
    assert feed(cutter, "b" * (MAX_CHUNK_CHARACTERS - 1), 10.0) == []
    assert feed(cutter, "cd", 10.0) == ["b" * (MAX_CHUNK_CHARACTERS - 1) + "c"]
    assert cutter.due_at == 10.0 + CHUNK_INTERVAL_SECONDS


def test_buffered_text_is_sent_before_the_end_and_the_end_is_counted() -> None:
    """7.6.2: it is empty."""
    cutter = Chunker()
    assert feed(cutter, "Well", 10.0) == ["Well"]
    cutter.feed(", yes")
    assert cutter.finish() == [Piece(1, 4, ", yes"), Piece(2, 9, "")]


def test_an_empty_attempt_has_no_end() -> None:
    """7.6.1, 7.6.2."""
    cutter = Chunker()
    assert feed(cutter, "", 10.0) == []
    assert cutter.finish() == []


@given(st.lists(st.tuples(WORDS, WAITS), max_size=30))
def test_the_pieces_are_the_text(spoken: list[tuple[str, float]]) -> None:
    """7.6.1, 7.6.2: whole, counted without a gap, none too large, and none too early unless full."""
    cutter, now, due = Chunker(), 100.0, list[tuple[float, Piece]]()
    for text, wait in spoken:
        # Like the shell, which checks when something is due, and when text arrives.
        at = cutter.due_at
        if at is not None and at <= now + wait:
            due += [(at, piece) for piece in cutter.take_due(at)]
        now += wait
        cutter.feed(text)
        due += [(now, piece) for piece in cutter.take_due(now)]
        assert cutter.due_at is None or now < cutter.due_at <= now + CHUNK_INTERVAL_SECONDS
    ended = cutter.finish()
    pieces = [*(piece for _, piece in due), *ended]

    assert "".join(contents(pieces)) == "".join(text for text, _ in spoken)
    assert [piece.index for piece in pieces] == list(range(len(pieces)))
    assert [piece.offset for piece in pieces] == [
        0,
        *accumulate(len(piece.content) for piece in pieces[:-1]),
    ][: len(pieces)]
    assert all(0 < len(piece.content) <= MAX_CHUNK_CHARACTERS for piece in pieces[:-1])
    assert [piece.content for piece in pieces[-1:]] == ([""] if pieces else [])
    for (before, _), (at, piece) in pairwise(due):
        assert at >= before + CHUNK_INTERVAL_SECONDS or len(piece.content) == MAX_CHUNK_CHARACTERS
