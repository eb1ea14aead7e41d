"""The UI message stream over a socket: the unmodified `Chat` of the AI SDK, with its default transport."""

import json
import os
import random
from collections.abc import AsyncGenerator, Callable, Generator
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import pytest
import pytest_asyncio

from everstep.wires.ui_messages import DONE, UiMessages
from tests.browsers.viewer import SharedNode, Viewer
from tests.everstep.http_api.house import ApiCaller, MakeCaller
from tests.wires.clients import ChatClient, chat_node, exhaust_budget
from tests.wires.random_logs import RandomLog
from tests.wires.readers import uncut, with_cuts

RANDOM_RUNS = int(os.environ.get("EVERSTEP_RANDOM_RUNS", "12"))

pytestmark = pytest.mark.usefixtures("work")

MakeChat = Callable[..., ChatClient]


@pytest.fixture(scope="module")
def shared_node() -> Generator[SharedNode]:
    """A process of node."""
    node = chat_node()
    yield node
    node.close()


@pytest_asyncio.fixture
async def node(shared_node: SharedNode) -> AsyncGenerator[Viewer]:
    """The process as a test uses it."""
    async with shared_node.open_viewer() as viewer:
        yield viewer


@pytest.fixture
def make_chat(url: str, node: Viewer, ann: ApiCaller) -> MakeChat:
    """Makes chats of ann."""

    def make(
        chat_id: str = "trip", agent: str = "clerk", *, caller: ApiCaller = ann, **config: Any
    ) -> ChatClient:
        headers = {"Authorization": caller.http.headers["authorization"]}
        return ChatClient(node, uuid4().hex).make(f"{url}/ai/{agent}/chat", headers, chat_id, **config)

    return make


def kinds(message: Any) -> list[str]:
    return [part["type"] for part in message["parts"]]


def texts(message: Any) -> list[str]:
    return [part["text"] for part in message["parts"] if part["type"] == "text"]


async def test_a_message_is_answered(make_chat: MakeChat, ann: ApiCaller) -> None:
    """17.3.1"""
    chat = make_chat()
    done = await chat.send("hello")
    assert (done["error"], done["status"]) == (None, "ready")
    answer = done["messages"][-1]
    (run,) = (await ann.get("/agent/executions"))["items"]
    assert (answer["id"], answer["role"]) == (run["id"], "assistant")
    assert kinds(answer) == ["data-state", "step-start", "text"]
    assert texts(answer) == ["You said: hello"]
    assert answer["metadata"]["because"] == "completed: the model answered without calling tools"
    done = await chat.send("again")
    assert [text for message in done["messages"] for text in texts(message)] == [
        *("hello", "You said: hello", "again", "You said: again")
    ]


@pytest.mark.parametrize("is_approved", [True, False])
async def test_a_call_is_approved_in_the_chat(make_chat: MakeChat, is_approved: bool) -> None:
    """17.3.2"""
    chat = make_chat()
    await chat.send("hello")
    asked = (await chat.send("book"))["messages"][-1]
    (call,) = (part for part in asked["parts"] if part["type"] == "tool-book")
    assert (call["state"], call["input"]) == ("approval-requested", {"hotel": "Harbour Inn"})
    assert asked["metadata"]["because"].startswith("waits: approval of book(")

    done = await chat.do("decide", id=call["approval"]["id"], approved=is_approved, reason="too far")
    assert done["error"] is None
    answer = done["messages"][-1]
    assert answer["id"] == asked["id"]
    (call,) = (part for part in answer["parts"] if part["type"] == "tool-book")
    if is_approved:
        assert (call["state"], call["output"]) == ("output-available", "a room at Harbour Inn")
        assert texts(answer) == ["So be it: a room at Harbour Inn"]
    else:
        assert call["state"] == "output-denied"
        assert texts(answer) == ["So be it: Denied by user: too far"]


