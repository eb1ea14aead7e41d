"""Stands between viewers and a gateway: connections are cut here, and what is said gets stuck."""

import asyncio
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field


@dataclass
class Relay:
    """On a port that stays, whichever gateway is behind it."""

    port: int = 0
    refused: int | None = None
    """How many were turned away, from when this is set to 0."""
    _behind: asyncio.Queue[int] = field(default_factory=lambda: asyncio.Queue[int](1))
    _flows: asyncio.Event = field(default_factory=asyncio.Event)
    _writers: set[StreamWriter] = field(default_factory=set[StreamWriter])

    def leads_to(self, port: int | None) -> None:
        """From now on to this gateway; whoever comes while there is none waits."""
        if not self._behind.empty():
            self._behind.get_nowait()
        if port is not None:
            self._behind.put_nowait(port)

    def cut(self) -> None:
        """End all connections, without a word."""
        for writer in self._writers:
            writer.transport.abort()

    def stop(self) -> None:
        """Nothing gets through, and nothing is closed."""
        self._flows.clear()

    def go_on(self) -> None:
        """What is stuck gets through."""
        self._flows.set()

    async def took(self, reader: StreamReader, writer: StreamWriter) -> None:
        """A viewer came."""
        if self.refused is not None:
            self.refused += 1
            writer.transport.abort()
            return
        port = await self._behind.get()
        self._behind.put_nowait(port)
        there, other = await asyncio.open_connection("127.0.0.1", port)
        both = {writer, other}
        self._writers |= both
        try:
            await asyncio.gather(self._carried(reader, other), self._carried(there, writer))
        finally:
            self._writers -= both

    async def _carried(self, reader: StreamReader, writer: StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                await self._flows.wait()
                writer.write(data)
        writer.close()


@asynccontextmanager
async def relaying(port: int) -> AsyncGenerator[Relay]:
    """A relay that leads to this gateway."""
    relay = Relay()
    relay.leads_to(port)
    relay.go_on()
    server = await asyncio.start_server(relay.took, "127.0.0.1", 0)
    relay.port = server.sockets[0].getsockname()[1]
    try:
        yield relay
    finally:
        server.close()
        relay.go_on()
        relay.cut()
        await server.wait_closed()
