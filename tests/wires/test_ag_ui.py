"""AG-UI over a socket: the unmodified client verifies every stream."""

import asyncio
import base64
import json
import os
import random
import re
from collections.abc import AsyncGenerator, Callable, Generator
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import pytest
import pytest_asyncio
from fastapi import FastAPI

from everstep.http_api import run_bodies
from everstep.http_api.event_stream import EventStream
from everstep.wires.ag_ui import AgUi
from tests.browsers.viewer import SharedNode, Viewer
from tests.everstep.http_api.house import ApiCaller, MakeCaller
from tests.wires.ag_ui_reader import AgUiReader
from tests.wires.clients import AgUiClient, ag_ui_script, exhaust_budget
from tests.wires.random_logs import RandomLog
from tests.wires.readers import uncut, with_cuts

RANDOM_RUNS = int(os.environ.get("EVERSTEP_RANDOM_RUNS", "12"))

pytestmark = pytest.mark.usefixtures("work")


@pytest.fixture(scope="module")
def shared_node(tmp_path_factory: pytest.TempPathFactory) -> Generator[SharedNode]:
    """A process of node."""
    node = SharedNode(*ag_ui_script(tmp_path_factory.mktemp("ag_ui")))
    yield node
    node.close()


@pytest_asyncio.fixture
async def node(shared_node: SharedNode) -> AsyncGenerator[Viewer]:
    """The process as a test uses it."""
    async with shared_node.open_viewer() as viewer:
        yield viewer


MakeAgent = Callable[..., AgUiClient]


@pytest.fixture
def make_agent(url: str, node: Viewer, ann: ApiCaller) -> MakeAgent:
    """Makes agents of ann."""

    def make(agent: str = "clerk", *, caller: ApiCaller = ann, **config: Any) -> AgUiClient:
        headers = {"Authorization": caller.http.headers["authorization"]}
        return AgUiClient(node, uuid4().hex).make(f"{url}/agui/{agent}", headers, **config)

    return make


async def test_a_run_answers(make_agent: MakeAgent) -> None:
    """17.1.1, 17.1.2"""
    agent = make_agent()
    done = await agent.run("hello")

    assert done["error"] is None
    assert [message["content"] for message in done["messages"]] == ["hello", "You said: hello"]
    assert agent.kinds == [
        *("RUN_STARTED", "STATE_SNAPSHOT", "STEP_STARTED"),
        *("TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END"),
        *("STEP_FINISHED", "STATE_SNAPSHOT", "RUN_FINISHED"),
    ]
    started, finished = agent.events[0], agent.events[-1]
    assert started["protocolVersion"] == "1.0"
    assert (started["threadId"], started["runId"]) == (finished["threadId"], finished["runId"])
    assert finished["outcome"] == {"type": "success"}
    assert finished["result"] == {
        "response": "You said: hello",
        "status": "completed",
        "stopReason": "completed",
    }
    assert finished["metadata"]["because"] == "completed: the model answered without calling tools"
    assert [event["metadata"]["seq"] for event in agent.events if "metadata" in event] == sorted(
        event["metadata"]["seq"] for event in agent.events if "metadata" in event
    )


async def test_a_thread_is_one_session(make_agent: MakeAgent, ann: ApiCaller) -> None:
    """17.1.2"""
    agent = make_agent(threadId="my trip")
    await agent.run("one")
    done = await agent.run("two")
    assert [message["content"] for message in done["messages"]] == [
        *("one", "You said: one", "two", "You said: two"),
    ]
    (session,) = (await ann.get("/agent/sessions"))["items"]
    other = make_agent(threadId=session["id"])
    await other.run("three")
    assert len((await ann.get("/agent/executions", session_id=session["id"]))["items"]) == 3


APPROVALS: dict[str, tuple[Any, str]] = {
    "approved": ({"approved": True}, "So be it: a room at Harbour Inn"),
    "true": (True, "So be it: a room at Harbour Inn"),
    "denied": ({"approved": False, "reason": "too far"}, "So be it: Denied by user: too far"),
}


async def interrupt_of(agent: AgUiClient, text: str) -> Any:
    """The interrupt of a new run."""
    done = await agent.run(text)
    assert done["error"] is None
    (interrupt,) = done["pendingInterrupts"]
    return interrupt


