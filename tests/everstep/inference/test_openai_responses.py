"""The Responses API: building requests, and reading responses."""

from typing import Any

import pytest

from everstep.agent_domain.errors import ModelError, ModelUnavailable, RateLimited
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
from everstep.inference.failures import failure
from everstep.inference.openai_responses import ResponsesReader, request_body
from everstep.inference.presets import Preset
from tests.everstep.inference.asking import CLOCK, WEATHER, a_request, with_results

Json = dict[str, Any]


def a_preset(**settings: Any) -> Preset:
    return Preset.read("tested", {"driver": "openai", "model": "gpt-5.5"} | settings)


PRESET = a_preset()


def body(*messages: str | Message, preset: Preset = PRESET, **request: Any) -> Json:
    return request_body(preset, a_request(*messages, **request))


def read(*events: Json, preset: Preset = PRESET) -> InferenceResponse:
    reader = ResponsesReader(preset, lambda complaint: failure(complaint, preset))
    for event in events:
        reader.feed(event)
    assert reader.is_complete
    return reader.response()


def completed_events(*items: Json, **response: Any) -> list[Json]:
    """The items in order, then the closing event."""
    events: list[Json] = [
        {"type": "response.output_item.done", "output_index": index, "item": item}
        for index, item in enumerate(items)
    ]
    closing: Json = {"status": "completed", "output": list(items)} | response
    return [*events, {"type": "response.completed", "response": closing}]


def a_message(text: str = "Hello", **more: Any) -> Json:
    part: Json = {"type": "output_text", "text": text, "annotations": []}
    return {"type": "message", "id": "msg_1", "role": "assistant", "content": [part], **more}


def a_call(**more: Any) -> Json:
    call = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "weather"}
    return call | {"arguments": '{"city":"Bonn"}'} | more


def reasoning(sealed: str | None = "sealed", number: int = 1) -> Json:
    return {"type": "reasoning", "id": f"rs_{number}", "summary": [], "encrypted_content": sealed}


# Requests.


def test_no_response_is_stored_and_reasoning_is_encrypted() -> None:
    assert body("Hello") == {
        "model": "gpt-5.5",
        "input": [{"role": "user", "content": "Hello"}],
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
    }


@pytest.mark.parametrize("model", ["gpt-4o", "gpt-4.1-mini", "gpt-3.5-turbo", "chatgpt-4o-latest"])
def test_models_without_reasoning_get_no_reasoning_settings(model: str) -> None:
    assert "include" not in body("Hello", preset=a_preset(model=model))


def test_settings_are_passed_on() -> None:
    preset = a_preset(max_output_tokens=99, temperature=0.5, reasoning_effort="low")

    sent = body("Hello", preset=preset)

    assert sent["max_output_tokens"] == 99
    assert sent["temperature"] == 0.5
    assert sent["reasoning"] == {"effort": "low"}


def test_roles_are_kept() -> None:
    messages = [Message.from_string("x", role) for role in ("system", "developer", "user", "assistant")]

    assert [item["role"] for item in body(*messages)["input"]] == [
        "system",
        "developer",
        "user",
        "assistant",
    ]


