"""Using a toolset in the same way as the runtime."""

import asyncio
import sys
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

from everstep.agent_domain.tools.tools import ToolContext
from everstep.agent_domain.tools.toolsets import Asker, ListedTool
from everstep.capabilities.mcp import Server, StdioServer, UseMCP, close_connections

EXECUTION = UUID(int=7)
HOSTILE = Path(__file__).parent / "hostile.py"
UNSTOPPED = 20.0
"""Seconds after which a test fails: the awaited event will not happen any more."""


def hostile(mode: str = "", env: Mapping[str, str] | None = None) -> StdioServer:
    return StdioServer(sys.executable, ["-I", "-S", str(HOSTILE), *([mode] if mode else [])], env or {})


class ServerTools:
    """The tools that a server listed, by their original names."""

    def __init__(self, use: UseMCP, tenant: str, listed: Mapping[str, ListedTool]) -> None:
        self.use = use
        self.tenant = tenant
        self.listed = listed

    @property
    def names(self) -> list[str]:
        return [each.name for each in self.listed.values()]

    async def call(self, tool: str, /, **args: Any) -> str:
        context = ToolContext(EXECUTION, "c1", 1, tenant_id=self.tenant)
        return await self.use.toolset.tool(self.listed[tool]).call(args, context)


async def tools_of(use: UseMCP, tenant: str = "t1") -> ServerTools:
    """The listed tools, after a round trip through their recorded form."""
    listed = await use.toolset.list_tools(Asker(EXECUTION, tenant))
    recorded = [ListedTool.from_dict(each.to_dict()) for each in listed]
    return ServerTools(use, tenant, {each.origin["tool"]: each for each in recorded})


@asynccontextmanager
async def open_tools(server: Server, prefix: str = "s", /, **options: Any) -> AsyncGenerator[ServerTools]:
    """The toolset's tools; at the end all connections are closed."""
    try:
        yield await tools_of(UseMCP(server, prefix, **options))
    finally:
        await close_connections()


async def wait_until(holds: Callable[[], bool]) -> None:
    """Wait for an effect of another process."""
    async with asyncio.timeout(UNSTOPPED):
        while not holds():  # noqa: ASYNC110 -- it happens in another process
            await asyncio.sleep(0.01)


def is_running(pid: int) -> bool:
    """Whether it runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in {"Z", "X"}
    except OSError:
        return False
