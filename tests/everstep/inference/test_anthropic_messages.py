"""The Messages API: building requests, and reading responses."""

from typing import Any

import pytest

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.loop.usage import Usage
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
from everstep.agent_domain.state.steps import InferenceResponse
from everstep.agent_domain.tools.tools import ToolCall
from everstep.agent_domain.values import freeze, frozen_map
from everstep.inference.anthropic_messages import MessagesReader, request_body
from everstep.inference.presets import Preset
from tests.everstep.inference.asking import CLOCK, WEATHER, a_request, with_results

Json = dict[str, Any]

CACHED = {"type": "ephemeral"}


def a_preset(**settings: Any) -> Preset:
    return Preset.read("tested", {"driver": "anthropic", "model": "claude-opus-5-5"} | settings)


PRESET = a_preset()


def body(*messages: str | Message, preset: Preset = PRESET, **request: Any) -> Json:
    return request_body(preset, a_request(*messages, **request))


def text(said: str, **more: Any) -> Json:
    return {"type": "text", "text": said, **more}


def start_event(index: int, block: Json) -> Json:
    return {"type": "content_block_start", "index": index, "content_block": block}


def delta_event(index: int, **delta: Any) -> Json:
    return {"type": "content_block_delta", "index": index, "delta": delta}


def end_events(stop_reason: str | None = "end_turn", **counts: int) -> list[Json]:
    delta = {"type": "message_delta", "delta": {"stop_reason": stop_reason}, "usage": counts or None}
    return [delta, {"type": "message_stop"}]


def read(*events: Json, stop_reason: str = "end_turn") -> InferenceResponse:
    reader = MessagesReader(PRESET.origin)
    for event in (*events, *end_events(stop_reason)):
        reader.feed(event)
    assert reader.is_complete
    return reader.response()


def thinking_block(index: int = 0, signature: str = "sealed") -> list[Json]:
    return [
        start_event(index, {"type": "thinking", "thinking": "", "signature": ""}),
        delta_event(index, type="thinking_delta", thinking="Hm, "),
        delta_event(index, type="thinking_delta", thinking="well"),
        delta_event(index, type="signature_delta", signature=signature),
        {"type": "content_block_stop", "index": index},
    ]


THINKING = {"type": "thinking", "thinking": "Hm, well", "signature": "sealed"}


def text_block(index: int, *pieces: str) -> list[Json]:
    return [
        start_event(index, text("")),
        *(delta_event(index, type="text_delta", text=piece) for piece in pieces),
    ]


def call_block(index: int, *arguments: str, call_id: str = "c1") -> list[Json]:
    block: Json = {"type": "tool_use", "id": call_id, "name": "weather", "input": {}}
    return [
        start_event(index, block),
        *(delta_event(index, type="input_json_delta", partial_json=a) for a in arguments),
    ]


# Requests.


def test_instructions_are_separate_from_the_conversation() -> None:
    assert body(system("In German"), "Hello", system="Be brief") == {
        "model": "claude-opus-5-5",
        "max_tokens": 16_384,
        "system": [text("Be brief", cache_control=CACHED), text("In German")],
        "messages": [{"role": "user", "content": [text("Hello")]}],
        "stream": True,
    }


def test_settings_are_passed_on() -> None:
    sent = body("Hello", preset=a_preset(max_output_tokens=99, reasoning_effort="high"))

    assert sent["max_tokens"] == 99
    assert sent["thinking"] == {"type": "adaptive"}
    assert sent["output_config"] == {"effort": "high"}


def test_thinking_can_be_disabled() -> None:
    sent = body("Hello", preset=a_preset(reasoning_effort="none"))

    assert sent["thinking"] == {"type": "disabled"}
    assert "output_config" not in sent


