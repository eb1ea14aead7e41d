"""A relay between viewers and a gateway: connections are cut here, and frames get stuck."""

import asyncio
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field


@dataclass
class Relay:
    """A relay on a port that stays the same for every gateway behind it."""

    port: int = 0
    refused: int | None = None
    """Count of refused connections, once it is set to 0."""
    _behind: asyncio.Queue[int] = field(default_factory=lambda: asyncio.Queue[int](1))
    _flows: asyncio.Event = field(default_factory=asyncio.Event)
    _writers: set[StreamWriter] = field(default_factory=set[StreamWriter])

    def lead_to(self, port: int | None) -> None:
        """Relay to this gateway from now on; new connections wait while there is none."""
        if not self._behind.empty():
            self._behind.get_nowait()
        if port is not None:
            self._behind.put_nowait(port)

    def cut(self) -> None:
        """End all connections without a close frame."""
        for writer in self._writers:
            writer.transport.abort()

    def stop(self) -> None:
        """Hold all bytes, and close nothing."""
        self._flows.clear()

    def resume(self) -> None:
        """Relay the held bytes."""
        self._flows.set()

    async def on_connection(self, reader: StreamReader, writer: StreamWriter) -> None:
        if self.refused is not None:
            self.refused += 1
            writer.transport.abort()
            return
        port = await self._behind.get()
        self._behind.put_nowait(port)
        try:
            there, other = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            writer.transport.abort()
            return
        both = {writer, other}
        self._writers |= both
        try:
            await asyncio.gather(self._carry(reader, other), self._carry(there, writer))
        finally:
            self._writers -= both

    async def _carry(self, reader: StreamReader, writer: StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                await self._flows.wait()
                writer.write(data)
        writer.close()


@asynccontextmanager
async def open_relay(port: int) -> AsyncGenerator[Relay]:
    """Open a relay to this gateway."""
    relay = Relay()
    relay.lead_to(port)
    relay.resume()
    server = await asyncio.start_server(relay.on_connection, "127.0.0.1", 0)
    relay.port = server.sockets[0].getsockname()[1]
    try:
        yield relay
    finally:
        server.close()
        relay.resume()
        relay.cut()
        await server.wait_closed()
