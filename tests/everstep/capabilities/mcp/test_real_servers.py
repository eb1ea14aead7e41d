"""Third-party servers: npm `server-everything` and `server-filesystem`, PyPI `mcp-server-time`."""

import asyncio
import json
import re
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from everstep.agent_domain.errors import ToolFailed
from everstep.agent_domain.tools.tools import Effect
from everstep.capabilities.mcp import Server, StdioServer, UseMCP
from everstep.capabilities.mcp.errors import McpError
from tests.everstep.capabilities.mcp.counterparts import (
    TIME,
    everything,
    everything_over_http,
    filesystem,
    free_port,
)
from tests.everstep.capabilities.mcp.using import open_tools, tools_of


@asynccontextmanager
async def over_stdio() -> AsyncGenerator[StdioServer]:
    yield everything()


Way = Callable[[], AbstractAsyncContextManager[Server]]


@pytest.mark.parametrize("way", [over_stdio, everything_over_http])
async def test_everything_works_over_both_transports(way: Way) -> None:
    async with way() as server, open_tools(server, "all") as tools:
        assert {"all_echo", "all_get-sum", "all_get-tiny-image"} <= set(tools.names)
        assert tools.listed["echo"].schema["required"] == ["message"]
        assert tools.listed["echo"].options.effect is Effect.IDEMPOTENT
        assert tools.listed["toggle-simulated-logging"].options.effect is Effect.AT_MOST_ONCE

        assert await tools.call("echo", message="hällo") == "Echo: hällo"
        assert await tools.call("get-sum", a=2, b=3) == "The sum of 2 and 3 is 5."
        assert "[image, image/png, 4,033 bytes, not shown]" in await tools.call("get-tiny-image")
        assert "temperature" in json.loads(await tools.call("get-structured-content", location="Chicago"))
        assert "[link to the resource demo://" in await tools.call("get-resource-links", count=3)
        blob = await tools.call("get-resource-reference", resourceType="Blob", resourceId=1)
        # The blob contains the time, so its length varies.
        told = r"\[resource demo://resource/dynamic/blob/1, text/plain, \d+ bytes, not shown\]"
        assert re.search(told, blob)
        text = await tools.call("get-resource-reference", resourceType="Text", resourceId=1)
        assert "[resource demo://resource/dynamic/text/1]\nResource 1:" in text
        with pytest.raises(ToolFailed, match="expected string"):
            await tools.call("echo")


@pytest.mark.parametrize("way", [over_stdio, everything_over_http])
async def test_calls_run_concurrently_and_a_cancelled_one_affects_no_other(way: Way) -> None:
    async with way() as server, open_tools(server) as tools:
        long = [
            asyncio.create_task(tools.call("trigger-long-running-operation", duration=1, steps=2))
            for _ in range(50)
        ]
        left = asyncio.create_task(tools.call("trigger-long-running-operation", duration=60, steps=2))
        assert await tools.call("echo", message="meanwhile") == "Echo: meanwhile"

        began = time.perf_counter()
        left.cancel()
        await asyncio.wait({left})
        assert left.cancelled()
        assert time.perf_counter() - began < 0.1

        answers = await asyncio.gather(*long)
        assert all("completed" in answer for answer in answers)
        assert time.perf_counter() - began < 10


async def test_a_restarted_http_server_is_reconnected() -> None:
    """The restarted server does not know the session."""
    port = free_port()
    async with everything_over_http(port) as server:
        tools = await tools_of(UseMCP(server, "s"))
        assert await tools.call("echo", message="one") == "Echo: one"
    async with everything_over_http(port):
        assert await tools.call("echo", message="two") == "Echo: two"
        assert "logging" in await tools.call("toggle-simulated-logging")
    async with everything_over_http(port):
        # A tool that may run only once is retried as well: it never began.
        assert "logging" in await tools.call("toggle-simulated-logging")
    with pytest.raises(McpError, match=r"MCP server 's': it cannot be reached \(ConnectError\)"):
        await tools.call("echo", message="three")
    await tools.use.aclose()


async def test_files_are_read_and_written(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("content of a")
    async with open_tools(
        filesystem(tmp_path), "files", tools=["read_text_file", "write_file", "list_*"]
    ) as tools:
        assert {"files_read_text_file", "files_write_file", "files_list_directory"} <= set(tools.names)
        assert "files_move_file" not in tools.names

        assert await tools.call("read_text_file", path=str(tmp_path / "a.txt")) == "content of a"
        await tools.call("write_file", path=str(tmp_path / "b.txt"), content="content of b")
        assert (tmp_path / "b.txt").read_text() == "content of b"
        assert "[FILE] b.txt" in await tools.call("list_directory", path=str(tmp_path))
        with pytest.raises(ToolFailed, match="Access denied"):
            await tools.call("read_text_file", path="/etc/passwd")


async def test_the_time_is_returned() -> None:
    async with open_tools(TIME, "time") as tools:
        assert tools.names == ["time_get_current_time", "time_convert_time"]
        assert json.loads(await tools.call("get_current_time", timezone="UTC"))["timezone"] == "UTC"
        with pytest.raises(ToolFailed, match="Invalid timezone"):
            await tools.call("get_current_time", timezone="Mars/Olympus")