def test_calls_and_results_are_separate_items() -> None:
    entries = [call_entry("c1", "weather", {"city": "Bonn"}), call_entry("c2", "clock", "nonsense")]

    sent = body(user("Hello"), assistant("", tool_calls=entries), tool_message("sunny", "c1", "weather"))

    assert sent["input"][1:] == [
        {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city":"Bonn"}'},
        {"type": "function_call", "call_id": "c2", "name": "clock", "arguments": "nonsense"},
        {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
    ]


def test_parts_have_the_format_of_this_api() -> None:
    parts = [
        {"type": "text", "text": "Look"},
        {"text": "here"},
        {"type": "image_url", "image_url": {"url": "https://x/y.png", "detail": "low"}},
        {"type": "image_url", "image_url": "data:image/png;base64,AAAA"},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,AAAA"}},
        {"type": "input_image", "file_id": "f1", "detail": "auto"},
    ]

    (sent,) = body(Message.from_dict({"role": "user", "content": parts}))["input"]

    assert sent["content"] == [
        {"type": "input_text", "text": "Look"},
        {"type": "input_text", "text": "here"},
        {"type": "input_image", "image_url": "https://x/y.png", "detail": "low"},
        {"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "auto"},
        {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,AAAA"},
        {"type": "input_image", "file_id": "f1", "detail": "auto"},
    ]


def test_parts_of_the_assistant_are_output_and_those_of_a_result_are_input() -> None:
    said = Message.from_dict({"role": "assistant", "content": [{"type": "text", "text": "Hm"}]})
    content = [{"type": "text", "text": "sunny"}]
    result = Message.from_dict({"role": "tool", "content": content, "metadata": {"tool_call_id": "c1"}})
    calling = assistant("", tool_calls=[call_entry("c1", "weather", {})])

    sent = body("Hello", said, calling, result)["input"]

    assert sent[1]["content"] == [{"type": "output_text", "text": "Hm"}]
    assert sent[3]["output"] == [{"type": "input_text", "text": "sunny"}]


def test_tools_are_not_strict_by_default() -> None:
    """5.2.3"""
    sent = body("Hello", tools=(WEATHER,))

    assert sent["tools"] == [
        {
            "type": "function",
            "name": "weather",
            "description": "Tells the weather",
            "parameters": WEATHER.schema,
            "strict": False,
        }
    ]
    assert "parallel_tool_calls" not in sent
    assert "tool_choice" not in sent


def test_provider_tools_pass_unchanged() -> None:
    request = a_request("Hello", tools=(WEATHER,))
    own = freeze([{"type": "web_search"}])

    sent = request_body(PRESET, type(request)(request.messages, tools=own))

    assert sent["tools"] == [{"type": "web_search"}]


def test_sequential_calls_are_requested() -> None:
    """5.2.3: `parallel_tool_calls: false` is sent only with tools."""
    assert body("Hello", tools=(CLOCK,), parallel_tools=False)["parallel_tool_calls"] is False
    assert "parallel_tool_calls" not in body("Hello", parallel_tools=False)


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        ("auto", "auto"),
        ("none", "none"),
        ("required", "required"),
        ("any", "required"),
        ("weather", {"type": "function", "name": "weather"}),
        ({"type": "function", "function": {"name": "weather"}}, {"type": "function", "name": "weather"}),
    ],
)
def test_the_tool_choice_has_the_format_of_this_api(choice: Any, sent: Any) -> None:
    """5.2.3"""
    assert body("Hello", tools=(WEATHER,), tool_choice=choice)["tool_choice"] == sent


def test_an_answer_may_have_to_satisfy_a_schema() -> None:
    """5.2.4"""
    schema: Json = {"type": "object", "properties": {}, "additionalProperties": False}
    strict = ResponseFormat(frozen_map(schema), name="answer")

    assert body("Hello", response_format=strict)["text"] == {
        "format": {"type": "json_schema", "name": "answer", "schema": schema, "strict": True}
    }
    assert body("Hello", response_format={"type": "json_object"})["text"] == {
        "format": {"type": "json_object"}
    }
    assert "text" not in body("Hello", response_format={"type": "text"})


def test_requests_with_the_same_beginning_share_a_cache_key() -> None:
    """5.2.3: the cached part is the same for any conversation."""
    one = body("Hello", system="Be brief", tools=(WEATHER,))["prompt_cache_key"]
    two = body("Bye", system="Be brief", tools=(WEATHER,))["prompt_cache_key"]
    others = {
        body("Hello", system="Be verbose", tools=(WEATHER,))["prompt_cache_key"],
        body("Hello", system="Be brief", tools=(CLOCK,))["prompt_cache_key"],
        body("Hello", system="Be brief")["prompt_cache_key"],
    }

    assert one == two
    assert len(one) == 32
    assert len(others | {one}) == 4
    assert "prompt_cache_key" not in body("Hello")


# Responses.


def test_an_answer_is_its_items() -> None:
    response = read(*completed_events(a_message("Let me look"), a_call()))

    assert response.text == "Let me look"
    assert response.tool_calls == (ToolCall("c1", "weather", frozen_map({"city": "Bonn"})),)
    assert response.finish_reason == "tool_calls"
    assert list(response.items) == []


def test_messages_of_one_answer_are_separate() -> None:
    first, second = a_message("I look it up."), a_message("It is sunny.") | {"id": "msg_2"}
    heard: list[Json] = [
        {"type": "response.output_item.added", "item": first},
        {"type": "response.output_text.delta", "delta": "I look it up."},
        {"type": "response.output_item.added", "item": second},
        {"type": "response.output_text.delta", "delta": "It is "},
        {"type": "response.output_text.delta", "delta": "sunny."},
    ]

    assert read(*heard, *completed_events(first, second)).text == "I look it up.\n\nIt is sunny."
    assert read(*completed_events(first, second)).text == "I look it up.\n\nIt is sunny."


def test_reasoning_and_arguments_are_not_part_of_the_text() -> None:
    """5.5.1"""
    heard: list[Json] = [
        {"type": "response.reasoning_summary_text.delta", "delta": "Hm, "},
        {"type": "response.reasoning_text.delta", "delta": "well"},
        {"type": "response.output_text.delta", "delta": "Let me look"},
        {"type": "response.function_call_arguments.delta", "delta": '{"city": "Bonn"}'},
    ]

    assert (
        read(*heard, *completed_events(reasoning(), a_message("Let me look"), a_call())).text == "Let me look"
    )


def test_a_refusal_is_returned_and_streamed() -> None:
    """5.3.1"""
    refusal = {"type": "refusal", "refusal": "I will not"}
    item = a_message() | {"content": [refusal]}

    response = read({"type": "response.refusal.delta", "delta": "I will not"}, *completed_events(item))

    assert response.text == "I will not"
    assert response.finish_reason == "content_filter"


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        ({"status": "completed"}, "stop"),
        ({"status": None}, "stop"),
        ({"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}, "length"),
        ({"status": "incomplete", "incomplete_details": {"reason": "content_filter"}}, "content_filter"),
        ({"status": "incomplete", "incomplete_details": {"reason": "something new"}}, "other"),
        ({"status": "incomplete", "incomplete_details": None}, "length"),
        ({"status": "cancelled"}, "other"),
    ],
)
def test_the_status_has_the_stop_reason(response: Json, reason: str) -> None:
    """5.3.1"""
    assert read(*completed_events(a_message(), **response)).finish_reason == reason


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"code": "server_error", "message": "Oops"}, ModelUnavailable),
        ({"code": "rate_limit_exceeded", "message": "Oops"}, RateLimited),
        ({"code": "vector_store_timeout", "message": "Oops"}, ModelUnavailable),
        ({"code": "invalid_prompt", "message": "Oops"}, ModelError),
        ({"code": "bio_policy", "message": "Oops"}, ModelError),
        ({"code": "image_too_large", "message": "Oops"}, ModelError),
    ],
)
@pytest.mark.parametrize("closing", ["response.failed", "response.completed"])
def test_a_failed_response_is_an_error(closing: str, error: Json, kind: type[ModelError]) -> None:
    """3.5.1, 3.5.2"""
    with pytest.raises(ModelError, match="Oops") as failed:
        read({"type": closing, "response": {"status": "failed", "error": error}})

    assert type(failed.value) is kind


