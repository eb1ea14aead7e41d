"""Responses of another API, and invalid responses."""

import json
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import cache
from typing import Any, cast

import pytest
from hypothesis import given, strategies as st

from everstep.agent_domain.errors import RETRYABLE, ModelError, ModelUnavailable, UnreadableAnswer, WrongApi
from everstep.agent_domain.state.steps import InferenceResponse
from everstep.inference.foreign import unreadable
from everstep.inference.presets import Preset
from tests.everstep.inference.asking import ask
from tests.everstep.inference.counterparts import WireModelServer, a_model
from tests.everstep.inference.dialects import DIALECTS, Answer, Call, Dialect, answer_with_calls
from tests.everstep.inference.test_provider_model import FakeStream
from tests.everstep.inference.wire_server import Reply, WireServer

GREETING = Answer(("Hel", "lo"))
CALLING = answer_with_calls(
    Call("call_1", "weather", ('{"city"', ': "Ulm"}')), text=("I look",), reasoning="sealed"
)
PAIRS = [(asks, answers) for asks in DIALECTS for answers in DIALECTS if asks != answers]


@pytest.mark.parametrize(("asks", "answers"), PAIRS)
async def test_for_another_api_the_error_names_the_driver_to_use(
    server: WireServer, asks: str, answers: str
) -> None:
    """3.5.3: at any path, at once."""
    server.answers(DIALECTS[answers].events(GREETING))
    async with AsyncExitStack() as stack:
        with pytest.raises(ModelError) as failed:
            await ask(a_model(asks, server.url, stack), "Hello")

    assert type(failed.value) is WrongApi
    assert f"Set driver = \"{answers}\" in preset 'tested'." in str(failed.value)
    assert not isinstance(failed.value, RETRYABLE)
    # The public message has the remedy, and not the address.
    assert failed.value.advice
    assert f"Set driver = \"{answers}\" in preset 'tested'." in failed.value.advice
    assert server.url not in failed.value.advice


async def test_incomplete_events_of_the_responses_api_are_named(
    server: WireServer,
) -> None:
    """3.5.3: llama.cpp omits the index."""
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": {}},
        {"type": "response.output_text.delta", "delta": "Hello"},
        {"type": "response.output_item.done", "item": {"type": "message"}},
        {"type": "response.completed", "response": {"output": []}},
    ]
    server.answers([f"data: {json.dumps(event)}\n\n".encode() for event in events])
    async with AsyncExitStack() as stack:
        with pytest.raises(WrongApi) as failed:
            await ask(a_model("openai", f"{server.url}/v1", stack), "Hello")

    assert str(failed.value) == (
        f"test-model at {server.url}/v1 does not support the whole Responses API: an event has no "
        "'output_index'. If the server supports Chat Completions, set driver = \"openai-chat\" "
        "in preset 'tested'."
    )


@pytest.mark.parametrize(
    ("status", "message"),
    [(404, "Not Found"), (405, "Method Not Allowed"), (501, "no"), (400, "'messages' is required")],
)
async def test_for_a_server_without_the_responses_api_the_error_names_the_driver_to_use(
    server: WireServer, status: int, message: str
) -> None:
    """3.5.3"""
    server.answers(Reply.json(status, {"error": {"message": message}}))
    async with AsyncExitStack() as stack:
        with pytest.raises(ModelError) as failed:
            await ask(a_model("openai", f"{server.url}/v1", stack), "Hello")

    assert not isinstance(failed.value, RETRYABLE)
    assert 'A server that supports only Chat Completions needs driver = "openai-chat".' in str(failed.value)


