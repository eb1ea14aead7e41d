"""`everstep mcp` on stdio, with the unmodified client of the official SDK, and the example of a host."""

import asyncio
import json
import runpy
import signal
import socket
from asyncio.subprocess import PIPE
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters
from mcp.shared.exceptions import MCPError

from everstep.runtime.serving import serve_app
from tests.acceptance.harness import environment
from tests.everstep.http_api.house import ApiCaller

EXAMPLE = Path(__file__).parents[2] / "examples" / "09_mcp_host"

pytestmark = pytest.mark.usefixtures("work")


def token_of(caller: ApiCaller) -> str:
    return caller.http.headers["authorization"].removeprefix("Bearer ")


@asynccontextmanager
async def bridge(programs: Path, url: str, token: str, mode: str = "auto") -> AsyncGenerator[Client]:
    """A host that has started the command."""
    command = str(programs / "everstep")
    parameters = StdioServerParameters(command=command, args=["mcp", "--url", url, "--token", token])
    async with Client(parameters, mode=mode) as client:
        yield client


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_a_host_uses_an_agent_over_stdio(programs: Path, url: str, ann: ApiCaller, mode: str) -> None:
    """17.6.7"""
    told: list[float] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        del total, message
        told.append(progress)

    async with bridge(programs, url, token_of(ann), mode) as client:
        listed = (await client.list_tools()).tools
        assert [tool.name for tool in listed] == ["start", "status", "answer", "result"]
        started = (await client.call_tool("start", {"agent": "clerk", "message": "ask"})).structured_content
        assert started is not None
        named = {"execution_id": started["execution_id"]}
        asked = await client.call_tool("result", named)
        assert asked.structured_content is not None
        assert [each["prompt"] for each in asked.structured_content["requests"]] == ["Which day?"]
        refused = await client.call_tool("answer", {**named, "text": "Sunday"})
        assert refused.is_error
        await client.call_tool("answer", {**named, "text": "Friday"})
        done = (await client.call_tool("result", named)).structured_content
        assert done is not None
        assert done["response"] == "So be it: Friday"
        with pytest.raises(MCPError, match="Unknown tool: stop"):
            await client.call_tool("stop", {})
        # A call that another person decides about.
        started = (
            await client.call_tool("start", {"agent": "clerk", "message": "refund"})
        ).structured_content
        assert started is not None
        waiting = {"execution_id": started["execution_id"], "wait_seconds": 0.2}
        await client.call_tool("result", waiting, progress_callback=on_progress)
    assert told


async def test_a_call_outlives_an_unavailable_api(programs: Path, app: FastAPI, ann: ApiCaller) -> None:
    """17.6.7"""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    async with bridge_while_serving(programs, app, port, token_of(ann)) as (client, stop):
        await client.list_tools()
        await stop()
        calling = asyncio.create_task(client.call_tool("start", {"agent": "clerk", "message": "hello"}))
        await asyncio.wait((calling,), timeout=0.3)
        assert not calling.done()
        async with serve_app(app, "127.0.0.1", port):
            started = (await calling).structured_content
            assert started is not None
            done = await client.call_tool("result", {"execution_id": started["execution_id"]})
            assert done.structured_content is not None
            assert done.structured_content["response"] == "You said: hello"
            assert len((await ann.get("/agent/executions"))["items"]) == 1


@asynccontextmanager
async def bridge_while_serving(
    programs: Path, app: FastAPI, port: int, token: str
) -> AsyncGenerator[tuple[Client, Any]]:
    """A host, and a function that stops the API."""
    serving = serve_app(app, "127.0.0.1", port)
    url = await serving.__aenter__()
    stopped = False

    async def stop() -> None:
        nonlocal stopped
        stopped = True
        await serving.__aexit__(None, None, None)

    async with bridge(programs, url, token) as client:
        yield client, stop
    if not stopped:
        await stop()


async def test_refusals_and_malformed_lines_are_errors_on_stdout_and_nothing_else_is(
    programs: Path, url: str
) -> None:
    """17.6.7"""
    command = (str(programs / "everstep"), "mcp", "--url", url, "--token", "nonsense")
    process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, stderr=PIPE)
    parameters = {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "x", "version": "1"},
    }
    lines = [
        b"no JSON",
        json.dumps({"jsonrpc": "2.0", "id": 7, "method": "initialize", "params": parameters}).encode(),
    ]
    async with asyncio.timeout(60):
        output, errors = await process.communicate(b"\n".join([*lines, b""]))
    assert process.returncode == 0, errors
    replies = [json.loads(line) for line in output.splitlines()]
    assert [reply["jsonrpc"] for reply in replies] == ["2.0"] * len(replies)
    (malformed,) = (reply for reply in replies if reply["id"] is None)
    assert malformed["error"]["code"] == -32700
    assert "send one JSON object" in malformed["error"]["message"]
    (refused,) = (reply for reply in replies if reply["id"] == 7)
    assert "token" in refused["error"]["message"]


async def test_without_an_installation_it_says_where_it_has_looked(programs: Path, tmp_path: Path) -> None:
    """17.6.7"""
    own = environment(HOME=str(tmp_path))
    own.pop("EVERSTEP_API_URL", None)
    process = await asyncio.create_subprocess_exec(
        str(programs / "everstep"), "mcp", cwd=tmp_path, env=own, stdin=PIPE, stdout=PIPE, stderr=PIPE
    )
    async with asyncio.timeout(60):
        output, errors = await process.communicate(b"")
    assert (process.returncode, output) == (1, b"")
    assert f"--data; {tmp_path}/.local/state/everstep/" in errors.decode()


async def test_an_interrupt_ends_it(programs: Path, url: str, ann: ApiCaller) -> None:
    """17.6.7: also while it waits for its host."""
    command = (str(programs / "everstep"), "mcp", "--url", url, "--token", token_of(ann))
    process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n')
    async with asyncio.timeout(60):
        await process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert await process.wait() == -signal.SIGINT


async def test_the_example_of_a_host_answers_and_approves(
    url: str, ann: ApiCaller, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """17.6.3"""
    monkeypatch.setenv("EVERSTEP_API_TOKEN", token_of(ann))
    host = runpy.run_path(str(EXAMPLE / "host.py"))
    for message, words in (("ask", "So be it: Monday"), ("book", "a room at Harbour Inn")):
        await host["main"]("clerk", message, url)
        assert words in capsys.readouterr().out


def test_the_configuration_of_the_example_starts_the_command() -> None:
    servers = json.loads((EXAMPLE / "mcp.json").read_text())["mcpServers"]
    assert servers == {"everstep": {"command": "everstep", "args": ["mcp"]}}
    assert json.dumps({"mcpServers": servers}) in (EXAMPLE.parents[1] / "docs" / "mcp-server.md").read_text()