def test_roles_alternate() -> None:
    """5.4.1: results follow the message with their calls, in one turn with the user's text."""
    entries = [call_entry("c1", "weather", {"city": "Bonn"}), call_entry("c2", "clock", "nonsense")]

    sent = body(
        user("Hello"),
        user("How is Bonn?"),
        assistant("Let me look", tool_calls=entries),
        tool_message("sunny", "c1", "weather"),
        tool_message("", "c2", "clock"),
        user("Well?"),
    )

    assert sent["messages"] == [
        {"role": "user", "content": [text("Hello"), text("How is Bonn?")]},
        {
            "role": "assistant",
            "content": [
                text("Let me look"),
                {"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Bonn"}},
                {"type": "tool_use", "id": "c2", "name": "clock", "input": {"INVALID_JSON": "nonsense"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": "sunny"},
                {"type": "tool_result", "tool_use_id": "c2", "content": ""},
                text("Well?"),
            ],
        },
    ]


def test_instructions_in_the_middle_are_marked_as_such() -> None:
    """5.1.1: developer messages are instructions too."""
    developer = Message(Role.DEVELOPER, "Hurry")

    (turn,) = body("Hello", developer)["messages"]

    assert turn["content"] == [text("Hello"), text("<system>\nHurry\n</system>")]


def test_the_first_and_the_last_message_are_the_users() -> None:
    entries = [call_entry("c1", "load_skill", {})]
    skill = (assistant("", tool_calls=entries), tool_message("a skill", "c1", "load_skill"))

    sent = body(*skill, "Hello", assistant("Hi"))["messages"]

    assert [message["role"] for message in sent] == ["user", "assistant", "user", "assistant", "user"]
    assert sent[0]["content"] == [text("Begin.")]
    assert sent[-1]["content"] == [text("Continue.")]


def test_instructions_without_a_message_are_enough_to_begin() -> None:
    sent = body(system="Tell a story")

    assert sent["messages"] == [{"role": "user", "content": [text("Begin.")]}]


@pytest.mark.parametrize("blank", ["", "  \n "])
def test_blank_text_is_left_out(blank: str) -> None:
    parts = Message.from_dict({"role": "user", "content": [{"type": "text", "text": blank}, {"text": "Hi"}]})

    sent = body(parts, assistant(blank), blank, "there")["messages"]

    assert sent == [{"role": "user", "content": [text("Hi"), text("there")]}]


def test_parts_have_the_format_of_this_api() -> None:
    parts = [
        {"type": "text", "text": "Look", "citations": None},
        {"text": "here"},
        {"type": "image_url", "image_url": {"url": "https://x/y.png"}},
        {"type": "image_url", "image_url": "data:image/png;base64,AAAA"},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,BBBB"}},
        {"type": "document", "source": {"type": "file", "file_id": "f1"}},
    ]
    content = Message.from_dict({"role": "user", "content": parts})

    (turn,) = body(content)["messages"]

    assert turn["content"] == [
        parts[0],
        text("here"),
        {"type": "image", "source": {"type": "url", "url": "https://x/y.png"}},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
        {
            "type": "document",
            "source": {"type": "base64", "media_type": "application/pdf", "data": "BBBB"},
            "title": "a.pdf",
        },
        parts[5],
    ]


def test_a_result_may_have_parts() -> None:
    content = [{"type": "image_url", "image_url": {"url": "https://x/y.png"}}]
    result = Message.from_dict({"role": "tool", "content": content, "metadata": {"tool_call_id": "c1"}})

    sent = body("Hello", assistant("", tool_calls=[call_entry("c1", "camera", {})]), result)["messages"]

    image = {"type": "image", "source": {"type": "url", "url": "https://x/y.png"}}
    assert sent[2]["content"] == [{"type": "tool_result", "tool_use_id": "c1", "content": [image]}]


def test_tools_have_the_format_of_this_api() -> None:
    """5.2.3"""
    request = a_request("Hello")
    strict = {"type": "function", "function": {"name": "x", "strict": True}}
    tools = freeze([strict, {"type": "web_search_20260209", "name": "web_search"}])

    sent = request_body(PRESET, type(request)(request.messages, tools=tools))["tools"]

    schema: Json = {"type": "object", "properties": {}}
    assert sent == [
        {"name": "x", "description": "", "input_schema": schema, "strict": True},
        {"type": "web_search_20260209", "name": "web_search", "cache_control": CACHED},
    ]


@pytest.mark.parametrize(
    ("choice", "parallel", "sent"),
    [
        (None, True, None),
        (None, False, {"type": "auto", "disable_parallel_tool_use": True}),
        ("auto", True, {"type": "auto"}),
        ("auto", False, {"type": "auto", "disable_parallel_tool_use": True}),
        ("none", False, {"type": "none"}),
        ("required", True, {"type": "any"}),
        ("weather", False, {"type": "tool", "name": "weather", "disable_parallel_tool_use": True}),
        ({"type": "tool", "name": "weather"}, True, {"type": "tool", "name": "weather"}),
        ({"type": "any"}, True, {"type": "any"}),
    ],
)
def test_the_tool_choice_has_the_format_of_this_api(choice: Any, parallel: bool, sent: Any) -> None:
    """5.2.3"""
    request = body("Hello", tools=(WEATHER,), tool_choice=choice, parallel_tools=parallel)

    assert request.get("tool_choice") == sent


# Caching.


def cache_breakpoints(sent: Json) -> list[str]:
    """The cache breakpoints, each by its text or name."""
    blocks = [*sent.get("tools", []), *sent.get("system", [])]
    blocks += [block for message in sent["messages"] for block in message["content"]]
    return [b.get("name") or b.get("text") or b["type"] for b in blocks if "cache_control" in b]


def test_the_cached_context_is_marked_at_its_end() -> None:
    """5.2.3"""
    examples = [user("Ping"), assistant("Pong")]

    assert cache_breakpoints(body("Hello", system="Be brief")) == ["Be brief"]
    assert cache_breakpoints(body("Hello", system="Be brief", messages=examples)) == ["Pong"]
    assert cache_breakpoints(body("Hello")) == []


def test_with_tools_the_next_step_finds_everything_before_it() -> None:
    """5.2.3: tools first, then the cached messages; and the conversation continues to grow."""
    assert cache_breakpoints(body("Hello", system="Be brief", tools=(WEATHER, CLOCK))) == [
        "clock",
        "Be brief",
        "Hello",
    ]


# Response formats.


def test_a_strict_schema_is_enforced() -> None:
    """5.2.4"""
    schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1}}}

    sent = body("Hello", response_format=ResponseFormat(frozen_map(schema)))

    assert sent["output_config"]["format"] == {
        "type": "json_schema",
        "schema": {
            "type": "object",
            "properties": {"n": {"type": "integer", "description": "{minimum: 1}"}},
            "additionalProperties": False,
        },
    }
    assert "system" not in sent


