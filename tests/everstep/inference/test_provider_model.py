"""Behaviour that all providers' models share, with a fake stream."""

import json
import ssl
from collections.abc import Sequence
from datetime import UTC
from typing import Any

import anyio
import httpx2
import pytest

from everstep.agent_domain.errors import ModelError, ModelTimeout, ModelUnavailable, UnreadableAnswer
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.messages.cached_context import InferenceRequest
from everstep.agent_domain.state.steps import InferenceResponse
from everstep.inference.loop_clients import LoopClients
from everstep.inference.presets import Preset
from everstep.inference.provider_model import ProviderModel, SdkErrors, utc_now
from everstep.inference.spoken import AnswerText
from tests.everstep.inference.asking import ChunkRecorder, a_request, ask

PRESET = Preset.read("tested", {"driver": "openai", "model": "m"})
REQUEST = httpx2.Request("POST", "http://localhost")


class SdkError(Exception):
    """An error of the SDK."""

    body: object = None


class SdkTimeout(SdkError):
    """A timeout of the SDK."""


class FakeStream:
    """Yields these events; an exception among them is raised."""

    def __init__(self, events: Sequence[object]) -> None:
        self.events = list(events)
        self.is_closed = False
        self.response = httpx2.Response(200, headers={"content-type": "text/event-stream"})

    async def __anext__(self) -> Any:
        if not self.events:
            raise StopAsyncIteration
        event = self.events.pop(0)
        if isinstance(event, BaseException):
            raise event
        return event

    async def close(self) -> None:
        self.is_closed = True


class FakeReader:
    """Every event is a chunk of text; `end` completes the response."""

    def __init__(self) -> None:
        self.spoken = AnswerText()
        self.is_complete = self.has_output = self.is_counted = False
        self.usage = Usage()

    def feed(self, event: Any) -> None:
        if event["text"] == "end":
            self.is_complete = True
        else:
            self.spoken.append(event["text"])

    def response(self) -> InferenceResponse:
        if self.spoken.text == "unfit":
            raise KeyError("output")
        return InferenceResponse(self.spoken.text)


class FakeProviderModel(ProviderModel):
    """A model with a fake stream."""

    errors = SdkErrors(SdkError, ZeroDivisionError, SdkTimeout, ConnectionError)

    def __init__(self, *events: object, refuses: Exception | None = None) -> None:
        super().__init__(PRESET, "sk-secret")
        self._clients = LoopClients(lambda: FakeStream([]))
        self.stream = FakeStream(events)
        self.refuses = refuses

    def body(self, request: InferenceRequest) -> dict[str, Any]:
        return {}

    def reader(self) -> FakeReader:
        return FakeReader()

    async def open(self, body: dict[str, Any]) -> FakeStream:
        if self.refuses:
            raise self.refuses
        return self.stream


def text_events(*texts: str) -> list[object]:
    return [{"text": text} for text in texts]


async def test_a_response_is_read_to_its_end() -> None:
    model, heard = FakeProviderModel(*text_events("Hel", "lo", "end")), ChunkRecorder()

    response = await model.respond(a_request("Hi"), heard)

    assert (response.text, heard) == ("Hello", ["Hel", "lo"])
    assert model.stream.is_closed


BROKEN = [
    httpx2.RemoteProtocolError("peer closed connection"),
    httpx2.ReadError("reset"),
    httpx2.StreamClosed(),
    ssl.SSLError("unexpected eof"),
    anyio.EndOfStream(),
    ConnectionError("Connection error."),
]


@pytest.mark.parametrize("error", BROKEN, ids=lambda error: type(error).__name__)
async def test_any_error_in_a_stream_is_retryable(error: Exception) -> None:
    """3.5.1: SDKs do not wrap all of them."""
    model = FakeProviderModel(*text_events("Hel"), error)

    with pytest.raises(ModelUnavailable, match="m cannot be reached: ") as failed:
        await ask(model, "Hi")

    assert failed.value.__cause__ is error
    assert model.stream.is_closed


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (json.JSONDecodeError("Expecting value", "x", 0), "an event is not JSON"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"), "an event is not in UTF-8"),
        (RecursionError(), "an event is nested too deeply"),
    ],
)
async def test_an_undecodable_event_is_reported_in_a_sentence(error: Exception, sentence: str) -> None:
    """3.5.3"""
    model = FakeProviderModel(*text_events("Hel"), error)

    with pytest.raises(UnreadableAnswer, match=f"m sent an answer that cannot be read: {sentence}") as failed:
        await ask(model, "Hi")

    assert failed.value.__cause__ is error
    assert model.stream.is_closed


@pytest.mark.parametrize("error", [*BROKEN, TimeoutError(), SdkTimeout(), SdkError("late")])
async def test_an_error_after_the_closing_event_keeps_the_answer(error: Exception) -> None:
    assert (await ask(FakeProviderModel(*text_events("Hello", "end"), error), "Hi")).text == "Hello"


@pytest.mark.parametrize("error", [TimeoutError(), SdkTimeout(), httpx2.ReadTimeout("slow")])
async def test_timeouts_of_the_sdk_and_of_ours_are_the_same(error: Exception) -> None:
    """3.5.1"""
    with pytest.raises(ModelTimeout, match="m sent nothing for 300s"):
        await ask(FakeProviderModel(error), "Hi")


async def test_a_connect_timeout_is_reported_as_one() -> None:
    """3.5.1"""
    refused = SdkTimeout()
    refused.__cause__ = httpx2.ConnectTimeout("slow")

    with pytest.raises(ModelTimeout, match="m did not accept a connection within 10s"):
        await ask(FakeProviderModel(refuses=refused), "Hi")


async def test_the_reason_is_found_where_the_sdk_keeps_it() -> None:
    error = ConnectionError("Connection error.")
    error.__cause__ = httpx2.ConnectError("nobody there")

    with pytest.raises(ModelUnavailable, match="m cannot be reached: nobody there"):
        await ask(FakeProviderModel(refuses=error), "Hi")


async def test_an_error_of_the_sdk_is_read_like_any_provider_error() -> None:
    error = SdkError("An error occurred")
    error.body = {"type": "invalid_request_error", "message": "No, sk-secret"}

    with pytest.raises(ModelError, match=r"m: No, \[key\]") as failed:
        await ask(FakeProviderModel(error), "Hi")

    assert type(failed.value) is ModelError


@pytest.mark.parametrize("event", [None, [], {}, {"text": 3}, "text"])
async def test_an_event_of_unknown_shape_is_retryable(event: object) -> None:
    with pytest.raises(ModelUnavailable, match="m sent an answer that cannot be read: a field"):
        await ask(FakeProviderModel(event, *text_events("end")), "Hi")


async def test_a_response_of_unknown_shape_is_retryable() -> None:
    with pytest.raises(
        ModelUnavailable, match="m sent an answer that cannot be read: a field 'output' is missing"
    ):
        await ask(FakeProviderModel(*text_events("unfit", "end")), "Hi")


@pytest.mark.parametrize("mistake", [KeyError("mine"), ValueError("mine"), TimeoutError("mine")])
async def test_a_listeners_error_is_raised_unchanged(mistake: Exception) -> None:
    """It is not a failure of the model, and is not retried."""
    model = FakeProviderModel(*text_events("Hello", "end"))

    def listener(_text: str) -> None:
        raise mistake

    with pytest.raises(type(mistake), match="mine") as raised:
        await model.respond(a_request("Hi"), listener)

    assert raised.value is mistake
    assert model.stream.is_closed


def test_the_system_clock_has_a_time_zone() -> None:
    assert utc_now().tzinfo is UTC