async def test_a_question_is_answered_with_the_output_of_its_call(make_chat: MakeChat) -> None:
    """17.3.2"""
    chat = make_chat()
    asked = (await chat.send("ask"))["messages"][-1]
    (question,) = (part["data"] for part in asked["parts"] if part["type"] == "data-question")
    assert (question["prompt"], question["choices"]) == ("Which day?", ["Monday", "Friday"])
    output = {"tool": "user_input", "toolCallId": question["toolCallId"], "output": "Friday"}
    done = await chat.do("answer", **output)
    assert done["error"] is None
    assert texts(done["messages"][-1]) == ["So be it: Friday"]
    # A message answers as well.
    await chat.send("wonder")
    assert texts((await chat.send("Because."))["messages"][-1]) == ["So be it: Because."]


async def test_files_of_a_message_are_attached(make_chat: MakeChat, ann: ApiCaller) -> None:
    """17.3.7"""
    uploaded = await ann.upload(b"one", "one.txt")
    parts: list[dict[str, str]] = [
        {"type": "text", "text": "look"},
        {"type": "file", "mediaType": "text/plain", "url": f"/agent/attachments/{uploaded['id']}"},
        {
            "type": "file",
            "mediaType": "text/plain",
            "filename": "two.txt",
            "url": "data:text/plain;base64,dHdv",
        },
    ]
    done = await make_chat().do("send", message={"parts": parts}, body={})
    assert texts(done["messages"][-1]) == ["You sent: one.txt b'one', two.txt b'two'"]
    refused = await make_chat("b").do(
        "send", message={"parts": [{**parts[1], "url": "https://elsewhere.example/a.txt"}]}, body={}
    )
    assert "neither uploaded nor contained" in refused["error"]


async def test_an_exhausted_budget_is_a_part_of_the_message(
    make_chat: MakeChat, ann: ApiCaller, sign_in: MakeCaller
) -> None:
    """17.3.6"""
    await exhaust_budget(ann)
    chat = make_chat()
    asked = (await chat.send("hello"))["messages"][-1]
    (budget,) = (part for part in asked["parts"] if part["type"] == "data-budget")
    assert (budget["data"]["unit"], budget["data"]["limit"], budget["data"]["needed"]) == ("steps", 0, 1)
    assert asked["metadata"]["because"].startswith("waits: ")
    approver = await sign_in("boss", "approve")
    await approver.post(f"/agent/executions/{budget['data']['executionId']}/budget", {"steps": 1})
    done = await chat.do("resume")
    assert texts(done["messages"][-1]) == ["You said: hello"]


async def test_failures_and_refusals_are_errors_of_the_chat(make_chat: MakeChat) -> None:
    """17.2.5, 17.3.1"""
    done = await make_chat().send("fail")
    assert done["status"] == "error"
    assert done["error"].startswith("ModelError")
    unknown = await make_chat(agent="clerc").send("hello")
    assert "clerk" in unknown["error"]
    refused = await make_chat("b").send("hello", everstep={"on_bussy": "steer"})
    assert "on_bussy" in refused["error"]


async def test_a_malformed_text_and_another_answer_to_a_closed_request_are_refused(
    url: str, ann: ApiCaller
) -> None:
    """17.2.5"""
    message: dict[str, Any] = {"id": "m", "role": "user", "parts": [{"type": "text"}]}
    async with httpx2.AsyncClient(base_url=url, headers=ann.http.headers) as http:

        async def send(**sent: Any) -> httpx2.Response:
            return await http.post("/ai/clerk/chat", json={"id": "c", "messages": [sent]})

        refused = await send(**message)
        assert (refused.status_code, "has no text" in refused.text) == (422, True)
        asked = await send(id="m", role="user", parts=[{"type": "text", "text": "book"}])
        (line,) = (line for line in asked.text.splitlines() if "tool-approval-request" in line)
        id_ = json.loads(line.removeprefix("data: "))["approvalId"]
        part: dict[str, Any] = {"type": "tool-book", "state": "approval-responded"}
        for name, is_approved, status in (("a-1", True, 200), ("a-2", True, 200), ("a-2", False, 409)):
            decision = part | {"approval": {"id": id_, "approved": is_approved}}
            answer = await send(id=name, role="assistant", parts=[decision])
            assert answer.status_code == status, answer.text
        assert "already decided" in answer.text


