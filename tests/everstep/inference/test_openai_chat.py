"""Chat Completions: building requests, and reading responses."""

from typing import Any

import pytest

from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.messages.cached_context import ResponseFormat
from everstep.agent_domain.messages.messages import (
    Message,
    assistant,
    call_entry,
    tool_message,
    user,
)
from everstep.agent_domain.state.steps import InferenceResponse
from everstep.agent_domain.tools.tools import ToolCall
from everstep.agent_domain.values import freeze, frozen_map
from everstep.inference.openai_chat import ChatReader, request_body
from everstep.inference.presets import Preset
from tests.everstep.inference.asking import WEATHER, a_request, with_results

Json = dict[str, Any]


def a_preset(**settings: Any) -> Preset:
    return Preset.read("tested", {"driver": "openai-chat", "model": "m"} | settings)


OWN = a_preset()
OTHER = a_preset(base_url="http://localhost:11434/v1")


def body(*messages: str | Message, preset: Preset = OTHER, **request: Any) -> Json:
    return request_body(preset, a_request(*messages, **request))


def delta(finish: str | None = None, **delta: Any) -> Json:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def a_fragment(**call: Any) -> Json:
    return delta(tool_calls=[call])


def read(*events: Json, finish: str | None = "stop") -> InferenceResponse:
    reader = ChatReader(OTHER.origin)
    for event in (*events, *([delta(finish)] if finish else ())):
        reader.feed(event)
    assert reader.is_complete
    return reader.response()


# Requests.


def test_other_servers_get_only_the_common_fields() -> None:
    preset = a_preset(
        base_url="http://localhost:11434/v1", max_output_tokens=99, temperature=0.5, reasoning_effort="low"
    )

    assert body("Hello", preset=preset, system="Be brief") == {
        "model": "m",
        "messages": [{"role": "system", "content": "Be brief"}, {"role": "user", "content": "Hello"}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 99,
        "temperature": 0.5,
        "reasoning_effort": "low",
    }


@pytest.mark.parametrize("base_url", [None, "https://eu.api.openai.com/v1", "https://x.openai.azure.com/v1"])
def test_openai_gets_its_own_fields(base_url: str | None) -> None:
    sent = body("Hello", preset=a_preset(base_url=base_url, max_output_tokens=99), system="Be brief")

    assert sent["max_completion_tokens"] == 99
    assert sent["store"] is False
    assert len(sent["prompt_cache_key"]) == 32
    assert "max_tokens" not in sent


def test_an_address_that_resembles_openai_is_another_server() -> None:
    sent = body("Hello", preset=a_preset(base_url="https://notopenai.com/v1"), system="Be brief")

    assert "prompt_cache_key" not in sent
    assert "store" not in sent


def test_calls_are_in_the_message_that_made_them() -> None:
    """5.4.1: servers that render the conversation with a template accept objects only."""
    entries = [call_entry("c1", "weather", {"city": "Bonn"}), call_entry("c2", "clock", "nonsense")]

    sent = body(user("Hello"), assistant("", tool_calls=entries), tool_message("", "c1", "weather"))

    assert sent["messages"][1:] == [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "c1",
                    "type": "function",
                    "function": {"name": "weather", "arguments": '{"city":"Bonn"}'},
                },
                {
                    "id": "c2",
                    "type": "function",
                    "function": {"name": "clock", "arguments": '{"INVALID_JSON":"nonsense"}'},
                },
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": ""},
    ]


def test_an_empty_answer_is_omitted() -> None:
    sent = body("Hello", assistant(""), "Are you there?")["messages"]

    assert [message["content"] for message in sent] == ["Hello", "Are you there?"]


