"""The local model: its prompt, its grammar, and the calls in its answers."""

from typing import Any

import pytest

from everstep.agent_domain.attachments import Attachment
from everstep.agent_domain.errors import InvalidInput, ModelError
from everstep.agent_domain.messages.cached_context import ResponseFormat
from everstep.agent_domain.messages.messages import (
    Message,
    Role,
    assistant,
    call_entry,
    system,
    tool_message,
    user,
)
from everstep.agent_domain.testing import MockTool
from everstep.agent_domain.tools.tools import ToolCall
from everstep.agent_domain.values import FrozenDict, freeze, frozen_map
from everstep.inference.local_chat import AFTER_RESULTS, LocalChat, LocalReader, local_request
from everstep.inference.local_endpoint import LocalEndpoint
from everstep.inference.presets import Preset
from tests.everstep.inference.asking import WEATHER, a_request

PNG = b"\x89PNG\r\n\x1a\n" + bytes(16)
LOCAL = Preset.read("local", {"driver": "local"})
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'


SCHEMA = ResponseFormat.from_dict({"type": "json_schema", "schema": {"type": "object"}})


def body(*messages: Message, tools: Any = (WEATHER,), **fields: Any) -> dict[str, Any]:
    return local_request(LOCAL, a_request(*messages, tools=tools, **fields))


def test_tools_are_described_in_the_prompt_and_enforced_by_a_grammar() -> None:
    """13.7.4: no server-side parser of calls is used."""
    sent = body(system("Be brief."), user("How warm is it?"))

    assert not {"tools", "tool_choice", "parallel_tool_calls"} & sent.keys()
    first, last = sent["messages"]
    assert first["role"] == "system"
    assert first["content"].startswith("Be brief.\n\n# Tools")
    assert '"name":"weather"' in first["content"]
    assert last == {"role": "user", "content": "How warm is it?"}
    assert '"const": "weather"' in sent["grammar"]
    assert sent["max_tokens"] == 1024


def test_calls_and_results_are_written_as_the_model_knows_them() -> None:
    """13.7.4: the results of one answer are a single turn."""
    entries = [
        call_entry(f"c{n}", "weather", FrozenDict(city=city)) for n, city in enumerate(("Oslo", "Rome"))
    ]
    sent = body(
        user("Where is it warmer?"),
        assistant("I look.", tool_calls=entries),
        tool_message("4", "c0", "weather"),
        tool_message("17", "c1", "weather"),
    )
    calls = [
        f'<tool_call>\n{{"name":"weather","arguments":{{"city":"{city}"}}}}\n</tool_call>'
        for city in ("Oslo", "Rome")
    ]
    results = [f"<tool_response>\n{text}\n</tool_response>" for text in ("4", "17")]
    assert sent["messages"][2:] == [
        {"role": "assistant", "content": "\n".join(["I look.", *calls])},
        {"role": "user", "content": "\n".join(results) + AFTER_RESULTS},
    ]


def test_a_later_request_begins_with_the_same_turns() -> None:
    """13.7.4: the request about a result, and the one about the next question after it."""
    result = (
        user("Where is it warm?"),
        assistant("", tool_calls=[call_entry("c1", "weather", FrozenDict(city="Rome"))]),
        tool_message("17", "c1", "weather"),
    )
    first, later = body(*result), body(*result, assistant("In Rome."), user("And in Oslo?"))
    assert later["messages"][: len(first["messages"])] == first["messages"]
    assert [each["content"] for each in later["messages"][len(first["messages"]) :]] == [
        "In Rome.",
        "And in Oslo?",
    ]


@pytest.mark.parametrize(
    ("fields", "start"),
    [
        ({}, 'start: TEXT | call ("\\n" call)*'),
        ({"parallel_tools": False}, "start: TEXT | call"),
        ({"tool_choice": "required"}, 'start: call ("\\n" call)*'),
        ({"tool_choice": "weather", "parallel_tools": False}, "start: call"),
        (
            {"response_format": SCHEMA},
            "start: answer | call",
        ),
    ],
    ids=["auto", "one", "required", "named", "with a schema"],
)
def test_the_grammar_has_what_the_request_allows(fields: dict[str, Any], start: str) -> None:
    """13.7.4"""
    lines = body(user("Hi"), **fields)["grammar"].splitlines()
    assert lines[1].startswith(start)


def test_without_tools_there_is_no_grammar() -> None:
    """13.7.4: a schema for the answer is left to the server."""
    sent = body(user("Hi"), tools=(), response_format=SCHEMA)
    assert "grammar" not in sent
    assert sent["response_format"]["json_schema"]["schema"]["type"] == "object"
    assert "grammar" not in body(user("Hi"), tool_choice="none")


