"""Configuration of servers, and protection of its secrets."""

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.tools.toolsets import Toolset
from everstep.capabilities.mcp import HttpServer, StdioServer, UseMCP

SECRET = "sk-very-secret"  # noqa: S105 -- a fake secret


def untyped(value: Any) -> Any:
    """Untyped, because a type checker would refuse these values."""
    return value


STDIO = StdioServer("server", [f"--key={SECRET}"], {"KEY": SECRET})
HTTP = HttpServer(f"https://me:{SECRET}@example.com/mcp?key={SECRET}", {"Authorization": f"Bearer {SECRET}"})


@pytest.mark.parametrize(
    "shown", [STDIO, HTTP, UseMCP(STDIO), UseMCP(HTTP), HttpServer(HTTP.url, lambda tenant: {"X": tenant})]
)
def test_no_secret_is_printed(shown: object) -> None:
    assert SECRET not in f"{shown!r} {shown}"


@pytest.mark.parametrize(
    ("server", "name"),
    [
        (StdioServer("npx", ["-y", "@modelcontextprotocol/server-everything", "stdio"]), "everything"),
        (StdioServer("uvx", ["mcp-server-time@2026.10.19"]), "time"),
        (StdioServer("python3.11", ["-m", "mcp_server_time"]), "time"),
        (StdioServer("/usr/bin/node", ["/opt/server-filesystem/dist/index.js", "/data"]), "filesystem"),
        (StdioServer("./github-mcp-server", ["stdio"]), "github"),
        (StdioServer("npx", ["-y"]), "mcp"),
        (HttpServer("https://mcp.example.com:8443/mcp"), "mcp_example_com"),
    ],
)
def test_names_begin_with_the_kind_of_the_server(server: StdioServer | HttpServer, name: str) -> None:
    assert UseMCP(server).toolset.name == name
    assert UseMCP(server).toolset.policy.prefix == name


def test_a_custom_prefix_takes_precedence_and_may_be_empty() -> None:
    assert UseMCP(STDIO, "mine").toolset.name == "mine"
    assert UseMCP(STDIO, "").toolset.policy.prefix == ""
    assert UseMCP(STDIO, "").toolset.name == "server"


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: StdioServer("npx", "-y server"), "pass a list"),
        (lambda: StdioServer(""), "command"),
        (lambda: StdioServer("a", ["b\0"]), "NUL"),
        (partial(StdioServer, "a", env=untyped({"KEY": 1})), "'KEY' is not"),
        (lambda: HttpServer("localhost:80/mcp"), "http:// or https://"),
        (lambda: HttpServer("http://[::1"), "http:// or https://"),
        (lambda: HttpServer("http://a", {"X": f"{SECRET}\r\nY: 1"}), "'X' cannot be sent"),
        (partial(HttpServer, "http://a", untyped(["X"])), "headers must be a map"),
        (partial(UseMCP, untyped("npx server")), "StdioServer"),
        (lambda: UseMCP(STDIO, "a b"), "prefix"),
        (lambda: UseMCP(STDIO, "x" * 33), "prefix"),
        (lambda: UseMCP(STDIO, tools=[]), "leave it out for all"),
        (lambda: UseMCP(STDIO, tools="read_*"), "leave it out for all"),
        (lambda: UseMCP(STDIO, timeout_seconds=0), "timeout_seconds must be greater than zero"),
        (lambda: UseMCP(STDIO, idle_seconds=float("inf")), "idle_seconds must be finite"),
    ],
)
def test_an_invalid_configuration_is_refused_with_what_to_change(
    make: Callable[[], object], told: str
) -> None:
    with pytest.raises(InvalidInput, match=told) as refused:
        make()

    assert SECRET not in str(refused.value)


def test_servers_with_the_same_connection_settings_are_equal() -> None:
    assert StdioServer("a", ["b"], {"c": "d"}) == StdioServer("a", ("b",), {"c": "d"})
    assert len({StdioServer("a", cwd=Path("b")), StdioServer("a", cwd=Path("b")), StdioServer("a")}) == 2


def test_it_installs_its_toolset() -> None:
    class Builder:
        def __init__(self) -> None:
            self.toolsets: list[Toolset] = []

        def with_toolset(self, toolset: Toolset) -> None:
            self.toolsets.append(toolset)

    builder, use = Builder(), UseMCP(STDIO, "mine")

    use.install(builder)

    assert builder.toolsets == [use.toolset]
    assert isinstance(use.toolset, Toolset)


def test_without_the_extra_the_error_names_what_to_install() -> None:
    code = """
import sys
sys.modules["mcp"] = None
from everstep import StdioServer, UseMCP
try:
    UseMCP(StdioServer("npx"))
except ModuleNotFoundError as error:
    print(error)
"""
    command = [sys.executable, "-c", code]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603 -- our own words

    assert ran.stdout == "MCP servers need the extra 'mcp': pip install 'everstep[mcp]'\n"
