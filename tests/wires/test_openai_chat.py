"""Chat completions over a socket: the unmodified SDK of OpenAI."""

import base64
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import pytest
import pytest_asyncio
from openai import APIError, AsyncOpenAI, BadRequestError, InternalServerError, UnprocessableEntityError

from everstep.agent_domain.values import EMPTY
from everstep.wires.chat_chunks import SUPERSEDED, ChatChunks
from everstep.wires.run_events import (
    RunEnded,
    RunEvent,
    RunStarted,
    StepEnded,
    TextAdded,
    TextDropped,
    TextEnded,
    TextStarted,
)
from tests.everstep.http_api.house import ApiCaller
from tests.wires.test_openai_responses import heard_by, key_of

pytestmark = pytest.mark.usefixtures("work")

Messages = list[Any]


@pytest_asyncio.fixture
async def openai(url: str, ann: ApiCaller) -> AsyncGenerator[AsyncOpenAI]:
    """The SDK as ann."""
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key=key_of(ann), max_retries=0) as client:
        yield client


async def say(openai: AsyncOpenAI, messages: Messages, text: str, **more: Any) -> str:
    """Send a message with all earlier ones, as chat clients do; add the answer to them."""
    messages.append({"role": "user", "content": text})
    # The SDK's overloads do not know options that vary.
    create: Any = openai.chat.completions.create
    completion: Any = await create(model="clerk", messages=messages, **more)
    choice: Any = completion.choices[0]
    assert (choice.finish_reason, choice.message.tool_calls) == ("stop", None)
    messages.append({"role": "assistant", "content": choice.message.content})
    return choice.message.content or ""


async def test_a_conversation_without_a_name_is_one_session(openai: AsyncOpenAI, ann: ApiCaller) -> None:
    """17.5.9, 17.5.10"""
    messages: Messages = [{"role": "system", "content": "Be brief"}]
    assert await say(openai, messages, "hello") == "You said: hello"
    assert await say(openai, messages, "again") == "You said: again"
    (session,) = (await ann.get("/agent/sessions"))["items"]
    assert session["title"] == "hello"
    # Another conversation, and one in which an earlier message was changed, are sessions of their own.
    await say(openai, [], "hello")
    messages[1]["content"] = "good day"
    assert await say(openai, messages, "and now") == "You said: and now"
    assert len((await ann.get("/agent/sessions"))["items"]) == 3
    (edited, *_) = (await ann.get("/agent/executions"))["items"]
    assert await heard_by(ann, edited["id"]) == [
        *("Be brief", "good day", "You said: hello", "again", "You said: again", "and now"),
        "You said: and now",
    ]


async def test_a_named_session_reads_only_new_messages(openai: AsyncOpenAI, ann: ApiCaller) -> None:
    """17.5.10: by our option, or by a header. A repeated request has the same answer."""
    messages: Messages = []
    await say(openai, messages, "one", extra_body={"everstep": {"session": "trip"}})
    header = {"X-Everstep-Session": "trip"}
    await say(openai, messages, "two", extra_headers=header)
    del messages[-2:]
    await say(openai, messages, "two", extra_headers=header)
    await say(openai, [], "three", extra_headers={"X-OpenWebUI-Chat-Id": "trip"})
    (session,) = (await ann.get("/agent/sessions"))["items"]
    runs = (await ann.get("/agent/executions", session_id=session["id"]))["items"]
    assert [run["output"]["response"] for run in runs] == [
        "You said: three",
        "You said: two",
        "You said: one",
    ]


async def test_questions_and_approvals_are_answered_with_messages(
    openai: AsyncOpenAI, ann: ApiCaller
) -> None:
    """17.5.11"""
    messages: Messages = []
    assert await say(openai, messages, "ask") == "Which day?\n- Monday\n- Friday"
    with pytest.raises(BadRequestError, match="Answer must be one of: Monday, Friday"):
        await say(openai, messages, "Sunday")
    messages.pop()
    assert await say(openai, messages, "Friday") == "So be it: Friday"
    asked = await say(openai, messages, "book")
    assert asked.startswith('The call book({"hotel":"Harbour Inn"}) waits for approval.')
    with pytest.raises(BadRequestError, match="answer `approve`, `deny`"):
        await say(openai, messages, "approve, but only if it is cheap")
    messages.pop()
    assert await say(openai, messages, "Deny: too far") == "So be it: Denied by user: too far"
    assert "approval" in await say(openai, messages, "book")
    for _ in range(2):
        # The decision is repeated.
        assert await say(openai, messages, "approve") == "So be it: a room at Harbour Inn"
        del messages[-2:]
    assert len((await ann.get("/agent/sessions"))["items"]) == 1


async def test_a_stream_has_the_text_the_usage_and_what_happened(openai: AsyncOpenAI) -> None:
    """17.5.9"""
    stream = await openai.chat.completions.create(
        model="clerk",
        messages=[{"role": "user", "content": "spend 0.25"}],
        stream=True,
        stream_options={"include_usage": True},
    )
    *chunks, last = [chunk async for chunk in stream]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Spent"
    assert chunks[-1].choices[0].finish_reason == "stop"
    everstep: Any = chunks[-1].to_dict()["everstep"]
    assert (everstep["status"], everstep["cost_usd"]) == ("completed", 0.25)
    assert last.choices == []
    assert last.usage
    assert (last.usage.prompt_tokens, last.usage.completion_tokens, last.usage.total_tokens) == (100, 20, 120)