def test_parts_pass_unchanged_and_results_as_text() -> None:
    parts = [{"text": "Look"}, {"type": "image_url", "image_url": {"url": "https://x/y.png"}}]
    result = Message.from_dict({"role": "tool", "content": parts, "metadata": {"tool_call_id": "c1"}})
    calling = assistant("", tool_calls=[call_entry("c1", "camera", {})])

    sent = body(Message.from_dict({"role": "user", "content": parts}), calling, result)["messages"]

    assert sent[0]["content"] == [{"type": "text", "text": "Look"}, parts[1]]
    assert sent[2]["content"] == "Look"


def test_tools_are_sent_with_their_definitions() -> None:
    """5.2.3"""
    sent = body("Hello", tools=(WEATHER,), parallel_tools=False)

    function = {"name": "weather", "description": "Tells the weather", "parameters": WEATHER.schema}
    assert sent["tools"] == [{"type": "function", "function": function}]
    assert sent["parallel_tool_calls"] is False


def test_a_strict_tool_stays_strict_and_a_provider_tool_passes() -> None:
    strict = {"type": "function", "function": {"name": "x", "strict": True}}
    request = a_request("Hello")

    sent = request_body(OTHER, type(request)(request.messages, tools=freeze([strict, {"type": "custom"}])))

    parameters: Json = {"type": "object", "properties": {}}
    function = {"name": "x", "description": "", "parameters": parameters, "strict": True}
    assert sent["tools"] == [{"type": "function", "function": function}, {"type": "custom"}]


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        ("auto", "auto"),
        ("none", "none"),
        ("required", "required"),
        ("weather", {"type": "function", "function": {"name": "weather"}}),
    ],
)
def test_the_tool_choice_has_the_format_of_this_api(choice: Any, sent: Any) -> None:
    """5.2.3"""
    assert body("Hello", tools=(WEATHER,), tool_choice=choice)["tool_choice"] == sent


def test_an_answer_may_have_to_satisfy_a_schema() -> None:
    """5.2.4"""
    loose = ResponseFormat(frozen_map({"type": "object"}), name="answer", strict=False)

    assert body("Hello", response_format=loose)["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": {"type": "object"}, "strict": False},
    }
    assert body("Hello", response_format={"type": "json_object"})["response_format"] == {
        "type": "json_object"
    }
    assert "response_format" not in body("Hello", response_format={"type": "text"})


# Responses.


def test_fragments_of_several_calls_are_assigned_to_their_call() -> None:
    response = read(
        a_fragment(index=0, id="c1", function={"name": "weather", "arguments": ""}),
        a_fragment(index=1, id="c2", function={"name": "clock", "arguments": '{"zo'}),
        a_fragment(index=0, function={"arguments": '{"city":"Bo'}),
        a_fragment(index=1, function={"arguments": 'ne":1}'}),
        a_fragment(index=0, function={"arguments": 'nn"}'}),
        finish="tool_calls",
    )

    assert response.tool_calls == (
        ToolCall("c1", "weather", frozen_map({"city": "Bonn"})),
        ToolCall("c2", "clock", frozen_map({"zone": 1})),
    )


@pytest.mark.parametrize("index", [{"index": 0}, {"index": None}, {}])
def test_calls_without_an_index_are_distinguished_by_their_ids(index: Json) -> None:
    response = read(
        a_fragment(**index, id="c1", function={"name": "weather", "arguments": "{}"}),
        a_fragment(**index, id="c2", function={"name": "clock", "arguments": '{"a"'}),
        a_fragment(**index, function={"arguments": ":1}"}),
    )

    assert response.tool_calls == (ToolCall("c1", "weather"), ToolCall("c2", "clock", frozen_map({"a": 1})))


def test_an_id_that_is_repeated_with_every_fragment_is_one_call() -> None:
    response = read(
        a_fragment(index=0, id="c1", function={"name": "weather", "arguments": '{"a"'}),
        a_fragment(index=0, id="c1", function={"name": None, "arguments": ":1}"}),
    )

    assert response.tool_calls == (ToolCall("c1", "weather", frozen_map({"a": 1})),)


