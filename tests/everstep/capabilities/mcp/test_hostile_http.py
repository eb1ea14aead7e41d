"""Servers over HTTP: headers of tenants, and network errors."""

import asyncio
import logging
import resource
import time
from collections.abc import AsyncGenerator, Callable

import pytest
import pytest_asyncio

from everstep.agent_domain.values import json_text
from everstep.capabilities.mcp import HttpServer, UseMCP, close_connections
from everstep.capabilities.mcp.connection_registry import CONNECTIONS
from everstep.capabilities.mcp.errors import McpError, McpTimeout
from everstep.capabilities.mcp.stdio import MAX_MESSAGE_BYTES
from tests.everstep.capabilities.mcp.counterparts import free_port
from tests.everstep.capabilities.mcp.hostile_http import HostileHttp, hostile_http
from tests.everstep.capabilities.mcp.using import open_tools, tools_of, wait_until

SECRET = "sk-very-secret"  # noqa: S105 -- a fake secret


@pytest_asyncio.fixture
async def http() -> AsyncGenerator[HostileHttp]:
    async with hostile_http() as server:
        yield server
        await close_connections()


def token_of(tenant: str) -> dict[str, str]:
    return {"Authorization": f"Bearer token-of-{tenant}"}


async def async_token_of(tenant: str) -> dict[str, str]:
    await asyncio.sleep(0)
    return token_of(tenant)


@pytest.mark.parametrize("headers", [token_of, async_token_of])
async def test_each_tenant_has_its_own_headers_and_connection(
    http: HostileHttp, headers: Callable[[str], dict[str, str]]
) -> None:
    use = UseMCP(HttpServer(http.url, headers), "s")
    one, other = await tools_of(use, "one"), await tools_of(use, "other")

    assert await one.call("whoami") == "Bearer token-of-one"
    assert await other.call("whoami") == "Bearer token-of-other"
    assert await one.call("whoami") == "Bearer token-of-one"
    assert len(CONNECTIONS) == 2
    assert http.sessions == 2


async def test_static_headers_are_sent_with_every_request(http: HostileHttp) -> None:
    async with open_tools(HttpServer(http.url, {"X-Key": SECRET})) as tools:
        await tools.call("whoami")

        assert {headers.get("x-key") for _, headers in http.seen} == {SECRET}


async def test_headers_are_in_no_record_no_error_and_no_log(
    http: HostileHttp, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with open_tools(HttpServer(http.url, {"Authorization": f"Bearer {SECRET}"})) as tools:
        recorded = json_text([each.to_dict() for each in tools.listed.values()])
        with pytest.raises(McpError, match=r"MCP server 's': no \[hidden\]") as failed:
            await tools.call("echo_secret")

    assert SECRET not in recorded + str(failed.value)
    ours = [each.getMessage() for each in caplog.records if each.name.startswith("everstep")]
    assert SECRET not in "".join(ours)


async def test_a_header_function_that_raises_is_named_without_the_exceptions_text(http: HostileHttp) -> None:
    def broken(tenant: str) -> dict[str, str]:
        raise RuntimeError(f"{SECRET} of {tenant}")

    with pytest.raises(McpError, match="the function for them raised RuntimeError") as failed:
        await tools_of(UseMCP(HttpServer(http.url, broken), "s"))
    assert SECRET not in str(failed.value)


async def test_headers_are_created_again_when_the_server_rejects_them(http: HostileHttp) -> None:
    http.token = "first"  # noqa: S105 -- a fake secret
    async with open_tools(HttpServer(http.url, lambda _: {"Authorization": f"Bearer {http.token}"})) as tools:
        assert await tools.call("whoami") == "Bearer first"
        http.token = "another"  # noqa: S105 -- a fake secret

        assert await tools.call("whoami") == "Bearer another"


async def test_rejected_headers_are_not_retried_for_long(http: HostileHttp) -> None:
    http.token = "another"  # noqa: S105 -- a fake secret
    with pytest.raises(McpError, match="MCP server 's': it answered with HTTP 401 Unauthorized") as failed:
        await tools_of(UseMCP(HttpServer(http.url, {"Authorization": f"Bearer {SECRET}"}), "s"))

    assert SECRET not in str(failed.value)
    assert len(http.seen) == 2


@pytest.mark.parametrize("status", [400, 404])
async def test_an_expired_session_is_begun_again(http: HostileHttp, status: int) -> None:
    async with open_tools(HttpServer(http.url)) as tools:
        slow = asyncio.create_task(tools.call("slow", seconds=0.5))
        await wait_until(lambda: "tools/call" in http.methods)
        http.forgets_with = status

        assert await tools.call("whoami") == "nobody"
        assert http.sessions == 2
        # The first session stays open for the calls that still wait for it.
        assert await slow == "slept"


@pytest.mark.parametrize(
    ("tool", "args", "told"),
    [
        ("huge", {}, "the answer is larger than the 8,388,608 bytes that are read"),
        ("gzipped", {}, "it compresses its answers, although it was asked not to"),
        ("cut", {}, "broke off"),
        ("html", {}, "Unexpected content type: text/html"),
        ("status", {"status": 403}, "it answered with HTTP 403 Forbidden$"),
        ("status", {"status": 500}, "it answered with HTTP 500 Internal Server Error; whether it did what"),
        ("status", {"status": 599}, "it answered with HTTP 599; whether it did what"),
    ],
)
async def test_an_invalid_answer_fails_its_call_only(
    http: HostileHttp, tool: str, args: dict[str, int], told: str
) -> None:
    async with open_tools(HttpServer(http.url)) as tools:
        slow = asyncio.create_task(tools.call("slow", seconds=0.3))
        with pytest.raises(McpError, match=f"MCP server 's': .*{told}"):
            await tools.call(tool, **args)

        assert await slow == "slept"
        assert http.sessions == 1


async def test_a_huge_answer_takes_no_memory(http: HostileHttp) -> None:
    async with open_tools(HttpServer(http.url)) as tools:
        with pytest.raises(McpError):
            await tools.call("huge")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with pytest.raises(McpError):
            await tools.call("huge")

        # The server runs in this process as well, and has built an answer of this size before.
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 4 * MAX_MESSAGE_BYTES / 1024


async def test_an_answer_may_be_a_stream(http: HostileHttp) -> None:
    async with open_tools(HttpServer(http.url)) as tools:
        assert await tools.call("late_stream") == "by stream"


async def test_an_unreachable_server_is_reported() -> None:
    began = time.perf_counter()
    with pytest.raises(McpError, match=r"MCP server 's': it cannot be reached \(ConnectError\)$"):
        await tools_of(UseMCP(HttpServer(f"http://127.0.0.1:{free_port()}/mcp"), "s"))

    assert time.perf_counter() - began < 10


async def test_an_abandoned_call_blocks_no_other(http: HostileHttp) -> None:
    """Although the server ignores the cancel notification."""
    async with open_tools(HttpServer(http.url), timeout_seconds=0.3) as tools:
        with pytest.raises(McpTimeout, match=r"it did not answer within 0\.3s"):
            await tools.call("never")
        calling = asyncio.create_task(tools.call("never"))
        await wait_until(lambda: http.methods.count("tools/call") == 2)
        began = time.perf_counter()
        calling.cancel()
        await asyncio.wait({calling})

        assert time.perf_counter() - began < 0.1
        await wait_until(lambda: "notifications/cancelled" in http.methods)
        assert await tools.call("whoami") == "nobody"