@pytest.mark.parametrize("kind", APPROVALS)
async def test_an_approval_is_an_interrupt(make_agent: MakeAgent, kind: str) -> None:
    """17.1.3, 17.1.4"""
    agent = make_agent()
    await agent.run("hello")
    interrupt = await interrupt_of(agent, "book")
    assert interrupt["reason"] == "tool_call"
    assert interrupt["metadata"]["args"] == {"hotel": "Harbour Inn"}
    assert set(interrupt["responseSchema"]["properties"]) == {"approved", "reason", "editedArgs"}
    assert agent.kinds[-3:] == ["STATE_SNAPSHOT", "MESSAGES_SNAPSHOT", "RUN_FINISHED"]
    assert agent.events[-1]["metadata"]["because"].startswith("waits: approval of book(")
    before = len(agent.events)

    payload, answer = APPROVALS[kind]
    entry = {"interruptId": interrupt["id"], "status": "resolved", "payload": payload}
    done = await agent.run(resume=[entry])

    assert done["error"] is None
    assert done["pendingInterrupts"] == []
    kinds = agent.kinds[before:]
    assert "TOOL_CALL_START" not in kinds
    assert kinds.count("TOOL_CALL_RESULT") == 1
    assert done["messages"][-1]["content"] == answer
    assert [message["role"] for message in done["messages"]] == [
        *("user", "assistant", "user", "assistant", "tool", "assistant")
    ]
    assert done["messages"][-2]["toolCallId"] == interrupt["toolCallId"]


async def test_edited_arguments_replace_those_of_the_model(
    make_agent: MakeAgent, sign_in: MakeCaller
) -> None:
    """17.1.4"""
    agent = make_agent(caller=await sign_in("ann", "approve", "approve:edit"))
    interrupt = await interrupt_of(agent, "refund")
    payload = {"approved": True, "editedArgs": {"euros": 8}}
    done = await agent.run(
        resume=[{"interruptId": interrupt["id"], "status": "resolved", "payload": payload}]
    )
    assert done["messages"][-2]["content"] == '[Arguments edited by user: {"euros":8}]\n8 euros are paid back'


async def test_a_question_is_an_interrupt_with_the_schema_of_its_answer(make_agent: MakeAgent) -> None:
    """17.1.3, 17.1.4"""
    agent = make_agent()
    interrupt = await interrupt_of(agent, "ask")
    assert (interrupt["reason"], interrupt["message"]) == ("input_required", "Which day?")
    assert interrupt["responseSchema"] == {"type": "string", "enum": ["Monday", "Friday"]}
    refused = await agent.run(
        resume=[{"interruptId": interrupt["id"], "status": "resolved", "payload": "Sunday"}]
    )
    assert "Answer must be one of: Monday, Friday" in refused["error"]
    done = await agent.run(
        resume=[{"interruptId": interrupt["id"], "status": "resolved", "payload": "Friday"}]
    )
    assert done["messages"][-1]["content"] == "So be it: Friday"
    form = await interrupt_of(agent, "form")
    assert form["responseSchema"]["required"] == ["seats"]
    done = await agent.run(
        resume=[{"interruptId": form["id"], "status": "resolved", "payload": {"seats": 3}}]
    )
    assert done["messages"][-1]["content"] == 'So be it: {"seats":3}'


async def test_an_exhausted_budget_is_an_interrupt(
    make_agent: MakeAgent, ann: ApiCaller, sign_in: MakeCaller
) -> None:
    """17.1.3, 17.1.7"""
    await exhaust_budget(ann)
    agent = make_agent()
    interrupt = await interrupt_of(agent, "hello")
    assert (interrupt["reason"], "toolCallId" in interrupt) == ("confirmation", False)
    assert interrupt["message"].startswith("The tenant's budget of 0 steps is exhausted")
    schema = interrupt["responseSchema"]
    assert (schema["required"], schema["properties"]["steps"]["exclusiveMinimum"]) == (["steps"], 0)
    assert interrupt["metadata"]["budget"]["needed"] == 1
    raising = [{"interruptId": interrupt["id"], "status": "resolved", "payload": {"steps": 1}}]
    # Owning the execution is not enough.
    assert "scope 'approve'" in (await agent.run(resume=raising))["error"]

    (session,) = (await ann.get("/agent/sessions"))["items"]
    approver = make_agent(caller=await sign_in("ann", "approve"), threadId=session["id"])
    await approver.connect()
    for payload, words in (
        ({"steps": 0}, "pass a larger total"),
        ({"usd": 1}, "pass a larger total"),
        ({"stepps": 1}, "stepps"),
        ("much", "send an object"),
    ):
        refused = [{"interruptId": interrupt["id"], "status": "resolved", "payload": payload}]
        assert words in (await approver.run(resume=refused))["error"]
    done = await approver.run(resume=raising)
    assert (done["error"], done["messages"][-1]["content"]) == (None, "You said: hello")

    # The next run waits again, and is given up.
    interrupt = await interrupt_of(approver, "more")
    await approver.run(resume=[{"interruptId": interrupt["id"], "status": "cancelled"}])
    assert approver.events[-1]["outcome"] == {"type": "cancelled"}


