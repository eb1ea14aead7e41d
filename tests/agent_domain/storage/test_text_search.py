"""Excerpts of what a search finds."""

import pytest

from everstep.agent_domain.messages.messages import Message, assistant, call_entry, tool_message, user
from everstep.agent_domain.storage.text_query import TextQuery
from everstep.agent_domain.storage.text_search import HitKind, SearchedMessage, excerpt

NOISE = "lorem ipsum " * 100


def marked(text: str, words: str) -> tuple[str, list[str]]:
    """The excerpt of a text, and its marks."""
    found = excerpt(text, TextQuery.parse(words))
    return found.text, [found.text[start:end] for start, end in found.marks]


@pytest.mark.parametrize(
    ("text", "words", "marks"),
    [
        ("a short text", "short", ["short"]),
        (NOISE + "needle " + NOISE, "needle", ["needle"]),
        ("needle " + NOISE + "needle", "needle", ["needle"]),
        (NOISE + "x" * 500 + " needle", "needle", ["needle"]),
        ("one two three", '"one two" two', ["one two"]),
        ("東京の天気です", "天気", ["天気"]),
        ("😀 needle 😀", "needle", ["needle"]),
        ("nothing of it", "needle OR nothing -else", ["nothing"]),
        ("a soft\u00adhyphen", "softhyphen", ["soft\u00adhyphen"]),
    ],
)
def test_an_excerpt_shows_the_first_match_and_marks_all_within(
    text: str, words: str, marks: list[str]
) -> None:
    """16.6.6"""
    shown, found = marked(text, words)

    assert found == marks
    assert shown.strip("…") in text
    assert len(shown) <= 242
    assert shown.startswith("…") is not text.startswith(shown.rstrip("…"))
    assert shown.endswith("…") is not text.endswith(shown.lstrip("…"))


def test_an_excerpt_of_a_text_that_does_not_match_is_its_beginning() -> None:
    """16.6.6: PostgreSQL may fold a letter in another way."""
    assert marked("a text", "needle") == ("a text", [])


def test_a_match_is_shown_where_most_of_it_is() -> None:
    """16.6.6"""
    calls = [
        call_entry("c1", "look", {"at": "the harbour"}),
        call_entry("c2", "book", {"hotel": "Harbour Inn"}),
    ]
    reply = assistant("I book the harbour", tool_calls=calls)

    def kind_of(message: Message, words: str) -> tuple[HitKind, str | None, str | None, str]:
        place = SearchedMessage.of(message).locate(TextQuery.parse(words))
        return place.kind, place.tool, place.call_id, place.excerpt.text

    assert kind_of(reply, "harbour") == (HitKind.REPLY, None, None, "I book the harbour")
    assert kind_of(reply, "harbour inn") == (HitKind.ARGUMENTS, "book", "c2", '{"hotel":"Harbour Inn"}')
    assert kind_of(reply, "look") == (HitKind.ARGUMENTS, "look", "c1", 'look\n{"at":"the harbour"}')
    assert kind_of(user("the harbour"), "harbour") == (HitKind.MESSAGE, None, None, "the harbour")
    result = tool_message("a room", "c2", "book")
    assert kind_of(result, "room") == (HitKind.RESULT, "book", "c2", "a room")
