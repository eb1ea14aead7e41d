"""The text that a model reads of a result."""

import base64
from typing import Any

import mcp_types as types
import pytest

from everstep.capabilities.mcp.results import NOTHING, error_text, text_of

IMAGE = base64.b64encode(bytes(1_000_000)).decode()


def read(*content: dict[str, Any], most: int = 1_000, **more: Any) -> str:
    return text_of(types.CallToolResult.model_validate({"content": content, **more}), most)


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


@pytest.mark.parametrize(
    ("block", "said"),
    [
        (text("one\ntwo"), "one\ntwo"),
        (
            {"type": "image", "data": IMAGE, "mimeType": "image/png"},
            "[image, image/png, 1,000,000 bytes, not shown]",
        ),
        (
            {"type": "audio", "data": "YWI=", "mimeType": "audio/wav"},
            "[audio, audio/wav, 2 bytes, not shown]",
        ),
        (
            {"type": "resource", "resource": {"uri": "file:///a.txt", "text": "content"}},
            "[resource file:///a.txt]\ncontent",
        ),
        (
            {"type": "resource", "resource": {"uri": "file:///a.bin", "blob": "YWJj"}},
            "[resource file:///a.bin, of unknown type, 3 bytes, not shown]",
        ),
        (
            {
                "type": "resource_link",
                "uri": "file:///a",
                "name": "a",
                "mimeType": "text/x",
                "size": 12_345,
                "description": "what it is",
            },
            "[link to the resource file:///a, named a, text/x, 12,345 bytes] what it is",
        ),
    ],
    ids=["text", "image", "audio", "text resource", "binary resource", "link"],
)
def test_each_kind_of_content_has_its_text(block: dict[str, Any], said: str) -> None:
    assert read(block) == said


def test_parts_are_on_separate_lines() -> None:
    assert read(text("a"), text("b")) == "a\nb"


def test_a_structured_answer_is_read_as_json() -> None:
    assert read(structuredContent={"a": [1, "ü"]}) == '{"a":[1,"ü"]}'


def test_a_structured_answer_repeated_as_text_is_read_once() -> None:
    assert read(text('{"a": 1}'), structuredContent={"a": 1}) == '{"a": 1}'
    assert read(text("word"), structuredContent={"content": "word"}) == "word"
    assert read(text("5"), structuredContent={"result": 5}) == "5"
    assert read(text("it is one"), structuredContent={"a": 1}) == 'it is one\n{"a":1}'


def test_an_empty_result_says_so() -> None:
    assert read() == read(text("")) == NOTHING


def test_a_long_answer_is_cut_and_says_so() -> None:
    said = read(text("x" * 2_000), most=1_000)

    assert said == "x" * 1_000 + "\n[cut: these are the first 1,000 of 2,000 characters]"
    assert read(text("x" * 1_000), most=1_000) == "x" * 1_000


def test_unstorable_text_is_escaped() -> None:
    assert read(text("a\0b")) == "a\\x00b"


def test_a_very_long_address_is_cut_as_well() -> None:
    link = {"type": "resource_link", "uri": "file:///" + "x" * 1_000_000, "name": "a"}

    assert len(read(link, most=10_000)) < 1_000


def test_a_failure_without_a_message_says_so() -> None:
    assert error_text(" ") == "it does not say why"