async def test_a_cancelled_question_cancels_its_execution(make_agent: MakeAgent) -> None:
    """17.1.4"""
    agent = make_agent()
    interrupt = await interrupt_of(agent, "wonder")
    done = await agent.run(resume=[{"interruptId": interrupt["id"], "status": "cancelled"}])
    assert done["error"] is None
    assert agent.events[-1]["outcome"] == {"type": "cancelled"}
    assert done["pendingInterrupts"] == []


async def test_a_failed_execution_is_a_run_error(make_agent: MakeAgent) -> None:
    """17.1.1"""
    agent = make_agent()
    await agent.run("fail")
    last = agent.events[-1]
    assert (last["type"], last["code"]) == ("RUN_ERROR", "failed")
    assert last["metadata"]["because"].startswith("failed")
    done = await agent.run("hello")
    assert done["messages"][-1]["content"] == "You said: hello"


async def test_subagents_are_announced_and_own_their_messages(make_agent: MakeAgent) -> None:
    """17.1.5"""
    agent = make_agent("chief")
    done = await agent.run("send one & book")
    started = [event for event in agent.events if event["type"] == "SUBAGENT_STARTED"]
    assert [event["name"] for event in started] == ["aide", "aide"] or len(started) == 2
    calls = {event["toolCallId"] for event in agent.events if event["type"] == "TOOL_CALL_START"}
    assert {event["parentToolCallId"] for event in started} <= calls
    said = [
        event for event in agent.events if event["type"] == "TEXT_MESSAGE_START" and "subagentRunId" in event
    ]
    assert said
    assert {event["subagentRunId"] for event in said} <= {event["subagentRunId"] for event in started}
    assert done["error"] is None


async def test_a_repeated_request_follows_the_same_run(
    url: str, make_agent: MakeAgent, ann: ApiCaller
) -> None:
    """17.2.1"""
    agent, again = make_agent(threadId="t"), make_agent(threadId="t")
    for each in (agent, again):
        each.add("hello", "m-1")
        await each.run(runId="r-1")
    assert agent.events == again.events
    assert len((await ann.get("/agent/executions"))["items"]) == 1

    for each in (agent, again):
        each.add("book", "m-2")
    first = await agent.run(runId="r-2")
    await again.run(runId="r-2")
    entry = {"interruptId": first["pendingInterrupts"][0]["id"], "status": "resolved", "payload": True}
    done = await agent.run(resume=[entry], runId="r-3")
    repeated = await again.run(resume=[entry], runId="r-3")
    assert agent.events == again.events
    assert done["messages"] == repeated["messages"]

    # The agent asks more before its answer is sent again.
    agent.add("ask then book", "m-3")
    asked = await agent.run(runId="r-4")
    entry = {"interruptId": asked["pendingInterrupts"][0]["id"], "status": "resolved", "payload": "Friday"}
    body = {"threadId": "t", "runId": "r-5", "messages": [], "resume": [entry]}
    async with httpx2.AsyncClient(base_url=url, headers=ann.http.headers) as http:
        first, second = [await http.post("/agui/clerk", json=body) for _ in range(2)]
    # A slow stream begins with a comment, which keeps the connection open.
    assert second.status_code == 200
    assert second.text.replace(":\n\n", "") == first.text.replace(":\n\n", "")
    assert "tool_call" in first.text