async def test_images_are_attached(openai: AsyncOpenAI) -> None:
    """17.5.9"""
    url = "data:text/plain;base64," + base64.b64encode(b"Friday").decode()
    parts = [
        {"type": "text", "text": "look"},
        {"type": "file", "file": {"filename": "day.txt", "file_data": url}},
    ]
    messages: Messages = [{"role": "user", "content": parts}]
    done = await openai.chat.completions.create(model="clerk", messages=messages)
    assert done.choices[0].message.content == "You sent: day.txt b'Friday'"


async def test_a_failed_execution_is_an_error(openai: AsyncOpenAI, ann: ApiCaller) -> None:
    """17.5.12: the SDK does not run it again by itself."""
    client = openai.with_options(max_retries=2)
    with pytest.raises(InternalServerError) as raised:
        await say(client, [], "fail")
    assert raised.value.code == "execution_failed"
    assert len((await ann.get("/agent/executions"))["items"]) == 1
    stream = await openai.chat.completions.create(
        model="clerk", messages=[{"role": "user", "content": "fail"}], stream=True
    )
    with pytest.raises(APIError) as failed:
        _ = [chunk async for chunk in stream]
    assert failed.value.code == "execution_failed"


async def test_a_result_that_does_not_fit_says_so(openai: AsyncOpenAI, ann: ApiCaller) -> None:
    """17.5.12: without the reference of an operator's log, and the SDK does not run it again."""
    client = openai.with_options(max_retries=2)
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    given: Any = {"type": "json_schema", "json_schema": {"name": "trip", "schema": schema}}
    with pytest.raises(UnprocessableEntityError, match="does not fit its schema; send the") as raised:
        await say(client, [], "hello", response_format=given)
    assert raised.value.code == "invalid_result"
    (execution,) = (await ann.get("/agent/executions"))["items"]
    assert execution["error_message"] == "The result does not fit its schema"


async def test_a_repeated_request_runs_once(openai: AsyncOpenAI, ann: ApiCaller) -> None:
    """17.5.12"""
    key = {"Idempotency-Key": "k"}
    for _ in range(2):
        assert await say(openai, [], "hello", extra_headers=key) == "You said: hello"
    assert len((await ann.get("/agent/executions"))["items"]) == 1
    with pytest.raises(BadRequestError, match="used for a different request"):
        await say(openai, [], "good day", extra_headers=key)


REFUSED: Mapping[str, tuple[dict[str, Any], int, str]] = {
    "n": ({"n": 2}, 400, "one answer"),
    "logprobs": ({"logprobs": True}, 400, "logprobs"),
    "tools": ({"tools": [{"type": "function"}]}, 400, "agents have their own"),
    "functions": ({"functions": [{"name": "f"}]}, 400, "agents have their own"),
    "audio": ({"modalities": ["text", "audio"]}, 400, "modalities"),
    "no message": ({"messages": []}, 400, "messages"),
    "no user": ({"messages": [{"role": "assistant", "content": "Hi"}]}, 400, "message of the user"),
    "blank": ({"messages": [{"role": "user", "content": " "}]}, 400, "message of the user"),
    "tool": ({"messages": [{"role": "tool", "content": "x", "tool_call_id": "1"}]}, 400, "messages.0"),
    "content": ({"messages": [{"role": "user", "content": 7}]}, 400, "neither text"),
    "format": ({"response_format": {"type": "json_schema"}}, 400, "schema"),
    "option": ({"everstep": {"sesion": "x"}}, 400, "sesion"),
    "agent": ({"model": "clerc"}, 404, "did you mean 'clerk'"),
}


async def test_bad_input_is_refused_in_the_form_of_the_protocol(ann: ApiCaller) -> None:
    """17.5.8"""
    for kind, (change, status, word) in REFUSED.items():
        body = {"model": "clerk", "messages": [{"role": "user", "content": "hello"}]}
        answer = await ann.http.post("/v1/chat/completions", json=body | change)
        assert answer.status_code == status, (kind, answer.text)
        assert word in answer.json()["error"]["message"], kind
    assert not (await ann.get("/agent/executions"))["items"]


AT: Any = {"execution_id": "e", "seq": 1}
TEXT: Any = {**AT, "message_id": "m"}
BEGUN = RunStarted(**AT, segment=0)
ENDED = RunEnded(**AT, status="completed", response="red and blue", state=EMPTY)


def attempts(*texts: str) -> list[RunEvent]:
    """Attempts of a step, of which the last one is complete."""
    events: list[RunEvent] = [BEGUN]
    for number, text in enumerate(texts, 1):
        events += [TextStarted(**TEXT, attempt=number), *(TextAdded(**TEXT, text=each) for each in text)]
        if number < len(texts):
            events.append(TextDropped(**TEXT, thread=()))
    return [*events, TextEnded(**TEXT), StepEnded(**AT, number=1), ENDED]


@pytest.mark.parametrize(
    ("texts", "is_whole", "is_accepted"),
    [
        (["red and blue"], False, True),
        (["red an", "red and blue"], False, True),
        (["red or", "red and blue"], False, False),
        (["red and blue, I think", "red and blue"], False, False),
        (["red or", "red and blue"], True, True),
    ],
)
def test_text_that_was_sent_is_continued_or_the_stream_fails(
    texts: list[str], is_whole: bool, is_accepted: bool
) -> None:
    """17.5.13"""
    chunks = ChatChunks("e", "clerk", 0, "s", is_whole=is_whole)
    sent: list[Any] = []
    for event in attempts(*texts):
        if not chunks.is_complete:
            sent += chunks.encode(event)
    received = "".join(
        chunk["choices"][0]["delta"].get("content", "") for chunk in sent if "choices" in chunk
    )
    if is_accepted:
        assert (received, chunks.text, chunks.finish_reason) == ("red and blue", "red and blue", "stop")
    else:
        assert received == texts[0][: len(received)]
        assert sent[-1]["error"]["code"] == SUPERSEDED
