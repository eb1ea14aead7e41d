"""Streams at the byte level: how they may be cut into chunks, and everything that can fail in them."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from everstep.agent_domain.errors import (
    RETRYABLE,
    ContextTooLong,
    ModelError,
    ModelTimeout,
    ModelUnavailable,
    RateLimited,
)
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.messages.messages import user
from everstep.agent_domain.state.steps import InferenceResponse
from everstep.agent_domain.tools.tools import ToolCall
from everstep.agent_domain.values import frozen_map
from tests.everstep.inference.asking import WEATHER, ChunkRecorder, a_request, ask, with_results
from tests.everstep.inference.counterparts import KEY, WireModelServer, a_model
from tests.everstep.inference.dialects import Answer, Call, answer_with_calls
from tests.everstep.inference.wire_server import Reply, StreamBreak, WireServer

GREETING = Answer(("Grüße ", "aus 東京 ", "🗼"))
CALLING = answer_with_calls(
    Call("call_1", "weather", ('{"ci', 'ty":', '"東京', '"}')),
    Call("call_2", "clock", ('{"zone', '": "JST"}')),
    text=("Let me ", "look"),
    reasoning="sealed",
    usage=Usage(100, 40, 20, 30, 10),
)


def cut_after(events: Sequence[bytes], count: int) -> Reply:
    """The connection is dropped after this many events."""
    return Reply((*events[:count], StreamBreak.CUT))


def end_after(events: Sequence[bytes], count: int) -> Reply:
    """The response ends as if it were complete."""
    return Reply(tuple(events[:count]))


# Chunks.


@pytest.mark.parametrize("size", [1, 7, 64])
async def test_a_stream_may_be_cut_into_chunks_anywhere(wire: WireModelServer, size: int) -> None:
    stream = b"".join(wire.dialect.events(CALLING))
    wire.server.answers([stream[start : start + size] for start in range(0, len(stream), size)])
    heard = ChunkRecorder()

    response = await wire.model().respond(a_request("Hello"), heard)

    assert response.text == heard.text == "Let me look"
    assert response.tool_calls == (
        ToolCall("call_1", "weather", frozen_map({"city": "東京"})),
        ToolCall("call_2", "clock", frozen_map({"zone": "JST"})),
    )


async def test_lines_may_end_with_crlf_and_comments_are_ignored(wire: WireModelServer) -> None:
    events = [b": keep-alive\r\n\r\n", *(e.replace(b"\n", b"\r\n") for e in wire.dialect.events(GREETING))]
    wire.server.answers(events)

    assert (await ask(wire.model(), "Hello")).text == "Grüße aus 東京 🗼"


async def test_counters_are_disjoint(wire: WireModelServer) -> None:
    """4.2.1: cached tokens are not in the input, reasoning is not in the output."""
    wire.server.answers(wire.dialect.events(CALLING))

    response = await ask(wire.model(), "Hello")

    assert response.usage == Usage(input=100, output=40, cache_write=20, cache_read=30, reasoning=10)
    assert response.usage.total == 200


@pytest.mark.parametrize("arguments", ['{"city": "Par', "[1, 2]", '"Paris"', "nonsense"])
async def test_arguments_that_are_not_an_object_are_kept_unchanged(
    wire: WireModelServer, arguments: str
) -> None:
    """5.4.3: the model reads the error."""
    wire.server.answers(wire.dialect.events(answer_with_calls(Call("call_1", "weather", (arguments,)))))

    (call,) = (await ask(wire.model(), "Hello")).tool_calls

    assert call == ToolCall("call_1", "weather", malformed=arguments)


@pytest.mark.parametrize("arguments", [("",), ()])
async def test_no_arguments_are_an_empty_object(wire: WireModelServer, arguments: Sequence[str]) -> None:
    wire.server.answers(wire.dialect.events(answer_with_calls(Call("call_1", "clock", arguments))))

    assert (await ask(wire.model(), "Hello")).tool_calls == (ToolCall("call_1", "clock"),)


async def test_no_unstorable_text_is_streamed(wire: WireModelServer) -> None:
    wire.server.answers(wire.dialect.events(Answer(("a\x00b", "c"))))
    heard = ChunkRecorder()

    response = await wire.model().respond(a_request("Hello"), heard)

    assert response.text == heard.text == "abc"


# The closing event.

CUTS = [pytest.param(cut_after, id="cut"), pytest.param(end_after, id="ended")]


@pytest.mark.parametrize("short", CUTS)
async def test_a_response_needs_its_closing_event(wire: WireModelServer, short: Any) -> None:
    """3.5.1: a stream that ends between any two events before it is retryable."""
    events = wire.dialect.events(CALLING)
    for count in range(wire.dialect.closing(events) + 1):
        wire.server.answers(short(events, count))

        with pytest.raises(ModelUnavailable):
            await ask(wire.model(), "Hello")


@pytest.mark.parametrize("short", CUTS)
async def test_a_response_is_complete_from_its_closing_event_on(wire: WireModelServer, short: Any) -> None:
    events = wire.dialect.events(CALLING)
    for count in range(wire.dialect.closing(events) + 1, len(events) + 1):
        wire.server.answers(short(events, count))

        response = await ask(wire.model(), "Hello")

        assert [call.name for call in response.tool_calls] == ["weather", "clock"]


async def test_a_stream_is_cut_in_the_middle_of_an_event(wire: WireModelServer) -> None:
    events = wire.dialect.events(GREETING)
    closing = wire.dialect.closing(events)
    for cut in (1, len(events[closing]) // 2, len(events[closing]) - 3):
        wire.server.answers((*events[:closing], events[closing][:cut], StreamBreak.CUT))

        with pytest.raises(ModelUnavailable):
            await ask(wire.model(), "Hello")


async def test_an_error_after_the_closing_event_keeps_the_response(wire: WireModelServer) -> None:
    events = wire.dialect.events(GREETING)
    wire.server.answers((*events[: wire.dialect.closing(events) + 1], StreamBreak.STALL))

    assert (await ask(wire.model(timeout_seconds=0.2), "Hello")).text == "Grüße aus 東京 🗼"


@pytest.mark.parametrize("wire", ["openai-chat"], indirect=True)
async def test_silence_after_the_closing_event_is_not_waited_for(wire: WireModelServer) -> None:
    events = wire.dialect.events(GREETING)
    wire.server.answers((*events[: wire.dialect.closing(events) + 1], StreamBreak.STALL))

    async with asyncio.timeout(100):
        await ask(wire.model(timeout_seconds=1000), "Hello")


async def test_an_empty_stream_is_an_error(wire: WireModelServer) -> None:
    """3.5.1, 3.5.3: it is retryable, and the message differs from that of a response that broke off."""
    wire.server.answers(())

    with pytest.raises(ModelUnavailable, match=r"test-model at \S+ sent an empty answer") as failed:
        await ask(wire.model(), "Hello")

    assert type(failed.value) is ModelUnavailable


# Silence.


async def test_silence_at_any_point_is_a_timeout(wire: WireModelServer) -> None:
    """3.5.1"""
    events = wire.dialect.events(GREETING)
    for count in (0, 1, wire.dialect.closing(events)):
        wire.server.answers((*events[:count], StreamBreak.STALL))

        with pytest.raises(ModelTimeout, match=r"test-model sent nothing for 0\.2s"):
            await ask(wire.model(timeout_seconds=0.2), "Hello")


async def test_a_caller_that_gives_up_closes_the_connection(wire: WireModelServer) -> None:
    wire.server.answers((wire.dialect.events(GREETING)[0], StreamBreak.STALL))

    with pytest.raises(ModelTimeout):
        await ask(wire.model(timeout_seconds=0.2), "Hello")

    await asyncio.wait_for(wire.server.hung_up.wait(), 10)


async def test_cancelling_closes_the_connection(wire: WireModelServer) -> None:
    """8.2.1: a cancelled execution pays for no further tokens."""
    events = wire.dialect.events(GREETING)
    wire.server.answers((*events[: wire.dialect.closing(events)], StreamBreak.STALL))
    spoken = asyncio.Event()

    asking_task = asyncio.create_task(wire.model().respond(a_request("Hello"), lambda _text: spoken.set()))
    await spoken.wait()
    asking_task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await asking_task
    await asyncio.wait_for(wire.server.hung_up.wait(), 10)


async def test_a_refused_connection_is_retryable(wire: WireModelServer) -> None:
    model = a_model(wire.dialect.driver, "http://127.0.0.1:9", wire.stack)

    with pytest.raises(ModelUnavailable, match="test-model cannot be reached: "):
        await ask(model, "Hello")


# Invalid events.


@pytest.mark.parametrize(
    "nonsense",
    [
        b'data: {"type": "half\n\n',
        b"event: message_delta\ndata: {oops}\n\n",
        b"event: message_delta\ndata: [1, 2]\n\n",
        b'event: message_delta\ndata: "text"\n\n',
        b"event: message_delta\ndata: \xff\xfe\n\n",
    ],
)
async def test_an_unreadable_event_is_retryable(wire: WireModelServer, nonsense: bytes) -> None:
    if nonsense.startswith(b"data"):
        # The Messages API names every event; an event without a name belongs to another API.
        nonsense = b"event: message_delta\n" + nonsense
    events = wire.dialect.events(GREETING)
    wire.server.answers((*events[:2], nonsense, *events[2:]))

    with pytest.raises(ModelUnavailable):
        await ask(wire.model(), "Hello")


@pytest.mark.parametrize("kind", ["response.later", "message_later", "content_block_later", "later"])
async def test_events_of_later_versions_are_ignored(wire: WireModelServer, kind: str) -> None:
    """0.6, 3.5.3: once the API is recognised, an unknown event does not mean another API."""
    events = wire.dialect.events(GREETING)
    later = f'event: {kind}\ndata: {{"type": "{kind}", "delta": {{"x": 1}}}}\n\n'.encode()
    wire.server.answers((*events[:2], later, *events[2:]))

    assert (await ask(wire.model(), "Hello")).text == "Grüße aus 東京 🗼"


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("overloaded_error", ModelUnavailable),
        ("server_error", ModelUnavailable),
        ("api_error", ModelUnavailable),
        ("something_new", ModelUnavailable),
        ("rate_limit_error", RateLimited),
        ("rate_limit_exceeded", RateLimited),
        ("invalid_request_error", ModelError),
        ("authentication_error", ModelError),
        ("context_length_exceeded", ContextTooLong),
        ("insufficient_quota", ModelError),
    ],
)
async def test_an_error_in_the_middle_of_a_stream_is_classified_by_its_text(
    wire: WireModelServer, kind: str, error: type[ModelError]
) -> None:
    """3.5.1, 3.5.2"""
    events = wire.dialect.events(GREETING)
    wire.server.answers((*events[:3], wire.dialect.broken(kind, "Out of luck")))

    with pytest.raises(ModelError, match="Out of luck") as failed:
        await ask(wire.model(), "Hello")

    assert type(failed.value) is error


async def test_an_error_event_after_the_closing_event_keeps_the_response(wire: WireModelServer) -> None:
    events = wire.dialect.events(GREETING)
    closing = wire.dialect.closing(events)
    wire.server.answers((*events[: closing + 1], wire.dialect.broken("server_error", "Late")))

    assert (await ask(wire.model(), "Hello")).text == "Grüße aus 東京 🗼"


# Error responses.


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, ModelError),
        (401, ModelError),
        (403, ModelError),
        (404, ModelError),
        (408, ModelUnavailable),
        (409, ModelUnavailable),
        (413, ModelError),
        (422, ModelError),
        (429, RateLimited),
        (500, ModelUnavailable),
        (502, ModelUnavailable),
        (503, ModelUnavailable),
        (504, ModelUnavailable),
        (529, ModelUnavailable),
    ],
)
async def test_the_status_decides_whether_an_error_is_retryable(
    wire: WireModelServer, status: int, error: type[ModelError]
) -> None:
    """3.5.1, 3.5.2"""
    wire.server.answers(Reply.json(status, wire.dialect.refusal("some_error", "Not today")))

    with pytest.raises(ModelError, match="Not today") as failed:
        await ask(wire.model(), "Hello")

    assert type(failed.value) is error
    assert isinstance(failed.value, RETRYABLE) is (error is not ModelError)
    assert len(wire.server.requests) == 1


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry_After": "17"}, 17),
        ({"Retry_After": "0.5"}, 0.5),
        ({"retry_after_ms": "250", "Retry_After": "17"}, 0.25),
        ({}, None),
    ],
)
async def test_the_requested_delay_is_passed_on(
    wire: WireModelServer, status: int, headers: dict[str, str], seconds: float | None
) -> None:
    """3.5.1"""
    body = wire.dialect.refusal("some_error", "Not now")
    wire.server.answers(Reply.json(status, body, **headers))

    with pytest.raises((RateLimited, ModelUnavailable)) as failed:
        await ask(wire.model(), "Hello")

    assert failed.value.retry_after == seconds


@pytest.mark.parametrize(
    "body", [b"", b"<html>Bad gateway</html>", b"[]", b'{"error": "busy"}', b'{"detail": "busy"}', b"null"]
)
async def test_an_error_may_come_in_any_shape(wire: WireModelServer, body: bytes) -> None:
    wire.server.answers(Reply((body,) if body else (), 502, {"Content-Type": "text/html"}))

    with pytest.raises(ModelUnavailable, match=r"test-model \(502\): "):
        await ask(wire.model(), "Hello")


async def test_a_wrong_key_is_named_and_never_shown(wire: WireModelServer) -> None:
    wire.server.answers(Reply.json(401, wire.dialect.refusal("some_error", f"Wrong key {KEY}")))

    with pytest.raises(ModelError) as failed:
        await ask(wire.model(), "Hello")

    assert str(failed.value) == "test-model (401): Wrong key [key]. Check the key in TEST_KEY."


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("context_length_exceeded", "This is too much"),
        (None, "This model's maximum context length is 8192 tokens"),
        (None, "prompt is too long: 210000 tokens > 200000 maximum"),
    ],
)
async def test_a_conversation_that_is_too_long_has_a_remedy(
    wire: WireModelServer, code: str | None, message: str
) -> None:
    """3.5.2"""
    wire.server.answers(Reply.json(400, wire.dialect.refusal("invalid_request_error", message, code)))

    with pytest.raises(ModelError, match=message[:12]) as failed:
        await ask(wire.model(), "Hello")

    assert "The conversation is too long for this model: start a new one" in str(failed.value)
    assert not isinstance(failed.value, RETRYABLE)


# Requests.


async def test_the_key_and_the_request_are_sent(wire: WireModelServer) -> None:
    wire.server.answers(wire.dialect.events(GREETING))

    await ask(wire.model(max_output_tokens=99), "Hello", system="Be brief", tools=(WEATHER,))

    (request,) = wire.server.requests
    assert request.path == wire.dialect.path
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert request.body["model"] == "test-model"
    assert request.body["stream"] is True
    assert "Be brief" in json.dumps(request.body)


async def test_a_server_without_a_key_gets_none(wire: WireModelServer) -> None:
    wire.server.answers(wire.dialect.events(GREETING))

    await ask(wire.model(api_key_env=None), "Hello")

    assert KEY not in str(wire.server.requests[0].headers)


async def test_a_connection_is_reused(wire: WireModelServer) -> None:
    wire.server.answers(wire.dialect.events(GREETING))
    model = wire.model()

    await ask(model, "Hello")
    await ask(model, "Hello again")

    assert [request.connection for request in wire.server.requests] == [1, 1]


async def test_reasoning_is_sent_back_to_its_origin_only(wire: WireModelServer, server: WireServer) -> None:
    """Unchanged to the model that created it; to no other model and to no other address."""
    wire.server.answers(wire.dialect.events(CALLING), wire.dialect.events(GREETING))
    first = await ask(wire.model(), "Hello")
    # As a store returns it.
    kept = InferenceResponse.from_dict(json.loads(json.dumps(first.to_dict())))
    conversation = (user("Hello"), *with_results(kept, "sunny", "noon"))

    await ask(wire.model(), *conversation)
    await ask(wire.model(model="another"), *conversation)
    await ask(wire.model(base_url=server.url + wire.dialect.prefix + "/"), *conversation)

    reasoning = [wire.dialect.reasoning_in(request.body) for request in server.requests]
    assert reasoning == [[], ["sealed"], [], []]
