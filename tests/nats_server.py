"""A real NATS server, as a process that tests kill and start again."""

import asyncio
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from signal import SIGCONT, SIGSTOP

PROGRAM = Path(sys.executable).with_name("nats-server")
DEADLINE = 20.0


class NatsServer:
    """A server at one port, whose processes follow each other."""

    def __init__(self, *options: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = int(free.getsockname()[1])
        self._options = options
        self._process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process
        return self._process.pid

    async def start(self) -> None:
        """Start it, and wait until it accepts connections."""
        nowhere = asyncio.subprocess.DEVNULL
        command = PROGRAM, "-a", "127.0.0.1", "-p", str(self.port), *self._options
        self._process = await asyncio.create_subprocess_exec(*command, stdout=nowhere, stderr=nowhere)
        async with asyncio.timeout(DEADLINE):
            while True:
                assert self._process.returncode is None, "nats-server has ended"
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", self.port)
                except OSError:
                    await asyncio.sleep(0.005)
                else:
                    writer.close()
                    return

    async def kill(self) -> None:
        """Kill it as a crash does."""
        if self._process and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    def hang(self) -> None:
        """Let it stop without an end: its connections stay open."""
        assert self._process
        self._process.send_signal(SIGSTOP)

    def go_on(self) -> None:
        """End a hang."""
        assert self._process
        self._process.send_signal(SIGCONT)


@asynccontextmanager
async def open_nats(*options: str) -> AsyncGenerator[NatsServer]:
    """A server that runs within the block."""
    server = NatsServer(*options)
    await server.start()
    try:
        yield server
    finally:
        await server.kill()