async def test_connect_shows_the_thread(make_agent: MakeAgent) -> None:
    """17.2.2"""
    agent = make_agent(threadId="t")
    await agent.run("hello")
    await agent.run("book")
    later = make_agent(threadId="t", resumes=True)
    seen = await later.connect()
    assert seen["error"] is None
    assert [message["role"] for message in seen["messages"]] == ["user", "assistant", "user", "assistant"]
    (interrupt,) = seen["pendingInterrupts"]
    done = await later.run(resume=[{"interruptId": interrupt["id"], "status": "resolved", "payload": True}])
    assert done["messages"][-1]["content"] == "So be it: a room at Harbour Inn"
    # Nothing is new after the last event, and another page sees the same conversation.
    before = len(later.events)
    assert (await later.connect())["error"] is None
    assert later.events[before:] == []
    other = make_agent(threadId="t", resumes=True)
    texts = [message.get("content") for message in (await other.connect())["messages"]]
    assert texts == [message.get("content") for message in done["messages"]]
    empty = make_agent(threadId="another", resumes=True)
    assert (await empty.connect())["messages"] == []


async def test_a_message_steers_the_running_execution(make_agent: MakeAgent) -> None:
    """17.1.2: it is shown to others, and the run that it began follows the same execution."""
    agent = make_agent(threadId="t")
    interrupt = await interrupt_of(agent, "book")
    other = make_agent(threadId="t")
    other.add("make it quick", "m-2")
    joined = asyncio.create_task(other.run(forwardedProps={"everstep": {"on_busy": "steer"}}))
    await other.viewer.until_true(lambda: other.kinds or agent.kinds)
    entry = {"interruptId": interrupt["id"], "status": "resolved", "payload": True}
    done = await agent.run(resume=[entry])
    assert done["error"] is None
    assert (await joined)["error"] is None
    assert [message["content"] for message in done["messages"] if message["role"] == "user"] == [
        *("book", "make it quick")
    ]


async def test_files_of_a_message_are_attached(make_agent: MakeAgent, ann: ApiCaller, url: str) -> None:
    """17.1.8"""
    uploaded = await ann.upload(b"one", "one.txt")
    hello = base64.b64encode(b"two").decode()
    parts = [
        {"type": "text", "text": "look"},
        {"type": "document", "source": {"type": "url", "value": f"/agent/attachments/{uploaded['id']}"}},
        {
            "type": "document",
            "source": {"type": "data", "value": hello, "mimeType": "text/plain"},
            "metadata": {"filename": "two.txt"},
        },
        {"type": "image", "source": {"type": "url", "value": "data:text/plain,three"}},
        {"type": "document", "source": {"type": "file", "value": uploaded["id"], "provider": "everstep"}},
    ]
    agent = make_agent()
    agent.viewer.command("add", name=agent.name, message={"id": "m", "role": "user", "content": parts})
    done = await agent.run()
    assert done["error"] is None
    said = done["messages"][-1]["content"]
    assert [words in said for words in ("one.txt b'one'", "two.txt b'two'", "b'three'")] == [True] * 3
    # The parts of versions before 1.0.
    binary = [{"type": "text", "text": "look"}, {"type": "binary", "mimeType": "text/plain", "data": hello}]
    message = {"id": "n", "role": "user", "content": binary}
    body = {"threadId": "b", "runId": "r", "messages": [message]}
    headers = {"Authorization": ann.http.headers["authorization"]}
    async with httpx2.AsyncClient(headers=headers, timeout=30) as http:
        assert "b'two'" in (await http.post(f"{url}/agui/clerk", json=body)).text


