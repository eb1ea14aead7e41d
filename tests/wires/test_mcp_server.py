"""The MCP server over a socket: the unmodified client of the official SDK, in both eras of the protocol."""

import asyncio
import json
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any
from uuid import UUID, uuid4

import httpx2
import pytest
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.server.lowlevel import Server

from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.storage.commands import CommandKind
from everstep.http_api.agent_tools import AgentTools
from everstep.http_api.callers import Caller
from everstep.http_api.schemas.agent_tool_schemas import StatusArguments
from tests.everstep.http_api.house import ApiCaller, MakeCaller

pytestmark = pytest.mark.usefixtures("work")

MODERN, HANDSHAKE = "2026-07-28", "legacy"

Connect = Callable[..., AbstractAsyncContextManager[Client]]


@pytest.fixture
def connect(url: str) -> Connect:
    """Connects a client of a caller."""

    @asynccontextmanager
    async def connect(caller: ApiCaller, mode: str = "auto") -> AsyncGenerator[Client]:
        headers = {"Authorization": caller.http.headers["authorization"]}
        async with (
            httpx2.AsyncClient(headers=headers, timeout=60) as http,
            Client(streamable_http_client(f"{url}/mcp", http_client=http), mode=mode) as client,
        ):
            yield client

    return connect


async def call(client: Client, tool: str, **arguments: Any) -> Any:
    """The document that a successful call returns."""
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    (content,) = result.content
    assert content.type == "text"
    assert json.loads(content.text) == result.structured_content
    return result.structured_content


async def refusal(client: Client, tool: str, **arguments: Any) -> str:
    """The text of a call that is refused."""
    result = await client.call_tool(tool, arguments)
    assert result.is_error
    (content,) = result.content
    assert content.type == "text"
    return content.text


@pytest.mark.parametrize("mode", [MODERN, HANDSHAKE, "auto"])
async def test_an_agent_answers_a_message(connect: Connect, ann: ApiCaller, mode: str) -> None:
    """17.6.1, 17.6.2"""
    async with connect(ann, mode) as client:
        started = await call(client, "start", agent="clerk", message="hello")
        assert started["next"].startswith(("It is still running", "The run is over"))
        done = await call(client, "result", execution_id=started["execution_id"])
        assert (done["status"], done["is_over"], done["response"]) == ("completed", True, "You said: hello")
        assert done["because"] == "completed: the model answered without calling tools"
        again = await call(client, "start", agent="clerk", message="more", session_id=done["session_id"])
        assert again["session_id"] == done["session_id"]
        assert again["execution_id"] != done["execution_id"]
        assert await call(client, "status", execution_id=done["execution_id"]) == done
    sessions = (await ann.get("/agent/sessions"))["items"]
    assert [session["id"] for session in sessions] == [done["session_id"]]


async def test_the_tools_describe_themselves_and_the_agents(
    connect: Connect, ann: ApiCaller, sign_in: MakeCaller
) -> None:
    """17.6.1, 17.6.5"""
    async with connect(ann) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert list(tools) == ["start", "status", "answer", "result"]
    start = tools["start"]
    assert start.description is not None
    assert "- clerk: Books rooms" in start.description
    assert start.input_schema["properties"]["agent"]["enum"] == ["clerk", "other", "chief"]
    hints = {name: tool.annotations for name, tool in tools.items()}
    assert [name for name, hint in hints.items() if hint and hint.read_only_hint] == ["status", "result"]
    assert all(tool.output_schema and tool.title for tool in tools.values())
    # What a token may not do is not offered, and refused.
    reader = await sign_in("ann", "read-only")
    async with connect(reader) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == ["status", "result"]
        assert "read-only" in await refusal(client, "start", agent="clerk", message="hello")
        nobody = str(uuid4())
        assert "read-only" in await refusal(client, "answer", execution_id=nobody, text="x")