def test_a_call_may_have_no_id() -> None:
    assert read(a_fragment(index=0, function={"name": "clock"})).tool_calls == (ToolCall("", "clock"),)


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("stop", "stop"),
        ("length", "length"),
        ("content_filter", "content_filter"),
        ("tool_calls", "tool_calls"),
        ("function_call", "tool_calls"),
        ("eos", "other"),
        ("MAX_TOKENS", "length"),
    ],
)
def test_the_stop_reason_is_mapped_to_ours(word: str, reason: str) -> None:
    """5.3.1"""
    assert read(delta(content="x"), finish=word).finish_reason == reason


def test_a_tool_call_with_finish_reason_stop_is_a_tool_call() -> None:
    """5.3.1"""
    response = read(a_fragment(index=0, id="c1", function={"name": "clock"}), finish="stop")

    assert response.finish_reason == "tool_calls"


def test_a_refusal_is_returned_and_streamed() -> None:
    """5.3.1"""
    response = read(delta(refusal="I will "), delta(refusal="not"))

    assert response.text == "I will not"
    assert response.finish_reason == "content_filter"


def test_content_may_arrive_in_parts() -> None:
    parts = [{"type": "thinking", "thinking": [{"text": "Hm"}]}, {"type": "text", "text": "Hello"}]

    assert read(delta(content=parts)).text == "Hello"


def test_chunks_may_be_empty() -> None:
    empty: list[Json] = [{}, {"choices": []}, {"choices": None}, {"choices": [{"delta": None}]}]

    assert read(*empty, delta(content=None), delta(content="Hello")).text == "Hello"


def test_counters_may_come_with_any_chunk_or_never() -> None:
    """4.2.1"""
    counts = {"prompt_tokens": 3, "completion_tokens": 4, "prompt_tokens_details": None}

    assert read(delta(content="x")).usage == Usage()
    assert read(delta(content="x") | {"usage": counts}, delta() | {"usage": None}).usage == Usage(3, 4)


# Round trips.


def thinking(*deltas: Json) -> InferenceResponse:
    return read(delta(reasoning_content="Hm, "), delta(reasoning_content="well"), *deltas)


CALL = a_fragment(index=0, id="c1", function={"name": "weather", "arguments": "{}"})


def test_reasoning_is_not_part_of_the_text() -> None:
    """5.5.1"""
    assert thinking(CALL).text == ""
    assert thinking(delta(content="Hello")).text == "Hello"


def test_reasoning_is_sent_back_within_one_question() -> None:
    response = thinking(CALL)

    sent = body("Hello", *with_results(response, "sunny"))["messages"]

    assert sent[1]["reasoning_content"] == "Hm, well"
    assert sent[1]["tool_calls"][0]["id"] == "c1"


def test_reasoning_of_earlier_questions_is_not_sent() -> None:
    response = thinking(CALL)

    sent = body("Hello", *with_results(response, "sunny"), assistant("Sunny"), "And now?")["messages"]

    assert "reasoning_content" not in sent[1]


def test_reasoning_of_an_answer_without_calls_is_not_stored() -> None:
    assert list(thinking(delta(content="Hello")).items) == []


def test_a_signature_is_sent_back_with_its_call() -> None:
    signature = {"google": {"thought_signature": "sealed"}}
    response = read(
        a_fragment(index=0, id="c1", function={"name": "weather"}, extra_content=signature),
        a_fragment(index=1, id="c2", function={"name": "clock"}),
    )

    sent = body("Hello", *with_results(response, "sunny", "noon"))["messages"]

    first, second = sent[1]["tool_calls"]
    assert first["extra_content"] == signature
    assert "extra_content" not in second


def test_an_edited_message_is_sent_without_its_items() -> None:
    response = thinking(delta(content="Let me look"), CALL)
    said, result = with_results(response, "sunny")
    edited = Message(said.role, "I know it", said.metadata)

    assert "reasoning_content" in body("Hello", said, result)["messages"][1]
    assert "reasoning_content" not in body("Hello", edited, result)["messages"][1]