def test_a_failure_without_a_reason_is_retryable() -> None:
    with pytest.raises(ModelUnavailable, match="no reason given"):
        read({"type": "response.failed", "response": {"status": "failed", "error": None}})


def test_counters_may_be_missing() -> None:
    """4.2.1"""
    assert read(*completed_events(a_message())).usage == Usage()
    assert read(*completed_events(a_message(), usage={"input_tokens": 3, "output_tokens": 4})).usage == Usage(
        3, 4
    )
    strange: Json = {
        "input_tokens": 3,
        "input_tokens_details": {"cached_tokens": 9},
        "output_tokens": None,
        "output_tokens_details": None,
    }
    assert read(*completed_events(a_message(), usage=strange)).usage == Usage(cache_read=9)


def test_items_have_their_state_at_completion() -> None:
    closing = {"status": "completed", "output": [reasoning(None), a_call()]}
    events = completed_events(reasoning("sealed"), a_call())[:-1]

    response = read(*events, {"type": "response.completed", "response": closing})

    assert response.items[0]["items"][0]["encrypted_content"] == "sealed"


def test_a_closing_event_may_hold_no_items() -> None:
    assert read(*completed_events(a_message("Hi"), output=[])).text == "Hi"


# Round trips.


def conversation(response: InferenceResponse) -> list[Message]:
    return [user("Hello"), *with_results(response, *("sunny" for _ in response.tool_calls))]