def test_a_format_without_a_strict_schema_is_described_in_the_prompt() -> None:
    """5.2.4"""
    loose = ResponseFormat(frozen_map({"type": "object"}), strict=False)

    asked = body("Hello", system="Be brief", response_format=loose)
    anything = body("Hello", response_format={"type": "json_object"})

    assert "output_config" not in asked
    assert asked["system"] == [
        text("Be brief", cache_control=CACHED),
        text(
            'Answer with one JSON object and nothing else that satisfies this JSON schema:\n{"type":"object"}'
        ),
    ]
    assert anything["system"] == [text("Answer with one JSON object and nothing else.")]
    assert "system" not in body("Hello", response_format={"type": "text"})


@pytest.mark.parametrize("schema", [{}, {"type": "object", "properties": {"x": {}}}, {"type": "elephant"}])
def test_a_schema_that_cannot_be_enforced_is_refused(schema: Json) -> None:
    with pytest.raises(InvalidInput, match="the response format 'schema' has a schema that cannot"):
        body("Hello", response_format=ResponseFormat(frozen_map(schema)))


# Responses.


def test_texts_with_another_block_between_them_are_separate() -> None:
    response = read(
        *text_block(0, "Let me "), *text_block(1, "look."), *call_block(2, "{}"), *text_block(3, "Done.")
    )

    assert response.text == "Let me look.\n\nDone."


def test_a_block_may_start_with_its_content() -> None:
    block: Json = {"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Bonn"}}

    response = read(
        start_event(0, text("Hello")), delta_event(0, type="text_delta", text="!"), start_event(1, block)
    )

    assert response.text == "Hello!"
    assert response.tool_calls == (ToolCall("c1", "weather", frozen_map({"city": "Bonn"})),)


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("tool_use", "tool_calls"),
        ("refusal", "content_filter"),
        ("pause_turn", "other"),
        ("something_new", "other"),
    ],
)
def test_the_stop_reason_is_mapped_to_ours(word: str, reason: str) -> None:
    """5.3.1"""
    assert read(*text_block(0, "x"), stop_reason=word).finish_reason == reason