async def test_a_long_conversation_is_restated_from_its_last_messages(
    make_agent: MakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """17.2.7"""
    agent = make_agent(threadId="long")
    for text in ("one", "two", "three", "four"):
        await agent.run(text)

    async def connect_again() -> list[str]:
        return [
            message["content"]
            for message in (await make_agent(threadId="long", resumes=True).connect())["messages"]
        ]

    whole = [text for word in ("one", "two", "three", "four") for text in (word, f"You said: {word}")]
    assert await connect_again() == whole
    monkeypatch.setattr(run_bodies, "MAX_HISTORY", 3)
    assert await connect_again() == whole[3:]
    monkeypatch.setattr(run_bodies, "MAX_HISTORY_CHARS", len("three" + "You said: three"))
    assert await connect_again() == whole[4:]
    monkeypatch.setattr(run_bodies, "MAX_HISTORY_EXECUTIONS", 1)
    assert await connect_again() == whole[4:]


def file_message(source: dict[str, str]) -> dict[str, Any]:
    return {"id": "1", "role": "user", "content": [{"type": "image", "source": source}]}


REFUSED: dict[str, tuple[dict[str, Any], int, str]] = {
    "version": ({"protocolVersion": "2.0"}, 422, "this server speaks 1.0"),
    "no message": ({"messages": []}, 422, "ends with no message of the user"),
    "malformed": ({"messages": "hello"}, 422, "body.messages"),
    "image": (
        {"messages": [{"id": "1", "role": "user", "content": [{"type": "image"}]}]},
        422,
        "POST /agent/attachments",
    ),
    "part": (
        {"messages": [{"id": "1", "role": "user", "content": [{"type": "hologram"}]}]},
        422,
        "'hologram'; send audio, binary",
    ),
    "source": (
        {"messages": [file_message({"type": "url", "value": "https://elsewhere.example/a.png"})]},
        422,
        "neither uploaded nor contained",
    ),
    "provider": (
        {"messages": [file_message({"type": "file", "value": "file-7", "provider": "openai"})]},
        422,
        "neither uploaded nor contained",
    ),
    "base64": (
        {"messages": [file_message({"type": "data", "value": "%%%", "mimeType": "image/png"})]},
        422,
        "not base64",
    ),
    "content": (
        {"messages": [file_message({"type": "data", "value": "aGVsbG8=", "mimeType": "image/png"})]},
        422,
        "image/png",
    ),
    "foreign file": (
        {"messages": [file_message({"type": "url", "value": f"/agent/attachments/{uuid4()}"})]},
        404,
        "attachment",
    ),
    "option": ({"forwardedProps": {"everstep": {"on_bussy": "steer"}}}, 422, "on_bussy"),
    "request": ({"resume": [{"interruptId": str(uuid4()), "status": "resolved"}]}, 404, "no thread"),
    "interrupt": ({"resume": [{"interruptId": "x", "status": "resolved"}]}, 422, "interruptId"),
}


@pytest.mark.parametrize("kind", REFUSED)
async def test_bad_input_is_refused_in_the_form_of_the_protocol(ann: ApiCaller, kind: str) -> None:
    """17.2.5"""
    change, status, word = REFUSED[kind]
    body = {"threadId": "t", "runId": "r", "messages": [{"id": "1", "role": "user", "content": "hello"}]}
    answer = await ann.http.post("/agui/clerk", json=body | change)
    assert answer.status_code == status, answer.text
    assert answer.json()["type"] == "RUN_ERROR"
    assert word in answer.json()["message"]
    assert not (await ann.get("/agent/executions"))["items"]


async def test_an_unknown_agent_and_a_foreign_position_are_refused(
    url: str, ann: ApiCaller, make_agent: MakeAgent, sign_in: MakeCaller
) -> None:
    """17.2.2, 17.2.5"""
    body: dict[str, Any] = {"threadId": "t", "runId": "r", "messages": []}
    missing = await ann.http.post("/agui/clerc", json=body)
    assert (missing.status_code, missing.json()["code"]) == (404, "not-found")
    assert "clerk" in missing.json()["message"]

    agent = make_agent(threadId="t", resumes=True)
    last = (await agent.run("hello"))["lastEventId"]
    (session,) = (await ann.get("/agent/sessions"))["items"]
    ben = await sign_in("ben")
    async with httpx2.AsyncClient(base_url=url, headers=ben.http.headers) as stranger:
        for thread in ("t", session["id"]):
            address = f"/agui/clerk/{thread}/stream"
            assert (await stranger.get(address)).content == b""
            assert (await stranger.get(address, headers={"Last-Event-ID": last})).content == b""
    async with httpx2.AsyncClient(base_url=url, headers=ann.http.headers) as own:
        address = "/agui/clerk/t/stream"
        for wrong in ("7", last.replace(last[:8], "00000000")):
            refused = await own.get(address, headers={"Last-Event-ID": wrong})
            assert (refused.status_code, refused.json()["type"]) == (422, "RUN_ERROR")
        for stale in (last.rpartition("@")[0] + "@another", re.sub(r"/\d+", "/99999", last)):
            gone = await own.get(address, headers={"Last-Event-ID": stale})
            assert json.loads(gone.text.removeprefix("data: "))["code"] == "history-changed"


async def test_answers_are_refused_as_a_whole(make_agent: MakeAgent, sign_in: MakeCaller) -> None:
    """17.1.4, 17.2.5: what is closed stays closed, and rights are those of every approval."""
    agent = make_agent(threadId="t")
    interrupt = await interrupt_of(agent, "refund")
    entry = {"interruptId": interrupt["id"], "status": "resolved", "payload": True}
    refused = await agent.run(resume=[entry])
    assert "Only callers with the scope 'approve' may decide" in refused["error"]
    wrong = await agent.run(resume=[entry | {"payload": "yes"}])
    assert "needs `approved`" in wrong["error"]

    boss = make_agent(threadId="t", caller=await sign_in("ann", "approve"), resumes=True)
    await boss.connect()
    both = await boss.run(resume=[entry, entry | {"payload": False}])
    assert "has two answers" in both["error"]
    done = await boss.run(resume=[entry], runId="r-1")
    assert done["messages"][-1]["content"] == "So be it: 80 euros are paid back"
    late = await boss.run(resume=[entry | {"payload": False}], runId="r-2")
    assert "409" in late["error"]
    assert "already decided" in late["error"]


async def test_a_client_that_does_not_read_is_disconnected(
    app: FastAPI,
    ann: ApiCaller,
    make_agent: MakeAgent,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """17.2.6: a line of the log says so."""
    caplog.set_level("INFO")
    monkeypatch.setattr(EventStream.__init__, "__defaults__", (200, 0.5))
    agent = make_agent(threadId="t")
    await agent.run("book")
    sent: list[Any] = []

    async def receive() -> Any:
        if not sent:
            return {"type": "http.request", "body": b"", "more_body": False}
        return await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)
        if message["type"] == "http.response.body":
            # Its buffers are full, and it does not read.
            await asyncio.Event().wait()

    headers = [(b"authorization", ann.http.headers["authorization"].encode()), (b"host", b"api.test")]
    scope = {"type": "http", "method": "GET", "path": "/agui/clerk/t/stream", "query_string": b""}
    stuck = asyncio.create_task(app({**scope, "headers": headers, "raw_path": b""}, receive, send))
    await agent.viewer.until_true(lambda: True)
    other = make_agent()
    assert (await other.run("hello"))["messages"][-1]["content"] == "You said: hello"
    async with asyncio.timeout(20):
        await stuck
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
    assert "a client did not read for 0.5 seconds and was disconnected" in caplog.text


async def test_the_client_accepts_random_runs_with_cuts(node: Viewer, tmp_path: Path) -> None:
    """17.1.6, 17.2.3: runs of every kind, whose readers were cut at random and resumed, break no rule."""
    streams, expected = list[Any](), list[Any]()
    for seed in range(RANDOM_RUNS):
        log = RandomLog(1000 + seed)
        make = partial(AgUi, "t", "r", log.root)
        frames = with_cuts(log, make, random.Random(seed)) if seed % 3 else uncut(log, make)  # noqa: S311
        body = "".join(f"id: {frame.id}\ndata: {json.dumps(frame.event)}\n\n" for frame in frames)
        user = {"id": "m", "role": "user", "content": "Go"}
        streams.append({"messages": [user], "body": body})
        reader = AgUiReader(user)
        for frame in frames:
            reader.read(frame.event)
        expected.append(reader)
    (tmp_path / "streams.json").write_text(json.dumps(streams))
    node.command("judge", path=str(tmp_path / "streams.json"))
    await node.until("judged", 1, None)
    verdicts = json.loads((tmp_path / "streams.json.verdicts").read_text())
    assert [verdict["error"] for verdict in verdicts] == [None] * RANDOM_RUNS
    for verdict, reader in zip(verdicts, expected, strict=True):
        seen = {message["id"]: message.get("content") or "" for message in verdict["messages"]}
        assert seen == {id_: message.get("content") or "" for id_, message in reader.messages.items()}
        assert verdict["state"] == reader.state
    assert not node.events_of("uncaught", None)
