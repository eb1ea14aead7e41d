"""Temporal's server as one starts it by hand, with a file and the settings that its command gives it."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from temporalio.client import Client as TemporalClient
from temporalio.service import RPCError

from everstep.runtime.embedded.child import Child
from everstep.runtime.embedded.free_ports import LOCALHOST, free_port
from everstep.runtime.embedded.temporal_server import temporal_executable


@asynccontextmanager
async def plain_server(folder: Path) -> AsyncGenerator[str]:
    """Start the server; yield its address."""
    port = free_port()
    command = ["server", "start-dev", "--db-filename", "plain.db", "--port", str(port), "--headless"]
    log = folder / "plain.log"
    server = await Child.launch([temporal_executable(), *command], log=log, directory=folder)
    address = f"{LOCALHOST}:{port}"
    try:
        async with asyncio.timeout(60):
            while not await answers_at(address):  # noqa: ASYNC110 -- another process
                await asyncio.sleep(0.1)
        yield address
    finally:
        await server.kill()


async def answers_at(address: str) -> bool:
    """Whether a Temporal server answers."""
    try:
        await (await TemporalClient.connect(address)).count_workflows()
    except (RuntimeError, RPCError):
        return False
    return True