def test_reasoning_is_sent_back_in_its_position() -> None:
    items = [
        reasoning(number=1),
        a_message("First this", phase="commentary"),
        reasoning(number=2),
        a_call(arguments='{ "city": "Bonn" }'),
    ]

    sent = body(*conversation(read(*completed_events(*items))))["input"]

    assert sent[1:-1] == items
    assert sent[-1] == {"type": "function_call_output", "call_id": "c1", "output": "sunny"}


def test_the_phase_of_a_message_is_sent_back() -> None:
    items = [a_message("Done", phase="final_answer")]

    assert body(*conversation(read(*completed_events(*items))), "And?")["input"][1] == items[0]


def test_items_that_add_nothing_to_the_message_are_not_stored() -> None:
    assert list(read(*completed_events(a_message(), a_call())).items) == []


def test_reasoning_without_an_answer_is_not_sent() -> None:
    cut_off = read(*completed_events(reasoning(), status="incomplete"))

    assert list(cut_off.items) == []
    assert [item["role"] for item in body(*conversation(cut_off), "And?")["input"]] == ["user", "user"]


def test_reasoning_that_is_only_an_id_is_not_sent() -> None:
    response = read(*completed_events(reasoning(None), a_message(phase="final_answer")))

    (bundle,) = response.items
    assert [item["type"] for item in bundle["items"]] == ["message"]


def test_unencrypted_reasoning_of_compatible_servers_is_sent() -> None:
    open_reasoning = reasoning(None) | {"content": [{"type": "reasoning_text", "text": "Hm"}]}

    sent = body(*conversation(read(*completed_events(open_reasoning, a_message()))), "And?")["input"]

    assert sent[1] == open_reasoning


def test_an_edited_message_is_sent_without_its_items() -> None:
    response = read(*completed_events(reasoning(), a_message("Done")))
    (said,) = with_results(response)
    edited = Message(said.role, "Not done", said.metadata)

    assert body("Hello", said, "And?")["input"][1] == reasoning()
    assert body("Hello", edited, "And?")["input"][1] == {"role": "assistant", "content": "Not done"}


def test_a_renamed_call_is_sent_without_its_items() -> None:
    response = read(*completed_events(reasoning(), a_call()))
    entry = call_entry("c2", "weather", {"city": "Bonn"})
    renamed = assistant("", tool_calls=[entry], provider_items=response.items)

    sent = body("Hello", renamed, tool_message("sunny", "c2", "weather"))["input"]

    assert [item.get("type") for item in sent] == [None, "function_call", "function_call_output"]
    assert sent[1]["call_id"] == "c2"


def test_text_dropped_from_arguments_does_not_lose_the_reasoning() -> None:
    """5.5.2"""
    response = read(*completed_events(reasoning(), a_message('{"city":"Bonn"}'), a_call()))
    entry = call_entry("c1", "weather", {"city": "Bonn"})
    dropped = assistant("", tool_calls=[entry], provider_items=response.items)

    sent = body("Hello", dropped, tool_message("sunny", "c1", "weather"))["input"]

    assert sent[1] == reasoning()