def test_an_end_without_a_reason_is_an_error() -> None:
    reader = MessagesReader(PRESET.origin)
    for event in (*text_block(0, "x"), *end_events(None)):
        reader.feed(event)

    assert not reader.is_complete


def test_counters_are_cumulative() -> None:
    """4.2.1"""
    reader = MessagesReader(PRESET.origin)
    begun = {"input_tokens": 5, "cache_read_input_tokens": 7, "output_tokens": 1}
    for event in (
        {"type": "message_start", "message": {"usage": begun}},
        *text_block(0, "x"),
        *end_events("end_turn", output_tokens=9, input_tokens=6),
    ):
        reader.feed(event)

    assert reader.response().usage == Usage(input=6, output=9, cache_read=7)


def test_counters_may_be_missing() -> None:
    """4.2.1"""
    assert read({"type": "message_start", "message": {}}, *text_block(0, "x")).usage == Usage()


# Round trips.


def sent_back(response: InferenceResponse) -> list[Json]:
    results = ("sunny" for _ in response.tool_calls)
    sent = body("Hello", *with_results(response, *results), "And?")["messages"]
    return [block for message in sent if message["role"] == "assistant" for block in message["content"]]


def test_thinking_is_sent_back_in_its_position() -> None:
    redacted = {"type": "redacted_thinking", "data": "sealed too"}
    response = read(
        *thinking_block(0),
        start_event(1, redacted),
        *text_block(2, "Let me look"),
        *thinking_block(3),
        *call_block(4, '{ "city": ', '"Bonn" }'),
    )

    assert sent_back(response) == [
        THINKING,
        redacted,
        text("Let me look"),
        THINKING,
        {"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Bonn"}},
    ]


def test_thinking_is_not_part_of_the_text() -> None:
    """5.5.1"""
    assert (
        read(*thinking_block(0), *text_block(1, "Let me look"), *call_block(2, '{"city": "Bonn"}')).text
        == "Let me look"
    )


def test_blank_lines_around_the_text_do_not_lose_the_thinking() -> None:
    response = read(*thinking_block(0), *text_block(1, "\n\n"), *thinking_block(2), *text_block(3, "Done"))

    assert sent_back(response) == [THINKING, THINKING, text("Done")]


def test_arguments_that_are_not_an_object_are_sent_back_as_one() -> None:
    response = read(*thinking_block(0), *call_block(1, "nonsense"))

    assert response.tool_calls == (ToolCall("c1", "weather", malformed="nonsense"),)
    assert sent_back(response)[1]["input"] == {"INVALID_JSON": "nonsense"}


def test_citations_are_sent_back_with_their_text() -> None:
    citation = {"type": "char_location", "cited_text": "x"}
    response = read(
        *thinking_block(0),
        *text_block(1, "Sunny"),
        delta_event(1, type="citations_delta", citation=citation),
        *call_block(2),
    )

    assert sent_back(response)[1] == text("Sunny", citations=[citation])


def test_deltas_of_later_versions_are_ignored() -> None:
    assert read(*text_block(0, "x"), delta_event(0, type="later_delta", later=1)).text == "x"


def test_thinking_that_was_cut_off_is_not_sent() -> None:
    response = read(*thinking_block(0, signature=""), stop_reason="max_tokens")

    assert list(response.items) == []
    assert sent_back(response) == []


def test_thinking_without_an_answer_is_not_sent() -> None:
    assert list(read(*thinking_block(0), stop_reason="max_tokens").items) == []


def test_items_that_add_nothing_to_the_message_are_not_stored() -> None:
    assert list(read(*text_block(0, "Hello"), *call_block(1)).items) == []


def test_an_edited_message_is_sent_without_its_items() -> None:
    (said,) = with_results(read(*thinking_block(0), *text_block(1, "Done")))
    edited = Message(said.role, "Not done", said.metadata)

    assert body("Hello", said, "And?")["messages"][1]["content"] == [THINKING, text("Done")]
    assert body("Hello", edited, "And?")["messages"][1]["content"] == [text("Not done")]