def test_references_in_a_schema_are_found_from_its_root() -> None:
    parameters = {
        "type": "object",
        "properties": {"place": {"$ref": "#/$defs/Place"}},
        "$defs": {"Place": {"type": "string"}},
    }
    tool = MockTool("go", "Go.", schema=frozen_map(parameters))
    rule = body(user("Hi"), tools=(tool,))["grammar"].splitlines()[-1]
    assert '"$defs": {"Place"' in rule
    assert rule.count("$defs") == 2


def test_a_tool_that_does_not_exist_cannot_be_chosen() -> None:
    with pytest.raises(InvalidInput, match="tool_choice names 'other', which is no tool of the agent"):
        body(user("Hi"), tool_choice="other")


def test_an_image_is_refused_in_words() -> None:
    """13.7.5"""
    image = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
    with pytest.raises(
        ModelError, match="the local model reads text only: remove the image or file"
    ) as raised:
        body(Message(Role.USER, freeze([{"type": "text", "text": "What is this?"}, image])))
    assert raised.value.advice


def test_so_is_an_attached_one_until_the_next_question() -> None:
    """13.7.5: it does not block the conversation."""

    async def find() -> LocalEndpoint:
        raise AssertionError

    model = LocalChat(LOCAL, find)
    photo = Message.user("What is this?", attachments=[Attachment.from_bytes("photo.png", PNG)])
    with pytest.raises(ModelError, match="the local model reads text only"):
        model.readable(a_request(photo))
    later = model.readable(a_request(photo, assistant("I cannot see it."), user("Then how are you?")))
    assert "photo.png" in local_request(LOCAL, later)["messages"][0]["content"]


# Answers.


def read(*pieces: str, finish: str = "stop") -> tuple[list[str], Any]:
    """What is shown piece by piece, and the answer."""
    reader, shown = LocalReader(LOCAL.origin), list[str]()
    for piece in pieces:
        reader.feed({"id": "chatcmpl-0123456789abcdef", "choices": [{"delta": {"content": piece}}]})
        shown.append(reader.spoken.take_new())
    reader.feed({"choices": [{"delta": {}, "finish_reason": finish}]})
    return shown, reader.response()


FORMS = {
    "as told": "<tool_call>\n{}\n</tool_call>",
    "in a block": "```json\n{}\n```",
    "bare": "{}",
}
"""The forms in which the model writes calls."""


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize("form", FORMS)
def test_calls_are_read_from_the_text_and_not_shown(form: str, size: int) -> None:
    """13.7.4"""
    cities = ("Oslo", "Ro{m}e")
    objects = (f'{{"name": "weather", "arguments": {{\n"city": "{city}"}}}}' for city in cities)
    text = "\n".join(FORMS[form].replace("{}", each) for each in objects)
    shown, answer = read(*(text[at : at + size] for at in range(0, len(text), size)))

    assert "".join(shown) == answer.text == ""
    assert [(call.name, dict(call.args)) for call in answer.tool_calls] == [
        ("weather", {"city": city}) for city in cities
    ]
    assert [call.id for call in answer.tool_calls] == ["call_456789abcdef_0", "call_456789abcdef_1"]
    assert answer.finish_reason == "tool_calls"


@pytest.mark.parametrize(
    ("pieces", "shown"),
    [
        (["Use a ", "<tool", " box."], ["Use a ", "<tool", " box."]),
        (["``", "`python\n", "x = 1"], ["", "```python\n", "x = 1"]),
        (["<", "b>"], ["", "<b>"]),
    ],
)
def test_a_text_is_shown_as_it_arrives(pieces: list[str], shown: list[str]) -> None:
    """13.7.4"""
    shown_pieces, answer = read(*pieces)
    assert shown_pieces == shown
    assert (answer.text, answer.tool_calls, answer.finish_reason) == ("".join(pieces), (), "stop")


@pytest.mark.parametrize(
    "text", ['{"city": "Oslo"}', "```json\n[1]\n```", '{"name": "a", "arguments": 1, "b": 2}']
)
def test_json_that_is_no_call_is_the_answer(text: str) -> None:
    """13.7.4: as with a schema for the answer."""
    shown, answer = read(text[:3], text[3:])
    assert "".join(shown) == ""
    assert (answer.text, answer.tool_calls) == (text, ())


def test_a_call_that_is_written_twice_is_one() -> None:
    """13.7.4"""
    _, answer = read(f"{CALL}\n{CALL}")
    assert len(answer.tool_calls) == 1


def test_a_call_that_was_cut_off_is_malformed() -> None:
    """13.7.4"""
    _, answer = read(CALL[:57], finish="length")
    assert answer.tool_calls == (ToolCall("call_456789abcdef_0", "weather", malformed='{"city": "Os'),)
    assert answer.finish_reason == "length"