@pytest.mark.parametrize("mode", [MODERN, HANDSHAKE])
async def test_questions_and_approvals_are_answered(
    connect: Connect, ann: ApiCaller, sign_in: MakeCaller, mode: str
) -> None:
    """17.6.3"""
    boss = await sign_in("boss", "approve")
    async with connect(ann, mode) as client, connect(boss, mode) as approver:
        run = await call(client, "start", agent="clerk", message="ask")
        named = {"execution_id": run["execution_id"]}
        waiting = await call(client, "result", **named)
        (question,) = waiting["requests"]
        assert (question["kind"], question["prompt"], question["choices"], question["may_answer"]) == (
            *("question", "Which day?"),
            *(["Monday", "Friday"], True),
        )
        assert waiting["next"].startswith("It waits for people")
        assert "one of: Monday, Friday" in await refusal(client, "answer", **named, text="Sunday")
        assert "pass `text` or `data`" in await refusal(client, "answer", **named, decision="approve")
        await call(client, "answer", **named, text="Friday")
        # The same answer again changes nothing; another one is refused.
        again = {**named, "request_id": question["request_id"]}
        await call(client, "answer", **again, text="Friday")
        assert "no longer open" in await refusal(client, "answer", **again, text="Monday")
        assert (await call(client, "result", **named))["response"] == "So be it: Friday"
        assert "waits for no answer" in await refusal(client, "answer", **named, text="Friday")

        run = await call(client, "start", agent="clerk", message="refund")
        named = {"execution_id": run["execution_id"]}
        waiting = await call(client, "result", **named, wait_seconds=1)
        (approval,) = waiting["requests"]
        assert (approval["tool"], approval["args"], approval["may_answer"]) == (
            "refund",
            {"euros": 80},
            False,
        )
        assert waiting["next"].startswith("It waits for other people")
        assert "approve" in await refusal(client, "answer", **named, decision="approve")
        decided = {**named, "decision": "approve", "args_digest": approval["args_digest"]}
        seen = await call(approver, "answer", **decided)
        # Who decides about the calls of others does not read their conversations.
        assert "response" not in seen
        assert "no execution" in await refusal(approver, "status", **named)
        assert "decided" in await refusal(
            approver, "answer", **named, request_id=approval["request_id"], decision="deny"
        )
        assert (await call(client, "result", **named))["response"] == "So be it: 80 euros are paid back"


async def test_a_call_is_denied_or_edited_and_a_form_is_filled_in(
    connect: Connect, sign_in: MakeCaller
) -> None:
    """17.6.3"""
    ann = await sign_in("ann", "approve", "approve:edit")
    async with connect(ann) as client:

        async def run(message: str, **answer: Any) -> Any:
            named = {
                "execution_id": (await call(client, "start", agent="clerk", message=message))["execution_id"]
            }
            await call(client, "result", **named)
            await call(client, "answer", **named, **answer)
            return (await call(client, "result", **named))["response"]

        assert await run("book", decision="deny", reason="too far") == "So be it: Denied by user: too far"
        edited = await run("book", decision="edit", args={"hotel": "Grand"})
        assert edited.endswith("a room at Grand")
        assert await run("form", data={"seats": 2}) == 'So be it: {"seats":2}'


async def test_a_run_is_cancelled(connect: Connect, ann: ApiCaller) -> None:
    """17.6.3"""
    async with connect(ann) as client:
        run = await call(client, "start", agent="clerk", message="ask")
        named = {"execution_id": run["execution_id"]}
        await call(client, "result", **named)
        for _ in range(2):
            answered = await call(client, "answer", **named, cancel=True)
            # The end may be stored already.
            assert answered["is_over"] or answered["next"].startswith("It is being cancelled")
        assert (await call(client, "result", **named))["status"] == "cancelled"


async def test_a_cancel_that_no_worker_has_received_is_under_way(ann: ApiCaller) -> None:
    """17.6.3"""
    setup = ann.api_setup
    started = await ann.post("/agent/executions", {"content": "ask", "agent": "clerk"})
    await ann.wait_for_status(started["id"], "paused")
    ref = ExecutionRef(UUID(started["id"]), setup.tenant)
    await setup.sessions.client.store.command(ref, "cancel/k", CommandKind.CANCEL, None)
    caller = Caller("ann", setup.tenant)
    run = await AgentTools(setup.api, caller).status(StatusArguments(execution_id=ref.execution_id))
    assert (run.status, run.next.split(",")[0]) == ("paused", "It is being cancelled")


async def test_requests_of_subagents_are_answered(connect: Connect, ann: ApiCaller) -> None:
    """17.6.3"""
    async with connect(ann) as client:
        run = await call(client, "start", agent="chief", message="send hello & again")
        done = await call(client, "result", execution_id=run["execution_id"])
        assert done["is_over"]


