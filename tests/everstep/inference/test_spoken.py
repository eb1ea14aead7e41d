"""Text that arrives in chunks."""

import pytest
from hypothesis import given, strategies as st

from everstep.inference.spoken import Spoken, storable


def heard(*pieces: str) -> tuple[list[str], str]:
    """The new text after each chunk, and the text of all of them."""
    spoken = Spoken()
    news: list[str] = []
    for piece in pieces:
        spoken.say(piece)
        news.append(spoken.news())
    return news, spoken.text


def test_each_chunk_is_published_once() -> None:
    assert heard("Hel", "", "lo") == (["Hel", "", "lo"], "Hello")


def test_chunks_may_be_published_together() -> None:
    spoken = Spoken()
    spoken.say("Hel")
    spoken.say("lo")

    assert (spoken.news(), spoken.news(), spoken.text) == ("Hello", "", "Hello")


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
    assert heard(*pieces) == (news, text)


def test_a_paragraph_begins_with_the_next_text_if_there_was_any_before() -> None:
    spoken = Spoken()
    spoken.paragraph()
    spoken.say("One")
    spoken.paragraph()
    spoken.paragraph()
    spoken.say("")
    spoken.say("Two")
    spoken.say("!")
    spoken.paragraph()

    assert spoken.text == "One\n\nTwo!"
    assert spoken.news() == "One\n\nTwo!"


@given(st.lists(st.text()))
def test_the_published_text_is_the_returned_text(pieces: list[str]) -> None:
    news, text = heard(*pieces)

    assert "".join(news) == text == "".join(pieces).replace("\x00", "")


@given(st.text(st.characters(codec=None)))
def test_any_text_becomes_storable(text: str) -> None:
    stored = storable(text)

    assert "\x00" not in stored
    assert stored.encode().decode() == stored
    assert storable(stored) == stored
