"""A reply that only repeats the arguments of its call counts as empty."""

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from everstep.agent_domain.messages.leak_guard import TextGuard, without_repeated_arguments
from everstep.agent_domain.tools.tools import ToolCall
from everstep.agent_domain.values import json_text
from tests.agent_domain.scripted_model import a_call

CALLS = (a_call(path="a"),)

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=8)
jsons = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
)
arguments = st.dictionaries(texts, jsons, max_size=4)


@pytest.mark.parametrize(
    "text",
    [
        '{"path":"a"}',
        '  { "path" : "a" }\n',
        '```json\n{"path": "a"}\n```',
        '```\n{"path": "a"}\n```',
        '```json\r\n{"path": "a"}\r\n```\n',
        '\n```JSON  \n\n{\n  "path": "a"\n}\n\n```',
        '```{"path": "a"}```',
    ],
)
def test_text_that_repeats_the_arguments_is_dropped(text: str) -> None:
    """5.5.2: trimmed, and out of one code fence."""
    assert without_repeated_arguments(text, CALLS) == ""


@pytest.mark.parametrize(
    "text",
    [
        'Reading {"path":"a"}',
        '{"path":"b"}',
        '{"path":"a"} {"path":"a"}',
        '{"path":"a","more":1}',
        '{"path":["a"]}',
        '[{"path":"a"}]',
        "{}",
        '"a"',
        "",
        "  ",
        "null",
        '```json\n{"path":"b"}\n```',
        'Here:\n```json\n{"path":"a"}\n```',
        '```json\n{"path":"a"}\n```\nDone',
        '```json\n{"path":"a"}\n```\n```json\n{"path":"a"}\n```',
        '```\n```json\n{"path":"a"}\n```\n```',
        "```",
        "``````",
        '```json\n{"path":"a"}',
        '{"path":"a"}```',
        '{"path":"a"',
    ],
)
def test_other_text_is_kept_unchanged(text: str) -> None:
    """5.5.2"""
    assert without_repeated_arguments(text, CALLS) == text


def test_without_calls_everything_is_kept() -> None:
    """5.5.2"""
    assert without_repeated_arguments('{"path":"a"}', ()) == '{"path":"a"}'
    assert without_repeated_arguments("{}", ()) == "{}"


def test_one_call_of_several_is_enough() -> None:
    """5.5.2"""
    calls = (a_call("c1", path="a"), a_call("c2", path="b"), ToolCall("c3", "list_dir"))

    for text in ('{"path":"b"}', "{}", "```\n{}\n```"):
        assert without_repeated_arguments(text, iter(calls)) == ""
    assert without_repeated_arguments('{"path":"c"}', calls) == '{"path":"c"}'


@pytest.mark.parametrize(
    ("args", "text", "kept"),
    [
        ({"a": 1, "b": {"c": [1, {"d": None}]}}, '{"b":{"c":[1,{"d":null}]},"a":1}', False),
        ({"a": [1, 2]}, '{"a":[2,1]}', True),
        ({"a": 1}, '{"a":1.0}', False),
        ({"a": 1}, '{"a":true}', True),
        ({"a": True}, '{"a":1}', True),
        ({"a": True}, '{"a":true}', False),
        ({"a": 0}, '{"a":false}', True),
        ({"a": None}, '{"a":null}', False),
        ({"a": None}, "{}", True),
        ({"a": "1"}, '{"a":1}', True),
        ({"a": {}}, '{"a":[]}', True),
        ({"a": [1]}, '{"a":[1,2]}', True),
        ({"a": {"b": 1}}, '{"a":{"c":1}}', True),
    ],
)
def test_values_are_compared_deeply_and_as_json(args: dict[str, Any], text: str, kept: bool) -> None:
    """5.5.2: the order of keys does not matter, that of a list does; true is not 1."""
    assert without_repeated_arguments(text, [a_call(**args)]) == (text if kept else "")


@pytest.mark.parametrize(
    ("malformed", "text", "kept"),
    [
        ('["a","b"]', '[ "a", "b" ]', False),
        ('["a","b"]', '["a"]', True),
        ('{"path":', '{"path":', True),
        ('{"path":', "null", True),
        ("null", "null", True),
        ("", "", True),
    ],
)
def test_arguments_that_are_no_object_are_arguments_too(malformed: str, text: str, kept: bool) -> None:
    """5.5.2: JSON of the same value; text that is not JSON equals nothing."""
    assert without_repeated_arguments(text, [ToolCall("c1", "weather", malformed=malformed)]) == (
        text if kept else ""
    )


@given(arguments)
def test_any_arguments_are_recognised_in_any_notation(args: dict[str, Any]) -> None:
    """5.5.2"""
    calls = [ToolCall("c1", "weather", args)]  # pyright: ignore[reportArgumentType] -- what providers send
    backwards = dict(reversed(args.items()))

    for text in (json_text(args), json.dumps(backwards, indent=2), f"```json\n{json_text(args)}\n```"):
        assert without_repeated_arguments(text, calls) == ""
        assert without_repeated_arguments(f"Calling with {text}", calls) != ""


@given(texts, arguments)
def test_kept_text_is_unchanged(text: str, args: dict[str, Any]) -> None:
    """5.5.2"""
    assert without_repeated_arguments(text, [a_call(), ToolCall("c2", "news", args)]) in {text, ""}  # pyright: ignore[reportArgumentType] -- what providers send


# Streaming.


def stream_pieces(*pieces: str, kept: bool = True) -> tuple[list[str], list[str]]:
    """The text streamed while the reply is written, and at its end."""
    chunks = list[str]()
    held = TextGuard(chunks.append)
    for piece in pieces:
        held.feed(piece)
    before = [*chunks]
    held.finish("".join(pieces) if kept else "")
    return before, chunks


@pytest.mark.parametrize(
    "pieces",
    [
        ("Well, ", "yes"),
        (" \n", "Well", " {"),
        ("`", "ls` lists"),
        ("``", "`python\n", "print", "()```"),
        ("1", "2"),
    ],
)
def test_prose_is_streamed_as_it_is_written(pieces: tuple[str, ...]) -> None:
    """5.5.2: as soon as it cannot be arguments any more."""
    before, after = stream_pieces(*pieces)
    assert "".join(before) == "".join(pieces)
    assert before == after


@pytest.mark.parametrize(
    "pieces",
    [
        ("{", '"path"', ': "a"}'),
        ("\n", "[1", "]"),
        ("``", "`js", "on\n", '{"path": ', '"a"}\n```'),
        ("```",),
        (" ",),
    ],
)
def test_possible_arguments_are_streamed_once_they_are_known_to_be_none(pieces: tuple[str, ...]) -> None:
    """5.5.1, 5.5.2: or never."""
    assert stream_pieces(*pieces) == ([], ["".join(pieces)])
    assert stream_pieces(*pieces, kept=False) == ([], [])


@given(st.lists(texts | st.sampled_from(["{", "```", "json", "\n", "[", " "])))
def test_nothing_is_lost_or_streamed_twice(pieces: list[str]) -> None:
    """5.5.2"""
    _, chunks = stream_pieces(*pieces)
    assert "".join(chunks) == "".join(pieces)
