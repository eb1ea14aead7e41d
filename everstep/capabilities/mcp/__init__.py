"""Tools of MCP servers: `UseMCP(StdioServer("npx", ["-y", "some-server"]))`, `UseMCP(HttpServer(url))`.

servers.py             addresses of servers, with their secrets
naming.py              names of their tools
results.py             results as text
toolset.py             the toolset: listing, calls, retries
shared_connections.py  one session, owned by one task
transports.py          opens the transport, with the tenant's headers
stdio.py               ... to a program, and guard.py: ends it when the worker is killed
http_transport.py      ... to a URL
"""

from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Protocol, cast

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.tools.toolsets import Toolset
from everstep.agent_domain.values import valid_number
from everstep.capabilities.mcp.connection_registry import CONNECTIONS
from everstep.capabilities.mcp.naming import usable_prefix
from everstep.capabilities.mcp.policy import McpPolicy
from everstep.capabilities.mcp.servers import HttpServer, Server, StdioServer

if TYPE_CHECKING:
    from everstep.capabilities.mcp.toolset import McpToolset

__all__ = ["HttpServer", "Server", "StdioServer", "UseMCP", "close_connections"]


class TakesToolsets(Protocol):
    """The part of the agent builder that is needed here."""

    def with_toolset(self, toolset: Toolset) -> object:
        """Add tools that are listed once for each execution."""
        ...


class UseMCP:
    """The tools of an MCP server, listed once for each execution.

    Args:
        server: A program or a URL.
        prefix: The prefix of the tools' names; by default it follows from the program or the host.
        tools: Globs over the server's own names; None for all.
        timeout_seconds: The limit for a call, connecting included.
        connect_seconds: The limit for opening a connection.
        idle_seconds: How long an unused connection stays open.
        max_result_chars: Where a result is cut.
    """

    name = "mcp"

    def __init__(
        self,
        server: Server,
        prefix: str | None = None,
        tools: Iterable[str] | None = None,
        *,
        timeout_seconds: float = 60.0,
        connect_seconds: float = 30.0,
        idle_seconds: float = 300.0,
        max_result_chars: int = 50_000,
    ) -> None:
        if not _is_server(server):
            raise InvalidInput("UseMCP needs a server; pass StdioServer(command, args) or HttpServer(url)")
        name = usable_prefix(server.default_name) if prefix is None else prefix
        if usable_prefix(name) != name:
            raise InvalidInput(f"the prefix {name!r} has to be at most 32 letters, digits, '_' and '-'")
        self.toolset = _toolset(
            name or usable_prefix(server.default_name),
            server,
            McpPolicy(
                prefix=name,
                tools=_globs(tools),
                timeout_seconds=_positive("timeout_seconds", timeout_seconds),
                connect_seconds=_positive("connect_seconds", connect_seconds),
                idle_seconds=_positive("idle_seconds", idle_seconds),
                most_characters=int(_positive("max_result_chars", max_result_chars)),
            ),
        )

    def __repr__(self) -> str:
        return f"UseMCP({self.toolset.server!r}, prefix={self.toolset.policy.prefix!r})"

    def install(self, builder: TakesToolsets) -> None:
        """Add the toolset."""
        builder.with_toolset(self.toolset)

    async def aclose(self) -> None:
        """Close the connections to this server in this event loop; the next call opens one again."""
        await self.toolset.aclose()


async def close_connections() -> None:
    """Close all connections of this event loop, and end the programs behind them: for a worker that stops."""
    await CONNECTIONS.close()


def _toolset(name: str, server: Server, policy: McpPolicy) -> "McpToolset":
    """Import late: the SDK is an optional extra and slow to import, so it is loaded when a server is used."""
    try:
        module = import_module("everstep.capabilities.mcp.toolset")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in {"mcp", "mcp_types"}:
            raise
        raise ModuleNotFoundError(
            "MCP servers need the extra 'mcp': pip install 'everstep[mcp]'", name=error.name
        ) from None
    return cast("type[McpToolset]", module.McpToolset)(name, server, policy)


def _is_server(given: object) -> bool:
    return isinstance(given, StdioServer | HttpServer)


def _globs(tools: Iterable[object] | None) -> tuple[str, ...] | None:
    if tools is None:
        return None
    globs = () if isinstance(tools, str) else tuple(tools)
    names = tuple(each for each in globs if isinstance(each, str))
    if not globs or len(names) != len(globs):
        raise InvalidInput(
            'tools is a list of names or globs, such as tools=["read_*"]; leave it out for all'
        )
    return names


def _positive(name: str, value: object) -> float:
    seconds = valid_number(value, name)
    if seconds <= 0:
        raise InvalidInput(f"{name} must be greater than zero")
    return seconds