@pytest.mark.parametrize(
    ("body", "content_type", "sentence"),
    [
        (
            b"<html>Welcome</html>",
            "text/html; charset=utf-8",
            "sent a web page instead of a stream of events",
        ),
        (b'{"id": "x", "choices": []}', "application/json", "sent application/json instead of a stream"),
        (b"", "text/event-stream", "sent an empty answer"),
        (b"", "", "sent something instead of a stream of events"),
        (b"data: [DONE]\n\n", "text/event-stream", "sent an empty answer|cannot be read"),
        (b"data: <html>\n\n", "text/event-stream", "an event is not JSON|sent an empty answer"),
        (b"data: " + b"[" * 100_000 + b"\n\n", "text/event-stream", "cannot be read|an empty answer"),
    ],
)
async def test_an_invalid_response_is_reported_in_a_sentence(
    wire: WireModelServer, body: bytes, content_type: str, sentence: str
) -> None:
    """3.5.3: with a success status."""
    headers = {"Content-Type": content_type} if content_type else {}
    wire.server.answers(Reply((body,) if body else (), 200, headers))

    with pytest.raises(ModelUnavailable, match=sentence) as failed:
        await ask(wire.model(), "Hello")
    if "instead of" in sentence:
        # The public message says what to check, and has neither the address nor text of the server.
        assert failed.value.advice
        assert "Check 'base_url' and 'driver' of preset 'tested'." in failed.value.advice
        assert wire.server.url not in failed.value.advice
        assert "application/json" not in failed.value.advice


# Fuzzing.

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)


def events_of(dialect: Dialect, answer: Answer) -> list[Any]:
    """The events of a response, as the SDK returns them."""
    data = (line for event in dialect.events(answer) for line in event.decode().splitlines())
    lines = [line.removeprefix("data: ") for line in data if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def paths_in(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """All positions in a value."""
    entries: Sequence[tuple[Any, Any]] = ()
    if isinstance(value, dict):
        entries = tuple(cast("dict[str, Any]", value).items())
    elif isinstance(value, list):
        entries = tuple(enumerate(cast("list[Any]", value)))
    return [path, *(place for key, each in entries for place in paths_in(each, (*path, key)))]


@st.composite
def mangled_events(draw: st.DrawFn, dialect: Dialect) -> list[Any]:
    """A response in which something is missing, duplicated, reordered or of another type."""
    events: Any = events_of(dialect, draw(st.sampled_from([GREETING, CALLING])))
    for _ in range(draw(st.integers(1, 3))):
        found = [place for place in paths_in(events) if place]
        if not found:
            break
        *path, last = draw(st.sampled_from(found))
        holder = events
        for key in path:
            holder = holder[key]
        match draw(st.sampled_from(["drop", "replace", "double", "shuffle"])):
            case "drop":
                del holder[last]
            case "replace":
                holder[last] = draw(ANYTHING)
            case "double":
                events.append(json.loads(json.dumps(events[draw(st.integers(0, len(events) - 1))])))
            case _:
                events = draw(st.permutations(events))
    return events


@cache
def an_unconnected_model(driver: str) -> Any:
    """A model of this driver, created once: it sends no requests."""
    return a_model(driver, "http://127.0.0.1:9/v1", AsyncExitStack())


@pytest.mark.parametrize("driver", DIALECTS)
@given(data=st.data())
async def test_an_invalid_response_is_an_answer_or_a_typed_error(driver: str, data: st.DataObject) -> None:
    """3.5.3: for any output of a server."""
    events = data.draw(mangled_events(DIALECTS[driver]) | st.lists(ANYTHING, max_size=4))

    async def made_up(_body: object) -> FakeStream:
        return FakeStream(events)

    model = an_unconnected_model(driver)
    model.open = made_up
    try:
        response = await ask(model, "Hello")
    except ModelError as failed:
        said = str(failed)
        assert said.startswith("test-model")
        assert "Error(" not in said
    else:
        written = json.dumps(response.to_dict(), ensure_ascii=False)
        assert InferenceResponse.from_dict(json.loads(written.encode())) == response


def test_an_unreadable_response_is_reported_without_an_exception_name() -> None:
    """3.5.3"""

    preset = Preset.read("tested", {"driver": "openai", "model": "m"})
    sentences = {
        str(unreadable(preset, error))
        for error in (KeyError("x"), KeyError(), ValueError("x"), TypeError("x"), RecursionError())
    }
    assert sentences == {
        f"m sent an answer that cannot be read: {what}"
        for what in (
            "a field 'x' is missing",
            "a field is missing",
            "a field has another type than expected",
            "an event is nested too deeply",
        )
    }
    assert isinstance(unreadable(preset, KeyError("x")), UnreadableAnswer)