async def test_a_reloaded_page_resumes_the_stream(make_chat: MakeChat) -> None:
    """17.2.2, 17.3.3: what waits is shown again, and what has ended is not."""
    chat = make_chat()
    asked = await chat.send("book")
    page = make_chat(messages=asked["messages"][:1])
    shown = await page.do("resume")
    assert shown["messages"][-1]["parts"] == asked["messages"][-1]["parts"]
    part = shown["messages"][-1]["parts"][-1]
    await page.do("decide", id=part["approval"]["id"], approved=True)
    late = make_chat(messages=asked["messages"][:1])
    assert (await late.do("resume"))["messages"] == asked["messages"][:1]


async def test_an_answer_is_made_again_in_a_fork(make_chat: MakeChat, ann: ApiCaller) -> None:
    """17.3.4"""
    chat = make_chat()
    first = (await chat.send("hello"))["messages"][-1]
    again = (await chat.do("regenerate"))["messages"]
    assert [message["role"] for message in again] == ["user", "assistant"]
    assert again[-1]["id"] != first["id"]
    assert texts(again[-1]) == ["You said: hello"]
    assert len((await ann.get("/agent/executions"))["items"]) == 2


async def test_a_repeated_request_sends_a_message_once(url: str, ann: ApiCaller, sign_in: MakeCaller) -> None:
    """17.2.1, 17.2.2"""
    body = {
        "id": "c",
        "messages": [{"id": "m-1", "role": "user", "parts": [{"type": "text", "text": "hello"}]}],
    }
    async with httpx2.AsyncClient(base_url=url, headers=ann.http.headers) as http:
        first, again = [await http.post("/ai/clerk/chat", json=body) for _ in range(2)]
        assert first.headers["x-vercel-ai-ui-message-stream"] == "v1"
        assert first.content == again.content
        assert first.content.endswith(DONE)
        assert len((await ann.get("/agent/executions"))["items"]) == 1
        last = [line.removeprefix("id: ") for line in first.text.splitlines() if line.startswith("id: ")][3]
        rest = await http.get("/ai/clerk/chat/c/stream", headers={"Last-Event-ID": last})
        _, _, expected = first.text.partition(f"id: {last}\n")
        assert rest.text == expected.partition("\n\n")[2]
        assert (await http.get("/ai/clerk/chat/c/stream")).status_code == 204
    ben = await sign_in("ben")
    async with httpx2.AsyncClient(base_url=url, headers=ben.http.headers) as stranger:
        assert (await stranger.get("/ai/clerk/chat/c/stream")).status_code == 204


async def test_the_client_accepts_random_runs_with_cuts(node: Viewer, tmp_path: Path) -> None:
    """17.3.5: in the end the message says what was stored."""
    logs = [RandomLog(5000 + seed) for seed in range(RANDOM_RUNS)]
    bodies = list[str]()
    for seed, log in enumerate(logs):
        make = partial(UiMessages, "c", log.root, is_whole=True)
        frames = with_cuts(log, make, random.Random(seed)) if seed % 3 else uncut(log, make)  # noqa: S311
        bodies.append("".join(f"data: {json.dumps(frame.event)}\n\n" for frame in frames) + DONE.decode())
    (tmp_path / "streams.json").write_text(json.dumps(bodies))
    node.command("judge", path=str(tmp_path / "streams.json"))
    await node.until("judged", 1, None)
    verdicts = json.loads((tmp_path / "streams.json.verdicts").read_text())
    for log, verdict in zip(logs, verdicts, strict=True):
        assert verdict["error"] in {None, "it broke"}
        message = verdict["messages"][-1]
        completed = [
            envelope["payload"]["step_number"]
            for envelope in log.stored
            if (envelope["type"], envelope["execution_id"]) == ("agent.step.completed", log.root)
        ]
        said = [log.steps[log.root, number].text.rstrip() for number in completed]
        shown = [text.rstrip() for text in texts(message) if text.strip()]
        # The text of a step that was cancelled follows the others.
        assert shown[: len([text for text in said if text])] == [text for text in said if text]
        done = {part["toolCallId"]: part["state"] for part in message["parts"] if part["type"] == "tool-look"}
        assert "input-streaming" not in done.values()
    assert not node.events_of("uncaught", None)