async def test_a_repeated_start_starts_nothing(connect: Connect, ann: ApiCaller) -> None:
    """17.6.4"""
    async with connect(ann) as client:
        given = {"agent": "clerk", "message": "hello", "idempotency_key": "k-1"}
        first, second = await asyncio.gather(call(client, "start", **given), call(client, "start", **given))
        assert first["execution_id"] == second["execution_id"]
        for other in ({"message": "other"}, {"agent": "other"}):
            assert "different request" in await refusal(client, "start", **{**given, **other})
    assert len((await ann.get("/agent/executions"))["items"]) == 1


async def test_a_wait_ends_in_time_and_reports_progress(connect: Connect, sign_in: MakeCaller) -> None:
    """17.6.2"""
    ann = await sign_in("ann")
    told: list[tuple[float, float | None, str | None]] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        told.append((progress, total, message))

    async with connect(ann) as client:
        run = await call(client, "start", agent="clerk", message="refund")
        named = {"execution_id": run["execution_id"]}
        result = await client.call_tool("result", {**named, "wait_seconds": 1}, progress_callback=on_progress)
        assert result.structured_content is not None
        assert result.structured_content["status"] == "paused"
        assert "wait_seconds" in await refusal(client, "result", **named, wait_seconds=46)
    assert told[0][1] == 1
    assert [progress for progress, *_ in told] == sorted(progress for progress, *_ in told)


async def test_a_client_that_leaves_a_wait_cancels_nothing(connect: Connect, ann: ApiCaller) -> None:
    """17.6.2"""
    async with connect(ann) as client:
        run = await call(client, "start", agent="clerk", message="refund")
        waiting = asyncio.create_task(client.call_tool("result", {"execution_id": run["execution_id"]}))
        await ann.wait_for_status(run["execution_id"], "paused")
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert (await call(client, "status", execution_id=run["execution_id"]))["status"] == "paused"


async def test_what_belongs_to_others_does_not_exist(
    connect: Connect, ann: ApiCaller, sign_in: MakeCaller
) -> None:
    """17.6.5"""
    async with connect(ann) as client:
        run = await call(client, "start", agent="clerk", message="ask")
        await call(client, "result", execution_id=run["execution_id"])
    strangers = [await sign_in("bob"), await sign_in("ann", "sessions:all", "approve", tenant="elsewhere")]
    for stranger in strangers:
        async with connect(stranger) as client:
            named = {"execution_id": run["execution_id"]}
            for tool, arguments in {
                "status": named,
                "result": named,
                "answer": {**named, "text": "Friday"},
                "start": {"agent": "clerk", "message": "x", "session_id": run["session_id"]},
            }.items():
                assert "There is no" in await refusal(client, tool, **arguments)
            assert "There is no" in await refusal(client, "answer", **named, cancel=True)


@pytest.mark.parametrize(
    ("tool", "arguments", "words"),
    [
        ("start", {"agent": "clerc", "message": "x"}, "clerk"),
        ("start", {"agent": "clerk", "message": ""}, "message"),
        ("start", {"agent": "clerk", "message": "x", "mesage": "y"}, "mesage"),
        ("start", {"agent": "clerk"}, "message: Field required"),
        ("status", {"execution_id": "7"}, "execution_id"),
        ("answer", {"execution_id": str(uuid4()), "text": "x"}, "There is no execution"),
        ("answer", {"execution_id": str(uuid4()), "text": "x", "cancel": True}, "pass one of them"),
        ("result", {"execution_id": str(uuid4())}, "There is no execution"),
        ("start", {"agent": "clerk", "message": "\x00"}, "message"),
    ],
    ids=[
        "agent",
        "empty",
        "unknown",
        "missing",
        "id",
        "foreign-answer",
        "two-answers",
        "foreign-result",
        "text",
    ],
)
async def test_a_refused_call_is_an_error_that_the_model_reads(
    connect: Connect, ann: ApiCaller, tool: str, arguments: dict[str, Any], words: str
) -> None:
    """17.6.6"""
    async with connect(ann) as client:
        assert words in await refusal(client, tool, **arguments)


