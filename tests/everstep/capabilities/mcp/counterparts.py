"""Third-party MCP servers."""

import asyncio
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from everstep.capabilities.mcp import HttpServer, StdioServer
from tests.everstep.capabilities.mcp.using import UNSTOPPED
from tests.node import installed_modules, node

LOCK = Path(__file__).parent / "node"
TIME = StdioServer(sys.executable, ["-m", "mcp_server_time", "--local-timezone", "UTC"])


def _package(name: str) -> str:
    return str(installed_modules(LOCK) / "@modelcontextprotocol" / name / "dist" / "index.js")


def everything() -> StdioServer:
    return StdioServer(node(), [_package("server-everything"), "stdio"])


def filesystem(folder: Path) -> StdioServer:
    return StdioServer(node(), [_package("server-filesystem"), str(folder)])


def free_port() -> int:
    """A free port. The server has no option to choose one itself."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return held.getsockname()[1]


@asynccontextmanager
async def everything_over_http(port: int | None = None) -> AsyncGenerator[HttpServer]:
    """The same server over HTTP."""
    port = port or free_port()
    process = await asyncio.create_subprocess_exec(
        *(node(), _package("server-everything"), "streamableHttp"),
        env={"PORT": str(port)},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr
    try:
        said = ""
        async with asyncio.timeout(UNSTOPPED):
            while f"listening on port {port}" not in said:
                line = await process.stderr.readline()
                assert line, f"it did not start: {said}"
                said += line.decode()
        reading = asyncio.create_task(process.stderr.read())
        yield HttpServer(f"http://127.0.0.1:{port}/mcp")
        process.kill()
        await reading
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
