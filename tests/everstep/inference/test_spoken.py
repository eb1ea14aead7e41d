"""Text that arrives in chunks."""

import pytest
from hypothesis import given, strategies as st

from everstep.inference.spoken import AnswerText, storable


def publish_chunks(*pieces: str) -> tuple[list[str], str]:
    """The new text after each chunk, and the text of all of them."""
    spoken = AnswerText()
    news: list[str] = []
    for piece in pieces:
        spoken.append(piece)
        news.append(spoken.take_new())
    return news, spoken.text


def test_each_chunk_is_published_once() -> None:
    assert publish_chunks("Hel", "", "lo") == (["Hel", "", "lo"], "Hello")


def test_chunks_may_be_published_together() -> None:
    spoken = AnswerText()
    spoken.append("Hel")
    spoken.append("lo")

    assert (spoken.take_new(), spoken.take_new(), spoken.text) == ("Hello", "", "Hello")


@pytest.mark.parametrize(
    ("pieces", "news", "text"),
    [
        (("a\x00b", "\x00", "c"), ["ab", "", "c"], "abc"),
        (("\ud83d", "\ude00!"), ["", "😀!"], "😀!"),
        (("\ud83d", "", "\ude00"), ["", "", "😀"], "😀"),
        (("a\ud83d", "b"), ["a", "\ufffdb"], "a\ufffdb"),
        (("\ude00",), ["\ufffd"], "\ufffd"),
        (("a\ud83d",), ["a"], "a"),
    ],
)
def test_only_storable_text_is_published(pieces: list[str], news: list[str], text: str) -> None:
    assert publish_chunks(*pieces) == (news, text)


def test_a_paragraph_begins_with_the_next_text_if_there_was_any_before() -> None:
    spoken = AnswerText()
    spoken.begin_paragraph()
    spoken.append("One")
    spoken.begin_paragraph()
    spoken.begin_paragraph()
    spoken.append("")
    spoken.append("Two")
    spoken.append("!")
    spoken.begin_paragraph()

    assert spoken.text == "One\n\nTwo!"
    assert spoken.take_new() == "One\n\nTwo!"


@given(st.lists(st.text()))
def test_the_published_text_is_the_returned_text(pieces: list[str]) -> None:
    news, text = publish_chunks(*pieces)

    assert "".join(news) == text == "".join(pieces).replace("\x00", "")


@given(st.text(st.characters(codec=None)))
def test_any_text_becomes_storable(text: str) -> None:
    stored = storable(text)

    assert "\x00" not in stored
    assert stored.encode().decode() == stored
    assert storable(stored) == stored