BAD: dict[str, tuple[bytes | None, Any, int, int]] = {
    "no JSON": (b"{", {}, 400, -32700),
    "deep": (b"[" * 100_000, {}, 400, -32700),
    "batch": (b"[]", {}, 400, -32600),
    "a number": (b"1e999", {}, 400, -32600),
    "another version of JSON-RPC": (b'{"jsonrpc":"1.0"}', {}, 400, -32600),
    "no method": (b'{"jsonrpc":"2.0","id":1}', {}, 400, -32600),
    "a wrong id": (b'{"jsonrpc":"2.0","id":true,"method":"ping"}', {}, 400, -32600),
    "wrong params": (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":[]}', {}, 400, -32600),
    "an unknown method": (None, {"method": "tools/cal"}, 404, -32601),
    "an unknown tool": (None, {"params": {"name": "stop", "arguments": {}}}, 400, -32602),
    "no envelope": (None, {"params": {"name": "status", "_meta": {}}}, 400, -32602),
    "an unknown version": (None, {"version": "1999-01-01"}, 400, -32022),
    "an unknown version in the header": (
        b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}',
        {"version": "1999-01-01"},
        400,
        -32022,
    ),
}


@pytest.mark.parametrize("case", BAD)
async def test_a_malformed_message_is_an_error_of_json_rpc(url: str, ann: ApiCaller, case: str) -> None:
    """17.6.6"""
    body, changes, status, code = BAD[case]
    response = await post(url, ann, body, **changes)
    assert response.status_code == status, response.text
    error = response.json()
    assert error["jsonrpc"] == "2.0"
    assert error["error"]["code"] == code, error
    # The next one is served.
    assert (await post(url, ann)).status_code == 200


async def post(
    url: str,
    caller: ApiCaller,
    body: bytes | None = None,
    *,
    method: str = "tools/list",
    version: str = MODERN,
    **changes: Any,
) -> httpx2.Response:
    """Send a message that a program of one's own wrote."""
    capabilities: dict[str, Any] = {"io.modelcontextprotocol/clientCapabilities": {}}
    meta = {"io.modelcontextprotocol/protocolVersion": version, **capabilities}
    params: dict[str, Any] = {"_meta": meta, **changes.get("params", {})}
    if "params" in changes:
        method = "tools/call"
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    headers = {
        "Authorization": caller.http.headers["authorization"],
        "Accept": "application/json, text/event-stream",
        "Content-Type": "application/json",
        "MCP-Protocol-Version": version,
        "Mcp-Method": method,
        **({"Mcp-Name": params["name"]} if "name" in params else {}),
    }
    async with httpx2.AsyncClient() as http:
        content = json.dumps(message).encode() if body is None else body
        return await http.post(f"{url}/mcp", content=content, headers=headers)


async def test_refusals_before_the_message_is_read_have_the_form_of_json_rpc(
    url: str, ann: ApiCaller
) -> None:
    """17.6.6"""
    stranger = httpx2.AsyncClient(headers={"Authorization": "Bearer nonsense"})
    async with stranger as http:
        unknown = await http.post(f"{url}/mcp", json={})
    assert (unknown.status_code, unknown.json()["error"]["data"]) == (401, {"problem": "unauthorized"})
    assert "www-authenticate" in unknown.headers
    huge = await post(url, ann, b" " * 300_000)
    assert (huge.status_code, huge.json()["error"]["data"]) == (413, {"problem": "too-large"})
    async with httpx2.AsyncClient(headers={"Authorization": ann.http.headers["authorization"]}) as http:
        assert (await http.get(f"{url}/mcp")).status_code == 405
        # A program that names no types reads JSON.
        listed = await http.post(f"{url}/mcp", json={"jsonrpc": "2.0", "id": 1, "method": "tools/list"})
        assert listed.headers["content-type"] == "application/json"
        assert len(listed.json()["result"]["tools"]) == 4


async def test_an_installation_without_the_sdk_says_how_to_install_it(
    url: str, ann: ApiCaller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """17.6.6"""
    monkeypatch.delitem(sys.modules, "everstep.http_api.mcp_server", raising=False)
    monkeypatch.setitem(sys.modules, "mcp.server.lowlevel", None)
    response = await post(url, ann)
    assert (response.status_code, response.json()["error"]["data"]) == (501, {"problem": "no-mcp"})
    assert "everstep[mcp]" in response.json()["error"]["message"]


async def test_a_client_that_does_not_read_is_disconnected() -> None:
    """17.6.6"""
    from everstep.http_api.mcp_server import McpExchange  # noqa: PLC0415

    async def never(message: object) -> None:
        del message
        await asyncio.Event().wait()

    async def receive() -> Any:
        await asyncio.Event().wait()

    scope: dict[str, Any] = {
        "type": "http",
        "method": "POST",
        "path": "/mcp",
        "headers": [],
        "query_string": b"",
    }
    await McpExchange(Server("s"), b"{}", patience=0.01)(scope, receive, never)
